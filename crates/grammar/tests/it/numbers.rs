//! Schemas of numbers, and numbers at their limits: what a grammar accepts is valid, what is valid and has
//! few digits is accepted, and a refusal is true.

use girih_engine::Constraint;
use girih_grammar::{Grammar, GrammarConstraint, SchemaValidator};
use girih_tensor::{ErrorKind, Random};
use serde_json::{Map, Value, json};

use crate::feed::{STOP, accepts, compiler, tokens};

/// Where the digits of a type, or of what is written, end.
const EDGES: [&str; 16] = [
    "0",
    "-0",
    "0.1",
    "1",
    "5",
    "999999999999999",
    "9007199254740991",
    "9007199254740993",
    "9999999999999999",
    "999999999999999999",
    "9223372036854775807",
    "9999999999999999999",
    "18446744073709551615",
    "18446744073709551616",
    "1e22",
    "1e-20",
];

const UNITS: [&str; 16] = [
    "1",
    "2",
    "3",
    "7",
    "10",
    "1e3",
    "64",
    "0.1",
    "0.5",
    "0.7",
    "1.5",
    "2.5",
    "12.5",
    "0.25",
    "1e-8",
    "0.00000003",
];

/// What a refusal of a schema of numbers may say.
const REFUSALS: [&str; 5] = [
    "contradict each other",
    "leaves only numbers of more than",
    "more digits than the",
    "not read as it is written",
    "too complex",
];

/// A number as plain digits; those behind the point are counted by `scale`.
#[derive(Clone, Copy)]
struct Plain {
    digits: i128,
    scale: usize,
}

impl Plain {
    /// The number in a text of JSON; `None` if it has more than 36 digits.
    fn of(text: &str) -> Option<Plain> {
        let (number, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
        let scale = fraction.len() as i32 - exponent.parse::<i32>().ok()?;
        let zeros = 10i128.checked_pow(scale.min(0).unsigned_abs())?;
        let digits = digits.checked_mul(zeros).filter(|digits| digits.abs() < 10i128.pow(36))?;
        (scale < 36).then_some(Plain { digits, scale: scale.max(0) as usize })
    }

    fn text(self) -> String {
        let sign = if self.digits < 0 { "-" } else { "" };
        let digits = format!("{:0>width$}", self.digits.unsigned_abs(), width = self.scale + 1);
        let (whole, fraction) = digits.split_at(digits.len() - self.scale);
        let point = if fraction.is_empty() { "" } else { "." };
        format!("{sign}{whole}{point}{fraction}")
    }

    /// The number with other digits at its end.
    fn plus(self, units: i128) -> Plain {
        Plain { digits: self.digits + units, ..self }
    }

    /// The multiple of a unit that is nearest below or at this number.
    fn multiple(self, unit: Plain) -> Option<Plain> {
        let scale = self.scale.max(unit.scale);
        let scaled = |plain: Plain| plain.digits.checked_mul(10i128.pow((scale - plain.scale) as u32));
        let unit = scaled(unit)?;
        let digits = scaled(self)?.div_euclid(unit) * unit;
        (digits.abs() < 10i128.pow(36)).then_some(Plain { digits, scale })
    }
}

/// Draws schemas of numbers, and remembers the numbers in them.
struct NumberSchemas {
    random: Random,
    drawn: Vec<String>,
    units: Vec<String>,
}

impl NumberSchemas {
    fn number(&mut self) -> Value {
        let again = !self.drawn.is_empty() && self.random.once_in(2);
        let text = if again {
            // Bounds that are near to each other leave few numbers.
            let near = self.random.below(self.drawn.len());
            let step = self.random.below(3) as i128;
            Plain::of(&self.drawn[near]).map_or("1".to_owned(), |plain| plain.plus(step).text())
        } else if self.random.once_in(3) {
            self.random.of(&EDGES).to_owned()
        } else {
            self.digits()
        };
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        self.drawn.push(value.to_string());
        value
    }

    /// A number of 1 to 19 digits, with or without a point or an exponent.
    fn digits(&mut self) -> String {
        let count = self.random.of(&[1, 2, 8, 14, 15, 16, 17, 19]);
        let digits: i128 = (0..count).fold(0, |digits, _| digits * 10 + self.random.below(10) as i128);
        let digits = if self.random.once_in(3) { -digits } else { digits };
        match self.random.below(4) {
            0 | 1 => Plain { digits, scale: 0 }.text(),
            2 => Plain { digits, scale: self.random.below(count + 3) }.text(),
            _ => format!("{digits}e{}", self.random.below(30) as i32 - 20),
        }
    }

    fn leaf(&mut self) -> Value {
        let mut schema = Map::new();
        if !self.random.once_in(4) {
            schema.insert("type".to_owned(), json!(self.random.of(&["number", "integer"])));
        }
        for _ in 0..1 + self.random.below(2) {
            let keyword = self.random.of(&[
                "minimum",
                "maximum",
                "exclusiveMinimum",
                "exclusiveMaximum",
                "multipleOf",
                "const",
                "enum",
            ]);
            let value = match keyword {
                "multipleOf" => {
                    let unit = self.random.of(&UNITS);
                    self.units.push(unit.to_owned());
                    serde_json::from_str(unit).expect("a number")
                }
                "enum" => (0..1 + self.random.below(4)).map(|_| self.number()).collect(),
                _ => self.number(),
            };
            schema.insert(keyword.to_owned(), value);
        }
        schema.into()
    }

    fn schema(&mut self) -> Value {
        let mut schema = self.leaf();
        let (key, value) = match self.random.below(12) {
            0 => ("allOf", json!([self.leaf(), self.leaf()])),
            1 => ("anyOf", json!([self.leaf(), self.leaf()])),
            2 => ("oneOf", json!([self.leaf(), self.leaf()])),
            3 => ("not", self.leaf()),
            4 => {
                schema["then"] = self.leaf();
                schema["else"] = self.leaf();
                ("if", self.leaf())
            }
            _ => return schema,
        };
        match self.random.once_in(2) {
            true => schema[key] = value,
            false if key == "if" => schema[key] = value,
            false => schema = json!({ key: value }),
        }
        schema
    }

    /// Texts of numbers near to those of the schema.
    fn candidates(&mut self) -> Vec<String> {
        let mut texts: Vec<String> = ["-0", "-0.0", "0.0", "1.0", "1e2"].map(str::to_owned).to_vec();
        for text in self.drawn.clone() {
            texts.push(text.clone());
            let float: f64 = text.parse().expect("a number");
            for near in [float.next_down(), float, float.next_up()] {
                texts.extend([format!("{near}"), json!(near).to_string()]);
            }
            let Some(plain) = Plain::of(&text) else { continue };
            texts.extend([-1, 0, 1].map(|step| plain.plus(step).text()));
            texts.push(format!("{}.5", plain.text().split('.').next().expect("a part")));
            for unit in self.units.clone() {
                let unit = Plain::of(&unit).expect("few digits");
                let multiple = plain.multiple(unit).into_iter();
                texts.extend(multiple.flat_map(|multiple| [-1, 0, 1].map(|step| multiple.plus(step).text())));
            }
        }
        for _ in 0..4 {
            texts.push(self.digits());
        }
        texts.retain(|text| text.len() < 48 && serde_json::from_str::<Value>(text).is_ok());
        texts.sort_unstable();
        texts.dedup();
        texts
    }
}

/// Whether a grammar offers this text of a valid number: its shortest plain text, if it has few digits.
fn is_written(text: &str, is_integer: bool) -> bool {
    let magnitude = text.strip_prefix('-').unwrap_or(text);
    let is_shortest = match magnitude.contains('.') {
        true => !magnitude.ends_with('0') && !magnitude.contains('e'),
        false => !magnitude.contains('e'),
    };
    let most = if is_integer && !text.contains('.') { 19 - (text.len() - magnitude.len()) } else { 16 };
    is_shortest && text != "-0" && magnitude.len() <= most
}

/// Whether the grammar accepts a text and the check of finished replies, too; `None` if the grammar is too
/// complex for the lexer at this text.
fn takes(mut constraint: GrammarConstraint, text: &str, note: &str) -> Option<bool> {
    for id in tokens(text).into_iter().chain([STOP]) {
        if constraint.is_complete() {
            return Some(id == STOP);
        }
        if let Err(error) = constraint.accept(id) {
            let sentence = error.to_string();
            if sentence.contains("too complex: lexer error") {
                eprintln!("{note} and {text}: {sentence}");
                return None;
            }
            assert!(sentence.contains("does not allow"), "{note} and {text}: {sentence}");
            return Some(false);
        }
    }
    Some(true)
}

/// Draws schemas from a first seed on; returns how many were compiled and how many texts they accepted.
fn compare(seeds: std::ops::Range<u64>) -> (usize, usize) {
    let (mut compiled, mut accepted, mut too_complex) = (0, 0, 0);
    for seed in seeds {
        let mut drawn = NumberSchemas { random: Random(seed), drawn: Vec::new(), units: Vec::new() };
        let text = drawn.schema().to_string();
        // The parser may read a double of 16 or 17 digits as its neighbour.
        let schema: Value = serde_json::from_str(&text).expect("JSON");
        let note = format!("seed {seed}: {schema}");
        let validator = SchemaValidator::new(&schema).expect("it is valid");
        let texts = drawn.candidates();
        let is_valid = |text: &String| {
            let value = serde_json::from_str(text).expect("JSON");
            validator.fault(&value).expect("a verdict").is_none()
        };
        let is_integer = schema["type"] == "integer";
        let grammar = Grammar::JsonSchema(text);
        let constraints = match compiler().compile_several(&grammar, texts.len() as u32) {
            Ok(constraints) => constraints,
            Err(error) => {
                let sentence = error.to_string();
                assert!(REFUSALS.iter().any(|reason| sentence.contains(reason)), "{note}: {sentence}");
                let is_denied = |text: &String| match sentence.contains("contradict") {
                    true => is_valid(text),
                    false => {
                        sentence.contains("leaves only") && is_valid(text) && is_written(text, is_integer)
                    }
                };
                let denied = texts.iter().find(|text| is_denied(text));
                assert!(denied.is_none(), "{note} has {denied:?}: {sentence}");
                continue;
            }
        };
        compiled += 1;
        for (constraint, text) in constraints.into_iter().zip(&texts) {
            let Some(is_taken) = takes(constraint, text, &note) else {
                too_complex += 1;
                break;
            };
            accepted += usize::from(is_taken);
            let is_missed = !is_taken && is_written(text, is_integer) && is_valid(text);
            assert!(!is_missed, "{note} does not accept {text}, which is valid");
        }
    }
    eprintln!("{compiled} schemas accept {accepted} texts; {too_complex} are too complex for the lexer");
    (compiled, accepted)
}

#[test]
fn grammars_of_numbers_accept_what_is_valid() {
    let (compiled, accepted) = compare(0..60);
    assert!(compiled > 30 && accepted > 80, "{compiled} {accepted}");
}

/// `cargo test --release -p girih-grammar many_grammars_of_numbers -- --ignored --nocapture`.
#[test]
#[ignore = "takes minutes"]
fn many_grammars_of_numbers_accept_what_is_valid() {
    compare(60..6000);
}

#[test]
fn numbers_are_written_as_the_schema_allows() {
    let cases = [
        (r#"{"const":1e20}"#, "1e20", "100000000000000000000"),
        (r#"{"const":1e-20}"#, "1e-20", "0"),
        (r#"{"const":12345678901234567890}"#, "12345678901234567890", "12345678901234567891"),
        (r#"{"const":-1234567890123456789}"#, "-1234567890123456789", "-1234567890123456788"),
        (r#"{"const":[0.30000000000000004]}"#, "[0.30000000000000004]", "[0.3]"),
        (r#"{"enum":[1,1e20],"type":"integer"}"#, "1e20", "1e21"),
        (r#"{"enum":[1e20,1e-20],"minimum":1}"#, "1e20", "1e-20"),
        (r#"{"enum":[1e20,1e-20],"not":{"minimum":1}}"#, "1e-20", "1e20"),
        (r#"{"enum":[1e20,1e21],"not":{"const":1e21}}"#, "1e20", "1e21"),
        (r#"{"enum":[3e20,1e20],"multipleOf":3}"#, "3e20", "1e20"),
        (r#"{"enum":[1e20,7],"oneOf":[{"minimum":5},{"minimum":1e19}]}"#, "7", "1e20"),
        (r#"{"type":"integer","multipleOf":1e9}"#, "7000000000", "700000000"),
        (r#"{"type":"number","multipleOf":300}"#, "0", "100"),
        (r#"{"type":"number","multipleOf":0.25}"#, "0.5", "0.3"),
        (r#"{"type":"number","not":{"multipleOf":0.25}}"#, "0.3", "0.5"),
        (r#"{"type":"number","not":{"multipleOf":0.0004}}"#, "0.001", "0.002"),
        (r#"{"allOf":[{"enum":[1e20,2e20]},{"enum":[2e20,3e20]}]}"#, "2e20", "1e20"),
    ];
    for (schema, valid, invalid) in cases {
        let grammar = Grammar::JsonSchema(schema.to_owned());
        assert_eq!(accepts(&grammar, valid), Ok(true), "{schema}");
        assert_eq!(accepts(&grammar, invalid), Ok(false), "{schema}");
    }
}

/// The bound is the double's value, of which the shortest text is another integer.
#[test]
fn a_bound_written_as_a_double_is_the_integer_that_it_holds() {
    let grammar = Grammar::JsonSchema(r#"{"type":"integer","minimum":1.2345678901234567e18}"#.to_owned());
    assert_eq!(accepts(&grammar, "1234567890123456768"), Ok(true));
    assert_eq!(accepts(&grammar, "1234567890123456710"), Ok(false));
}

#[test]
fn bounds_beyond_the_digits_are_refused_by_name() {
    for (schema, reasons) in [
        (r#"{"type":"number","minimum":1e20}"#, ["schema's minimum leaves", "16 digits"]),
        (r#"{"type":"number","minimum":1e16,"maximum":2e16}"#, ["maximum with minimum", "16 digits"]),
        (
            r#"{"type":"number","exclusiveMinimum":0,"maximum":1e-20}"#,
            ["exclusiveMinimum", "15 with a point"],
        ),
        (r#"{"type":"integer","minimum":1e19}"#, ["minimum leaves", "19 digits"]),
        (r#"{"properties":{"a":{"type":"number","minimum":1e20}}}"#, ["minimum leaves", "enum"]),
        (r#"{"type":"number","maximum":1e50}"#, ["maximum 1e+50", "the 40"]),
        (r#"{"const":1e50}"#, ["const or enum 1e+50", "the 40"]),
        (r#"{"type":"number","minimum":5,"maximum":4}"#, ["contradict", "keywords"]),
        (r#"{"const":1e20,"maximum":5}"#, ["contradict", "keywords"]),
        (r#"{"type":"integer","multipleOf":99999999}"#, ["multipleOf 99999999 is", "1 to 1024"]),
        (r#"{"type":"number","multipleOf":1e-12}"#, ["multipleOf 0.000000000001 is", "8 digits"]),
    ] {
        let error = accepts(&Grammar::JsonSchema(schema.to_owned()), "").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        for reason in reasons {
            assert!(error.to_string().contains(reason), "{schema}: {error}");
        }
    }
    // What is left is written.
    let grammar = Grammar::JsonSchema(r#"{"type":["string","number"],"minimum":1e20}"#.to_owned());
    assert_eq!(accepts(&grammar, "\"a\""), Ok(true));
    assert_eq!(accepts(&grammar, "1"), Ok(false));
}
