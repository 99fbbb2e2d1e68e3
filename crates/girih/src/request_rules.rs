//! What a request gets from the model and the engine, and what it asks of them.

use girih_graph::{Error, ErrorKind, Result};

use crate::model::Model;

/// Checks that steps have rows for drafted tokens.
pub(crate) fn check_rows_for_drafts(output_rows: u32, sequences: u32) -> Result<()> {
    if output_rows > sequences {
        return Ok(());
    }
    let sentence = format!(
        "the request has a drafter, but the {output_rows} output rows of a step are for {sequences} sequences: set \
         RunOptions::output_rows to more"
    );
    Err(Error::with_kind(ErrorKind::Refused, sentence))
}

/// The stop tokens of the model and those of a request.
pub(crate) fn with_own_stops(model: &Model, wants_text: bool, own: Vec<u32>) -> Result<Vec<u32>> {
    // Without text, a model may have no tokenizer.
    let mut tokens = match model.stop_tokens() {
        Err(_) if !wants_text => model.listed_stop_tokens(),
        tokens => tokens?,
    };
    tokens.extend(own);
    Ok(tokens)
}

/// An error of a request that is too long, which also says if the context could be larger.
pub(crate) fn with_way_out(error: Error, context: u32, max: u32) -> Error {
    if error.kind() != ErrorKind::TooLong || context >= max {
        return error;
    }
    Error::with_kind(error.kind(), format!("{error}, or enlarge the context (the model supports {max})"))
}
