//! Thinking and calls of tools, as `run` shows them.

use serde_json::{Value, json};

use crate::first_run::model_with_template;
use crate::program::{Folder, fixture, girih, name, read, read_json};

/// A template that passes tools on and teaches the style `hermes`.
const TEMPLATE: &str = "{{ bos_token }}{% for tool in tools %}{{ tool | tojson }}<tool_call>{% endfor %}<think>\
     {{ messages[0].content }}:";

/// The text of the only token that these tests generate.
const REPLY: &str = "<think>\nHm.\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";

/// The id of that token.
const ID: u32 = 511;

/// A model that replies `REPLY` if one token is forced.
fn model(template: &str) -> Folder {
    let model = model_with_template(template);
    let mut tokenizer = read_json(&fixture("llama32_tied").join("tokenizer.json"));
    let vocabulary = tokenizer["model"]["vocab"].as_object_mut().expect("a vocabulary");
    vocabulary.retain(|_, id| *id != json!(ID));
    vocabulary.insert(REPLY.replace(' ', "\u{2581}"), json!(ID));
    std::fs::remove_file(model.file("tokenizer.json")).expect("it was copied");
    model.write("tokenizer.json", &tokenizer.to_string());
    model
}

fn tools(folder: &Folder) -> String {
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
    name(&folder.write("tools.json", &json!([tool]).to_string())).to_owned()
}

fn call<'a>(model: &'a Folder, more: &[&'a str]) -> crate::program::Call {
    girih(&["run", model.name(), "Hi", "-n", "1", "-q", "--logit-bias", "511=inf"]).with(more)
}

#[test]
fn calls_and_thinking_are_shown_apart() {
    let model = model(TEMPLATE);
    let tools = tools(&model);
    let with_tools = ["--tools", tools.as_str()];
    let plain = call(&model, &with_tools).done().stdout;
    assert_eq!(plain, "<think>\nHm.\n</think>\n\nI look.\nf({\"a\": 1})\n");
    let shown = call(&model, &with_tools).stdout_on_terminal().stdout;
    assert_eq!(shown, "\u{1b}[2mHm.\u{1b}[22m\n\nI look.\nf({\"a\": 1})\n");
    let without_thinking = call(&model, &with_tools).with(&["--no-think"]).done().stdout;
    assert_eq!(without_thinking, "I look.\nf({\"a\": 1})\n");
    // Without tools, a call is text.
    let text = call(&model, &[]).done().stdout;
    assert!(
        text.ends_with("I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n"),
        "{text}"
    );
    // A chosen style finds calls without tools.
    let chosen = call(&model, &["--reply-style", "hermes", "--no-think"]).done().stdout;
    assert_eq!(chosen, without_thinking);
    let other = call(&model, &["--reply-style", "mistral", "--no-think"]).done().stdout;
    assert!(other.contains("<tool_call>"), "{other}");
}

#[test]
fn json_has_the_parts_of_a_reply() {
    let model = model(TEMPLATE);
    let tools = tools(&model);
    let function = json!({"name": "f", "arguments": "{\"a\": 1}"});
    let calls = json!([{"id": "call00000", "type": "function", "function": function}]);
    let whole = call(&model, &["--json", "--tools", &tools]).done().json();
    assert_eq!((&whole["content"], &whole["thinking"]), (&json!("I look."), &json!("Hm.")));
    assert_eq!((&whole["tool_calls"], &whole["text"]), (&calls, &json!(REPLY)));
    let hidden = call(&model, &["--json", "--tools", &tools, "--no-think"]).done().json();
    assert_eq!((&hidden["thinking"], &hidden["text"]), (&json!(""), &json!("I look.")));
    let events = call(&model, &["--jsonl", "--tools", &tools, "--no-think"]).done().json_lines();
    assert_eq!((&events[1]["text"], &events[1]["thinking"]), (&json!("I look."), &Value::Null));

    let events = call(&model, &["--jsonl", "--tools", &tools]).done().json_lines();
    let names: Vec<&str> = events.iter().filter_map(|event| event["event"].as_str()).collect();
    assert_eq!(names, ["start", "text", "tool_call", "arguments", "tool_call_end", "end"]);
    assert_eq!((&events[1]["content"], &events[1]["thinking"]), (&json!("I look."), &json!("Hm.")));
    assert_eq!(events[2], json!({"event": "tool_call", "call": "call00000", "name": "f"}));
    assert_eq!(events[3], json!({"event": "arguments", "call": "call00000", "text": "{\"a\": 1}"}));
    assert_eq!(events[4], json!({"event": "tool_call_end", "call": "call00000", "fault": Value::Null}));
    assert_eq!(events[5]["tool_calls"], calls);
}

#[test]
fn a_call_is_forced() {
    let model = model_with_template(TEMPLATE);
    let schema =
        json!({"properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": false});
    let tool = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": schema}});
    let file = model.write("tools.json", &json!([tool("f"), tool("g")]).to_string());
    let tools = ["run", model.name(), "Hi", "-q", "--tools", name(&file)];
    for (choice, names) in [("g", &["g"][..]), ("required", &["f", "g"])] {
        let reply = girih(&tools).with(&["--tool-choice", choice, "--json"]).done().json();
        let call = &reply["tool_calls"][0]["function"];
        assert!(names.contains(&call["name"].as_str().expect("a name")), "{reply}");
        let arguments: Value =
            serde_json::from_str(call["arguments"].as_str().expect("a text")).expect("JSON");
        assert!(arguments == json!({"a": 1}) || arguments == json!({"a": 2}), "{reply}");
    }
    girih(&tools).with(&["--tool-choice", "h"]).fails(2, "there is no tool 'h' to force");
    girih(&tools).with(&["--tool-choice", "f", "--reply-style", "pythonic"]).fails(2, "cannot be forced");
    girih(&tools).with(&["--tool-choice", "f", "--json-object"]).fails(2, "cannot be used with");
    call(&model, &["--tool-choice", "f"]).fails(2, "--tools");
}

#[test]
fn tools_that_cannot_be_used_are_refused_by_name() {
    let model = model(TEMPLATE);
    let good = tools(&model);
    let bad = |text: &str| {
        let file = model.write("bad.json", text);
        call(&model, &["--tools", name(&file)])
    };
    bad("{").fails(2, "bad.json: is not a JSON list of tools");
    call(&model, &["--tools", "[{]"]).fails(2, "--tools: is not a JSON list of tools");
    let list = read(std::path::Path::new(&good));
    let ids = |tools: &str| call(&model, &["--tools", tools, "--json"]).done().json()["ids"].clone();
    assert_eq!(ids(&list), ids(&good), "a list may be given as text");
    bad("[{}]").fails(2, "bad.json: tool 1 is not {");
    call(&model, &["--tools", "/nowhere"]).fails(2, "/nowhere: cannot be read");
    call(&model, &["--raw", "--tools", &good]).fails(2, "--raw uses none; omit --tools");
    call(&model, &["--reply-style", "xml"]).fails(2, "there is no style 'xml'");
    let silent = model_with_template("{{ bos_token }}{{ messages[0].content }}");
    call(&silent, &["--tools", &good]).fails(2, "does not read tools");
    let other = model_with_template("{{ bos_token }}{{ tools }}{{ messages[0].content }}");
    call(&other, &["--tools", &good]).fails(2, "teaches no style of calls");
}
