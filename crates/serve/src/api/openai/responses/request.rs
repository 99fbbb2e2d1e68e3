//! The body of `/v1/responses`, and what it asks for.

use girih::{Conversation, Grammar, Prompt, ToolChoice};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::input::{ResponsesInput, template_messages};
use super::tool::{FunctionTool, ResponsesTool, functions};
use crate::api::openai::parameters::StreamOptions;
use crate::api::openai::tool_choice::{FunctionType, ToolMode};
use crate::api::reasons::CACHE;
use crate::api::reply_form::{
    check_grammar, check_logprobs, check_tools, no_room_for_calls, no_tools, objects_of, schema_grammar,
};
use crate::error::ApiError;
use crate::generation::GenerationRequest;
use crate::json_body::{from_json_object, json_object};
use crate::parameters::{ParameterNotes, ParameterWithoutEffect};
use crate::sampling_settings::SamplingSettings;
use crate::thinking::{Effort, Lack, Thinking};

/// What `include` may have: log-probabilities, and what has no effect.
const INCLUDABLE: [&str; 2] = [INCLUDE_LOGPROBS, "reasoning.encrypted_content"];

const INCLUDE_LOGPROBS: &str = "message.output_text.logprobs";

/// Parameters that change nothing here. `docs/server.md` lists them.
pub const WITHOUT_EFFECT: &[ParameterWithoutEffect] = &[
    ParameterWithoutEffect::any("prompt_cache_key", CACHE),
    ParameterWithoutEffect::any("prompt_cache_retention", CACHE),
    ParameterWithoutEffect::any("safety_identifier", "requests are told apart by their API keys"),
    ParameterWithoutEffect::any("user", "requests are told apart by their API keys"),
    ParameterWithoutEffect::any("service_tier", "there is one tier"),
    ParameterWithoutEffect::any("client_metadata", "nothing is stored"),
    ParameterWithoutEffect::any("max_tool_calls", "it bounds tools of the server, and there are none"),
];

/// The body of `/v1/responses`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct ResponsesRequest {
    /// The model's id; without one, the first model answers.
    pub model: Option<String>,
    /// A text, or at most 2048 items.
    pub input: ResponsesInput,
    /// The system prompt.
    pub instructions: Option<String>,
    /// The maximum number of tokens of the reply; it is lowered to what the context leaves.
    #[schema(minimum = 1)]
    pub max_output_tokens: Option<u32>,
    /// Whether the reply is sent in pieces as it is made.
    pub stream: Option<bool>,
    /// Without effect: events are never padded.
    pub stream_options: Option<StreamOptions>,
    /// The temperature; 0 always picks the most likely token.
    #[schema(minimum = 0)]
    pub temperature: Option<f32>,
    /// Keep the most likely tokens up to this cumulative probability.
    #[schema(exclusive_minimum = 0, maximum = 1)]
    pub top_p: Option<f32>,
    /// The tools that the model may call, at most 128. Those that are no functions are left out.
    #[schema(value_type = Option<Vec<FunctionTool>>, max_items = 128)]
    pub tools: Option<Vec<ResponsesTool>>,
    /// Whether the model may, must or must not call a tool.
    pub tool_choice: Option<ResponsesToolChoice>,
    /// Whether the model may make several calls in one reply. Default true.
    pub parallel_tool_calls: Option<bool>,
    /// What the reply must be.
    pub text: Option<TextConfig>,
    /// How much the model thinks.
    pub reasoning: Option<ReasoningConfig>,
    /// `message.output_text.logprobs`; `reasoning.encrypted_content` has no effect.
    pub include: Option<Vec<String>>,
    /// Of how many most likely tokens the log-probabilities are given, at most 20.
    #[schema(maximum = 20)]
    pub top_logprobs: Option<u32>,
    /// `disabled`: a prompt that is too long is refused.
    pub truncation: Option<Truncation>,
    /// Without effect, but part of the reply.
    pub metadata: Option<Map<String, Value>>,
    /// Must be false or absent: nothing is stored.
    pub store: Option<bool>,
    /// Must be null: nothing is stored.
    pub previous_response_id: Option<String>,
    /// Must be null: nothing is stored.
    pub conversation: Option<Value>,
    /// Must be false.
    pub background: Option<bool>,
}

/// Whether the model may, must or must not call a tool.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(untagged, expecting = "must be none, auto, required, or an object that names a function")]
pub enum ResponsesToolChoice {
    /// `none`, `auto` or `required`.
    Mode(ToolMode),
    /// This tool.
    Named(NamedFunctionTool),
}

/// The tool that the model must call.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct NamedFunctionTool {
    /// `function`.
    #[serde(rename = "type")]
    pub kind: FunctionType,
    /// The tool's name.
    pub name: String,
}

/// What the reply must be.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct TextConfig {
    /// Its form.
    pub format: Option<TextFormat>,
    /// How much the model says, a word that its chat template may know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verbosity: Option<String>,
}

/// The form of a text.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(remote = "Self", tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum TextFormat {
    /// Text.
    Text {},
    /// Any JSON object.
    JsonObject {},
    /// JSON of a schema. The reply follows it with or without `strict`.
    JsonSchema {
        /// The schema's name.
        name: String,
        /// The JSON Schema.
        schema: Value,
        /// What it is for.
        #[serde(skip_serializing_if = "Option::is_none")]
        description: Option<String>,
        /// Whether the reply must follow it, which it always does.
        strict: Option<bool>,
    },
}

/// How much the model thinks.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct ReasoningConfig {
    /// A word that the chat template knows, such as `low`; `none` is not at all.
    pub effort: Option<String>,
    /// Without effect: thinking is given whole.
    pub summary: Option<Value>,
}

/// What happens to a prompt that is too long.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Truncation {
    /// It is refused.
    Disabled,
}

impl ResponsesRequest {
    /// What the body asks for.
    ///
    /// # Errors
    /// When a parameter is not supported, is outside its range, or contradicts another one.
    pub fn checked(&self) -> Result<GenerationRequest, ApiError> {
        self.check_unsupported()?;
        let calls_none = matches!(self.tool_choice, Some(ResponsesToolChoice::Mode(ToolMode::None)));
        let tools = functions(self.tools.as_deref().unwrap_or_default(), &ParameterNotes::current());
        let tools = Some(tools).filter(|tools| !tools.is_empty() && !calls_none);
        let tools: Option<Vec<Value>> =
            tools.map(|tools| tools.iter().map(FunctionTool::template_tool).collect());
        if let Some(tools) = &tools {
            check_tools(tools)?;
        }
        if self.max_output_tokens == Some(0) {
            let message = "max_output_tokens is 0; it must be 1 or more";
            return Err(ApiError::invalid("max_output_tokens", message));
        }
        let sampling = SamplingSettings {
            temperature: self.temperature,
            top_p: self.top_p,
            ..SamplingSettings::default()
        };
        let (tool_choice, grammar) = (self.tool_choice(tools.is_some())?, self.grammar(tools.is_some())?);
        let messages = template_messages(self.instructions.as_deref(), &self.input)?;
        let conversation = Conversation { messages, tools, ..Conversation::new() };
        Ok(GenerationRequest {
            model: self.model.clone(),
            prompts: vec![Prompt::Conversation(conversation)],
            count: 1,
            sampling,
            max_tokens: self.max_output_tokens,
            logprobs: self.logprobs()?,
            grammar,
            tool_choice,
            single_call: self.parallel_tool_calls == Some(false),
            thinking: self.thinking(),
            verbosity: self.text.as_ref().and_then(|text| text.verbosity.clone()),
            ..GenerationRequest::default()
        })
    }

    fn check_unsupported(&self) -> Result<(), ApiError> {
        let unsupported = [
            ("previous_response_id", self.previous_response_id.is_some(), "send all items in input"),
            ("conversation", self.conversation.is_some(), "send all items in input"),
            ("store", self.store == Some(true), "omit it"),
            ("background", self.background == Some(true), "omit it, or set stream"),
        ];
        match unsupported.into_iter().find(|(_, is_set, _)| *is_set) {
            None => Ok(()),
            Some((param, _, advice)) => {
                let message = format!("{param} is not supported, as nothing is stored; {advice}");
                Err(ApiError::unsupported(param, message))
            }
        }
    }

    fn thinking(&self) -> Option<Thinking> {
        let effort = self.reasoning.as_ref()?.effort.clone()?;
        Some(Thinking { param: "reasoning.effort", effort: Effort::Level(effort), lack: Lack::WithoutEffect })
    }

    fn logprobs(&self) -> Result<Option<u32>, ApiError> {
        let include = self.include.as_deref().unwrap_or_default();
        if let Some(name) = include.iter().find(|name| !INCLUDABLE.contains(&name.as_str())) {
            let name: String = name.chars().take(50).collect();
            let message = format!("include has {name:?}; known are {}", INCLUDABLE.join(", "));
            return Err(ApiError::unsupported("include", message));
        }
        let is_included = include.iter().any(|name| name == INCLUDE_LOGPROBS);
        match (is_included, self.top_logprobs) {
            (false, None | Some(0)) => Ok(None),
            (_, top) => check_logprobs("top_logprobs", top.unwrap_or(0)).map(Some),
        }
    }

    fn tool_choice(&self, has_tools: bool) -> Result<ToolChoice, ApiError> {
        let choice = match &self.tool_choice {
            None | Some(ResponsesToolChoice::Mode(ToolMode::None | ToolMode::Auto)) => {
                return Ok(ToolChoice::Auto);
            }
            Some(ResponsesToolChoice::Mode(ToolMode::Required)) => ToolChoice::Required,
            Some(ResponsesToolChoice::Named(tool)) => ToolChoice::Tool(tool.name.clone()),
        };
        if !has_tools {
            return Err(no_tools());
        }
        Ok(choice)
    }

    fn grammar(&self, has_tools: bool) -> Result<Option<Grammar>, ApiError> {
        const PARAM: &str = "text.format";
        match self.text.as_ref().and_then(|text| text.format.as_ref()) {
            None | Some(TextFormat::Text {}) => Ok(None),
            Some(TextFormat::JsonObject {}) if has_tools => Err(no_room_for_calls(PARAM)),
            Some(TextFormat::JsonObject {}) => check_grammar(PARAM, Grammar::JsonObject).map(Some),
            Some(TextFormat::JsonSchema { schema, strict, .. }) => {
                schema_grammar(PARAM, schema, objects_of(*strict), has_tools).map(Some)
            }
        }
    }
}

from_json_object!(ResponsesRequest);
json_object!(NamedFunctionTool, TextConfig, TextFormat, ReasoningConfig);
