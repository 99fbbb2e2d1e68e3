//! `/infill`: the text between two others, as llama-server has it.

use std::sync::{Arc, LazyLock};

use axum::Json;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use girih::{InfillFile, Prompt};
use serde::Deserialize;
use utoipa::ToSchema;

use super::infill_reply::{InfillEvents, InfillReply};
use super::parameters::{WITHOUT_EFFECT, request_body, token_limit};
use crate::caller::ApiCaller;
use crate::error::{ApiError, ErrorReplies};
use crate::generation::{GenerationRequest, begin};
use crate::json_body::{from_json_object, read_body};
use crate::parameters::ParameterWithoutEffect;
use crate::sse::{ServerSentEvent, stream_response};
use crate::state::ServerState;

/// The maximum number of other files.
const MAX_FILES: usize = 256;

/// The maximum number of fields that a reply is cut to.
const MAX_FIELDS: usize = 64;

/// What editors ask for when they complete code, to get a shorter reply in time. A longer one is as useful to them.
pub const WISHES: &[ParameterWithoutEffect] = &[
    ParameterWithoutEffect::any("n_indent", "a reply does not end by its indents"),
    ParameterWithoutEffect::any("t_max_predict_ms", "a reply does not end by its time"),
    ParameterWithoutEffect::any("t_max_prompt_ms", "a prompt is run whole"),
    ParameterWithoutEffect::any("samplers", "samplers run in girih's order, and there is none for infill"),
];

/// The parameters without effect: those of completions, some of which have other values here.
static ALL_WITHOUT_EFFECT: LazyLock<Vec<ParameterWithoutEffect>> = LazyLock::new(|| {
    let is_wish = |name: &str| WISHES.iter().any(|wish| wish.name == name);
    let shared = WITHOUT_EFFECT.iter().filter(|parameter| !is_wish(parameter.name));
    shared.chain(WISHES).copied().collect()
});

request_body! {
    /// The body of `/infill`.
    InfillRequest {
        /// The text before the gap.
        input_prefix: String,
        /// The text after the gap.
        input_suffix: String,
        /// Other files, at most 256.
        #[schema(max_items = 256)]
        input_extra: Option<Vec<InfillFileBody>>,
        /// More text before the gap, after `input_prefix`.
        prompt: Option<String>,
        /// The fields of the reply, such as `content` or `timings/prompt_n`; without them, all. At most 64.
        #[schema(max_items = 64)]
        response_fields: Option<Vec<String>>,
    }
}

/// A file beside the one with the gap.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct InfillFileBody {
    /// Its name. Default `tmp`.
    filename: Option<String>,
    /// Its text.
    text: String,
}

from_json_object!(InfillFileBody);

/// The routes of this module.
pub fn routes() -> Router<Arc<ServerState>> {
    Router::new().route("/infill", post(fill))
}

/// The text between two others.
#[utoipa::path(
    post,
    path = "/infill",
    tag = "llama-server",
    request_body = InfillRequest,
    responses(
        (status = 200, content(
            (InfillReply = "application/json"),
            (ServerSentEvent = "text/event-stream"),
        )),
        ErrorReplies,
    )
)]
pub async fn fill(
    State(state): State<Arc<ServerState>>,
    caller: ApiCaller,
    body: Bytes,
) -> Result<Response, ApiError> {
    let body: InfillRequest = read_body(body, &ALL_WITHOUT_EFFECT).await?;
    let request = body.checked()?;
    let (is_stream, runs_prompt_only) = (body.stream == Some(true), body.runs_prompt_only());
    let response_fields = body.response_fields;
    let generation = begin(&state, &caller, request).await.map_err(of_model)?;
    let events = InfillEvents::new(&generation, runs_prompt_only);
    if is_stream {
        return stream_response(generation, events).await;
    }
    let reply = events.read(generation).await?;
    match &response_fields {
        None => Ok(Json(reply).into_response()),
        Some(fields) => Ok(Json(reply.cut_to(fields)).into_response()),
    }
}

/// A model without tokens for it lacks what the route needs, whatever the text after the gap is.
fn of_model(error: ApiError) -> ApiError {
    match error.param.as_deref() {
        Some("suffix") => ApiError { param: Some("model".to_owned()), ..error },
        _ => error,
    }
}

impl InfillRequest {
    /// What the body asks for.
    ///
    /// # Errors
    /// When a parameter is outside its range or not supported.
    pub fn checked(&self) -> Result<GenerationRequest, ApiError> {
        let shared = self.generation()?;
        if shared.count != 1 {
            return Err(ApiError::unsupported(
                "n",
                "n must be 1, as a reply of /infill has one text; omit it",
            ));
        }
        let files = self.input_extra.as_deref().unwrap_or_default();
        let fields = self.response_fields.as_deref().unwrap_or_default();
        for (param, count, max) in
            [("input_extra", files.len(), MAX_FILES), ("response_fields", fields.len(), MAX_FIELDS)]
        {
            if count > max {
                let message = format!("{param} has {count} items; the maximum is {max}");
                return Err(ApiError::invalid(param, message));
            }
        }
        if self.stream == Some(true) && self.response_fields.is_some() {
            let message = "the pieces of a stream are not cut to response_fields; omit it, or stream";
            return Err(ApiError::unsupported("response_fields", message));
        }
        let file = |file: &InfillFileBody| InfillFile {
            name: file.filename.clone().unwrap_or_else(|| "tmp".to_owned()),
            text: file.text.clone(),
        };
        let before = format!("{}{}", self.input_prefix, self.prompt.as_deref().unwrap_or_default());
        // Editors send 0 so that the prompt is cached: one token is computed then.
        let max_tokens = token_limit("n_predict", self.max_tokens, 0)?.map(|count| count.max(1));
        Ok(GenerationRequest {
            prompts: vec![Prompt::Text(before)],
            suffix: Some(self.input_suffix.clone()),
            infill_files: files.iter().map(file).collect(),
            max_tokens,
            ..shared
        })
    }

    /// Whether the prompt is run only to be cached, and the reply has no text.
    fn runs_prompt_only(&self) -> bool {
        self.max_tokens == Some(0)
    }
}
