//! JSON Schema as a context-free grammar.
//!
//! A schema is read into nodes ([`document`]). A claim says that a node holds for a value, or
//! that it does not; the symbols of the grammar are sets of claims. [`expand`] turns a set into
//! alternatives of one shape each ([`shape`]), and [`writer`] writes these as rules. So `not`,
//! `oneOf` and `if` are complements of sets of texts, and recursive references are recursive
//! rules.

mod array;
mod branch;
mod document;
mod expand;
mod format;
mod keywords;
mod negate;
mod number;
mod object;
mod reference;
mod restrict;
mod rules;
mod shape;
mod writer;

use girih_tensor::Result;
use jsonschema::{PatternOptions, Validator};
use llguidance::api::GrammarInit;
use serde_json::Value;

use crate::limits::{MAX_TEXT_BYTES, check_bytes, check_json_depth, refused};
use crate::mask_thread::first_line;

/// The grammar of a schema, and the validator of finished replies.
///
/// # Errors
/// When the text is not a schema, exceeds a limit, or has a keyword that is not supported.
pub(crate) fn compile(text: &str) -> Result<(GrammarInit, Validator)> {
    check_bytes("schema", text, MAX_TEXT_BYTES)?;
    check_json_depth(text)?;
    let schema: Value = serde_json::from_str(text)
        .map_err(|error| refused(format!("the schema is not JSON: {}", first_line(&error))))?;
    let (document, root) = document::Document::new(&schema)?;
    let expander = expand::Expander::new(document);
    let grammar = writer::write(expander, &[shape::Claim::holds(root)])?;
    let validator = jsonschema::options()
        .should_validate_formats(true)
        .with_pattern_options(PatternOptions::regex())
        .build(&schema)
        .map_err(|error| refused(format!("the schema is malformed: {}", first_line(&error))))?;
    Ok((grammar, validator))
}
