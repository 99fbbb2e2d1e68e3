//! The body of `/v1/chat/completions`, and what it asks for.

use girih::{Conversation, Grammar, Prompt, ToolChoice};
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::asked_thinking::{AskedThinking, ReasoningBody, ThinkSwitch, ThinkingBody};
use super::functions::{AskedTools, CallWireForm, FunctionChoice, NamedTools};
use super::media_options::MediaOptions;
use super::messages::{ChatMessage, continues_last, template_messages};
use super::parameters::{check_stops_of_grammar, request_body, token_limit};
use super::template_variables::checked_variables;
use super::tool_choice::{ToolBody, ToolChoiceBody, ToolFunction, checked_choice};
use crate::api::reply_form::{
    check_grammar, continued_call, no_room_for_calls, objects_of, schema_text, top_logprobs,
};
use crate::error::ApiError;
use crate::generation::GenerationRequest;
use crate::json_body::from_json_object;

request_body! {
    /// The body of `/v1/chat/completions`.
    ChatRequest {
        /// The conversation, at most 2048 messages.
        #[schema(min_items = 1, max_items = 2048)]
        messages: Vec<ChatMessage>,
        /// The tools that the model may call, at most 128.
        #[schema(value_type = Option<Vec<ToolBody>>, max_items = 128)]
        tools: Option<Vec<Value>>,
        /// Whether the model may, must or must not call a tool.
        tool_choice: Option<ToolChoiceBody>,
        /// As `tools` under OpenAI's older name, at most 128; calls come as `function_call`.
        #[schema(value_type = Option<Vec<ToolFunction>>, max_items = 128)]
        functions: Option<Vec<Value>>,
        /// As `tool_choice`, for `functions`.
        function_call: Option<FunctionChoice>,
        /// Whether the model may make several calls in one reply. Default true.
        parallel_tool_calls: Option<bool>,
        /// What the reply must be.
        response_format: Option<ResponseFormat>,
        /// Takes precedence over `max_tokens`.
        #[schema(minimum = 1)]
        max_completion_tokens: Option<i64>,
        /// Whether tokens come with their log-probability.
        logprobs: Option<bool>,
        /// Of how many most likely tokens the log-probabilities are given, at most 20.
        #[schema(maximum = 20)]
        top_logprobs: Option<u32>,
        /// How much the model thinks, if its chat template knows.
        reasoning_effort: Option<String>,
        /// Whether the model thinks.
        enable_thinking: Option<bool>,
        /// Whether the model thinks, or how much.
        think: Option<ThinkSwitch>,
        /// Whether the model thinks.
        thinking: Option<ThinkingBody>,
        /// How much the model thinks.
        reasoning: Option<ReasoningBody>,
        /// The maximum number of tokens of thinking; -1 is none.
        #[schema(minimum = -1)]
        #[serde(alias = "thinking_budget_tokens", alias = "thinking_budget")]
        thinking_token_budget: Option<i64>,
        /// How much the model says, a word that its chat template may know.
        verbosity: Option<String>,
        /// Whether the chat template begins the reply. Default true.
        add_generation_prompt: Option<bool>,
        /// Whether the reply continues the last message, which is of the assistant. Default false, or true if that
        /// message has `prefix`.
        continue_final_message: Option<bool>,
        /// Must be 1 or absent: no reply is thrown away.
        best_of: Option<u32>,
        /// Variables of the chat template: booleans, numbers and short strings.
        #[schema(value_type = Option<Object>)]
        chat_template_kwargs: Option<Map<String, Value>>,
        /// How videos are read.
        media_io_kwargs: Option<MediaOptions>,
    }
}

/// What the reply must be.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", tag = "type", rename_all = "snake_case")]
pub enum ResponseFormat {
    /// Text.
    Text,
    /// Any JSON object.
    JsonObject,
    /// JSON of a schema.
    JsonSchema {
        /// The schema with its name.
        json_schema: NamedSchema,
    },
}

/// A schema with its name. The reply follows it with or without `strict`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
#[allow(dead_code)] // names describe the schema to people
pub struct NamedSchema {
    /// Its name.
    pub name: Option<String>,
    /// What it is for.
    pub description: Option<String>,
    /// The JSON Schema.
    pub schema: Option<Value>,
    /// Whether the reply must follow it, which it always does.
    pub strict: Option<bool>,
}

impl ChatRequest {
    /// What the body asks for.
    ///
    /// # Errors
    /// When a parameter is outside its range, or contradicts another one.
    pub fn checked(&self) -> Result<GenerationRequest, ApiError> {
        let shared = self.generation()?;
        let AskedTools { tools, choice, form } = self.named_tools().asked()?;
        let tool_choice = checked_choice(tools.as_deref(), choice.as_ref())
            .map_err(|error| if form == CallWireForm::Function { error.of_functions() } else { error })?;
        let grammar = self.grammar(shared.grammar.clone(), tools.is_some())?;
        let continues_last =
            continues_last(&self.messages, self.continue_final_message, self.add_generation_prompt)?;
        if continues_last && tool_choice != ToolChoice::Auto {
            return Err(continued_call());
        }
        let conversation = Conversation {
            messages: template_messages(&self.messages, self.media_io_kwargs.as_ref())?,
            tools,
            variables: checked_variables(self.chat_template_kwargs.as_ref())?,
            add_generation_prompt: self.add_generation_prompt.unwrap_or(true),
            continues_last,
            ..Conversation::new()
        };
        if self.best_of.is_some_and(|best_of| best_of != 1) {
            return Err(ApiError::unsupported(
                "best_of",
                "best_of is not 1, which is not supported; omit it",
            ));
        }
        if grammar.is_some() || tool_choice != ToolChoice::Auto {
            check_stops_of_grammar(&shared)?;
        }
        let max_tokens = token_limit("max_tokens", self.max_tokens, 1)?;
        let max_completion_tokens = token_limit("max_completion_tokens", self.max_completion_tokens, 1)?;
        Ok(GenerationRequest {
            prompts: vec![Prompt::Conversation(conversation)],
            max_tokens: max_completion_tokens.or(max_tokens),
            logprobs: top_logprobs(self.logprobs, self.top_logprobs)?,
            grammar,
            tool_choice,
            single_call: self.parallel_tool_calls == Some(false) || form == CallWireForm::Function,
            thinking: self.asked_thinking().thinking()?,
            thinking_limit: self.asked_thinking().limit(),
            verbosity: self.verbosity.clone(),
            ..shared
        })
    }

    fn named_tools(&self) -> NamedTools<'_> {
        NamedTools {
            tools: self.tools.as_ref(),
            tool_choice: self.tool_choice.as_ref(),
            functions: self.functions.as_ref(),
            function_call: self.function_call.as_ref(),
        }
    }

    /// The form of calls in the reply.
    pub fn call_form(&self) -> CallWireForm {
        self.named_tools().form()
    }

    fn asked_thinking(&self) -> AskedThinking<'_> {
        AskedThinking {
            reasoning_effort: self.reasoning_effort.as_deref(),
            enable_thinking: self.enable_thinking,
            think: self.think.as_ref(),
            thinking: self.thinking.as_ref(),
            reasoning: self.reasoning.as_ref(),
            thinking_token_budget: self.thinking_token_budget,
        }
    }

    fn grammar(&self, shared: Option<Grammar>, has_tools: bool) -> Result<Option<Grammar>, ApiError> {
        let own = match &self.response_format {
            None | Some(ResponseFormat::Text) => None,
            Some(ResponseFormat::JsonObject) => Some(Grammar::JsonObject),
            Some(ResponseFormat::JsonSchema { json_schema }) => {
                let Some(schema) = &json_schema.schema else {
                    let message = "response_format.json_schema has no schema; give one";
                    return Err(ApiError::invalid("response_format", message));
                };
                Some(check_grammar(
                    "response_format",
                    Grammar::JsonSchema(schema_text(schema, objects_of(json_schema.strict))),
                )?)
            }
        };
        let other = self.outputs().param()?.unwrap_or("structured_outputs");
        let (param, grammar) = match (own, shared) {
            (Some(_), Some(_)) => {
                let message = format!("response_format and {other} are both set; omit one of them");
                return Err(ApiError::invalid("response_format", message));
            }
            (Some(own), None) => ("response_format", own),
            (None, Some(shared)) => (other, shared),
            (None, None) => return Ok(None),
        };
        if has_tools {
            return Err(no_room_for_calls(param));
        }
        Ok(Some(grammar))
    }
}

from_json_object!(ResponseFormat, NamedSchema);
