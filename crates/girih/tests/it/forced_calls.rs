//! Replies that must be calls of tools, by the weights of the built-in model.

use girih::{
    BUILT_IN, Conversation, ErrorKind, Event, Grammar, Model, OpenOptions, ReplyStyle, Request, Result,
    Sampling, Session, Stop, ToolChoice,
};
use serde_json::{Value, json};

/// A session whose template teaches the style `hermes`, or with another style.
fn session(style: Option<&str>) -> Session {
    let options = OpenOptions {
        chat_template: Some(
            "<s>{% if tools %}{% endif %}{# <tool_call> #}{{ messages[0].content }}".to_owned(),
        ),
        reply_style: style.map(|name| ReplyStyle::named(name).unwrap()),
        ..OpenOptions::default()
    };
    Model::open_with(BUILT_IN, &options).unwrap().start().unwrap()
}

fn tool(name: &str, parameters: &Value) -> Value {
    json!({"type": "function", "function": {"name": name, "parameters": parameters}})
}

fn conversation() -> Conversation {
    let age = json!({"type": "integer", "minimum": 3, "maximum": 12});
    let person = json!({
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "age": age},
        "required": ["name", "age"],
        "additionalProperties": false
    });
    let play = json!({"properties": {"toy": {"enum": ["ball", "car"]}}, "required": ["toy"], "additionalProperties": false});
    let tools = Some(vec![tool("person", &person), tool("play", &play)]);
    Conversation { tools, ..Conversation::new().user("Once upon a time") }
}

fn request(choice: ToolChoice, seed: u64) -> Request {
    let sampling = Sampling { temperature: 1.0, seed, ..Sampling::default() };
    Request::new(conversation()).sampling(sampling).tool_choice(choice)
}

/// Checks the arguments of a call of one of the tools.
fn check(name: &str, arguments: &str) {
    let arguments: Value = serde_json::from_str(arguments).unwrap();
    let members = arguments.as_object().unwrap().len();
    match name {
        "person" => {
            assert!(members == 2 && arguments["name"].as_str().unwrap().chars().count() <= 8, "{arguments}");
            assert!((3..=12).contains(&arguments["age"].as_i64().unwrap()), "{arguments}");
        }
        "play" => assert!(members == 1 && (arguments["toy"] == "ball" || arguments["toy"] == "car")),
        other => panic!("{other}"),
    }
}

#[test]
fn a_forced_call_is_found_in_each_style_and_has_its_schema() -> Result<()> {
    for style in [None, Some("hermes"), Some("llama3"), Some("mistral"), Some("gemma")] {
        let session = session(style);
        for seed in 0..4 {
            for name in ["person", "play"] {
                let message = session.generate(request(name.into(), seed))?.message()?;
                assert_eq!((message.content.as_str(), message.calls.len()), ("", 1), "{style:?} {message:?}");
                let call = &message.calls[0];
                assert_eq!((call.name.as_str(), call.fault), (name, None), "{style:?}");
                check(name, &call.arguments);
            }
        }
    }
    Ok(())
}

#[test]
fn a_required_call_is_of_any_tool_and_complete() -> Result<()> {
    let session = session(None);
    for seed in 0..8 {
        let events: Vec<Event> =
            session.generate(request(ToolChoice::Required, seed))?.collect::<Result<_>>()?;
        assert!(matches!(events.last(), Some(Event::Finished { stop: Stop::Complete, .. })));
        let message: girih::ReplyMessage = events.iter().flat_map(Event::parts).collect();
        check(&message.calls[0].name, &message.calls[0].arguments);
    }
    // By default, the model decides.
    let message = session.generate(request(ToolChoice::Auto, 0).max_tokens(8))?.message()?;
    assert!(message.calls.is_empty());
    Ok(())
}

#[test]
fn what_cannot_be_forced_is_refused_by_name() {
    let refusal = |style: Option<&str>, request: Request| {
        let error = session(style).generate(request).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused);
        error.to_string()
    };
    let required = || request(ToolChoice::Required, 0);
    assert_eq!(refusal(None, request("other".into(), 0)), "there is no tool 'other' to force");
    for style in ["pythonic", "plain"] {
        assert!(refusal(Some(style), required()).contains(&format!("in the style {style} cannot be forced")));
    }
    let without_tools = Request::new(Conversation::new().user("Hi")).tool_choice(ToolChoice::Required);
    assert!(refusal(None, without_tools).contains("there is no tool to force"));
    assert!(refusal(None, Request::new("Hi").tool_choice(ToolChoice::Required)).contains("no conversation"));
    assert!(refusal(None, required().stop_token(5)).contains("a tool choice and stop tokens"));
    assert!(refusal(None, required().grammar(Grammar::JsonObject)).contains("a grammar and a tool choice"));
    let bad = vec![tool("bad", &json!({"nullabel": true}))];
    let conversation = Conversation { tools: Some(bad), ..Conversation::new().user("Hi") };
    let bad = refusal(None, Request::new(conversation).tool_choice(ToolChoice::Required));
    assert!(bad.contains("the tool 'bad'") && bad.contains("nullabel"), "{bad}");
}
