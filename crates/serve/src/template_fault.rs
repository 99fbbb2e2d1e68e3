//! Errors of chat templates, which come from the model's file or from the variables that a client sets.

use girih::{Conversation, ErrorKind, Model};

use crate::error::ApiError;

/// The error of a request with this conversation: status 400 if its chat template fails with the
/// client's variables and not without them, else as always.
pub fn of_variables(error: girih::Error, model: &Model, conversation: &Conversation) -> ApiError {
    if error.kind() != ErrorKind::Other || conversation.variables.is_empty() {
        return error.into();
    }
    let plain = Conversation { variables: Default::default(), ..conversation.clone() };
    match model.render(conversation) {
        Err(fault) if model.render(&plain).is_ok() => {
            let message = format!("with these variables, {fault}; change or omit them");
            ApiError::invalid("chat_template_kwargs", message)
        }
        _ => error.into(),
    }
}
