//! Chat templates of published families, compared with transformers' Jinja.
//!
//! `scripts/render_templates.py` makes the files in the folder `GIRIH_TEST_TEMPLATES`.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use girih_words::template::{Conversation, RenderLimits, RenderRequest, Renderer, SpecialTokens};
use serde_json::{Map, Value};

/// 2024-07-26 in seconds.
const DAY: i64 = 1_721_952_000;

fn conversation(case: &Value) -> Conversation {
    let list = |name: &str| case[name].as_array().cloned();
    Conversation {
        messages: list("messages").expect("messages are a list"),
        tools: list("tools"),
        documents: None,
        add_generation_prompt: case["add_generation_prompt"].as_bool().expect("a bool"),
        continues_last: case["continue_final_message"].as_bool().unwrap_or(false),
        variables: case["kwargs"].as_object().cloned().unwrap_or_default(),
    }
}

/// What a template makes of a conversation that differs from the recorded text.
fn difference(renderer: &mut Renderer, template: &str, case: &Value) -> Option<String> {
    let request = RenderRequest {
        template,
        variables: &Map::new(),
        special_tokens: &SpecialTokens::new(&[]),
        conversation: &conversation(case),
        has_typed_texts: false,
        unix_seconds: DAY,
    };
    let ours =
        renderer.render(&request).map(|spans| spans.into_iter().map(|span| span.text).collect::<String>());
    match (ours, case["rendered"].as_str()) {
        (Ok(ours), Some(theirs)) if ours == theirs => None,
        (Err(_), None) => None,
        (Ok(ours), Some(theirs)) => {
            let at = ours.bytes().zip(theirs.bytes()).position(|(ours, theirs)| ours != theirs);
            let at = at.unwrap_or(ours.len().min(theirs.len()));
            let near = |text: &str| {
                text.chars()
                    .skip(text[..text.floor_char_boundary(at)].chars().count().saturating_sub(20))
                    .take(60)
                    .collect::<String>()
            };
            Some(format!("{:?} instead of {:?}", near(&ours), near(theirs)))
        }
        (Err(error), Some(_)) => Some(format!("refused: {error}")),
        (Ok(_), None) => Some(format!("no error, instead of {}", case["error"])),
    }
}

/// A renderer, and the files with this ending in the folder of published templates, if one is set.
pub fn published(ending: &str) -> Option<(Renderer, Vec<PathBuf>)> {
    let folder = std::env::var_os("GIRIH_TEST_TEMPLATES")?;
    let renderer =
        Renderer::in_process(RenderLimits { time: Duration::from_secs(60), ..RenderLimits::default() });
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let mut paths: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|end| end == ending)).collect();
    paths.sort();
    Some((renderer, paths))
}

#[test]
fn templates_render_as_in_transformers() {
    let Some((mut renderer, paths)) = published("jsonl") else {
        return eprintln!("skipped: GIRIH_TEST_TEMPLATES is not set");
    };
    let (mut count, mut found) = (0, Vec::new());
    for path in &paths {
        let template = fs::read_to_string(path.with_extension("jinja")).expect("a template");
        for line in fs::read_to_string(path).expect("the cases").lines() {
            let case: Value = serde_json::from_str(line).expect("a case");
            count += 1;
            if let Some(difference) = difference(&mut renderer, &template, &case) {
                let name = path.file_stem().expect("a name").to_string_lossy();
                found.push(format!(
                    "{name} {} tools={}: {difference}",
                    case["scenario"],
                    case["tools"].is_array()
                ));
            }
        }
    }
    println!("{count} prompts of {} templates", paths.len());
    assert!(found.is_empty(), "{} differences:\n{}", found.len(), found.join("\n"));
}
