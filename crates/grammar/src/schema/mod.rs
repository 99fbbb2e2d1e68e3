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
mod keywords;
mod negate;
mod number;
mod object;
mod reference;
mod restrict;
mod rules;
mod shape;
mod visits;
mod writer;

use girih_tensor::Result;
use jsonschema::{PatternOptions, Validator};
use llguidance::api::GrammarInit;
use serde_json::Value;

use crate::deep_stack::on_deep_stack;
use crate::limits::{MAX_TEXT_BYTES, check_bytes, check_json_depth, refused};
use crate::mask_thread::first_line;

pub(crate) use call::{CallCheck, compile as compile_call};

/// The grammar of a schema, and the validator of finished replies.
///
/// # Errors
/// When the text is not a schema, exceeds a limit, or has a keyword that is not supported.
pub(crate) fn compile(text: &str) -> Result<(GrammarInit, SchemaCheck)> {
    let schema = read(text)?;
    let (document, root) = document::Document::new(&schema)?;
    let expander = expand::Expander::new(document);
    expander.refuse_cycles(root)?;
    let visits = visits::visits_by_depth(&expander.document, root)?;
    let grammar = writer::write(expander, &[shape::Claim::holds(root)])?;
    Ok((grammar, SchemaCheck::new(&schema, visits)?))
}

/// Reads the text of a schema.
fn read(text: &str) -> Result<Value> {
    check_bytes("schema", text, MAX_TEXT_BYTES)?;
    check_json_depth(text)?;
    serde_json::from_str(text)
        .map_err(|error| refused(format!("the schema is not JSON: {}", first_line(&error))))
}

/// The maximum number of visits of subschemas for one reply: some 50 ms of work, and at most as many nested
/// calls, which fit into the stack of [`on_deep_stack`].
const MAX_VISITS: u64 = 200_000;

/// The validator of a schema's finished replies.
pub(crate) struct SchemaCheck {
    validator: Validator,
    /// The visits of subschemas for one value, by its depth.
    visits: Vec<u64>,
}

impl SchemaCheck {
    fn new(schema: &Value, visits: Vec<u64>) -> Result<SchemaCheck> {
        let validator = jsonschema::options()
            .should_validate_formats(true)
            .with_pattern_options(PatternOptions::regex())
            .build(schema)
            .map_err(|error| refused(format!("the schema is malformed: {}", first_line(&error))))?;
        Ok(SchemaCheck { validator, visits })
    }

    /// Why a value is not valid; `None` if it is.
    ///
    /// # Errors
    /// When the check would take too long.
    pub fn fault(&self, value: &Value) -> Result<Option<String>> {
        let (mut level, mut work) = (vec![value], 0u64);
        for visits in &self.visits {
            work = work.saturating_add(visits.saturating_mul(level.len() as u64));
            level = level.into_iter().flat_map(parts).collect();
            if level.is_empty() {
                break;
            }
        }
        if work > MAX_VISITS || !level.is_empty() {
            return Err(refused(
                "the finished reply is nested too deeply for the schema's choices to be checked: bound its depth",
            ));
        }
        // The validator recurses for each reference that it follows.
        on_deep_stack(|| Ok(self.validator.validate(value).err().map(|error| first_line(&error))))
    }
}

/// The items of an array, or the values of an object.
fn parts(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(items) => items.iter().collect(),
        Value::Object(members) => members.values().collect(),
        _ => Vec::new(),
    }
}
