//! What the templates of published families write of a reply, with thinking and calls, is read back.
//!
//! The folder `GIRIH_TEST_TEMPLATES` has the templates (`NAME.jinja`); llama.cpp has a collection in
//! `models/templates`.

use std::fs;

use girih_words::reply::{ReplyMessage, ReplyStyle, ReplySyntax};
use girih_words::template::{Conversation, RenderRequest, Renderer, SpecialTokens};
use serde_json::{Map, Value, json};

use crate::templates::published;

/// 2024-07-26 in seconds.
const DAY: i64 = 1_721_952_000;

/// Styles whose arguments are text between tags that they may spell themselves: no reader can tell.
const UNQUOTED: [&str; 5] = ["qwen3-coder", "seed-oss", "glm", "minimax", "muse-glimmer"];

/// Templates whose replies cannot be read back, or whose calls girih does not read, with the reason.
const UNREAD: [(&str, &str); 6] = [
    ("Apriel-1.6-15b-Thinker-fixed", "the text [BEGIN FINAL RESPONSE] ends its thinking"),
    ("ByteDance-Seed-OSS", "nested arguments are written as Python prints them, and read as strings"),
    ("LFM2.5-8B-A1B", "strings are between quotes that nothing escapes within them"),
    ("MiniMax-M1", "calls are lines and no list"),
    ("NVIDIA-Nemotron-Nano-v2", "an earlier reply opens its thinking again and does not close it"),
    ("meetkai-functionary-medium-v3.1", "calls are <function=NAME>{…}</function>"),
];

/// Markers of all styles.
const MARKERS: &str =
    "a </tool_call><tool_call> [TOOL_CALLS] <|tool_call|> </think><think> ]}\" </TOOLCALL> ```\n";

fn tools() -> Vec<Value> {
    let schema = json!({"type": "object", "properties": {
        "text": {"type": "string"}, "count": {"type": "integer"}, "deep": {"type": "object"}, "list": {"type": "array"},
    }});
    ["write_file", "now"]
        .map(|name| json!({"type": "function", "function": {"name": name, "description": "It.", "parameters": schema}}))
        .to_vec()
}

/// The calls of each reply.
fn replies(style: &str) -> Vec<Vec<(&'static str, Value)>> {
    let nested = json!({"deep": {"a": [1, {"b": "c"}], "d": "e"}, "list": ["x", 2.5]});
    let text = json!({"text": "Orl\u{e9}ans \u{1f999}\n\tif a < b && c > \"d\": 'e' \\n", "count": -3});
    let mut replies = vec![
        vec![("now", json!({}))],
        vec![("write_file", text.clone())],
        vec![("write_file", nested)],
        vec![("write_file", text), ("now", json!({})), ("write_file", json!({"text": "123", "count": 4}))],
    ];
    if !UNQUOTED.contains(&style) {
        replies.push(vec![("write_file", json!({"text": MARKERS}))]);
    }
    replies
}

fn rendered(
    renderer: &mut Renderer,
    template: &str,
    messages: &[Value],
    add_generation_prompt: bool,
) -> Option<String> {
    let variables = json!({"bos_token": "<s>", "eos_token": "</s>"});
    let conversation = Conversation {
        messages: messages.to_vec(),
        tools: Some(tools()),
        documents: None,
        add_generation_prompt,
        continues_last: false,
        variables: Map::new(),
    };
    let request = RenderRequest {
        template,
        variables: variables.as_object().expect("an object"),
        special_tokens: &SpecialTokens::new(&[]),
        conversation: &conversation,
        has_typed_texts: false,
        unix_seconds: DAY,
    };
    let spans = renderer.render(&request).ok()?;
    Some(spans.into_iter().map(|span| span.text).collect())
}

/// Where the reply begins in a conversation that has one: behind the `prompt`, or behind what it shares with
/// the conversation, up to a whole tag or line.
fn begin_of_reply(prompt: &str, whole: &str) -> usize {
    let at = prompt.bytes().zip(whole.bytes()).position(|(one, other)| one != other);
    match at {
        Some(at) => prompt[..prompt.floor_char_boundary(at)].rfind(['\n', '>']).map_or(0, |at| at + 1),
        None => prompt.len().min(whole.len()),
    }
}

/// What the reader makes of a reply that differs from `calls`; `None` also if the template does not write it.
fn difference(
    renderer: &mut Renderer,
    template: &str,
    style: ReplyStyle,
    calls: &[(&str, Value)],
) -> Option<Result<(), String>> {
    let user = json!({"role": "user", "content": "Please."});
    let written: Vec<Value> = (0..)
        .zip(calls)
        .map(|(at, (name, arguments))| {
            let id = format!("call{at:05}");
            json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
        })
        .collect();
    let answer = json!({
        "role": "assistant", "content": "I look.", "reasoning_content": "Hm.\nA tool.", "thinking": "Hm.\nA tool.",
        "tool_calls": written,
    });
    let prompt = rendered(renderer, template, std::slice::from_ref(&user), true)?;
    let whole = rendered(renderer, template, &[user, answer], false)?;
    let begin = begin_of_reply(&prompt, &whole);
    let reply = &whole[begin..];
    if !calls.iter().all(|(name, _)| reply.contains(name)) {
        return None;
    }
    let syntax = ReplySyntax::spelled(style);
    let mut parser = syntax.parser(true).with_tools(&tools()).after_prompt(&whole[..begin]);
    let mut message = ReplyMessage::default();
    parser.push(reply).iter().for_each(|part| message.push(part));
    parser.finish().iter().for_each(|part| message.push(part));
    let found: Vec<(String, Value)> = message
        .calls
        .iter()
        .map(|call| {
            let arguments = serde_json::from_str(&call.arguments).unwrap_or(Value::Null);
            (call.name.clone(), arguments)
        })
        .collect();
    let want: Vec<(String, Value)> =
        calls.iter().map(|(name, arguments)| ((*name).to_owned(), arguments.clone())).collect();
    let shown = || format!("{reply:?} is read as {message:?}");
    Some(if found != want {
        Err(format!("calls: {}", shown()))
    } else if reply.contains("A tool.") && message.thinking.trim() != "Hm.\nA tool." {
        Err(format!("thinking: {}", shown()))
    } else if reply.contains("I look.") && !message.content.trim_start().starts_with("I look.") {
        Err(format!("content: {}", shown()))
    } else {
        Ok(())
    })
}

#[test]
fn what_published_templates_write_is_read_back() {
    let Some((mut renderer, paths)) = published("jinja") else {
        return eprintln!("skipped: GIRIH_TEST_TEMPLATES is not set");
    };
    let (mut count, mut found) = (0, Vec::new());
    for path in &paths {
        let template = fs::read_to_string(path).expect("a template");
        let name = path.file_stem().expect("a name").to_string_lossy();
        let style = ReplyStyle::of_template(&template);
        if !style.has_calls() || UNREAD.iter().any(|(unread, _)| *unread == name) {
            continue;
        }
        let outcomes = replies(style.name())
            .into_iter()
            .map(|calls| difference(&mut renderer, &template, style, &calls));
        let outcomes: Vec<_> = outcomes.collect();
        let read = outcomes.iter().flatten().count();
        println!("{name}: {}: {read} of {} replies are written", style.name(), outcomes.len());
        count += read;
        let faults = outcomes.into_iter().flatten().filter_map(Result::err);
        found.extend(faults.map(|fault| format!("{name} ({}): {fault}", style.name())));
    }
    println!("{count} replies of {} templates", paths.len());
    assert!(found.is_empty(), "{} differences:\n{}", found.len(), found.join("\n"));
}
