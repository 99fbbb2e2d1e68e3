//! Conversations on which chat templates differ.

use girih_words::template::Conversation;
use serde_json::{Value, json};

/// A conversation with its name in reports.
pub(super) type NamedConversation = (&'static str, Conversation);

/// The conversations that each template renders.
pub(super) fn conversations() -> Vec<NamedConversation> {
    let one = || Conversation::new().user("Why is the sky blue?");
    let turns = || {
        Conversation::new()
            .system("Be brief.")
            .user("Hello!")
            .assistant("Hi. How can I help?")
            .user("  Spaces  and\nlines, <b>&amp;</b> {{ x }}\n")
    };
    let with = |conversation: Conversation, messages: Value, tools: bool| {
        let mut conversation = conversation;
        conversation.messages.extend(messages.as_array().cloned().unwrap_or_default());
        conversation.tools = tools.then(tools_list);
        conversation
    };
    let thinking = |value: bool| {
        let mut conversation = one();
        for name in ["enable_thinking", "thinking"] {
            conversation.variables.insert(name.to_owned(), value.into());
        }
        conversation
    };
    vec![
        ("one question", one()),
        ("a system message", Conversation::new().system("You are terse.").user("Why?")),
        ("several turns", turns()),
        ("no open reply", Conversation { add_generation_prompt: false, ..turns().assistant("It is.") }),
        ("tools", with(Conversation::new(), json!([{"role": "user", "content": "Weather in Bern?"}]), true)),
        ("tools and a system message", with(turns(), json!([]), true)),
        ("a call and its result", with(one(), called(), true)),
        ("a reply after a call", with(one(), replied(), true)),
        ("thinking", thinking(true)),
        ("no thinking", thinking(false)),
        ("thoughts of earlier turns", with(one(), thought(), false)),
    ]
}

fn tools_list() -> Vec<Value> {
    let parameters = json!({
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Its name"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        },
        "required": ["city"],
    });
    let function =
        json!({"name": "weather", "description": "The weather of a city", "parameters": parameters});
    vec![json!({"type": "function", "function": function})]
}

fn called() -> Value {
    let arguments = json!({"city": "Bern", "unit": "celsius"});
    json!([
        {"role": "assistant", "content": "", "tool_calls": [
            {"id": "abcdef123", "type": "function", "function": {"name": "weather", "arguments": arguments}},
        ]},
        {"role": "tool", "tool_call_id": "abcdef123", "name": "weather", "content": "{\"degrees\": 21}"},
    ])
}

fn replied() -> Value {
    let mut messages = called();
    if let Some(messages) = messages.as_array_mut() {
        messages.push(json!({"role": "assistant", "content": "It has 21 degrees."}));
        messages.push(json!({"role": "user", "content": "Thanks. And tomorrow?"}));
    }
    messages
}

fn thought() -> Value {
    json!([
        {"role": "assistant", "content": "Blue light scatters.", "reasoning_content": "Rayleigh.", "thinking": "Rayleigh."},
        {"role": "user", "content": "And at dusk?"},
        {"role": "assistant", "content": "<think>\nLonger path.\n</think>\n\nRed is left."},
        {"role": "user", "content": "Thanks."},
    ])
}
