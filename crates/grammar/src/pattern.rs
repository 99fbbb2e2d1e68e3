//! Regular expressions: checks, and the syntax of ECMA-262 as JSON Schema uses it.

use girih_tensor::Result;
use regex_syntax::ParserBuilder;

use crate::limits::{MAX_PATTERN_BYTES, MAX_PATTERN_DEPTH, check_bytes, refused};
use crate::mask_thread::first_line;

/// Checks the size, the nesting and the syntax of an expression in the syntax of the crate
/// `regex`.
///
/// # Errors
/// Names what is wrong.
pub(crate) fn check_pattern(pattern: &str) -> Result<()> {
    check_bytes("regular expression", pattern, MAX_PATTERN_BYTES)?;
    let parsed = ParserBuilder::new().nest_limit(MAX_PATTERN_DEPTH).build().parse(pattern);
    match parsed {
        Ok(_) => Ok(()),
        Err(regex_syntax::Error::Parse(error)) => Err(wrong(pattern, &error.kind())),
        Err(regex_syntax::Error::Translate(error)) => Err(wrong(pattern, &error.kind())),
        Err(error) => Err(wrong(pattern, &first_line(&error))),
    }
}

fn wrong(pattern: &str, reason: &dyn std::fmt::Display) -> girih_tensor::Error {
    let shown: String = pattern.chars().take(60).collect();
    refused(format!("the regular expression '{shown}' is not supported: {reason}"))
}

/// Translates an expression of JSON Schema, which is ECMA-262 without anchors at the ends, to the
/// syntax of the crate `regex`.
///
/// # Errors
/// Names what has no translation: lookaround, back references, word boundaries.
pub(crate) fn from_ecma(pattern: &str) -> Result<String> {
    check_bytes("pattern", pattern, MAX_PATTERN_BYTES)?;
    let mut translation = Translation { chars: pattern.chars().collect(), at: 0, out: String::new() };
    translation.run().map_err(|reason| wrong(pattern, &reason))?;
    check_pattern(&translation.out)?;
    Ok(translation.out)
}

/// `.` of ECMA-262: all but the ends of lines.
const DOT: &str = r"[^\n\r\x{2028}\x{2029}]";

/// `\s` of ECMA-262, without brackets.
const SPACE: &str = r"\t\n\x0B\x0C\r\x20\x{A0}\x{FEFF}\x{2028}\x{2029}\p{Zs}";

const HALF_PAIR: &str = "an escape is half of a surrogate pair";

/// An expression on its way to the other syntax.
struct Translation {
    chars: Vec<char>,
    at: usize,
    out: String,
}

impl Translation {
    fn next(&mut self) -> Option<char> {
        let next = self.chars.get(self.at).copied();
        self.at += usize::from(next.is_some());
        next
    }

    fn starts_with(&self, text: &str) -> bool {
        text.chars().zip(self.chars.iter().skip(self.at)).filter(|(want, have)| want == *have).count()
            == text.chars().count()
    }

    fn run(&mut self) -> std::result::Result<(), String> {
        while let Some(char) = self.next() {
            match char {
                '\\' => self.escape(false)?,
                '[' => self.class()?,
                '(' => self.group()?,
                '.' => self.out.push_str(DOT),
                _ => self.out.push(char),
            }
        }
        Ok(())
    }

    /// What follows `(`: no group captures here.
    fn group(&mut self) -> std::result::Result<(), String> {
        self.out.push_str("(?:");
        for look in ["?=", "?!", "?<=", "?<!"] {
            if self.starts_with(look) {
                return Err(format!("({look}…) looks around"));
            }
        }
        if self.starts_with("?:") {
            self.at += 2;
        } else if self.starts_with("?<") {
            while self.next().ok_or("the name of a group does not end")? != '>' {}
        } else if self.starts_with("?") {
            return Err("a group has flags".to_owned());
        }
        Ok(())
    }

    /// What follows `[`, up to the closing bracket.
    fn class(&mut self) -> std::result::Result<(), String> {
        if self.starts_with("^]") {
            self.at += 2;
            self.out.push_str("(?s:.)");
            return Ok(());
        }
        if self.starts_with("]") {
            return Err("[] matches nothing".to_owned());
        }
        self.out.push('[');
        if self.starts_with("^") {
            self.at += 1;
            self.out.push('^');
        }
        while !self.starts_with("]") {
            let is_set = self.class_atom()?;
            if self.starts_with("-") && !self.starts_with("-]") {
                self.at += 1;
                let hyphen_at = self.out.len();
                self.out.push('-');
                // Beside a set, a hyphen is itself (annex B).
                if self.class_atom()? || is_set {
                    self.out.insert(hyphen_at, '\\');
                }
            }
        }
        self.at += 1;
        self.out.push(']');
        Ok(())
    }

    /// A character or a set within a class; returns whether it is a set.
    fn class_atom(&mut self) -> std::result::Result<bool, String> {
        match self.next().ok_or("a class does not end")? {
            '\\' => {
                let is_set = self.chars.get(self.at).is_some_and(|char| "dDwWsSpP".contains(*char));
                self.escape(true)?;
                return Ok(is_set);
            }
            // These have a meaning in classes of the other syntax, or in another place.
            char @ ('[' | '&' | '~' | '-') => self.out.extend(['\\', char]),
            char => self.out.push(char),
        }
        Ok(false)
    }

    /// What follows a backslash.
    fn escape(&mut self, in_class: bool) -> std::result::Result<(), String> {
        let char = self.next().ok_or("it ends with a backslash")?;
        match char {
            'd' => self.out.push_str("[0-9]"),
            'D' => self.out.push_str("[^0-9]"),
            'w' => self.out.push_str("[0-9A-Za-z_]"),
            'W' => self.out.push_str("[^0-9A-Za-z_]"),
            's' => self.out.push_str(&format!("[{SPACE}]")),
            'S' => self.out.push_str(&format!("[^{SPACE}]")),
            't' | 'n' | 'r' | 'f' | 'v' => self.out.extend(['\\', char]),
            '0' => self.out.push_str("\\x00"),
            'b' if in_class => self.out.push_str("\\x08"),
            'b' | 'B' => return Err("it has a word boundary".to_owned()),
            '1'..='9' => return Err("it refers back to a group".to_owned()),
            'p' | 'P' => {
                self.out.extend(['\\', char]);
                if !self.starts_with("{") {
                    return Err(format!("\\{char} has no property"));
                }
                loop {
                    let char = self.next().ok_or("a property does not end")?;
                    self.out.push(char);
                    if char == '}' {
                        break;
                    }
                }
            }
            'c' => {
                let letter = self.next().filter(char::is_ascii_alphabetic).ok_or("\\c has no letter")?;
                self.literal(char::from(letter.to_ascii_uppercase() as u8 - b'@'));
            }
            'x' => {
                let code = self.hex(2)?;
                self.code(code)?;
            }
            'u' if self.starts_with("{") => {
                self.at += 1;
                let digits: String =
                    self.chars.iter().skip(self.at).take_while(|char| **char != '}').collect();
                self.at += digits.chars().count() + 1;
                self.code(u32::from_str_radix(&digits, 16).map_err(|_| "\\u{…} is not hexadecimal")?)?;
            }
            'u' => {
                let mut code = self.hex(4)?;
                if (0xD800..0xDC00).contains(&code) && self.starts_with("\\u") {
                    self.at += 2;
                    let low = self.hex(4)?.checked_sub(0xDC00).filter(|low| *low < 0x400);
                    code = 0x10000 + ((code - 0xD800) << 10) + low.ok_or(HALF_PAIR)?;
                }
                self.code(code)?;
            }
            char if char.is_ascii_punctuation() => self.literal(char),
            char => return Err(format!("\\{char} has no meaning")),
        }
        Ok(())
    }

    /// The number of this many hexadecimal digits.
    fn hex(&mut self, digits: usize) -> std::result::Result<u32, String> {
        let text: String = self.chars.iter().skip(self.at).take(digits).collect();
        self.at += digits;
        let is_hex = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let code = is_hex.then(|| u32::from_str_radix(&text, 16).ok()).flatten();
        code.ok_or_else(|| format!("an escape lacks {digits} hexadecimal digits"))
    }

    fn code(&mut self, code: u32) -> std::result::Result<(), String> {
        let char = char::from_u32(code).ok_or(HALF_PAIR)?;
        self.literal(char);
        Ok(())
    }

    fn literal(&mut self, char: char) {
        self.out.push_str(&format!("\\x{{{:X}}}", u32::from(char)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ecma_is_translated_or_refused_by_name() {
        let cases = [
            (r"^\d{2}-\w+$", r"^[0-9]{2}-[0-9A-Za-z_]+$"),
            (r"(?<year>a)(?:b)(c)", r"(?:a)(?:b)(?:c)"),
            (r"[\d.\-[&&]", r"[[0-9].\x{2D}\[\&\&]"),
            (r"\cC\u00e9\x41\/", r"\x{3}\x{E9}\x{41}\x{2F}"),
            (r"\uD83D\uDC32", r"\x{1F432}"),
            (r"[+-\d][\w-.][a-c-e][-a-][a\--]", r"[+\-[0-9]][[0-9A-Za-z_]\-.][a-c\-e][\-a\-][a\x{2D}\-]"),
            ("a.b", r"a[^\n\r\x{2028}\x{2029}]b"),
        ];
        for (ecma, expected) in cases {
            assert_eq!(from_ecma(ecma).unwrap(), expected, "{ecma}");
        }
        let refused = [
            (r"a(?=b)", "looks around"),
            (r"(a)\1", "refers back"),
            (r"\bword", "word boundary"),
            (r"\a", "has no meaning"),
            (r"\uD83D\u0041", "surrogate pair"),
            (r"\uD83Da", "surrogate pair"),
            ("[a-", "does not end"),
            ("[]", "matches nothing"),
            ("a{2", "repetition"),
            ("(a", "unclosed group"),
            ("\\", "backslash"),
        ];
        for (ecma, reason) in refused {
            let error = from_ecma(ecma).unwrap_err().to_string();
            assert!(error.contains(reason), "{ecma}: {error}");
        }
        let deep = "(".repeat(100) + &")".repeat(100);
        assert!(from_ecma(&deep).unwrap_err().to_string().contains("nest"), "{:?}", from_ecma(&deep));
        assert!(from_ecma(&"a".repeat(5000)).is_err());
    }
}
