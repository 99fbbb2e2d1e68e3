//! The reply of `/v1/responses`: its head, and its items.

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::request::{ReasoningConfig, ResponsesRequest, ResponsesToolChoice, TextConfig, TextFormat};
use super::tool::{FunctionTool, functions};
use crate::api::openai::logprobs::TokenLogprob;
use crate::api::openai::tool_choice::ToolMode;
use crate::calendar::since_1970;
use crate::generation::{FinishReason, Generation, TokenUsage};
use crate::parameters::ParameterNotes;
use crate::request_id::new_id;

/// A whole reply, or one in progress.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ResponseObject {
    /// The reply's id.
    pub id: String,
    /// `response`.
    pub object: &'static str,
    /// When it was begun, in seconds since 1970.
    pub created_at: u64,
    /// How far it is.
    pub status: ResponseStatus,
    /// Why it failed.
    pub error: Option<ResponseError>,
    /// Why it is incomplete.
    pub incomplete_details: Option<IncompleteDetails>,
    /// The model's id.
    pub model: String,
    /// Thinking, messages and calls of tools, in the order in which the model wrote them.
    pub output: Vec<OutputItem>,
    /// The tokens of prompt and reply, at the end.
    pub usage: Option<ResponseUsage>,
    instructions: Option<String>,
    max_output_tokens: Option<u32>,
    metadata: Map<String, Value>,
    parallel_tool_calls: bool,
    previous_response_id: Option<String>,
    reasoning: ReasoningConfig,
    store: bool,
    temperature: Option<f32>,
    text: TextConfig,
    tool_choice: ResponsesToolChoice,
    tools: Vec<FunctionTool>,
    top_p: Option<f32>,
    truncation: &'static str,
}

/// How far a reply or an item is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // OpenAI's words
pub enum ResponseStatus {
    InProgress,
    Completed,
    Incomplete,
    Failed,
}

/// Why a reply failed.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ResponseError {
    /// `server_error`.
    pub code: &'static str,
    /// One sentence for a person.
    pub message: String,
}

/// Why a reply is incomplete.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct IncompleteDetails {
    /// `max_output_tokens`.
    pub reason: &'static str,
}

/// An item of a reply.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[allow(missing_docs)] // OpenAI's words
pub enum OutputItem {
    Message { id: String, status: ResponseStatus, role: &'static str, content: Vec<OutputPart> },
    FunctionCall { id: String, status: ResponseStatus, call_id: String, name: String, arguments: String },
    Reasoning { id: String, status: ResponseStatus, summary: Vec<Value>, content: Vec<OutputPart> },
}

/// A part of an item.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[allow(missing_docs)] // OpenAI's words
pub enum OutputPart {
    OutputText { text: String, annotations: Vec<Value>, logprobs: Vec<TokenLogprob> },
    ReasoningText { text: String },
}

/// The tokens of a request.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct ResponseUsage {
    input_tokens: u32,
    input_tokens_details: ResponseInputDetails,
    output_tokens: u32,
    output_tokens_details: ResponseOutputDetails,
    total_tokens: u32,
}

/// More about the tokens of a prompt.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct ResponseInputDetails {
    /// Tokens that were in the prefix cache.
    cached_tokens: u32,
    /// 0: the prefix cache costs nothing.
    cache_write_tokens: u32,
}

/// More about the tokens of a reply.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct ResponseOutputDetails {
    /// Tokens of thinking.
    reasoning_tokens: u32,
}

impl From<TokenUsage> for ResponseUsage {
    fn from(usage: TokenUsage) -> ResponseUsage {
        ResponseUsage {
            input_tokens: usage.prompt,
            input_tokens_details: ResponseInputDetails { cached_tokens: usage.cached, cache_write_tokens: 0 },
            output_tokens: usage.reply,
            output_tokens_details: ResponseOutputDetails { reasoning_tokens: usage.thinking },
            total_tokens: usage.prompt.saturating_add(usage.reply),
        }
    }
}

impl ResponseObject {
    /// A reply without items yet.
    pub fn begun(request: &ResponsesRequest, generation: &Generation) -> ResponseObject {
        let text = request.text.as_ref();
        let format = text.and_then(|text| text.format.clone()).unwrap_or(TextFormat::Text {});
        ResponseObject {
            id: format!("resp_{}", new_id()),
            object: "response",
            created_at: since_1970().as_secs(),
            status: ResponseStatus::InProgress,
            error: None,
            incomplete_details: None,
            model: generation.model_name.to_string(),
            output: Vec::new(),
            usage: None,
            instructions: request.instructions.clone(),
            max_output_tokens: request.max_output_tokens,
            metadata: request.metadata.clone().unwrap_or_default(),
            parallel_tool_calls: request.parallel_tool_calls.unwrap_or(true),
            previous_response_id: None,
            reasoning: request.reasoning.clone().unwrap_or_default(),
            store: false,
            temperature: request.temperature,
            text: TextConfig {
                format: Some(format),
                verbosity: text.and_then(|text| text.verbosity.clone()),
            },
            tool_choice: request.tool_choice.clone().unwrap_or(ResponsesToolChoice::Mode(ToolMode::Auto)),
            tools: functions(request.tools.as_deref().unwrap_or_default(), &ParameterNotes::default()),
            top_p: request.top_p,
            truncation: "disabled",
        }
    }

    /// Sets how the reply ended.
    pub fn end(&mut self, reason: &FinishReason) {
        self.status = ResponseStatus::Completed;
        let cut = match reason {
            FinishReason::Length => "max_output_tokens",
            FinishReason::Repetition => "repetition",
            _ => return,
        };
        self.status = ResponseStatus::Incomplete;
        self.incomplete_details = Some(IncompleteDetails { reason: cut });
    }
}

impl OutputItem {
    /// Its id.
    pub fn id(&self) -> &str {
        match self {
            OutputItem::Message { id, .. }
            | OutputItem::FunctionCall { id, .. }
            | OutputItem::Reasoning { id, .. } => id,
        }
    }

    /// Sets how far it is.
    pub fn set_status(&mut self, new: ResponseStatus) {
        match self {
            OutputItem::Message { status, .. }
            | OutputItem::FunctionCall { status, .. }
            | OutputItem::Reasoning { status, .. } => *status = new,
        }
    }
}
