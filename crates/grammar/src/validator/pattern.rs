//! Regular expressions of ECMA-262, read into the syntax tree of `regex-syntax` and matched in linear time.
//! The grammar translates their text instead; the two share no code.

use regex_automata::meta;
use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind, Look, Repetition};

/// The maximum nesting of groups.
const MAX_GROUPS: usize = 250;

/// The maximum number of bytes of one compiled expression.
const MAX_BYTES: usize = 10 << 20;

/// An expression that a text may contain.
#[derive(Debug)]
pub(super) struct EcmaPattern {
    /// The expression as the schema has it.
    pub text: String,
    regex: meta::Regex,
}

impl EcmaPattern {
    /// Compiles an expression.
    ///
    /// # Errors
    /// Says what is not supported.
    pub fn new(text: &str) -> Result<EcmaPattern, String> {
        let mut reader = Reader { chars: text.chars().collect(), at: 0 };
        let tree = reader.alternatives(0)?;
        if reader.at < reader.chars.len() {
            return Err("a group is closed that was not opened".to_owned());
        }
        let config = meta::Config::new().nfa_size_limit(Some(MAX_BYTES));
        let regex = meta::Builder::new().configure(config).build_from_hir(&tree);
        Ok(EcmaPattern { text: text.to_owned(), regex: regex.map_err(|error| error.to_string())? })
    }

    /// Whether a part of the text matches.
    pub fn is_in(&self, text: &str) -> bool {
        self.regex.is_match(text)
    }

    /// The bytes that the compiled expression takes.
    pub fn bytes(&self) -> usize {
        self.regex.memory_usage()
    }
}

/// What an escape or a part of a class stands for.
enum Atom {
    Char(char),
    Set(ClassUnicode),
}

impl Atom {
    fn set(self) -> ClassUnicode {
        match self {
            Atom::Char(char) => set(&[(char, char)]),
            Atom::Set(set) => set,
        }
    }
}

struct Reader {
    chars: Vec<char>,
    at: usize,
}

impl Reader {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek();
        self.at += usize::from(next.is_some());
        next
    }

    /// Takes a character if it is next.
    fn take(&mut self, char: char) -> bool {
        let is_next = self.peek() == Some(char);
        self.at += usize::from(is_next);
        is_next
    }

    /// `Disjunction`, up to a closing parenthesis or the end.
    fn alternatives(&mut self, depth: usize) -> Result<Hir, String> {
        if depth > MAX_GROUPS {
            return Err(format!("groups nest more than {MAX_GROUPS} levels"));
        }
        let mut options = Vec::new();
        loop {
            let mut terms = Vec::new();
            while let Some(char) = self.peek().filter(|char| !matches!(char, '|' | ')')) {
                self.at += 1;
                terms.push(self.term(char, depth)?);
            }
            options.push(Hir::concat(terms));
            if !self.take('|') {
                return Ok(Hir::alternation(options));
            }
        }
    }

    /// `Term`: an assertion, or an atom with its quantifier.
    fn term(&mut self, char: char, depth: usize) -> Result<Hir, String> {
        let atom = match char {
            '^' => return Ok(Hir::look(Look::Start)),
            '$' => return Ok(Hir::look(Look::End)),
            '(' => self.group(depth)?,
            '[' => tree(self.class()?),
            '.' => tree(negated(set(&LINE_ENDS))),
            '\\' => match self.escape(false)? {
                Atom::Char(char) => literal(char),
                Atom::Set(set) => tree(set),
            },
            '*' | '+' | '?' | '{' => return Err(format!("'{char}' repeats nothing")),
            char => literal(char),
        };
        self.quantified(atom)
    }

    fn quantified(&mut self, atom: Hir) -> Result<Hir, String> {
        let (min, max) = match self.peek() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => {
                self.at += 1;
                let min = self.count()?;
                let max = match self.take(',') {
                    true if self.peek() == Some('}') => None,
                    true => Some(self.count()?),
                    false => Some(min),
                };
                if self.peek() != Some('}') || max.is_some_and(|max| max < min) {
                    return Err("a repetition in braces is malformed".to_owned());
                }
                (min, max)
            }
            _ => return Ok(atom),
        };
        self.at += 1;
        let greedy = !self.take('?');
        Ok(Hir::repetition(Repetition { min, max, greedy, sub: Box::new(atom) }))
    }

    fn count(&mut self) -> Result<u32, String> {
        let digits: String = self.chars[self.at..].iter().take_while(|char| char.is_ascii_digit()).collect();
        self.at += digits.len();
        digits.parse().map_err(|_| "a repetition in braces has no number, or a large one".to_owned())
    }

    /// What follows `(`. Groups that capture match what others match.
    fn group(&mut self, depth: usize) -> Result<Hir, String> {
        if self.take('?') {
            match (self.next(), self.peek()) {
                (Some(':'), _) => {}
                (Some('<'), Some(first)) if first != '=' && first != '!' => {
                    while self.next().ok_or("the name of a group does not end")? != '>' {}
                }
                _ => return Err("a group looks around, or has flags".to_owned()),
            }
        }
        let inside = self.alternatives(depth + 1)?;
        if self.take(')') { Ok(inside) } else { Err("a group is not closed".to_owned()) }
    }

    /// What follows `[`, up to the closing bracket.
    fn class(&mut self) -> Result<ClassUnicode, String> {
        let is_negated = self.take('^');
        let mut all = ClassUnicode::empty();
        while !self.take(']') {
            let first = self.class_atom()?;
            let is_range =
                self.peek() == Some('-') && !matches!(self.chars.get(self.at + 1), None | Some(']'));
            if !is_range {
                all.union(&first.set());
                continue;
            }
            self.at += 1;
            match (first, self.class_atom()?) {
                (Atom::Char(start), Atom::Char(end)) if start <= end => all.union(&set(&[(start, end)])),
                (Atom::Char(_), Atom::Char(_)) => return Err("a range of a class is reversed".to_owned()),
                // Beside a set, a hyphen is itself (annex B).
                (start, end) => {
                    [start, Atom::Char('-'), end].into_iter().for_each(|atom| all.union(&atom.set()))
                }
            }
        }
        Ok(if is_negated { negated(all) } else { all })
    }

    fn class_atom(&mut self) -> Result<Atom, String> {
        match self.next().ok_or("a class does not end")? {
            '\\' => self.escape(true),
            char => Ok(Atom::Char(char)),
        }
    }

    /// What follows a backslash.
    fn escape(&mut self, in_class: bool) -> Result<Atom, String> {
        let char = self.next().ok_or("it ends with a backslash")?;
        Ok(match char {
            'd' => Atom::Set(set(&DIGITS)),
            'D' => Atom::Set(negated(set(&DIGITS))),
            'w' => Atom::Set(set(&WORD)),
            'W' => Atom::Set(negated(set(&WORD))),
            's' => Atom::Set(set(&SPACES)),
            'S' => Atom::Set(negated(set(&SPACES))),
            'p' | 'P' => Atom::Set(self.property(char)?),
            't' => Atom::Char('\t'),
            'n' => Atom::Char('\n'),
            'r' => Atom::Char('\r'),
            'f' => Atom::Char('\x0C'),
            'v' => Atom::Char('\x0B'),
            'b' if in_class => Atom::Char('\x08'),
            '0' if !self.peek().is_some_and(|next| next.is_ascii_digit()) => Atom::Char('\0'),
            'c' => {
                let letter = self.next().filter(char::is_ascii_alphabetic).ok_or("\\c has no letter")?;
                Atom::Char(char::from(letter as u8 % 32))
            }
            'x' => Atom::Char(scalar(self.hex(2)?)?),
            'u' => Atom::Char(self.unicode()?),
            char if char.is_ascii_punctuation() => Atom::Char(char),
            char => return Err(format!("\\{char} is not supported")),
        })
    }

    /// What follows `\u`.
    fn unicode(&mut self) -> Result<char, String> {
        if self.take('{') {
            let digits = self.chars[self.at..].iter().take_while(|char| **char != '}').count();
            let code = self.hex(digits)?;
            return if self.take('}') { scalar(code) } else { Err("\\u{ is not closed".to_owned()) };
        }
        let high = self.hex(4)?;
        if !((0xD800..0xDC00).contains(&high) && self.take('\\') && self.take('u')) {
            return scalar(high);
        }
        match self.hex(4)? {
            low @ 0xDC00..0xE000 => scalar(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00)),
            _ => Err("an escape is half of a surrogate pair".to_owned()),
        }
    }

    fn hex(&mut self, digits: usize) -> Result<u32, String> {
        let text: String = self.chars[self.at..].iter().take(digits).collect();
        self.at += text.chars().count();
        let is_hex = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let code = is_hex.then(|| u32::from_str_radix(&text, 16).ok()).flatten();
        code.ok_or_else(|| "an escape lacks hexadecimal digits, or has too many".to_owned())
    }

    /// The set of a property of Unicode, from the tables of `regex-syntax`.
    fn property(&mut self, kind: char) -> Result<ClassUnicode, String> {
        let mut name = String::new();
        if !self.take('{') {
            return Err(format!("\\{kind} has no property"));
        }
        while let Some(char) = self.next().filter(|char| *char != '}') {
            name.push(char);
        }
        if name.is_empty() || !name.chars().all(|char| char.is_ascii_alphanumeric() || "_=".contains(char)) {
            return Err(format!("\\{kind} has no property"));
        }
        let found =
            regex_syntax::parse(&format!("\\{kind}{{{name}}}")).map_err(|_| "a property is unknown")?;
        match found.into_kind() {
            HirKind::Class(Class::Unicode(set)) => Ok(set),
            _ => Err(format!("the property '{name}' is no set of characters")),
        }
    }
}

const DIGITS: [(char, char); 1] = [('0', '9')];

const WORD: [(char, char); 4] = [('0', '9'), ('A', 'Z'), ('_', '_'), ('a', 'z')];

/// `LineTerminator` of ECMA-262.
const LINE_ENDS: [(char, char); 3] = [('\n', '\n'), ('\r', '\r'), ('\u{2028}', '\u{2029}')];

/// `WhiteSpace` and `LineTerminator` of ECMA-262; the category Zs is that of Unicode 6.3 and later.
const SPACES: [(char, char); 10] = [
    ('\t', '\r'),
    (' ', ' '),
    ('\u{A0}', '\u{A0}'),
    ('\u{1680}', '\u{1680}'),
    ('\u{2000}', '\u{200A}'),
    ('\u{2028}', '\u{2029}'),
    ('\u{202F}', '\u{202F}'),
    ('\u{205F}', '\u{205F}'),
    ('\u{3000}', '\u{3000}'),
    ('\u{FEFF}', '\u{FEFF}'),
];

fn set(ranges: &[(char, char)]) -> ClassUnicode {
    ClassUnicode::new(ranges.iter().map(|(first, last)| ClassUnicodeRange::new(*first, *last)))
}

fn negated(mut set: ClassUnicode) -> ClassUnicode {
    set.negate();
    set
}

fn tree(set: ClassUnicode) -> Hir {
    Hir::class(Class::Unicode(set))
}

fn literal(char: char) -> Hir {
    Hir::literal(char.encode_utf8(&mut [0; 4]).as_bytes())
}

fn scalar(code: u32) -> Result<char, String> {
    char::from_u32(code).ok_or_else(|| "an escape is no character".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_match_as_ecma_262_says() {
        let cases: [(&str, &[&str], &[&str]); 20] = [
            ("", &["", "a"], &[]),
            ("b", &["abc"], &["ac"]),
            ("^a|b$", &["ac", "cb"], &["ca", "bc"]),
            ("^(?:ab)*$", &["", "abab"], &["aba"]),
            ("^(?<n>a)(b){2,3}?$", &["abb", "abbb"], &["ab", "abbbb"]),
            ("^a{2}b{1,}$", &["aab", "aabb"], &["ab", "aa"]),
            ("^.$", &["a", "😀", "\u{85}"], &["\n", "\r", "\u{2028}", ""]),
            (r"^\d\D$", &["1a", "1٣"], &["٣a", "11"]),
            (r"^\w\W$", &["aé", "_-"], &["é-", "ab"]),
            (r"^\s\S$", &["\u{FEFF}a", "\u{3000}\u{85}"], &["\u{85}a", "a "]),
            (r"^[a-c\d.\-[&&~~]$", &["b", "7", ".", "-", "[", "&", "~"], &["d", "]", "\\"]),
            (r"^[^a-c]$", &["d", "\n"], &["a"]),
            (r"^[\w-.]$", &["a", "-", "."], &["+", ","]),
            (r"^[+-\d]$", &["+", "-", "1"], &[",", "]"]),
            (r"^[-a]$|^[b-]{2}$|^[^]{3}$", &["-", "a", "b-", "\n\n\n"], &["c", "bc"]),
            (r"^\<\>\/\_\-$", &["<>/_-"], &["<>/-"]),
            (r"^\cC\x41\u00e9\uD83D\uDC32\u{1F432}\0$", &["\u{3}Aé🐲🐲\0"], &["CAé🐲🐲0"]),
            (r"^\p{L}\P{Script=Greek}$", &["ηa"], &["aα", "1a"]),
            ("a[]|c]}", &["c]}"], &["a", "a]"]),
            (r"^[\b\]]$", &["\u{8}", "]"], &["b", "\\"]),
        ];
        for (text, matching, others) in cases {
            let pattern = EcmaPattern::new(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            matching.iter().for_each(|text| assert!(pattern.is_in(text), "{}: {text:?}", pattern.text));
            others.iter().for_each(|text| assert!(!pattern.is_in(text), "{}: {text:?}", pattern.text));
        }
    }

    #[test]
    fn what_is_not_supported_is_refused() {
        for text in [
            "(?=a)",
            "(?!a)",
            "(?<=a)",
            "(?<!a)",
            "(?i)a",
            "(?i:a)",
            "(a",
            "a)",
            "[a",
            "a{2",
            "a{,2}",
            "a{3,2}",
            "*",
            "a**",
            "^*",
            "{",
            "\\",
            r"\b",
            r"\B",
            r"(a)\1",
            r"\k<a>",
            r"\a",
            r"\01",
            r"\c1",
            r"\x4",
            r"\u004",
            r"\u{110000}",
            r"\u{}",
            r"\u{1",
            r"\uD83D",
            r"\uD83D\u0041",
            r"\p",
            r"\p{}",
            r"\p{Nothing}",
            "[b-a]",
            "(?<a",
            "a{99999999999}",
            "((((a{900}){900}){900}){900})*",
        ] {
            assert!(EcmaPattern::new(text).is_err(), "{text}");
        }
        let nested = |depth: usize| "(".repeat(depth) + &")".repeat(depth);
        assert!(EcmaPattern::new(&nested(MAX_GROUPS)).is_ok());
        assert!(EcmaPattern::new(&nested(100_000)).is_err());
    }
}
