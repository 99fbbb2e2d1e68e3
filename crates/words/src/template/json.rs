//! The `tojson` filter; its output equals that of Python's `json.dumps`.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// The maximum nesting of a value; Python fails at about 1,000.
const MAX_JSON_DEPTH: usize = 500;

/// `value | tojson(ensure_ascii, indent, separators, sort_keys)` with the
/// defaults of transformers: UTF-8 remains unchanged, nothing is escaped for HTML.
pub fn tojson(value: &Value, positional: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    let argument = |index: usize, name: &str| match positional.get(index) {
        Some(value) => Ok(value.clone()),
        None => named.get::<Option<Value>>(name).map(Option::unwrap_or_default),
    };
    let ensure_ascii = argument(0, "ensure_ascii")?;
    let indent = indent_of(&argument(1, "indent")?)?;
    let separators = argument(2, "separators")?;
    let sort_keys = argument(3, "sort_keys")?;
    named.assert_all_used()?;
    if positional.len() > 4 {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let mut writer = JsonWriter {
        out: String::new(),
        ascii: ensure_ascii.is_true(),
        sorted: sort_keys.is_true(),
        separators: separators_of(&separators, indent.is_some())?,
        indent,
        depth: 0,
    };
    writer.value(value)?;
    Ok(Value::from(writer.out))
}

fn invalid(sentence: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, sentence.into())
}

/// The indentation per level, given as a number of spaces or a string; `None` means
/// a single line.
fn indent_of(value: &Value) -> Result<Option<String>, Error> {
    const MAX_SPACES: usize = 64;
    if value.is_none() || value.is_undefined() {
        return Ok(None);
    }
    if let Some(text) = value.as_str() {
        return Ok(Some(text.to_owned()));
    }
    if value.kind() == ValueKind::Bool {
        return Ok(Some(" ".repeat(usize::from(value.is_true()))));
    }
    let spaces = value.as_i64().ok_or_else(|| invalid("tojson: indent must be a number or a string"))?;
    match usize::try_from(spaces.max(0)) {
        Ok(spaces) if spaces <= MAX_SPACES => Ok(Some(" ".repeat(spaces))),
        _ => Err(invalid(format!("tojson: indent is {spaces}, the maximum is {MAX_SPACES}"))),
    }
}

/// The separators between items and after keys.
fn separators_of(value: &Value, indented: bool) -> Result<[String; 2], Error> {
    if value.is_none() || value.is_undefined() {
        return Ok([if indented { "," } else { ", " }.to_owned(), ": ".to_owned()]);
    }
    let pair: Vec<Value> = value.try_iter()?.collect();
    match pair.as_slice() {
        [item, key] => match (item.as_str(), key.as_str()) {
            (Some(item), Some(key)) => Ok([item.to_owned(), key.to_owned()]),
            _ => Err(invalid("tojson: separators must be two strings")),
        },
        _ => Err(invalid("tojson: separators must be two strings")),
    }
}

struct JsonWriter {
    out: String,
    ascii: bool,
    sorted: bool,
    separators: [String; 2],
    indent: Option<String>,
    depth: usize,
}

impl JsonWriter {
    fn value(&mut self, value: &Value) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&number(value)?),
            ValueKind::String => self.string(value.as_str().unwrap_or_default())?,
            ValueKind::Seq | ValueKind::Iterable => self.list(value)?,
            ValueKind::Map => self.object(value)?,
            kind => return Err(invalid(format!("tojson: {kind} is not JSON serializable"))),
        }
        Ok(())
    }

    fn list(&mut self, list: &Value) -> Result<(), Error> {
        let items: Vec<Value> = list.try_iter()?.collect();
        self.open('[')?;
        for (index, item) in items.iter().enumerate() {
            self.item(index);
            self.value(item)?;
        }
        self.close(']', items.len());
        Ok(())
    }

    fn object(&mut self, object: &Value) -> Result<(), Error> {
        let mut keys: Vec<Value> = object.try_iter()?.collect();
        if self.sorted {
            keys.sort();
        }
        self.open('{')?;
        for (index, key) in keys.iter().enumerate() {
            self.item(index);
            self.string(&key_text(key)?)?;
            self.out.push_str(&self.separators[1]);
            self.value(&object.get_item(key)?)?;
        }
        self.close('}', keys.len());
        Ok(())
    }

    fn open(&mut self, bracket: char) -> Result<(), Error> {
        self.out.push(bracket);
        self.depth += 1;
        if self.depth > MAX_JSON_DEPTH {
            return Err(invalid(format!("tojson: the value nests deeper than {MAX_JSON_DEPTH}")));
        }
        Ok(())
    }

    fn item(&mut self, index: usize) {
        if index > 0 {
            self.out.push_str(&self.separators[0]);
        }
        self.line();
    }

    fn close(&mut self, bracket: char, items: usize) {
        self.depth -= 1;
        if items > 0 {
            self.line();
        }
        self.out.push(bracket);
    }

    fn line(&mut self) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            (0..self.depth).for_each(|_| self.out.push_str(indent));
        }
    }

    fn string(&mut self, text: &str) -> Result<(), Error> {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                '\0'..='\u{1f}' => self.escape(c),
                // Marks of user text (see `mark`) would be lost if escaped.
                '\u{f0000}'.. if self.ascii => {
                    return Err(invalid(format!("tojson: U+{:X} cannot be escaped to ASCII", u32::from(c))));
                }
                '\u{80}'.. if self.ascii => self.escape(c),
                _ => self.out.push(c),
            }
        }
        self.out.push('"');
        Ok(())
    }

    fn escape(&mut self, c: char) {
        for unit in c.encode_utf16(&mut [0; 2]) {
            write!(self.out, "\\u{unit:04x}").expect("a String takes all text");
        }
    }
}

/// A key as the string that Python writes.
fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::None => Ok("null".to_owned()),
        ValueKind::Number => number(key),
        kind => Err(invalid(format!("tojson: keys must be strings or numbers, not {kind}"))),
    }
}

/// Writes a number as Python's `json` module does.
fn number(value: &Value) -> Result<String, Error> {
    if value.is_integer() {
        return Ok(value.to_string());
    }
    Ok(match f64::try_from(value.clone())? {
        f64::INFINITY => "Infinity".to_owned(),
        f64::NEG_INFINITY => "-Infinity".to_owned(),
        x if x.is_nan() => "NaN".to_owned(),
        x => float(x),
    })
}

/// Python's `repr` of a float: shortest digits, with an exponent below 1e-4 and
/// from 1e16 on.
pub fn float(x: f64) -> String {
    if !x.is_finite() {
        return x.to_string().to_lowercase();
    }
    if x == 0.0 || (1e-4..1e16).contains(&x.abs()) {
        return format!("{x:?}");
    }
    let text = format!("{x:e}");
    let (digits, exponent) = text.split_once('e').expect("the e format has an e");
    let exponent: i32 = exponent.parse().expect("the exponent is a small integer");
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::float;

    #[test]
    fn floats_are_written_as_python_does() {
        let cases = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e-4, "0.0001"),
            (1.5e-5, "1.5e-05"),
            (123_456_789_012_345.6, "123456789012345.6"),
            (9_007_199_254_740_993.0, "9007199254740992.0"),
            (1e16, "1e+16"),
            (-2.5e-300, "-2.5e-300"),
            (f64::NAN, "nan"),
            (f64::NEG_INFINITY, "-inf"),
        ];
        for (x, want) in cases {
            assert_eq!(float(x), want);
        }
    }
}
