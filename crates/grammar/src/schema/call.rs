//! Calls of tools as a context-free grammar: fixed texts and special tokens around arguments that
//! a schema describes.

use girih_tensor::{Error, Result};
use girih_words::reply::{CallForm, CallGrammar, CallPiece};
use llguidance::api::GrammarInit;
use llguidance::derivre::RegexAst;
use llguidance::earley::SymIdx;
use llguidance::toktrie::TokTrie;
use serde_json::Value;

use super::document::{Document, NodeId};
use super::expand::Expander;
use super::from_api::{SchemaObjects, schema_from_api};
use super::rules::{RuleWriter, Spaces};
use super::shape::Claim;
use super::text::read;
use super::writer;
use crate::limits::{MAX_TEXT_BYTES, refused};
use crate::mask_thread::first_line;
use crate::validator::SchemaValidator;

/// The grammar of a call, and the check of finished ones.
///
/// # Errors
/// When there is no call, the schemas exceed a limit together, or one of them is not supported or
/// has no object; the error names the tool.
pub(crate) fn compile(grammar: &CallGrammar) -> Result<(GrammarInit, CallCheck)> {
    let texts: Vec<String> =
        grammar.calls.iter().map(|call| Value::from(call.arguments.clone()).to_string()).collect();
    let bytes: usize = texts.iter().map(String::len).sum();
    if bytes > MAX_TEXT_BYTES {
        return Err(refused(format!(
            "the schemas of the tools have {bytes} bytes; the maximum is {MAX_TEXT_BYTES}: shorten them, or \
             allow fewer tools"
        )));
    }
    let mut schemas = Vec::with_capacity(texts.len());
    for (call, text) in grammar.calls.iter().zip(&texts) {
        let schema = read(text).map_err(|error| of_tool(call, &error))?;
        schemas.push((call, schema_from_api(&schema, SchemaObjects::Closed)));
    }
    let mut checks = Vec::with_capacity(schemas.len());
    let mut writer: Option<(RuleWriter<'_>, SymIdx)> = None;
    let mut needed = Vec::new();
    for (index, (call, schema)) in schemas.iter().enumerate() {
        let named = |error: Error| of_tool(call, &error);
        let (document, root) = Document::new(schema).map_err(named)?;
        let (mut rules, start) = match writer.take() {
            None => {
                let mut rules = RuleWriter::new(Expander::new(document), Spaces::Never)?;
                let start = rules.start()?;
                (rules, start)
            }
            Some((mut rules, start)) => {
                rules.set_expander(rules.expander.replaced(document));
                (rules, start)
            }
        };
        let (arguments, check) = write_arguments(&mut rules, schema, root).map_err(named)?;
        needed.push(arguments);
        rules.set_spaces(Spaces::Never)?;
        let mut parts = pieces(&mut rules, &call.before)?;
        parts.push(rules.nested(&format!("tool_{index}"), arguments)?);
        parts.extend(pieces(&mut rules, &call.after)?);
        rules.rule(start, parts);
        checks.push(FormCheck { before: bytes_of(&call.before), check, after: bytes_of(&call.after) });
        writer = Some((rules, start));
    }
    let (rules, _) = writer.ok_or_else(|| refused("there is no tool to call; give at least one"))?;
    let contradiction = |number: usize| of_tool(&grammar.calls[number], &"no object satisfies the schema");
    Ok((rules.finish(&needed, contradiction)?, CallCheck(checks)))
}

/// Writes the rules of the arguments of one tool.
fn write_arguments(
    rules: &mut RuleWriter<'_>,
    schema: &Value,
    root: NodeId,
) -> Result<(SymIdx, SchemaValidator)> {
    rules.set_spaces(Spaces::Json)?;
    rules.expander.refuse_cycles(root)?;
    let arguments = writer::write_object(rules, Claim::holds(root))?;
    Ok((arguments, SchemaValidator::new(schema)?))
}

/// The symbols of fixed parts.
fn pieces(rules: &mut RuleWriter<'_>, pieces: &[CallPiece]) -> Result<Vec<SymIdx>> {
    let symbol = |piece: &CallPiece| match piece {
        CallPiece::Text(text) => rules.terminal(RegexAst::Literal(text.clone())),
        CallPiece::Token(id) => rules.special_token(*id),
    };
    pieces.iter().map(symbol).collect()
}

fn of_tool(call: &CallForm, error: &dyn std::fmt::Display) -> Error {
    refused(format!("the parameters of the tool '{}' cannot be forced: {error}", call.name))
}

/// The bytes of fixed parts in a finished reply: special tokens have a byte that no text has.
fn bytes_of(pieces: &[CallPiece]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in pieces {
        match piece {
            CallPiece::Text(text) => bytes.extend_from_slice(text.as_bytes()),
            CallPiece::Token(id) => {
                bytes.push(TokTrie::SPECIAL_TOKEN_MARKER);
                bytes.extend_from_slice(format!("[{id}]").as_bytes());
            }
        }
    }
    bytes
}

/// The check of finished calls.
pub(crate) struct CallCheck(Vec<FormCheck>);

struct FormCheck {
    before: Vec<u8>,
    check: SchemaValidator,
    after: Vec<u8>,
}

impl CallCheck {
    /// Why a reply is no call of one of the tools; `None` if it is one.
    ///
    /// # Errors
    /// When the check would take too long.
    pub fn fault(&self, reply: &[u8]) -> Result<Option<String>> {
        let arguments = |form: &FormCheck| -> Option<Vec<u8>> {
            Some(reply.strip_prefix(&form.before[..])?.strip_suffix(&form.after[..])?.to_vec())
        };
        let Some((form, json)) = self.0.iter().find_map(|form| Some((form, arguments(form)?))) else {
            return Ok(Some("it is no call of one of the tools".to_owned()));
        };
        match serde_json::from_slice::<Value>(&json) {
            Ok(value @ Value::Object(_)) => form.check.fault(&value),
            Ok(_) => Ok(Some("the arguments are no object".to_owned())),
            Err(error) => Ok(Some(first_line(&error))),
        }
    }
}
