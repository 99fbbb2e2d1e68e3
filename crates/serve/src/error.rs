//! The errors of the APIs: what a client gets when its request is not served.

use std::fmt;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use girih::ErrorKind;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::{IntoResponses, ToSchema};

/// Why a request is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// The status of the reply.
    pub status: StatusCode,
    /// What a program decides by, such as `model_not_found`.
    pub code: &'static str,
    /// The parameter that is wrong, such as `messages[2].role`.
    pub param: Option<String>,
    /// One sentence for a person.
    pub message: String,
    /// The number of seconds after which the same request may succeed.
    pub retry_after: Option<u32>,
}

/// The body of an error in OpenAI's dialect.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ErrorBody {
    error: ErrorObject,
}

/// An error in OpenAI's dialect.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ErrorObject {
    /// One sentence for a person.
    message: String,
    /// What kind of error it is.
    #[serde(rename = "type")]
    kind: String,
    /// The parameter that is wrong.
    param: Option<String>,
    /// What a program decides by.
    code: String,
}

/// Defines the errors of all routes of an API, for their description.
macro_rules! error_replies {
    ($(#[$meta:meta])* $name:ident($body:ident)) => {
        $(#[$meta])*
        #[derive(IntoResponses)]
        #[allow(dead_code)] // describes `ApiError`
        pub enum $name {
            /// A parameter is wrong or not supported.
            #[response(status = 400)]
            Invalid($body),
            /// The API key is missing or wrong.
            #[response(status = 401)]
            Unauthorized($body),
            /// The origin is not allowed.
            #[response(status = 403)]
            Forbidden($body),
            /// There is no such model or route.
            #[response(status = 404)]
            NotFound($body),
            /// The body did not come in time.
            #[response(status = 408)]
            Slow($body),
            /// The body is too large.
            #[response(status = 413)]
            TooLarge($body),
            /// The body is not JSON.
            #[response(status = 415)]
            NotJson($body),
            /// The model called a tool with arguments that are not a JSON object.
            #[response(status = 422)]
            InvalidCall($body),
            /// The server is not called by this host.
            #[response(status = 421)]
            Misdirected($body),
            /// The queue, or the key's share of it, is full.
            #[response(status = 429)]
            TooMany($body),
            /// The server has a fault.
            #[response(status = 500)]
            Fault($body),
            /// The server ends, loads models, lacks memory, or starts an engine again.
            #[response(status = 503)]
            Unavailable($body),
        }
    };
}

error_replies! {
    /// The errors of OpenAI's API, and of every route that is not another's.
    ErrorReplies(ErrorBody)
}
error_replies! {
    /// The errors of Anthropic's API.
    AnthropicErrorReplies(AnthropicErrorBody)
}
error_replies! {
    /// The errors of Ollama's API.
    OllamaErrorReplies(OllamaErrorBody)
}

/// The body of an error of Anthropic's API.
#[derive(ToSchema)]
#[allow(dead_code)] // describes `ApiError::body`
pub struct AnthropicErrorBody {
    /// `error`.
    #[schema(rename = "type")]
    kind: String,
    error: AnthropicErrorObject,
}

/// An error of Anthropic's API.
#[derive(ToSchema)]
#[allow(dead_code)] // describes `ApiError::body`
pub struct AnthropicErrorObject {
    /// What a program decides by.
    #[schema(rename = "type")]
    kind: String,
    /// One sentence for a person.
    message: String,
}

/// The body of an error of Ollama's API.
#[derive(ToSchema)]
#[allow(dead_code)] // describes `ApiError::body`
pub struct OllamaErrorBody {
    /// One sentence for a person.
    error: String,
}

/// The code of an error, an extension of its response for the metrics and the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ErrorCode(pub &'static str);

/// An API, which has its own form of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// OpenAI's, and every route that is not another's.
    OpenAi,
    /// Anthropic's.
    Anthropic,
    /// Ollama's.
    Ollama,
}

impl Dialect {
    /// The dialect of a route.
    pub fn of_path(path: &str) -> Dialect {
        if path == "/v1/messages" || path.starts_with("/v1/messages/") {
            Dialect::Anthropic
        } else if path.starts_with("/api/") {
            Dialect::Ollama
        } else {
            Dialect::OpenAi
        }
    }
}

impl ApiError {
    /// This error about tools, for a client that calls them functions.
    #[must_use]
    pub fn of_functions(self) -> ApiError {
        let param = self.param.map(|param| match param.as_str() {
            "tools" => "functions".to_owned(),
            "tool_choice" => "function_call".to_owned(),
            _ => param,
        });
        ApiError { param, ..self }
    }

    /// An error with this status, code and sentence.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> ApiError {
        ApiError { status, code, param: None, message: message.into(), retry_after: None }
    }

    /// A parameter is wrong: status 400.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        let error = ApiError::new(StatusCode::BAD_REQUEST, "invalid_value", message);
        ApiError { param: Some(param.into()), ..error }
    }

    /// A parameter or a value of it is not supported: status 400.
    pub fn unsupported(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError { code: "unsupported_parameter", ..ApiError::invalid(param, message) }
    }

    /// Too many requests run or wait: status 429.
    pub fn too_many(message: impl Into<String>) -> ApiError {
        let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded", message);
        ApiError { retry_after: Some(1), ..error }
    }

    /// The request was not admitted in the time that it may wait: status 429.
    pub fn queue_timeout(message: impl Into<String>) -> ApiError {
        ApiError { code: "queue_timeout", ..ApiError::too_many(message) }
    }

    /// The same error, with the time after which a request would be admitted if it came now: at least
    /// a second.
    pub fn retry_after(self, wait: Duration) -> ApiError {
        let seconds = wait.as_secs_f64().ceil().clamp(1.0, f64::from(u32::MAX));
        ApiError { retry_after: Some(seconds as u32), ..self }
    }

    /// The server ends: status 503.
    pub fn shutting_down() -> ApiError {
        let message = "the server is shutting down; try again later";
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "shutting_down", message);
        ApiError { retry_after: Some(5), ..error }
    }

    /// The engine of the model has ended by a fault and is started again: status 503.
    pub fn engine_failed() -> ApiError {
        let message = "the model's engine has ended by a fault and is started again; try again later";
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "engine_failed", message);
        ApiError { retry_after: Some(1), ..error }
    }

    /// The request's time limit passed: status 503.
    pub fn timed_out() -> ApiError {
        let message = "the time limit passed before the reply was complete; try again later";
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "time_limit_exceeded", message);
        ApiError { retry_after: Some(5), ..error }
    }

    /// The reply was complete but its client did not read it: status 408.
    pub fn unread() -> ApiError {
        let message = "the reply was complete but was not read in time, and was dropped; read it sooner";
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "reply_not_read", message)
    }

    /// The model wrote a call of a tool whose arguments are not a JSON object: status 422, because
    /// the same request has the same reply.
    pub fn invalid_call(name: &str, fault: &str) -> ApiError {
        let message = format!(
            "the model called {name:?} with arguments that are not a JSON object ({fault}); force the call, or change \
             the request"
        );
        ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_tool_call", message)
    }

    /// The server has a fault: status 500.
    pub fn internal(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
    }

    /// OpenAI's word for errors of this status.
    pub fn openai_type(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            429 => "rate_limit_error",
            400..=499 => "invalid_request_error",
            _ => "server_error",
        }
    }

    /// Anthropic's word for errors of this status.
    pub fn anthropic_type(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            400..=499 => "invalid_request_error",
            503 => "overloaded_error",
            _ => "api_error",
        }
    }

    /// The error as an object in OpenAI's dialect.
    pub fn openai_object(&self) -> ErrorObject {
        let (message, kind) = (self.message.clone(), self.openai_type().to_owned());
        ErrorObject { message, kind, param: self.param.clone(), code: self.code.to_owned() }
    }

    /// The body of the reply in a dialect.
    pub fn body(&self, dialect: Dialect) -> Value {
        match dialect {
            Dialect::OpenAi => json!(ErrorBody { error: self.openai_object() }),
            Dialect::Anthropic => json!({
                "type": "error",
                "error": {"type": self.anthropic_type(), "message": self.message},
            }),
            Dialect::Ollama => json!({"error": self.message}),
        }
    }

    /// The reply in a dialect.
    pub fn response(&self, dialect: Dialect) -> Response {
        let mut response = Response::new(Body::from(self.body(dialect).to_string()));
        *response.status_mut() = self.status;
        response.extensions_mut().insert(ErrorCode(self.code));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// The reply, or the error in a dialect.
pub fn answer(dialect: Dialect, reply: Result<Response, ApiError>) -> Response {
    reply.unwrap_or_else(|error| error.response(dialect))
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ApiError {}

impl IntoResponse for ApiError {
    /// The reply in OpenAI's dialect.
    fn into_response(self) -> Response {
        self.response(Dialect::OpenAi)
    }
}

impl From<girih::Error> for ApiError {
    fn from(error: girih::Error) -> ApiError {
        let (status, code) = match error.kind() {
            ErrorKind::Refused => (StatusCode::BAD_REQUEST, "invalid_value"),
            ErrorKind::TooLong => (StatusCode::BAD_REQUEST, "context_length_exceeded"),
            ErrorKind::QueueFull => return ApiError::too_many(error.to_string()),
            ErrorKind::WaitTooLong => return ApiError::queue_timeout(error.to_string()),
            ErrorKind::Cancelled => return ApiError::shutting_down(),
            ErrorKind::NotFound => (StatusCode::NOT_FOUND, "model_not_found"),
            ErrorKind::OutOfMemory => (StatusCode::SERVICE_UNAVAILABLE, "out_of_memory"),
            ErrorKind::NotANumber => (StatusCode::INTERNAL_SERVER_ERROR, "not_a_number"),
            ErrorKind::OutOfRange => (StatusCode::INTERNAL_SERVER_ERROR, "out_of_range"),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "internal_error"),
        };
        ApiError::new(status, code, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_an_error_decides_its_status() {
        let of = |kind| ApiError::from(girih::Error::with_kind(kind, "the sentence"));
        let found = |kind| (of(kind).status.as_u16(), of(kind).openai_type());
        assert_eq!(found(ErrorKind::Refused), (400, "invalid_request_error"));
        assert_eq!(found(ErrorKind::TooLong), (400, "invalid_request_error"));
        assert_eq!(of(ErrorKind::TooLong).code, "context_length_exceeded");
        assert_eq!(found(ErrorKind::QueueFull), (429, "rate_limit_error"));
        assert_eq!(of(ErrorKind::QueueFull).retry_after, Some(1));
        assert_eq!(found(ErrorKind::WaitTooLong), (429, "rate_limit_error"));
        assert_eq!(of(ErrorKind::WaitTooLong).code, "queue_timeout");
        assert_eq!(found(ErrorKind::NotFound), (404, "not_found_error"));
        assert_eq!(found(ErrorKind::OutOfMemory), (503, "server_error"));
        assert_eq!(found(ErrorKind::DeviceFailed), (500, "server_error"));
        assert_eq!(of(ErrorKind::Refused).message, "the sentence");
    }

    #[test]
    fn a_client_is_told_whole_seconds_to_wait() {
        let after =
            |seconds| ApiError::too_many("full").retry_after(Duration::from_secs_f64(seconds)).retry_after;
        assert_eq!([0.0, 0.2, 1.0, 1.01, 41.5, 1e12].map(after), [1, 1, 1, 2, 42, u32::MAX].map(Some));
    }

    #[test]
    fn each_dialect_has_its_own_body() {
        let error = ApiError::invalid("n", "n is 9; the maximum is 8");
        let openai = json!({"error": {"message": "n is 9; the maximum is 8", "type": "invalid_request_error",
            "param": "n", "code": "invalid_value"}});
        assert_eq!(error.body(Dialect::of_path("/v1/chat/completions")), openai);
        let anthropic = json!({"type": "error", "error": {"type": "invalid_request_error",
            "message": "n is 9; the maximum is 8"}});
        assert_eq!(error.body(Dialect::of_path("/v1/messages/count_tokens")), anthropic);
        assert_eq!(error.body(Dialect::of_path("/api/chat")), json!({"error": "n is 9; the maximum is 8"}));
    }
}
