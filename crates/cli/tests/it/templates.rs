//! Chat templates, rendered in the binary's hidden worker.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use girih_model::Limits;
use girih_model::words::template::{
    ChatTemplate, Conversation, Origin, RenderLimits, RenderRequest, Renderer, Span, SpecialTokens, WORKER_COMMAND,
};
use serde_json::{Map, Value, json};

fn renderer(limits: RenderLimits) -> Renderer {
    Renderer::new(PathBuf::from(env!("CARGO_BIN_EXE_girih")), vec![WORKER_COMMAND.into()], limits)
}

/// Limits for tests of results: time to spare on a busy machine.
fn patient() -> RenderLimits {
    RenderLimits { time: Duration::from_secs(60), ..RenderLimits::default() }
}

/// Renders with these special tokens; 2024-07-26 is the day.
fn render(
    renderer: &mut Renderer,
    template: &str,
    special: &[&str],
    conversation: &Conversation,
) -> Result<Vec<Span>, String> {
    let special: Vec<String> = special.iter().map(|&text| text.to_owned()).collect();
    let special = SpecialTokens::new(&special);
    let request = RenderRequest {
        template,
        variables: &Map::new(),
        special_tokens: &special,
        conversation,
        unix_seconds: 1_721_952_000,
    };
    renderer.render(&request).map_err(|error| error.to_string())
}

/// The rendered text of a conversation without special tokens.
fn text(renderer: &mut Renderer, template: &str, conversation: &Conversation) -> Result<String, String> {
    let spans = render(renderer, template, &[], conversation)?;
    assert!(spans.iter().all(|span| span.origin == Origin::Template));
    Ok(spans.into_iter().map(|span| span.text).collect())
}

fn user(content: impl Into<Value>) -> Conversation {
    Conversation { messages: vec![json!({"role": "user", "content": content.into()})], ..Conversation::default() }
}

/// The folder of the test data, or none and a word about it.
fn data() -> Option<PathBuf> {
    let folder = std::env::var_os("GIRIH_TEST_DATA").map(PathBuf::from);
    if folder.is_none() {
        eprintln!("skipped: GIRIH_TEST_DATA is not set");
    }
    folder
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A conversation in the form of the golden files.
fn conversation(case: &Value) -> Conversation {
    let list = |name: &str| case[name].as_array().cloned();
    Conversation {
        messages: list("messages").expect("messages are a list"),
        tools: list("tools"),
        documents: None,
        add_generation_prompt: case["add_generation_prompt"].as_bool().expect("a bool"),
        variables: case["kwargs"].as_object().cloned().unwrap_or_default(),
    }
}

#[test]
fn renderings_and_errors_equal_those_of_transformers() {
    let Some(data) = data() else { return };
    let mut renderer = renderer(patient());
    for model in ["llama3_2", "gemma3"] {
        let folder = data.join("chat-golden");
        let template = read(&folder.join(format!("{model}.jinja")));
        let cases = read(&folder.join(format!("{model}.jsonl")));
        let mut count = 0;
        for line in cases.lines() {
            let case: Value = serde_json::from_str(line).expect("a line of JSON");
            let got = text(&mut renderer, &template, &conversation(&case));
            let want = match case["error"].as_str() {
                Some(error) => {
                    let message = error.strip_prefix("TemplateError: ").expect("raise_exception's error");
                    Err(format!("the chat template refuses the conversation: {message}"))
                }
                None => Ok(case["rendered"].as_str().expect("a text").to_owned()),
            };
            assert_eq!(got, want, "{model}: {}", case["scenario"]);
            count += 1;
        }
        assert_eq!(count, 30, "{model}: the golden file holds 30 cases");
    }
}
