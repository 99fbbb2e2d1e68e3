//! `/tokenize` and `/detokenize`: texts to tokens and back, in the form of vLLM's endpoints.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use girih::{BosEos, Conversation, Session, TextOrigin};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::media_options::MediaOptions;
use super::messages::{ChatMessage, continues_last, template_messages};
use super::template_variables::checked_variables;
use super::tool_choice::ToolBody;
use crate::api::reply_form::check_tools;
use crate::background::in_background;
use crate::error::{ApiError, ErrorReplies};
use crate::find_model::find_model;
use crate::images::{decoded, first_image_of_messages, take_images};
use crate::json_body::{from_json_object, read_body};
use crate::parameters::ParameterNotes;
use crate::ready_session::ready_session;
use crate::state::ServerState;
use crate::template_fault;

/// The routes of this module.
pub fn routes() -> Router<Arc<ServerState>> {
    Router::new().route("/tokenize", post(tokenize)).route("/detokenize", post(detokenize))
}

/// The body of `/tokenize`: a prompt, or messages.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct TokenizeRequest {
    /// The model's id; without one, the first model's tokenizer is used.
    pub model: Option<String>,
    /// A text.
    pub prompt: Option<String>,
    /// A conversation, which the model's chat template writes.
    pub messages: Option<Vec<ChatMessage>>,
    /// The tools of the conversation.
    #[schema(value_type = Option<Vec<ToolBody>>)]
    pub tools: Option<Vec<Value>>,
    /// Whether BOS and EOS are added to a text if the tokenizer is configured to. Default true. Chat
    /// templates write these tokens themselves.
    pub add_special_tokens: Option<bool>,
    /// Whether the beginning of a reply is added to a conversation. Default true.
    pub add_generation_prompt: Option<bool>,
    /// Whether the tokens end with the last message, for a reply that continues it. Default false.
    pub continue_final_message: Option<bool>,
    /// Variables of the chat template.
    #[schema(value_type = Option<Object>)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// How videos are read.
    pub media_io_kwargs: Option<MediaOptions>,
    /// Whether the tokens are also given as texts. Default false.
    pub return_token_strs: Option<bool>,
}

/// The reply of `/tokenize`.
#[derive(Debug, Serialize, ToSchema)]
pub struct TokenizeReply {
    count: usize,
    /// The maximum number of tokens of a prompt and its reply.
    max_model_len: u32,
    tokens: Vec<u32>,
    /// The tokens as the vocabulary spells them, if they were asked for.
    token_strs: Option<Vec<String>>,
}

/// The body of `/detokenize`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct DetokenizeRequest {
    /// The model's id; without one, the first model's tokenizer is used.
    pub model: Option<String>,
    /// The tokens.
    pub tokens: Vec<u32>,
}

/// The reply of `/detokenize`.
#[derive(Debug, Serialize, ToSchema)]
pub struct DetokenizeReply {
    /// The text without special tokens.
    prompt: String,
}

/// The tokens of a text or of a conversation.
#[utoipa::path(
    post,
    path = "/tokenize",
    tag = "openai",
    request_body = TokenizeRequest,
    responses((status = 200, body = TokenizeReply), ErrorReplies)
)]
pub async fn tokenize(
    State(state): State<Arc<ServerState>>,
    body: Bytes,
) -> Result<Json<TokenizeReply>, ApiError> {
    let body: TokenizeRequest = read_body(body, &[]).await?;
    let model = find_model(&state, body.model.as_deref()).await?;
    let session = ready_session(&state, &model).await?;
    let media = body.media_io_kwargs.as_ref();
    let messages = body.messages.as_deref();
    let messages = messages.map(|messages| template_messages(messages, media)).transpose()?;
    // Images are decoded, as a prompt's tokens depend on their sizes.
    let has_images = first_image_of_messages(&messages.unwrap_or_default()).is_some();
    let (turns, notes) = (model.turns(has_images).await?, ParameterNotes::current());
    in_background(move || {
        let _turns = turns;
        body.reply(&session, &notes).map(Json)
    })
    .await
}

impl TokenizeRequest {
    fn reply(&self, session: &Session, notes: &ParameterNotes) -> Result<TokenizeReply, ApiError> {
        let model = session.model();
        let tools = self.tools.as_deref().unwrap_or_default();
        check_tools(tools)?;
        let tokens = match (&self.prompt, &self.messages) {
            (Some(prompt), None) if self.add_special_tokens.unwrap_or(true) => model.tokenize(prompt)?,
            (Some(prompt), None) => {
                model.text_processor()?.tokenizer.encode(prompt, TextOrigin::User, BosEos::Omit)?
            }
            (None, Some(messages)) => {
                let begins_reply = self.add_generation_prompt;
                let mut conversation = Conversation {
                    messages: template_messages(messages, self.media_io_kwargs.as_ref())?,
                    continues_last: continues_last(messages, self.continue_final_message, begins_reply)?,
                    tools: self.tools.clone().filter(|tools| !tools.is_empty()),
                    add_generation_prompt: begins_reply.unwrap_or(true),
                    variables: checked_variables(self.chat_template_kwargs.as_ref())?,
                    ..Conversation::new()
                };
                let images = decoded(take_images(&mut conversation)?, model, notes, || true)?;
                let spans = model.render_with_images(&conversation, &images);
                spans
                    .and_then(|spans| model.text_processor()?.tokenizer.encode_spans(&spans, BosEos::Omit))
                    .map_err(|error| template_fault::of_variables(error, model, &conversation))?
            }
            _ => return Err(ApiError::invalid("prompt", "give either prompt or messages")),
        };
        let tokenizer = &model.text_processor()?.tokenizer;
        let text = |id: &u32| tokenizer.token(*id).unwrap_or_default().to_owned();
        let token_strs = self.return_token_strs.unwrap_or(false).then(|| tokens.iter().map(text).collect());
        Ok(TokenizeReply { count: tokens.len(), max_model_len: session.limits().context, tokens, token_strs })
    }
}

/// The text of tokens.
#[utoipa::path(
    post,
    path = "/detokenize",
    tag = "openai",
    request_body = DetokenizeRequest,
    responses((status = 200, body = DetokenizeReply), ErrorReplies)
)]
pub async fn detokenize(
    State(state): State<Arc<ServerState>>,
    body: Bytes,
) -> Result<Json<DetokenizeReply>, ApiError> {
    let body: DetokenizeRequest = read_body(body, &[]).await?;
    let model = find_model(&state, body.model.as_deref()).await?;
    let session = ready_session(&state, &model).await?;
    in_background(move || {
        let model = session.model();
        let vocabulary = model.text_processor()?.tokenizer.vocab_size();
        if let Some(id) = body.tokens.iter().find(|id| **id >= vocabulary) {
            let message = format!("the token {id} is outside the vocabulary of {vocabulary}");
            return Err(ApiError::invalid("tokens", message));
        }
        Ok(Json(DetokenizeReply { prompt: model.detokenize(&body.tokens)? }))
    })
    .await
}

from_json_object!(TokenizeRequest, DetokenizeRequest);
