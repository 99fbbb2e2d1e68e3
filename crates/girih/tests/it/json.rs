//! Options and requests from JSON: what is set, and that nothing is ignored.

use girih::json::{conversation, event, inputs, open_options, options, parse, request, run_options};
use girih::{
    BUILT_IN, BUILT_IN_TEMPLATE, DType, Event, Model, OpenOptions, Request, Result, RunOptions, Sampling,
    TemplateProcess,
};
use serde_json::{Value, json};

use super::sessions::session;

/// The sentence with which `read` refuses a value.
fn refusal<T>(read: impl Fn(&Value) -> Result<T>, value: &Value) -> String {
    match read(value) {
        Ok(_) => panic!("{value} is accepted"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn options_of_running_are_set_or_refused() -> Result<()> {
    let read = |value: &Value| run_options(value, &OpenOptions::default());
    let options = read(&json!({
        "context": 256, "chunk": 32, "sequences": 2, "kv": "f32", "threads": 1, "max_wait": 1.5, "draft_max": null, "step_time": 0.1,
        "drafts": "prompt-lookup", "backend": "interpreter",
    }))?;
    let RunOptions { context, chunk, sequences, kv, draft_max, .. } = options;
    assert_eq!((context, chunk, sequences, kv, draft_max), (Some(256), 32, 2, Some(DType::F32), 15));
    assert_eq!(options.step_time, Some(std::time::Duration::from_millis(100)));
    assert_eq!(options.backend.to_string(), "interpreter");
    let model = read(&json!({"drafts": {"model": "stories260k"}}))?;
    assert!(matches!(model.drafts, girih::Drafts::Model(_)));
    for (value, sentence) in [
        (json!([]), "options of running: is not a JSON object"),
        (json!({"contxt": 1}), "options of running: 'contxt' is unknown; known are backend, "),
        (json!({"context": -1}), "context is '-1'; it must be an integer from 1"),
        (json!({"context": 1.5}), "context is '1.5'"),
        (json!({"sequences": 0}), "sequences is '0'; it must be an integer from 1"),
        (json!({"kv": "q4_1"}), "it must be one of f32, f16, bf16, q8_0, q4_0"),
        (json!({"threads": 0}), "0 threads were requested"),
        (json!({"max_wait": -1}), "it must be a number of seconds"),
        (json!({"drafts": "magic"}), "it must be off, prompt-lookup, mtp, or"),
        (json!({"drafts": {"model": "a", "b": 1}}), "drafts: 'b' is unknown"),
        (json!({"prompt_cache": {"folder": "a"}}), "it needs a folder and a limit"),
        (json!({"backend": "abacus"}), "abacus"),
        (json!({"backend_options": {"a": 1}}), "it must be an object of texts"),
    ] {
        assert!(refusal(read, &value).contains(sentence), "{value}: {}", refusal(read, &value));
    }
    Ok(())
}

#[test]
fn options_of_opening_are_set_or_refused() -> Result<()> {
    let options = open_options(&json!({
        "variables": {"HOME": "a"}, "program": "/bin/girih", "chat_template": "a", "reply_style": "hermes",
        "adapters": {"poet": "b"}, "projector": "c", "allow_key": ["d"], "pack": "q8_0",
    }))?;
    assert_eq!(options.pack, Some(DType::Q8_0));
    assert_eq!(options.cache, Some("a/.cache/girih".into()));
    assert!(matches!(&options.templates, TemplateProcess::Worker { program, arguments }
        if program.as_os_str() == "/bin/girih" && arguments[0] == "template-worker"));
    assert_eq!((options.adapters[0].name.as_str(), options.allow_key.len()), ("poet", 1));
    for (value, sentence) in [
        (json!({"variabels": {}}), "'variabels' is unknown"),
        (json!({"reply_style": "morse"}), "morse"),
        (json!({"pack": "q4_0"}), "it must be one of q8_0"),
        (json!({"adapters": {"poet": 1}}), "it must be an object of names and paths"),
    ] {
        assert!(refusal(open_options, &value).contains(sentence), "{value}");
    }
    Ok(())
}

/// The options of both in one object, as a caller has them that opens and runs in one call.
#[test]
fn all_options_are_read_in_one_object() -> Result<()> {
    let environment = |name: &str| (name == "HOME").then(|| "a".to_owned());
    let read = |value: &Value| options(value, &environment);
    let value = json!({"chat_template": "a", "threads": 2, "drafts": "off", "architectures": []});
    let (open, run) = read(&value)?;
    assert_eq!((open.cache, open.chat_template.as_deref()), (None, Some("a")));
    assert_eq!(run.backend.settings().threads, Some(2));
    let cache = |value: Value| Ok::<_, girih::Error>(read(&value)?.0.cache.unwrap_or_default());
    assert_eq!(cache(json!({"environment": true}))?, std::path::Path::new("a/.cache/girih"));
    assert_eq!(cache(json!({"environment": true, "cache": "b"}))?, std::path::Path::new("b"));
    for (value, sentence) in [
        (json!({"environment": true, "variables": {}}), "exclude each other"),
        (json!({"environment": 1}), "environment is '1'; it must be true or false"),
        (json!({"architectures": ["name = 1"]}), "architecture"),
        (json!({"contxt": 1}), "options: 'contxt' is unknown; known are adapters, "),
    ] {
        assert!(refusal(read, &value).contains(sentence), "{value}: {}", refusal(read, &value));
    }
    Ok(())
}

#[test]
fn repeated_keys_are_refused_at_any_depth() -> Result<()> {
    let text = r#"{"a": [1, -2, 0.5, 1e300, null, true, "b", {"c": {}}], "d": 18446744073709551615}"#;
    assert_eq!(parse("options", text)?, serde_json::from_str::<Value>(text).unwrap());
    for (text, named) in [
        (r#"{"a": 1, "a": 1}"#, "duplicate key 'a'"),
        (r#"[{"b": {"c": 1, "c": 2}}]"#, "duplicate key 'c'"),
        (r#"{"a": 1, "\u0061": 1}"#, "duplicate key 'a'"),
        ("{} {}", "trailing"),
        (&"[".repeat(1000), "recursion limit"),
    ] {
        let error = parse("options", text).unwrap_err().to_string();
        assert!(error.starts_with("options: ") && error.contains(named), "{text}: {error}");
    }
    Ok(())
}

#[test]
fn a_request_with_its_tokens_has_the_same_reply() -> Result<()> {
    let options = OpenOptions { chat_template: Some(BUILT_IN_TEMPLATE.into()), ..OpenOptions::default() };
    let session = Model::open_with(BUILT_IN, &options)?.start()?;
    let model = session.model();
    for value in [
        json!({"prompt": "Once upon a time", "max_tokens": 9}),
        json!({"messages": [{"role": "user", "content": "Once"}], "max_tokens": 9}),
    ] {
        let (with_tokens, tokens) = request(&value, model)?.tokenized(model)?;
        let (own, other) = (session.generate(with_tokens)?, session.generate(request(&value, model)?)?);
        assert_eq!((own.prompt_tokens(), other.prompt_tokens()), (tokens.len() as u32, tokens.len() as u32));
        assert_eq!(own.text()?, other.text()?, "{value}");
    }
    let special = request(&json!({"prompt": "</s>", "special": true}), model)?.tokenized(model)?.1;
    assert!(special.len() < model.tokenize("</s>")?.len());
    Ok(())
}

#[test]
fn a_request_in_json_has_the_reply_of_the_same_request() -> Result<()> {
    let session = session(RunOptions::default());
    let sampling = Sampling { temperature: 0.9, top_k: 40, seed: 3, ..Sampling::default() };
    let expected = Request::new("Once upon a time").sampling(sampling).max_tokens(30).stop(".").min_tokens(2);
    let mut value = json!({
        "prompt": "Once upon a time", "temperature": 0.9, "top_k": 40, "seed": 3, "max_tokens": 30, "stop": ".",
        "min_tokens": 2,
    });
    if cfg!(feature = "grammar") {
        value["schema"] = Value::Null;
    }
    let own = session.generate(request(&value, session.model())?)?.text()?;
    assert_eq!(own, session.generate(expected)?.text()?);
    Ok(())
}

#[test]
fn requests_are_refused_by_name() -> Result<()> {
    let model = Model::open("stories260k")?;
    let read = |value: &Value| request(value, &model).map(drop);
    for (value, sentence) in [
        (json!({}), "it has no prompt and no messages"),
        (json!({"prompt": "a", "messages": []}), "it has a prompt and messages"),
        (json!({"prompt": [1, "a"]}), "it must be a text or a list of token ids"),
        (json!({"prompt": "a", "tools": [{}]}), "need messages"),
        (json!({"messages": ["a"]}), "it must be a list of messages"),
        (json!({"prompt": "a", "temprature": 1}), "request: 'temprature' is unknown; known are adapter, "),
        (json!({"prompt": "a", "stop": [1]}), "it must be a text or a list of texts"),
        (json!({"prompt": "a", "logit_bias": {"a": 1}}), "it must be an object of token ids and numbers"),
        (json!({"prompt": [1], "special": true}), "special is for a prompt of text"),
        (json!({"prompt": "a", "thinking_budget": 3}), "thinking_budget needs messages"),
        (json!({"prompt": "a", "temperature": -1}), "temperature"),
        (json!({"prompt": "a", "timeout": -1}), "timeout is '-1'; it must be a number of seconds"),
    ] {
        assert!(refusal(read, &value).contains(sentence), "{value}: {}", refusal(read, &value));
    }
    Ok(())
}

#[cfg(feature = "grammar")]
#[test]
fn grammars_exclude_each_other() -> Result<()> {
    let session = session(RunOptions::default());
    let value = json!({"prompt": "a", "choice": ["yes", "no"]});
    assert!(["yes", "no"].contains(&&*session.generate(request(&value, session.model())?)?.text()?));
    let both = json!({"prompt": "a", "regex": "a", "json_object": true});
    assert!(refusal(|value| request(value, session.model()), &both).contains("exclude each other"));
    let schema = json!({"prompt": "a", "schema": "a"});
    assert!(refusal(|value| request(value, session.model()), &schema).contains("must be a JSON Schema"));
    Ok(())
}

#[test]
fn a_conversation_has_what_transformers_has() -> Result<()> {
    let message = json!({"role": "assistant", "content": "Once"});
    let read = conversation(&json!({"messages": [message], "continue_final_message": true}))?;
    assert!(!read.add_generation_prompt && read.continued() == Some("Once"));
    assert!(refusal(conversation, &json!({})).contains("it has no messages"));
    Ok(())
}

#[test]
fn inputs_are_texts_or_tokens() -> Result<()> {
    assert_eq!(inputs(&json!({"input": ["a", [1]]}))?.len(), 2);
    for (value, sentence) in [
        (json!({}), "it has no input"),
        (json!({"input": "a"}), "it must be a list of texts and of lists of token ids"),
        (json!({"input": ["a"], "model": 1}), "'model' is unknown"),
    ] {
        assert!(refusal(inputs, &value).contains(sentence), "{value}");
    }
    Ok(())
}

#[test]
fn events_are_told_in_order() -> Result<()> {
    let session = session(RunOptions::default());
    let reply = session.generate(Request::new("Once upon a time").max_tokens(2).logprobs(1))?;
    let events: Vec<Event> = reply.collect::<Result<_>>()?;
    let told: Vec<Value> = events.iter().map(event).collect();
    let names: Vec<&str> = told.iter().filter_map(|event| event["event"].as_str()).collect();
    assert_eq!(names, ["prefilled", "token", "token", "end"]);
    assert_eq!(told[1]["parts"], json!([{"content": told[1]["text"]}]));
    assert_eq!(told[1]["logprobs"]["id"], told[1]["id"]);
    assert_eq!(told[1]["logprobs"]["top_logprobs"][0]["id"], told[1]["id"]);
    assert_eq!((&told[3]["stop"], &told[3]["decode"]["tokens"]), (&json!("length"), &json!(1)));
    Ok(())
}
