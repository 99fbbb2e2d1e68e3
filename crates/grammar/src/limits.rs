//! Bounds on grammars, which strangers may write. They are checked before a dependency sees the
//! text, except for the work of compiling, which the dependencies count.

use girih_tensor::{Error, ErrorKind, Result};

/// The maximum number of bytes of a schema or a grammar.
pub const MAX_TEXT_BYTES: usize = 64 << 10;

/// The maximum number of bytes of a regular expression, alone or in a schema.
pub const MAX_PATTERN_BYTES: usize = 4096;

/// The maximum number of texts of a choice.
pub const MAX_CHOICES: usize = 1024;

/// The maximum nesting of a regular expression.
pub const MAX_PATTERN_DEPTH: u32 = 64;

/// The maximum nesting of a schema's objects and arrays.
pub const MAX_JSON_DEPTH: usize = 64;

/// The maximum number of opening brackets of a Lark grammar, which bounds their nesting.
pub const MAX_LARK_BRACKETS: usize = 4096;

/// The maximum number of lines of a Lark grammar, which bounds a chain of rules.
pub const MAX_LARK_LINES: usize = 4096;

/// The maximum number of items that the parser of a Lark grammar holds for one place of the text. An ambiguous
/// grammar has more with each token, and the work of a token grows with their square: it delays all replies of
/// the model.
pub const MAX_LARK_ITEMS: usize = 500;

/// The stack of the threads that compile grammars and compute masks. The bounds above keep
/// recursion far below it; memory is taken only as far as the stack is used.
pub(crate) const STACK_BYTES: usize = 256 << 20;

/// Returns an error of the kind [`ErrorKind::Refused`].
pub(crate) fn refused(sentence: impl Into<String>) -> Error {
    Error::with_kind(ErrorKind::Refused, sentence)
}

/// Checks the number of bytes of a text.
pub(crate) fn check_bytes(what: &str, text: &str, max: usize) -> Result<()> {
    if text.len() <= max {
        return Ok(());
    }
    Err(refused(format!("the {what} has {} bytes; the maximum is {max}: shorten it", text.len())))
}

/// Checks the number of texts of a choice, and of their bytes.
pub(crate) fn check_choice(texts: &[String]) -> Result<()> {
    let (count, bytes) = (texts.len(), texts.iter().map(String::len).sum::<usize>());
    if count == 0 || count > MAX_CHOICES || bytes > MAX_TEXT_BYTES {
        return Err(refused(format!(
            "the choice has {count} texts of {bytes} bytes together; it must have 1 to {MAX_CHOICES} texts of at most \
             {MAX_TEXT_BYTES} bytes"
        )));
    }
    Ok(())
}

/// Checks the nesting of a JSON text: brackets outside strings.
pub(crate) fn check_json_depth(text: &str) -> Result<()> {
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => depth += 1,
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_JSON_DEPTH {
            return Err(refused(format!(
                "the schema nests more than {MAX_JSON_DEPTH} levels: use $defs and $ref"
            )));
        }
    }
    Ok(())
}

/// Checks the brackets and lines of a Lark grammar, and refuses what would bypass the checks of
/// schemas.
pub(crate) fn check_lark(text: &str) -> Result<()> {
    check_bytes("grammar", text, MAX_TEXT_BYTES)?;
    let brackets = text.bytes().filter(|byte| matches!(byte, b'(' | b'[' | b'{')).count();
    for (what, have, max) in
        [("opening brackets", brackets, MAX_LARK_BRACKETS), ("lines", text.lines().count(), MAX_LARK_LINES)]
    {
        if have > max {
            return Err(refused(format!("the grammar has {have} {what}; the maximum is {max}: shorten it")));
        }
    }
    if text.contains("%json") {
        return Err(refused(
            "the grammar has %json, which is not supported in Lark: give the schema as a schema",
        ));
    }
    Ok(())
}
