//! Conversations and requests from JSON.

use girih_engine::{Overflow, Sampling, Tenant, TimeLimits};
#[cfg(feature = "grammar")]
use girih_grammar::Grammar;
use girih_graph::Result;
use girih_words::TextOrigin;
use girih_words::reply::Tool;
use girih_words::template::Conversation;
use serde_json::{Map, Value};

use super::fields::{JsonFields, as_u32, refused};
use crate::model::Model;
use crate::prompt::Prompt;
use crate::request::Request;
#[cfg(feature = "grammar")]
use crate::tool_choice::ToolChoice;

/// A conversation: `messages`, and perhaps `tools`, `documents`, `add_generation_prompt` (default true),
/// `continue_final_message`, and `chat_template_kwargs` (variables of the template).
///
/// ```
/// let chat = serde_json::json!({ "messages": [{ "role": "user", "content": "Hello" }] });
/// assert_eq!(girih::json::conversation(&chat)?.messages.len(), 1);
/// # Ok::<(), girih::Error>(())
/// ```
///
/// # Errors
/// When a field is unknown or has a wrong value.
pub fn conversation(value: &Value) -> Result<Conversation> {
    let mut fields = JsonFields::new("conversation", value)?;
    let conversation = taken_conversation(&mut fields)?;
    fields.finish()?;
    conversation.ok_or_else(|| refused("conversation: it has no messages".to_owned()))
}

/// The conversation of these fields; `None` without messages.
fn taken_conversation(fields: &mut JsonFields) -> Result<Option<Conversation>> {
    let objects = |value: &Value| value.is_object().then(|| value.clone());
    let messages = fields.list("messages", "a list of messages", objects)?;
    let tools = fields.list("tools", "a list of tools", objects)?;
    let documents = fields.list("documents", "a list of documents", objects)?;
    let continues_last = fields.flag("continue_final_message")?;
    let prompts = fields.read("add_generation_prompt", "true or false", Value::as_bool)?;
    let variables = fields.read("chat_template_kwargs", "an object", |value| value.as_object().cloned())?;
    let Some(messages) = messages else {
        if tools.is_some()
            || documents.is_some()
            || continues_last
            || prompts.is_some()
            || variables.is_some()
        {
            let sentence =
                "request: tools, documents and options of templates need messages, and there are none";
            return Err(refused(sentence.to_owned()));
        }
        return Ok(None);
    };
    // A fault of a tool is told here, not when the template runs.
    tools.as_deref().map(Tool::list).transpose()?;
    Ok(Some(Conversation {
        messages,
        tools,
        documents,
        add_generation_prompt: prompts.unwrap_or(!continues_last),
        continues_last,
        variables: variables.unwrap_or_else(Map::new),
    }))
}

/// The texts and token ids of a request for vectors: `input`, a list of them.
///
/// ```
/// assert_eq!(girih::json::inputs(&serde_json::json!({ "input": ["a cat", [2, 3]] }))?.len(), 2);
/// # Ok::<(), girih::Error>(())
/// ```
///
/// # Errors
/// When a field is unknown or has a wrong value.
pub fn inputs(value: &Value) -> Result<Vec<Prompt>> {
    let mut fields = JsonFields::new("request", value)?;
    let inputs = fields.list("input", "a list of texts and of lists of token ids", text_or_tokens)?;
    fields.finish()?;
    inputs.ok_or_else(|| refused("request: it has no input".to_owned()))
}

/// A prompt that is a text or a list of token ids.
fn text_or_tokens(value: &Value) -> Option<Prompt> {
    match value {
        Value::String(text) => Some(Prompt::Text(text.clone())),
        value => Some(Prompt::Tokens(value.as_array()?.iter().map(as_u32).collect::<Option<_>>()?)),
    }
}

/// A request: `prompt` (a text, whose special tokens are parsed with `special`, or token ids) or the fields of [`conversation`]; the fields of [`Sampling`] (`logit_bias`
/// has ids as names); one of `schema`, `json_object`, `regex`, `choice`, `grammar` and `tool_choice`; `text` (false for
/// token ids alone); and the other settings of [`Request`] under their names.
///
/// ```
/// use girih::Model;
///
/// let model = Model::open("stories260k")?;
/// let request = serde_json::json!({ "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0.5, "seed": 1 });
/// let story = model.start()?.generate(girih::json::request(&request, &model)?)?.text()?;
/// assert!(!story.is_empty());
/// # Ok::<(), girih::Error>(())
/// ```
///
/// # Errors
/// When a field is unknown or has a wrong value, or fields exclude each other.
pub fn request(value: &Value, model: &Model) -> Result<Request> {
    let mut fields = JsonFields::new("request", value)?;
    let prompt = prompt(&mut fields, model)?;
    let is_chat = matches!(prompt, Prompt::Conversation(_));
    let mut request = Request::new(prompt).sampling(sampling(&mut fields, model.default_sampling())?);
    request = with_length(request, &mut fields)?;
    request = with_thinking(request, &mut fields, is_chat)?;
    request = with_stops(request, &mut fields)?;
    request = with_numbers(request, &mut fields)?;
    request = with_constraint(request, &mut fields)?;
    fields.finish()?;
    Ok(request)
}

fn prompt(fields: &mut JsonFields, model: &Model) -> Result<Prompt> {
    let prompt = fields.read("prompt", "a text or a list of token ids", text_or_tokens)?;
    let is_special = fields.flag("special")?;
    match (prompt, taken_conversation(fields)?) {
        (Some(Prompt::Text(text)), None) if is_special => {
            Ok(Prompt::Tokens(model.tokenize_as(&text, TextOrigin::Template)?))
        }
        (Some(_), None) | (None, Some(_)) if is_special => {
            Err(refused("request: special is for a prompt of text; remove it".to_owned()))
        }
        (Some(prompt), None) => Ok(prompt),
        (None, Some(conversation)) => Ok(Prompt::Conversation(conversation)),
        (Some(_), Some(_)) => {
            Err(refused("request: it has a prompt and messages; remove one of them".to_owned()))
        }
        (None, None) => {
            Err(refused("request: it has no prompt and no messages; give one of them".to_owned()))
        }
    }
}

/// The settings of the samplers that are given, else `default`.
fn sampling(fields: &mut JsonFields, default: Sampling) -> Result<Sampling> {
    let bias = fields.entries("logit_bias", "an object of token ids and numbers", |id, bias| {
        let bias = match bias.as_str() {
            Some("-inf") => f64::NEG_INFINITY,
            _ => bias.as_f64()?,
        };
        Some((id.parse().ok()?, bias as f32))
    })?;
    let sampling = Sampling {
        temperature: fields.f32("temperature")?.unwrap_or(default.temperature),
        top_k: fields.u32("top_k")?.unwrap_or(default.top_k),
        top_p: fields.f32("top_p")?.unwrap_or(default.top_p),
        min_p: fields.f32("min_p")?.unwrap_or(default.min_p),
        top_n_sigma: fields.f32("top_n_sigma")?.unwrap_or(default.top_n_sigma),
        typical_p: fields.f32("typical_p")?.unwrap_or(default.typical_p),
        xtc_probability: fields.f32("xtc_probability")?.unwrap_or(default.xtc_probability),
        xtc_threshold: fields.f32("xtc_threshold")?.unwrap_or(default.xtc_threshold),
        dynatemp_range: fields.f32("dynatemp_range")?.unwrap_or(default.dynatemp_range),
        dynatemp_exponent: fields.f32("dynatemp_exponent")?.unwrap_or(default.dynatemp_exponent),
        mirostat_tau: fields.f32("mirostat_tau")?.unwrap_or(default.mirostat_tau),
        mirostat_eta: fields.f32("mirostat_eta")?.unwrap_or(default.mirostat_eta),
        repetition_penalty: fields.f32("repetition_penalty")?.unwrap_or(default.repetition_penalty),
        presence_penalty: fields.f32("presence_penalty")?.unwrap_or(default.presence_penalty),
        frequency_penalty: fields.f32("frequency_penalty")?.unwrap_or(default.frequency_penalty),
        penalty_range: fields.u32("penalty_range")?.unwrap_or(default.penalty_range),
        seed: fields.u64("seed")?.unwrap_or(default.seed),
        bias: if bias.is_empty() { default.bias } else { bias },
        dry: default.dry,
    };
    sampling.check()?;
    Ok(sampling)
}

fn with_length(mut request: Request, fields: &mut JsonFields) -> Result<Request> {
    if let Some(max) = fields.u32("max_tokens")? {
        request = request.max_tokens(max);
    }
    if let Some(min) = fields.u32("min_tokens")? {
        request = request.min_tokens(min);
    }
    if fields.flag("fill_context")? {
        request = request.fill_context();
    }
    if fields.flag("truncate")? {
        request = request.overflow(Overflow::Truncate);
    }
    Ok(request)
}

fn with_thinking(request: Request, fields: &mut JsonFields, is_chat: bool) -> Result<Request> {
    match fields.u32("thinking_budget")? {
        Some(_) if !is_chat => {
            Err(refused("request: thinking_budget needs messages, and there are none".to_owned()))
        }
        Some(max) => Ok(request.thinking_budget(max)),
        None => Ok(request),
    }
}

fn with_stops(mut request: Request, fields: &mut JsonFields) -> Result<Request> {
    for text in fields.texts("stop")? {
        request = request.stop(text);
    }
    for id in fields.list("stop_tokens", "a list of token ids", as_u32)?.unwrap_or_default() {
        request = request.stop_token(id);
    }
    Ok(if fields.flag("include_stop")? { request.include_stop() } else { request })
}

fn with_numbers(mut request: Request, fields: &mut JsonFields) -> Result<Request> {
    if let Some(top) = fields.u32("logprobs")? {
        request = request.logprobs(top);
    }
    if let Some(top) = fields.u32("prompt_logprobs")? {
        request = request.prompt_logprobs(top);
    }
    if let Some(max) = fields.u32("draft_max")? {
        request = request.draft_max(max);
    }
    if let Some(name) = fields.text("adapter")? {
        request = request.adapter(name);
    }
    if fields.read("text", "true or false", Value::as_bool)? == Some(false) {
        request = request.without_text();
    }
    if let Some(name) = fields.text("tenant")? {
        request = request.tenant(Tenant::new(&name));
    }
    let (queue, whole) = (fields.seconds("queue_timeout")?, fields.seconds("timeout")?);
    Ok(request.time_limits(TimeLimits { queue, whole, ..TimeLimits::default() }))
}

#[cfg(feature = "grammar")]
fn with_constraint(request: Request, fields: &mut JsonFields) -> Result<Request> {
    let schema = fields.read("schema", "a JSON Schema: an object, true or false", |schema| {
        (schema.is_object() || schema.is_boolean()).then(|| Grammar::JsonSchema(schema.to_string()))
    })?;
    let object = fields.flag("json_object")?.then_some(Grammar::JsonObject);
    let regex = fields.text("regex")?.map(Grammar::Regex);
    let choices = fields.texts("choice")?;
    let choice = (!choices.is_empty()).then_some(Grammar::Choice(choices));
    let grammar = fields.text("grammar")?.map(Grammar::of_text);
    let call = fields.text("tool_choice")?;
    let mut given: Vec<Grammar> = [schema, object, regex, choice, grammar].into_iter().flatten().collect();
    if given.len() > 1 {
        let sentence = "request: schema, json_object, regex, choice and grammar exclude each other; give one";
        return Err(refused(sentence.to_owned()));
    }
    let request = match given.pop() {
        Some(grammar) => request.grammar(grammar),
        None => request,
    };
    Ok(match call {
        Some(call) => request.tool_choice(ToolChoice::from(call.as_str())),
        None => request,
    })
}

#[cfg(not(feature = "grammar"))]
fn with_constraint(request: Request, _: &mut JsonFields) -> Result<Request> {
    Ok(request)
}
