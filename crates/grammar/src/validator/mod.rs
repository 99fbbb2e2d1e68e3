//! A validator for JSON Schema (draft 7 and 2020-12), which interprets a schema as the specification
//! reads, one rule for each keyword. Finished replies are checked with it, so it shares no code with the
//! grammar that is made from the same schema.
//!
//! A schema is checked as the meta-schema would ([`keyword`], [`document`]) and becomes rules ([`build`]);
//! what is not supported is refused then. Numbers are exact ([`number`]). The work for a value is bounded
//! ([`work`]).

mod build;
mod document;
mod evaluate;
mod format;
mod json;
mod keyword;
mod number;
mod pattern;
mod rule;
#[cfg(test)]
mod tests;
mod uri;
mod work;

use girih_tensor::Result;
use serde_json::Value;

use crate::deep_stack::on_deep_stack;
use crate::limits::refused;

/// A schema that values can be checked against.
#[derive(Debug)]
pub struct SchemaValidator(Vec<rule::Schema>);

impl SchemaValidator {
    /// Reads a schema.
    ///
    /// # Errors
    /// When the schema is malformed, or has something that the validator does not support.
    pub fn new(schema: &Value) -> Result<SchemaValidator> {
        build::build(schema).map(SchemaValidator)
    }

    /// Why a value is not valid: the path of a part as a JSON pointer, and the reason. `None` if the value
    /// is valid.
    ///
    /// # Errors
    /// When the check would take too long, or has numbers with more digits than can be compared.
    pub fn fault(&self, value: &Value) -> Result<Option<String>> {
        // Rules nest as deeply as references and the value do.
        on_deep_stack(|| match evaluate::Evaluation::run(&self.0, value) {
            Ok(()) => Ok(None),
            Err(work::Failure::Fault(fault)) => Ok(Some(fault.sentence())),
            Err(work::Failure::Stopped(work::Stopped(sentence))) => Err(refused(sentence)),
        })
    }
}
