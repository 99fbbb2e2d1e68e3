//! A request from JSON: what it continues and how, with the names of `girih run` and of the server.

use std::collections::BTreeMap;
use std::time::Duration;

use girih::{
    BosEos, Conversation, Grammar, Model, Overflow, ReplyFormat, Request, Sampling, TextOrigin, TimeLimits,
    Tool, ToolChoice,
};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::json::unique_map;
use crate::status::{Fault, Result};

/// The keys of a request.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RequestFields {
    prompt: Option<PromptField>,
    special: bool,
    messages: Option<Vec<Value>>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<String>,
    chat_template_kwargs: Map<String, Value>,
    thinking_budget: Option<u32>,
    max_tokens: Option<u32>,
    min_tokens: Option<u32>,
    stop: Option<TextField>,
    stop_token_ids: Vec<u32>,
    overflow: OverflowField,
    time_limit_seconds: Option<f64>,
    temperature: Option<f32>,
    top_k: Option<u32>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    top_n_sigma: Option<f32>,
    typical_p: Option<f32>,
    xtc_probability: Option<f32>,
    xtc_threshold: Option<f32>,
    dynatemp_range: Option<f32>,
    dynatemp_exponent: Option<f32>,
    mirostat_tau: Option<f32>,
    mirostat_eta: Option<f32>,
    repetition_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    penalty_range: Option<u32>,
    #[serde(deserialize_with = "unique_map")]
    logit_bias: BTreeMap<String, f32>,
    seed: Option<u64>,
    logprobs: Option<u32>,
    prompt_logprobs: Option<u32>,
    schema: Option<Value>,
    json_object: bool,
    regex: Option<String>,
    grammar: Option<String>,
    adapter: Option<String>,
    draft_max: Option<u32>,
    text: Option<bool>,
}

/// What is continued.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a text or a list of token ids")]
enum PromptField {
    Text(String),
    Tokens(Vec<u32>),
}

/// One text or several.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a text or a list of texts")]
enum TextField {
    One(String),
    Several(Vec<String>),
}

/// What happens at the end of the context.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum OverflowField {
    #[default]
    Error,
    Truncate,
}

/// A request that can be submitted, with its prompt.
#[derive(Debug)]
pub struct ReadyRequest {
    /// The request.
    pub request: Request,
    /// The prompt's tokens.
    pub prompt: Vec<u32>,
    /// Whether a chat template wrote the prompt.
    pub is_chat: bool,
}

impl RequestFields {
    /// The request for this model.
    ///
    /// # Errors
    /// When keys exclude each other, a value is outside its range, or the model lacks what it needs.
    pub fn ready(mut self, model: &Model) -> Result<ReadyRequest> {
        let sampling = self.sampling(model)?;
        let (prompt, format) = self.prompt(model)?;
        let is_chat = format.is_some();
        let request = Request::new(prompt.clone()).sampling(sampling);
        let request = match format {
            Some(format) => request.format(format),
            None => request,
        };
        let request = self.with_limits(request)?;
        Ok(ReadyRequest { request: self.with_output(request)?, prompt, is_chat })
    }

    /// The prompt's tokens, and the format of the reply if it is a conversation.
    fn prompt(&mut self, model: &Model) -> Result<(Vec<u32>, Option<ReplyFormat>)> {
        match (self.prompt.take(), self.messages.take()) {
            (Some(prompt), None) => {
                self.refuse_chat_keys()?;
                Ok((self.text_prompt(model, prompt)?, None))
            }
            (None, Some(messages)) => self.conversation(model, messages),
            (Some(_), Some(_)) => {
                Err(Fault::argument("the request has prompt and messages; omit one of them"))
            }
            (None, None) => Err(Fault::argument("the request has no prompt; add prompt or messages")),
        }
    }

    fn text_prompt(&self, model: &Model, prompt: PromptField) -> Result<Vec<u32>> {
        match prompt {
            PromptField::Tokens(_) if self.special => {
                Err(Fault::argument("special is for a prompt of text, and the prompt has tokens; omit it"))
            }
            PromptField::Tokens(tokens) => Ok(tokens),
            PromptField::Text(text) => {
                let origin = if self.special { TextOrigin::Template } else { TextOrigin::User };
                Ok(model.tokenize_as(&text, origin)?)
            }
        }
    }

    /// Refuses what only a conversation can have.
    fn refuse_chat_keys(&self) -> Result<()> {
        let given = [
            ("tools", self.tools.is_some()),
            ("tool_choice", self.tool_choice.is_some()),
            ("chat_template_kwargs", !self.chat_template_kwargs.is_empty()),
            ("thinking_budget", self.thinking_budget.is_some()),
        ];
        match given.iter().find(|(_, is_given)| *is_given) {
            Some((key, _)) => {
                Err(Fault::argument(format!("{key} needs messages; replace prompt, or omit {key}")))
            }
            None => Ok(()),
        }
    }

    fn conversation(
        &mut self,
        model: &Model,
        messages: Vec<Value>,
    ) -> Result<(Vec<u32>, Option<ReplyFormat>)> {
        if self.special {
            return Err(Fault::argument("special is for a prompt, and the request has messages; omit it"));
        }
        if let Some(tools) = &self.tools {
            Tool::list(tools)?;
        }
        let variables = std::mem::take(&mut self.chat_template_kwargs);
        let conversation =
            Conversation { messages, tools: self.tools.take(), variables, ..Conversation::new() };
        let spans = model.render(&conversation)?;
        let tokens = model.text_processor()?.tokenizer.encode_spans(&spans, BosEos::Omit)?;
        Ok((tokens, Some(model.reply_format(&conversation, &spans)?)))
    }

    /// Lengths, stops and limits.
    fn with_limits(&mut self, request: Request) -> Result<Request> {
        let stops = match self.stop.take() {
            None => Vec::new(),
            Some(TextField::One(text)) => vec![text],
            Some(TextField::Several(texts)) => texts,
        };
        let request = stops.into_iter().fold(request, Request::stop);
        let request = self.stop_token_ids.iter().fold(request, |request, id| request.stop_token(*id));
        let request = set(request, self.max_tokens, Request::max_tokens);
        let request = set(request, self.min_tokens, Request::min_tokens);
        let request = set(request, self.thinking_budget, Request::thinking_budget);
        let request = set(request, self.draft_max, Request::draft_max);
        let request = match self.overflow {
            OverflowField::Error => request,
            OverflowField::Truncate => request.overflow(Overflow::Truncate),
        };
        let Some(seconds) = self.time_limit_seconds else { return Ok(request) };
        let whole = Duration::try_from_secs_f64(seconds).map_err(|_| {
            Fault::argument(format!("time_limit_seconds is {seconds}; it must be a number from 0"))
        })?;
        Ok(request.time_limits(TimeLimits { whole: Some(whole), ..TimeLimits::default() }))
    }

    /// What the events of the reply have, and what its text must be.
    fn with_output(&mut self, request: Request) -> Result<Request> {
        let request = set(request, self.logprobs, Request::logprobs);
        let request = set(request, self.prompt_logprobs, Request::prompt_logprobs);
        let request = set(request, self.adapter.take(), |request, name| request.adapter(name));
        let request = if self.text == Some(false) { request.without_text() } else { request };
        let request = match &self.tool_choice {
            Some(choice) => request.tool_choice(ToolChoice::from(choice.as_str())),
            None => request,
        };
        Ok(set(request, self.constraint()?, Request::grammar))
    }

    fn constraint(&mut self) -> Result<Option<Grammar>> {
        let schema = self.schema.take().map(|schema| Grammar::JsonSchema(schema.to_string()));
        let object = self.json_object.then_some(Grammar::JsonObject);
        let regex = self.regex.take().map(Grammar::Regex);
        let grammar = self.grammar.take().map(Grammar::Gbnf);
        let mut given: Vec<Grammar> = [schema, object, regex, grammar].into_iter().flatten().collect();
        if given.len() > 1 {
            let sentence = "schema, json_object, regex and grammar exclude each other; omit all but one";
            return Err(Fault::argument(sentence));
        }
        Ok(given.pop())
    }

    /// The samplers' settings: the request's, else the model's, else greedy.
    fn sampling(&self, model: &Model) -> Result<Sampling> {
        let default = model.default_sampling();
        let bias = |(id, bias): (&String, &f32)| match id.parse::<u32>() {
            Ok(id) => Ok((id, *bias)),
            Err(_) => {
                let id = girih::tools::quote(id);
                Err(Fault::argument(format!("logit_bias has the key {id}; each must be a token id")))
            }
        };
        let sampling = Sampling {
            temperature: self.temperature.unwrap_or(default.temperature),
            top_k: self.top_k.unwrap_or(default.top_k),
            top_p: self.top_p.unwrap_or(default.top_p),
            min_p: self.min_p.unwrap_or(default.min_p),
            top_n_sigma: self.top_n_sigma.unwrap_or(default.top_n_sigma),
            typical_p: self.typical_p.unwrap_or(default.typical_p),
            xtc_probability: self.xtc_probability.unwrap_or(default.xtc_probability),
            xtc_threshold: self.xtc_threshold.unwrap_or(default.xtc_threshold),
            dynatemp_range: self.dynatemp_range.unwrap_or(default.dynatemp_range),
            dynatemp_exponent: self.dynatemp_exponent.unwrap_or(default.dynatemp_exponent),
            mirostat_tau: self.mirostat_tau.unwrap_or(default.mirostat_tau),
            mirostat_eta: self.mirostat_eta.unwrap_or(default.mirostat_eta),
            repetition_penalty: self.repetition_penalty.unwrap_or(default.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(default.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(default.frequency_penalty),
            penalty_range: self.penalty_range.unwrap_or(default.penalty_range),
            bias: self.logit_bias.iter().map(bias).collect::<Result<_>>()?,
            seed: self.seed.unwrap_or(default.seed),
            ..default
        };
        sampling.check()?;
        Ok(sampling)
    }
}

/// A request with a value, if there is one.
fn set<T>(request: Request, value: Option<T>, with: impl FnOnce(Request, T) -> Request) -> Request {
    match value {
        Some(value) => with(request, value),
        None => request,
    }
}

#[cfg(test)]
mod tests {
    use girih::{BUILT_IN, BUILT_IN_TEMPLATE, OpenOptions};

    use super::*;
    use crate::json::read;

    fn ready(text: &str) -> Result<ReadyRequest> {
        let options = OpenOptions { chat_template: Some(BUILT_IN_TEMPLATE.into()), ..Default::default() };
        read::<RequestFields>("the request", Some(text))?.ready(&Model::open_with(BUILT_IN, &options)?)
    }

    #[test]
    fn a_prompt_is_a_text_or_tokens_or_messages() {
        let text = ready(r#"{"prompt": "Once"}"#).unwrap();
        let messages = ready(r#"{"messages": [{"role": "user", "content": "Once"}]}"#).unwrap();
        assert_eq!(text.prompt, messages.prompt);
        assert!(messages.is_chat && !text.is_chat);
        assert_eq!(ready(r#"{"prompt": [1, 403]}"#).unwrap().prompt, [1, 403]);
        let special = ready(r#"{"prompt": "</s>", "special": true}"#).unwrap();
        assert!(special.prompt.len() < ready(r#"{"prompt": "</s>"}"#).unwrap().prompt.len());
    }

    #[test]
    fn wrong_requests_are_refused_by_name() {
        for (text, named) in [
            ("{}", "prompt"),
            (r#"{"prompt": "a", "messages": []}"#, "messages"),
            (r#"{"prompt": 7}"#, "a text or a list of token ids"),
            (r#"{"prompt": "a", "temprature": 1}"#, "temprature"),
            (r#"{"prompt": "a", "temperature": -1}"#, "temperature"),
            (r#"{"prompt": "a", "tools": []}"#, "tools"),
            (r#"{"prompt": "a", "thinking_budget": 3}"#, "thinking_budget"),
            (r#"{"prompt": [1], "special": true}"#, "special"),
            (r#"{"messages": [], "special": true}"#, "special"),
            (r#"{"prompt": "a", "logit_bias": {"x": 1}}"#, "logit_bias"),
            (r#"{"prompt": "a", "time_limit_seconds": -1}"#, "time_limit_seconds"),
            (r#"{"prompt": "a", "regex": "b", "json_object": true}"#, "exclude each other"),
            (r#"{"prompt": "a", "overflow": "wrap"}"#, "wrap"),
        ] {
            let fault = ready(text).unwrap_err();
            assert!(fault.sentence.contains(named), "{text}: {fault:?}");
        }
    }
}
