//! girih's errors as Dynamo's.

use dynamo_backend_common::{BackendError, DynamoError, ErrorType};
use girih::{Error, ErrorKind};

/// Refuses what a request asks for, by name.
pub(crate) fn refuse(what: &str, is_asked: bool) -> Result<(), DynamoError> {
    if is_asked {
        return Err(refusal(format!("girih's worker does not support {what}; leave it out")));
    }
    Ok(())
}

/// An error that the client gets to read.
pub(crate) fn refusal(sentence: String) -> DynamoError {
    let class = ErrorType::Backend(BackendError::InvalidArgument);
    DynamoError::builder().error_type(class).message(sentence.clone()).public_message(sentence).build()
}

/// An error of the worker's engine.
pub(crate) fn engine_error(class: BackendError, sentence: impl Into<String>) -> DynamoError {
    DynamoError::builder().error_type(ErrorType::Backend(class)).message(sentence).build()
}

/// The error of a request or of a start.
pub(crate) fn dynamo_error(error: Error) -> DynamoError {
    let sentence = error.to_string();
    match error.kind() {
        ErrorKind::Refused | ErrorKind::TooLong | ErrorKind::NotFound => refusal(sentence),
        // Another worker may have room.
        ErrorKind::QueueFull | ErrorKind::WaitTooLong => {
            DynamoError::builder().error_type(ErrorType::WorkerOverloaded).message(sentence).build()
        }
        ErrorKind::Cancelled => engine_error(BackendError::Cancelled, sentence),
        ErrorKind::DeviceFailed => engine_error(BackendError::EngineShutdown, sentence),
        _ => engine_error(BackendError::Unknown, sentence),
    }
}
