//! The check of a finished reply, by code that shares nothing with its grammar.

use girih_tensor::{Error, Result};
use llguidance::toktrie::TokTrie;
use regex_automata::{Anchored, Input, meta};
use serde_json::Value;

use crate::limits::refused;
use crate::schema::CallCheck;
use crate::validator::SchemaValidator;

/// What a finished reply must be.
pub(crate) enum FinishedCheck {
    /// UTF-8 between special tokens; Lark grammars have no second implementation to ask.
    Text,
    /// A text that the expression matches as a whole.
    Pattern(Box<meta::Regex>),
    /// One of these texts.
    Choice(Vec<String>),
    /// JSON that the schema's validator accepts.
    Schema(Box<SchemaValidator>),
    /// A call whose arguments the schema's validator accepts.
    Call(CallCheck),
}

impl FinishedCheck {
    /// Checks the bytes of a finished reply.
    ///
    /// # Errors
    /// When they are not what the grammar describes; then the grammar has a fault.
    pub fn validate(&self, reply: &[u8]) -> Result<()> {
        let wrong = |reason: String| {
            Error::new(format!(
                "the finished reply violates its grammar ({reason}): this is a fault of girih; report it with \
                 the grammar"
            ))
        };
        if let FinishedCheck::Call(call) = self {
            return call.fault(reply)?.map_or(Ok(()), |fault| Err(wrong(fault)));
        }
        let reply = if matches!(self, FinishedCheck::Text) { &without_marks(reply) } else { reply };
        let text = std::str::from_utf8(reply).map_err(|error| wrong(error.to_string()))?;
        match self {
            FinishedCheck::Text | FinishedCheck::Call(_) => Ok(()),
            FinishedCheck::Pattern(expression) => {
                let input = Input::new(text).anchored(Anchored::Yes);
                match expression.find(input).is_some_and(|found| found.end() == text.len()) {
                    true => Ok(()),
                    false => Err(wrong("the expression does not match it".to_owned())),
                }
            }
            FinishedCheck::Choice(texts) if texts.iter().any(|one| one == text) => Ok(()),
            FinishedCheck::Choice(_) => Err(wrong("it is none of the texts".to_owned())),
            FinishedCheck::Schema(schema) => {
                let value: Value = serde_json::from_str(text).map_err(|error| match error.is_syntax() {
                    // The only other fault of a text that is in memory and UTF-8.
                    true if error.to_string().starts_with("recursion limit") => refused(
                        "the finished reply is nested deeper than 127 levels and cannot be checked: bound its depth",
                    ),
                    _ => wrong(error.to_string()),
                })?;
                schema.fault(&value)?.map_or(Ok(()), |fault| Err(wrong(fault)))
            }
        }
    }
}

/// A reply without the marks of its special tokens: the byte 0xFF, which UTF-8 does not have, then
/// the token's id in brackets (llguidance, `TokTrie::decode_raw`).
fn without_marks(reply: &[u8]) -> Vec<u8> {
    let mut parts = reply.split(|byte| *byte == TokTrie::SPECIAL_TOKEN_MARKER);
    let mut text = parts.next().unwrap_or_default().to_vec();
    for part in parts {
        let inside = part.strip_prefix(b"[").unwrap_or_default();
        let digits = inside.iter().take_while(|byte| byte.is_ascii_digit()).count();
        match inside[digits..].strip_prefix(b"]") {
            Some(rest) if digits > 0 => text.extend(rest),
            // No mark: the check of UTF-8 finds it.
            _ => text.extend([&[TokTrie::SPECIAL_TOKEN_MARKER], part].concat()),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_special_tokens_are_no_text() {
        let valid = |reply: &[u8]| FinishedCheck::Text.validate(reply).is_ok();
        assert!(valid(b"a\xff[12]\xc3\xa9\xff[0]") && valid("[12] é".as_bytes()) && valid(b""));
        for wrong in [&b"\xff"[..], b"\xff[]", b"\xff[12", b"\xff12]", b"a\xff[1]\xff", b"\xc3"] {
            assert!(!valid(wrong), "{wrong:?}");
        }
        assert_eq!(without_marks(b"a\xff[12]b\xff[3]"), b"ab");
    }
}
