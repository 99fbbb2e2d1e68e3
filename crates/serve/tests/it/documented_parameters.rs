//! Each parameter of the tables in docs/server.md is sent once, and answered.

use serde_json::{Value, json};

use crate::model_server::{post, refusal};
use crate::tools::shared;

/// The names in the first column of a table of the documentation.
fn names(section: &str) -> Vec<String> {
    let page = include_str!("../../../../docs/server.md");
    let (_, rest) = page.split_once(&format!("\n## {section}\n")).unwrap_or_else(|| panic!("{section}"));
    let text = rest.split("\n## ").next().unwrap();
    let columns = text.lines().filter_map(|line| line.strip_prefix("| `")?.split_once(" | "));
    let quoted = columns.flat_map(|(column, _)| {
        format!("`{column}").split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>()
    });
    quoted.filter(|name| !name.starts_with('/')).collect()
}

/// A request with a parameter. `a.b` is the field `b` of `a`.
fn with(base: &Value, name: &str, value: Value, beside: &Value) -> Value {
    let mut body = base.clone();
    if name == "n_predict" {
        body.as_object_mut().unwrap().remove("max_tokens");
    }
    body.as_object_mut().unwrap().extend(beside.as_object().unwrap().clone());
    let value = name.split('.').skip(1).fold(value, |value, field| json!({field: value}));
    body[name.split('.').next().unwrap()] = value;
    body
}

fn schema() -> Value {
    json!({"type": "object", "properties": {"up": {"type": "boolean"}}})
}

fn function() -> Value {
    json!({"name": "look", "parameters": schema()})
}

/// A value of a parameter that both OpenAI's older routes have.
fn shared_value(name: &str) -> Option<Value> {
    Some(match name {
        "model" => json!("stories260k"),
        "n" | "mirostat" => json!(2),
        "max_tokens" | "n_predict" | "min_tokens" | "priority" | "seed" | "top_n_sigma"
        | "dynatemp_exponent" => json!(1),
        "ignore_eos" | "stream" | "stream_options.include_usage" => json!(true),
        "stop" => json!("zebra"),
        "stop_token_ids" => json!([5]),
        "truncate_prompt_tokens" | "dry_allowed_length" | "top_k" => json!(2),
        "keep_alive" => json!("5m"),
        "ttl" => json!(300),
        "repeat_last_n" | "dry_range" => json!(8),
        "temperature" | "top_p" | "min_p" | "typical_p" | "xtc_probability" | "xtc_threshold"
        | "dynatemp_range" | "mirostat_eta" | "dry_multiplier" | "presence_penalty" | "frequency_penalty" => {
            json!(0.5)
        }
        "repetition_penalty" | "repeat_penalty" | "dry_base" | "mirostat_tau" => json!(1.5),
        "logit_bias" => json!({"5": 1}),
        "dry_breakers" | "guided_choice" => json!(["a"]),
        "structured_outputs" => json!({"choice": ["a"]}),
        "guided_json" | "json_schema" => json!({"enum": [1]}),
        "guided_regex" => json!("a"),
        "guided_grammar" | "grammar" => json!("root ::= \"a\""),
        _ => return None,
    })
}

/// A value of a parameter of chat completions, and what stands beside it.
fn chat_value(name: &str) -> Option<(Value, Value)> {
    let tools = json!([{"type": "function", "function": function()}]);
    let none = json!({});
    let messages = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]);
    Some(match name {
        "messages" => (messages, none),
        "max_completion_tokens" | "best_of" => (json!(1), none),
        "tools" => (tools, none),
        "tool_choice" => (json!("auto"), json!({"tools": tools})),
        "functions" => (json!([function()]), none),
        "function_call" => (json!("auto"), json!({"functions": [function()]})),
        "response_format" => (json!({"type": "text"}), none),
        "top_logprobs" => (json!(2), json!({"logprobs": true})),
        "logprobs" | "enable_thinking" | "think" | "parallel_tool_calls" | "add_generation_prompt" => {
            (json!(true), none)
        }
        "continue_final_message" => (json!(true), json!({"messages": messages})),
        "reasoning_effort" | "verbosity" => (json!("low"), none),
        "thinking" => (json!({"type": "enabled"}), none),
        "reasoning" => (json!({"effort": "low"}), none),
        "thinking.budget_tokens" => return None, // the field has a type beside it: sent below
        "thinking_token_budget" | "thinking_budget_tokens" | "thinking_budget" | "reasoning.max_tokens" => {
            (json!(9), none)
        }
        "chat_template_kwargs" => (json!({"a": 1}), none),
        "media_io_kwargs" => (json!({"video": {"fps": 2}}), none),
        _ => (shared_value(name)?, json!({})),
    })
}

fn answered(path: &str, name: &str, body: &Value) {
    let reply = post(shared(), path, body);
    assert_eq!(reply.status, 200, "{path} {name}: {}", reply.body);
}

#[test]
fn each_parameter_of_openais_older_routes_is_honoured() {
    let chat = json!({"messages": [{"role": "user", "content": "Once"}], "max_tokens": 1});
    let completion = json!({"prompt": "Once", "max_tokens": 1});
    let both = names("Parameters of chat completions and completions");
    assert!(both.len() > 40, "{both:?}");
    for name in &both {
        let value = shared_value(name).unwrap_or_else(|| panic!("{name} has no value to try"));
        let beside = if name.starts_with("stream") { json!({"stream": true}) } else { json!({}) };
        answered("/v1/chat/completions", name, &with(&chat, name, value.clone(), &beside));
        answered("/v1/completions", name, &with(&completion, name, value, &beside));
    }
    for name in names("Parameters of chat completions") {
        let budget = json!({"thinking": {"type": "enabled", "budget_tokens": 9}});
        let body = match chat_value(&name) {
            Some((value, beside)) => with(&chat, &name, value, &beside),
            None if name == "thinking.budget_tokens" => with(&chat, "n", json!(1), &budget),
            None => panic!("{name} has no value to try"),
        };
        answered("/v1/chat/completions", &name, &body);
    }
    for name in names("Parameters of completions") {
        let value = match &*name {
            "prompt" => json!(["Once", "Lily"]),
            "echo" => json!(true),
            "logprobs" | "max_tokens" => json!(2),
            "suffix" => json!("a"),
            _ => panic!("{name} has no value to try"),
        };
        let body = with(&completion, &name, value, &json!({}));
        if name == "suffix" {
            assert_eq!(refusal(&post(shared(), "/v1/completions", &body)).2, "suffix");
        } else {
            answered("/v1/completions", &name, &body);
        }
    }
}

#[test]
fn each_parameter_of_infill_is_read() {
    let infill = json!({"input_prefix": "Once", "input_suffix": "end"});
    for name in names("Infill") {
        let value = match &*name {
            "input_prefix" | "input_suffix" | "prompt" => json!("Once"),
            "input_extra" => json!([{"filename": "a", "text": "b"}]),
            "n_predict" => json!(1),
            "stream" => json!(true),
            "response_fields" => json!(["content"]),
            _ => panic!("{name} has no value to try"),
        };
        let reply = post(shared(), "/infill", &with(&infill, &name, value, &json!({})));
        // The model has no tokens for it, which is the last check.
        assert_eq!(refusal(&reply).2, "model", "{name}");
    }
}

#[test]
fn each_parameter_of_the_other_routes_is_honoured() {
    let none = json!({});
    let responses = json!({"input": "Once", "max_output_tokens": 1});
    let tool = json!([{"type": "function", "name": "look", "parameters": schema()}]);
    for name in names("Responses") {
        let (value, beside) = match &*name {
            "input" | "instructions" => (json!("Once"), none.clone()),
            "max_output_tokens" | "top_logprobs" => {
                (json!(1), json!({"include": ["message.output_text.logprobs"]}))
            }
            "tools" => (tool.clone(), none.clone()),
            "tool_choice" => (json!("auto"), json!({"tools": tool})),
            "parallel_tool_calls" => (json!(true), none.clone()),
            "text.format" => (json!({"type": "text"}), none.clone()),
            "reasoning.effort" | "text.verbosity" => (json!("low"), none.clone()),
            "include" => (json!(["message.output_text.logprobs"]), none.clone()),
            "truncation" => (json!("disabled"), none.clone()),
            _ => panic!("{name} has no value to try"),
        };
        answered("/v1/responses", &name, &with(&responses, &name, value, &beside));
    }
    let user = json!([{"role": "user", "content": "Once"}]);
    let message = json!({"model": "stories260k", "messages": user, "max_tokens": 1});
    let tool = json!([{"name": "look", "input_schema": schema()}]);
    for name in names("Anthropic's API") {
        let (value, beside) = match &*name {
            "messages" => (user.clone(), none.clone()),
            "max_tokens" | "top_k" => (json!(1), none.clone()),
            "system" => (json!("Be kind."), none.clone()),
            "stop_sequences" => (json!(["zebra"]), none.clone()),
            "temperature" | "top_p" => (json!(0.5), none.clone()),
            "stream" => (json!(true), none.clone()),
            "tools" => (tool.clone(), none.clone()),
            "tool_choice" => (json!({"type": "auto"}), json!({"tools": tool})),
            "thinking" => (json!({"type": "enabled", "budget_tokens": 1024}), none.clone()),
            "output_config" => (json!({"effort": "low"}), none.clone()),
            _ => panic!("{name} has no value to try"),
        };
        answered("/v1/messages", &name, &with(&message, &name, value, &beside));
    }
    let chat = json!({"model": "stories260k", "messages": user, "options": {"num_predict": 1}});
    let generate = json!({"model": "stories260k", "prompt": "Once", "options": {"num_predict": 1}});
    for name in names("Ollama's API") {
        let (base, path) = match &*name {
            "prompt" | "system" | "raw" => (&generate, "/api/generate"),
            _ => (&chat, "/api/chat"),
        };
        let (value, beside) = match &*name {
            "messages" => (user.clone(), none.clone()),
            "tools" => (json!([{"type": "function", "function": function()}]), none.clone()),
            "prompt" | "system" => (json!("Once"), none.clone()),
            "raw" | "think" | "logprobs" => (json!(true), none.clone()),
            "format" => (json!("json"), none.clone()),
            "keep_alive" => (json!("5m"), none.clone()),
            "top_logprobs" => (json!(1), json!({"logprobs": true})),
            "options" => (
                json!({"num_predict": 1, "seed": 1, "temperature": 0.5, "top_k": 5, "top_p": 0.5, "min_p": 0.1,
                "typical_p": 0.5, "repeat_penalty": 1.1, "presence_penalty": 0.1, "frequency_penalty": 0.1, "mirostat": 2,
                "mirostat_tau": 5.0, "mirostat_eta": 0.1, "stop": ["zebra"], "repeat_last_n": 8}),
                none.clone(),
            ),
            _ => panic!("{name} has no value to try"),
        };
        answered(path, &name, &with(base, &name, value, &beside));
    }
}
