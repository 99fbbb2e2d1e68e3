//! JSON Schema as a context-free grammar.
//!
//! A schema is read into nodes ([`document`]). A claim says that a node holds for a value, or
//! that it does not; the symbols of the grammar are sets of claims. [`expand`] turns a set into
//! alternatives of one shape each ([`shape`]), and [`writer`] writes these as rules. So `not`,
//! `oneOf` and `if` are complements of sets of texts, and recursive references are recursive
//! rules.

mod array;
mod branch;
mod call;
mod document;
mod expand;
mod format;
mod from_api;
mod keywords;
mod negate;
mod number;
mod object;
mod reference;
mod restrict;
mod rules;
mod shape;
mod text;
mod writer;

use girih_tensor::Result;
use llguidance::api::GrammarInit;

use crate::validator::SchemaValidator;

pub use from_api::{SchemaObjects, schema_from_api};

pub(crate) use call::{CallCheck, compile as compile_call};

/// The grammar of a schema, and the validator of finished replies.
///
/// # Errors
/// When the text is not a schema, exceeds a limit, or has a keyword that is not supported.
pub(crate) fn compile(text: &str) -> Result<(GrammarInit, SchemaValidator)> {
    let schema = text::read(text)?;
    let (document, root) = document::Document::new(&schema)?;
    let expander = expand::Expander::new(document);
    expander.refuse_cycles(root)?;
    let grammar = writer::write(expander, &[shape::Claim::holds(root)])?;
    Ok((grammar, SchemaValidator::new(&schema)?))
}
