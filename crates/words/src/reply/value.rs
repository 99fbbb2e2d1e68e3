//! Reads one value of a call's arguments, character by character: JSON, which is passed on as it
//! is, or a Python literal, which is written as JSON.
//!
//! What it accepts is what `serde_json` reads: numbers are finite, and surrogates come in pairs.
//! Hexadecimal digits of escapes become lower-case.
//! Containers are on a stack of limited depth, so that no input deepens a recursion.

use super::marker::is_mark;

/// Whether JSON allows this character between its tokens. A form feed, which is ASCII white space, is not.
pub(super) fn is_json_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r')
}

/// The maximum nesting of lists and objects; templates, which get the arguments back, have a limit
/// of 100 for whole messages.
const MAX_DEPTH: usize = 64;

/// The maximum bytes of a number or a word such as `true`.
const MAX_WORD_BYTES: usize = 128;

/// Why text is no value.
pub(super) type Fault = &'static str;

/// How values are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notation {
    Json,
    Python,
}

/// What a character did to a value or a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadStep {
    /// It belongs to it, and more must follow.
    More,
    /// It is its last character.
    Ended,
    /// It does not belong to it: it had ended before.
    EndedBefore,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bracket {
    List,
    Object,
}

/// What must come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueAt {
    Value,
    /// A value, or the end of an empty list.
    FirstItem,
    Key,
    /// A key, or the end of an empty object.
    FirstKey,
    Colon,
    Text,
    /// The character after a backslash.
    Escape,
    /// Hexadecimal digits of a character: how many are left.
    Digits(u8),
    Word,
    /// A comma or the end of the container.
    AfterValue,
}

/// A string that is being read.
#[derive(Clone, Copy, Debug, Default)]
struct TextState {
    /// The quotation mark that ends it.
    quote: char,
    is_key: bool,
    /// Whether the first half of a pair of surrogates was read.
    has_high_surrogate: bool,
    /// The digits of an escaped character so far.
    code: u32,
}

/// Reads one value.
#[derive(Debug)]
pub(super) struct ValueReader {
    notation: Notation,
    at: ValueAt,
    containers: Vec<Bracket>,
    text: TextState,
    word: String,
}

impl ValueReader {
    pub fn new(notation: Notation) -> ValueReader {
        ValueReader {
            notation,
            at: ValueAt::Value,
            containers: Vec::new(),
            text: TextState::default(),
            word: String::new(),
        }
    }

    /// Takes a character, and appends what it adds to the JSON of the value to `out`.
    pub fn step(&mut self, c: char, out: &mut String) -> Result<ReadStep, Fault> {
        if is_mark(c) {
            return Err("a special token is within the arguments");
        }
        match self.at {
            ValueAt::Text => return self.in_text(c, out),
            ValueAt::Escape => self.escaped(c, out)?,
            ValueAt::Digits(left) => self.digit(c, left, out)?,
            ValueAt::Word => return self.in_word(c, out),
            _ if is_json_space(c) => {
                if self.notation == Notation::Json {
                    out.push(c);
                }
            }
            _ => return self.structure(c, out),
        }
        Ok(ReadStep::More)
    }

    fn structure(&mut self, c: char, out: &mut String) -> Result<ReadStep, Fault> {
        match (self.at, c) {
            (ValueAt::FirstItem, ']') | (ValueAt::FirstKey, '}') => return Ok(self.close(c, out)),
            (ValueAt::AfterValue, ']') if self.containers.last() == Some(&Bracket::List) => {
                return Ok(self.close(c, out));
            }
            (ValueAt::AfterValue, '}') if self.containers.last() == Some(&Bracket::Object) => {
                return Ok(self.close(c, out));
            }
            (ValueAt::AfterValue, ',') => {
                let is_list = self.containers.last() == Some(&Bracket::List);
                self.at = if is_list { ValueAt::Value } else { ValueAt::Key };
                out.push(c);
            }
            (ValueAt::AfterValue, _) => return Err("a comma or the end of a list or object is missing"),
            (ValueAt::Colon, ':') => {
                self.at = ValueAt::Value;
                out.push(c);
            }
            (ValueAt::Colon, _) => return Err("a colon is missing after a key"),
            (ValueAt::Key | ValueAt::FirstKey, _) if self.is_quote(c) => self.begin_text(c, true, out),
            (ValueAt::Key | ValueAt::FirstKey, _) => return Err("a key is not a string"),
            _ if self.is_quote(c) => self.begin_text(c, false, out),
            (_, '[') => self.open(Bracket::List, ValueAt::FirstItem, c, out)?,
            (_, '{') => self.open(Bracket::Object, ValueAt::FirstKey, c, out)?,
            _ if is_word_character(c) => {
                self.word.push(c);
                self.at = ValueAt::Word;
            }
            _ => return Err("a value is missing"),
        }
        Ok(ReadStep::More)
    }

    fn is_quote(&self, c: char) -> bool {
        c == '"' || c == '\'' && self.notation == Notation::Python
    }

    fn open(&mut self, container: Bracket, at: ValueAt, c: char, out: &mut String) -> Result<(), Fault> {
        if self.containers.len() >= MAX_DEPTH {
            return Err("lists and objects nest deeper than 64 levels");
        }
        self.containers.push(container);
        self.at = at;
        out.push(c);
        Ok(())
    }

    fn close(&mut self, c: char, out: &mut String) -> ReadStep {
        self.containers.pop();
        out.push(c);
        self.value_ended()
    }

    /// Goes on after a value.
    fn value_ended(&mut self) -> ReadStep {
        self.at = ValueAt::AfterValue;
        if self.containers.is_empty() { ReadStep::Ended } else { ReadStep::More }
    }

    fn begin_text(&mut self, quote: char, is_key: bool, out: &mut String) {
        self.text = TextState { quote, is_key, ..TextState::default() };
        self.at = ValueAt::Text;
        out.push('"');
    }

    fn in_text(&mut self, c: char, out: &mut String) -> Result<ReadStep, Fault> {
        if c == '\\' {
            self.at = ValueAt::Escape;
            return Ok(ReadStep::More);
        }
        if self.text.has_high_surrogate {
            return Err("a surrogate has no partner");
        }
        match c {
            _ if c == self.text.quote => {
                out.push('"');
                if self.text.is_key {
                    self.at = ValueAt::Colon;
                    return Ok(ReadStep::More);
                }
                return Ok(self.value_ended());
            }
            '"' => out.push_str("\\\""),
            '\t' if self.notation == Notation::Python => out.push_str("\\t"),
            '\0'..' ' => return Err("a string has an unescaped control character"),
            _ => out.push(c),
        }
        Ok(ReadStep::More)
    }

    fn escaped(&mut self, c: char, out: &mut String) -> Result<(), Fault> {
        if self.text.has_high_surrogate && c != 'u' {
            return Err("a surrogate has no partner");
        }
        let is_python = self.notation == Notation::Python;
        self.at = ValueAt::Text;
        match c {
            '"' | '\\' | 'b' | 'f' | 'n' | 'r' | 't' => out.extend(['\\', c]),
            '/' if !is_python => out.push_str("\\/"),
            '\'' if is_python => out.push(c),
            'u' => self.begin_digits(4),
            'x' if is_python => self.begin_digits(2),
            'U' if is_python => self.begin_digits(8),
            _ if !is_python => return Err("a string has an unknown escape"),
            '0'..='7' | 'N' | 'a' | 'v' | '\0'..' ' => return Err("a string has an unsupported escape"),
            // Python keeps the backslash of an escape that it does not know.
            _ => out.extend(['\\', '\\', c]),
        }
        Ok(())
    }

    fn begin_digits(&mut self, count: u8) {
        self.text.code = 0;
        self.at = ValueAt::Digits(count);
    }

    fn digit(&mut self, c: char, left: u8, out: &mut String) -> Result<(), Fault> {
        let digit = c.to_digit(16).ok_or("an escaped character has too few digits")?;
        // Eight digits fill the 32 bits, so nothing is lost.
        self.text.code = self.text.code << 4 | digit;
        self.at = if left > 1 { ValueAt::Digits(left - 1) } else { ValueAt::Text };
        if left > 1 {
            return Ok(());
        }
        let code = self.text.code;
        match (code, self.text.has_high_surrogate) {
            (0xDC00..=0xDFFF, true) => self.text.has_high_surrogate = false,
            (_, true) | (0xDC00..=0xDFFF, false) => return Err("a surrogate has no partner"),
            (0xD800..=0xDBFF, false) => self.text.has_high_surrogate = true,
            (0x10000.., false) => {
                out.push(char::from_u32(code).ok_or("an escaped character does not exist")?);
                return Ok(());
            }
            _ => {}
        }
        *out += &format!("\\u{code:04x}");
        Ok(())
    }

    fn in_word(&mut self, c: char, out: &mut String) -> Result<ReadStep, Fault> {
        if is_word_character(c) {
            if self.word.len() >= MAX_WORD_BYTES {
                return Err("a number or word is longer than 128 bytes");
            }
            self.word.push(c);
            return Ok(ReadStep::More);
        }
        self.end_word(out)?;
        match self.value_ended() {
            ReadStep::More => self.step(c, out),
            _ => Ok(ReadStep::EndedBefore),
        }
    }

    fn end_word(&mut self, out: &mut String) -> Result<(), Fault> {
        let word = std::mem::take(&mut self.word);
        let json = match word.as_str() {
            "true" | "false" | "null" => &word,
            "True" if self.notation == Notation::Python => "true",
            "False" if self.notation == Notation::Python => "false",
            "None" if self.notation == Notation::Python => "null",
            _ if is_number(&word) => &word,
            _ => {
                return Err("a value is neither a string, a finite number, a list, an object nor a constant");
            }
        };
        out.push_str(json);
        Ok(())
    }
}

fn is_word_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.' | '_')
}

/// Whether a word is a finite number of JSON (RFC 8259, section 6).
fn is_number(word: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let unsigned = word.strip_prefix('-').unwrap_or(word);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (unsigned, None),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    digits(whole)
        && (whole == "0" || !whole.starts_with('0'))
        && fraction.is_none_or(digits)
        && exponent.is_none_or(|exponent| digits(exponent.strip_prefix(['+', '-']).unwrap_or(exponent)))
        && word.parse::<f64>().is_ok_and(f64::is_finite)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The JSON of a value that ends at or before the last character of `text`.
    fn read(notation: Notation, text: &str) -> Result<String, Fault> {
        let (mut reader, mut out) = (ValueReader::new(notation), String::new());
        let mut step = ReadStep::More;
        for c in text.chars() {
            assert_eq!(step, ReadStep::More, "{text}");
            step = reader.step(c, &mut out)?;
        }
        assert_ne!(step, ReadStep::More, "{text} has no end");
        Ok(out)
    }

    #[test]
    fn json_is_passed_on_as_it_is() {
        for text in [
            r#"{"a": [1, -2.5e+3, true, null, "é\u00e9\ud83d\ude00\\\"/\/"], "b": {}, "c" : [ ] }"#,
            r#""x""#,
            "[]",
        ] {
            assert_eq!(read(Notation::Json, text).as_deref(), Ok(text));
            assert!(serde_json::from_str::<serde_json::Value>(text).is_ok());
        }
        assert_eq!(read(Notation::Json, "17,").as_deref(), Ok("17"));
    }

    #[test]
    fn python_becomes_json() {
        let python = r#"{'a': [1, True, None], "b'": 'it\'s "x"\x41\U0001F600 \d', 'c': -0.5}"#;
        let json = r#"{"a":[1,true,null],"b'":"it's \"x\"\u0041😀 \\d","c":-0.5}"#;
        assert_eq!(read(Notation::Python, python).as_deref(), Ok(json));
        assert!(serde_json::from_str::<serde_json::Value>(json).is_ok());
    }

    #[test]
    fn what_is_no_json_is_refused_at_the_character() {
        for (text, fault) in [
            ("{'", "a key is not a string"),
            (r#"{"a" 1"#, "a colon is missing after a key"),
            ("[1 2", "a comma or the end of a list or object is missing"),
            ("[1}", "a comma or the end of a list or object is missing"),
            ("[1,]", "a value is missing"),
            ("\"a\n", "a string has an unescaped control character"),
            (r#""\x"#, "a string has an unknown escape"),
            (r#""\ud800x"#, "a surrogate has no partner"),
            (r#""\udc00"#, "a surrogate has no partner"),
            ("\"\u{fdd0}", "a special token is within the arguments"),
        ] {
            assert_eq!(read(Notation::Json, text), Err(fault), "{text}");
        }
        for number in ["01", "1.", ".5", "+1", "1e999", "1_0", "NaN", "True", "0x1"] {
            assert!(read(Notation::Json, &format!("{number},")).is_err(), "{number}");
        }
        let deep = "[".repeat(MAX_DEPTH + 1);
        assert_eq!(read(Notation::Json, &deep), Err("lists and objects nest deeper than 64 levels"));
        let long = "1".repeat(MAX_WORD_BYTES + 1);
        assert_eq!(read(Notation::Json, &long), Err("a number or word is longer than 128 bytes"));
    }
}
