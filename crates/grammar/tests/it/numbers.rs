//! Numbers at the limits of what a double holds: the grammar, the validator and exact arithmetic agree.

use girih_engine::Constraint;
use girih_grammar::{Grammar, GrammarConstraint, SchemaValidator};
use girih_tensor::{ErrorKind, Random};
use serde_json::{Number, Value};

use crate::feed::{STOP, accepts, compiler, tokenizer, tokens};

/// Numbers of schemas near powers of two and ten, and fractions that a double does not hold.
const BOUNDS: [&str; 22] = [
    "0",
    "1",
    "0.1",
    "0.7",
    "1.5",
    "2.5",
    "12.5",
    "0.30000000000000004",
    "99999999999999.9",
    "999999999999999",
    "1e15",
    "1000000000000001",
    "1e16",
    "9007199254740991",
    "9007199254740992",
    "9007199254740993",
    "1.2345678901234567e18",
    "1234567890123456789",
    "9999999999999999999",
    "1e20",
    "1e308",
    "1e-15",
];
const UNITS: [&str; 13] =
    ["1", "2", "3", "7", "10", "1000", "0.1", "0.7", "1.5", "2.5", "12.5", "1e-8", "99999999"];

/// Decimal places of [`Scaled`].
const PLACES: usize = 17;

/// A number times [`ONE`].
type Scaled = i128;

/// The number 1.
const ONE: Scaled = Scaled::pow(10, PLACES as u32);

/// The exact value of a text without an exponent; `None` if it has too many digits.
fn scaled(text: &str) -> Option<Scaled> {
    let (sign, rest) = text.strip_prefix('-').map_or((1, text), |rest| (-1, rest));
    let (whole, fraction) = rest.split_once('.').unwrap_or((rest, ""));
    if fraction.len() > PLACES || whole.len() > 21 {
        return None;
    }
    format!("{whole}{fraction:0<PLACES$}").parse::<Scaled>().ok().map(|value| sign * value)
}

/// The shortest text of a value.
fn text_of(value: Scaled) -> String {
    let digits = format!("{:0>1$}", value.unsigned_abs(), PLACES + 1);
    let (whole, fraction) = digits.split_at(digits.len() - PLACES);
    let sign = if value < 0 { "-" } else { "" };
    format!("{sign}{whole}.{fraction}").trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The exact value of a number of a schema as JSON parsers read it: a double from 2^53 on is whole.
fn value_of(number: &str) -> Option<Scaled> {
    let number: Number = serde_json::from_str(number).unwrap();
    let double = number.as_f64().unwrap();
    match number.is_f64() {
        true if double.abs() > 1e21 => None,
        true if double.abs() >= 2f64.powi(53) => scaled(&format!("{double:.0}")),
        true => scaled(&format!("{double}")),
        false => scaled(&number.to_string()),
    }
}

/// A schema of numbers.
struct NumberSchema {
    is_integer: bool,
    unit: Option<&'static str>,
    /// Whether the numbers are no multiples of the unit.
    is_negated: bool,
    bounds: Vec<(&'static str, String)>,
}

impl NumberSchema {
    fn random(random: &mut Random) -> NumberSchema {
        let unit = random.once_in(2).then(|| random.of(&UNITS));
        let mut bounds = Vec::new();
        for key in ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"] {
            if random.once_in(3) {
                let sign = if random.once_in(3) { "-" } else { "" };
                bounds.push((key, format!("{sign}{}", random.of(&BOUNDS))));
            }
        }
        NumberSchema { is_integer: random.once_in(2), unit, is_negated: random.once_in(4), bounds }
    }

    fn text(&self) -> String {
        let kind = if self.is_integer { "integer" } else { "number" };
        let mut text = format!("{{\"type\":\"{kind}\"");
        match (self.unit, self.is_negated) {
            (Some(unit), true) => text.push_str(&format!(",\"not\":{{\"multipleOf\":{unit}}}")),
            (Some(unit), false) => text.push_str(&format!(",\"multipleOf\":{unit}")),
            (None, _) => {}
        }
        self.bounds.iter().for_each(|(key, bound)| text.push_str(&format!(",\"{key}\":{bound}")));
        text + "}"
    }

    /// Whether a value satisfies the schema, in exact arithmetic.
    fn holds(&self, value: Scaled) -> bool {
        let multiple = |unit: &str| value % value_of(unit).unwrap() == 0;
        let within = |(key, bound): &(&str, String)| {
            // Beyond the values of the test, only the sign counts.
            let far = if bound.starts_with('-') { Scaled::MIN } else { Scaled::MAX };
            let bound = value_of(bound).unwrap_or(far);
            match *key {
                "minimum" => value >= bound,
                "exclusiveMinimum" => value > bound,
                "maximum" => value <= bound,
                _ => value < bound,
            }
        };
        (!self.is_integer || value % ONE == 0)
            && self.unit.is_none_or(|unit| multiple(unit) != self.is_negated)
            && self.bounds.iter().all(within)
    }

    /// Whether a text has few enough digits to be written.
    fn is_written(&self, text: &str) -> bool {
        let digits = text.bytes().filter(u8::is_ascii_digit).count();
        let has_fraction = self.unit.is_some_and(|unit| value_of(unit).unwrap() % ONE != 0);
        let is_restricted = self.unit.is_some() || !self.bounds.is_empty();
        match (self.is_integer, text.contains('.')) {
            (true, _) if has_fraction => digits <= 15,
            (true, _) => digits <= if text.starts_with('-') { 18 } else { 19 },
            (false, _) if is_restricted => digits <= 15,
            (false, false) => digits <= 19,
            (false, true) => true,
        }
    }
}

/// Takes random tokens, mostly more digits, until the number is complete; `None` if it gets long.
fn random_number(mut constraint: GrammarConstraint, random: &mut Random, schema: &str) -> Option<String> {
    let (mut text, mut allowed) = (Vec::new(), vec![true; 512]);
    for _ in 0..60 {
        allowed.fill(true);
        constraint.mask(&mut allowed).unwrap();
        let all: Vec<u32> = (0..512).filter(|id| allowed[*id as usize] && *id != STOP).collect();
        let id = if all.is_empty() || (allowed[STOP as usize] && random.once_in(12)) {
            STOP
        } else {
            random.of(&all)
        };
        text.extend(tokenizer().token_bytes(id));
        let shown = String::from_utf8_lossy(&text);
        constraint.accept(id).unwrap_or_else(|error| panic!("{error}: {shown} of {schema}"));
        if constraint.is_complete() {
            return Some(shown.into_owned());
        }
    }
    None
}

/// Whether a constraint accepts a text as a whole.
fn accepts_text(mut constraint: GrammarConstraint, text: &str, schema: &str) -> bool {
    for id in tokens(text).into_iter().chain([STOP]) {
        // A text that nothing may follow is complete without a stop token.
        if id == STOP && constraint.is_complete() {
            return true;
        }
        match constraint.accept(id) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Refused => return false,
            Err(error) => panic!("{schema} accepts {text}: {error}"),
        }
    }
    constraint.is_complete()
}

/// Draws schemas and numbers that their masks allow; tries those beside them, too.
#[test]
fn numbers_at_the_limits_are_written_and_validated_alike() {
    const SEED: u64 = 5;
    eprintln!("seed {SEED}");
    let mut random = Random(SEED);
    let (mut drawn, mut accepted, mut refused, mut complex) = (0, 0, 0, 0);
    for _ in 0..100 {
        let schema = NumberSchema::random(&mut random);
        let text = schema.text();
        let value: Value = serde_json::from_str(&text).unwrap();
        let validator = SchemaValidator::new(&value).unwrap();
        let is_valid =
            |number: &str| validator.fault(&serde_json::from_str(number).unwrap()).unwrap().is_none();
        let ends = schema
            .bounds
            .iter()
            .filter_map(|(_, bound)| value_of(bound))
            .chain([0, ONE * Scaled::pow(10, 15)]);
        let steps = [1, 1000, ONE / 10, ONE];
        let beside =
            |value: Scaled| steps.iter().flat_map(move |step| [value, -value, value - step, value + step]);
        let mut candidates: Vec<Scaled> = ends.flat_map(beside).collect();
        let grammar = Grammar::JsonSchema(text.clone());
        let mut constraints = match compiler().compile_several(&grammar, 80) {
            Ok(constraints) => constraints,
            Err(error) => {
                let sentence = error.to_string();
                // Counting multiples within bounds may take too many states.
                if schema.unit.is_some() && sentence.contains("too complex") {
                    complex += 1;
                    continue;
                }
                let fits = |value: &&Scaled| schema.holds(**value) && schema.is_written(&text_of(**value));
                assert_eq!(
                    candidates.iter().find(fits).filter(|_| !sentence.contains("1e308")),
                    None,
                    "{text}: {sentence}"
                );
                let has_more = candidates.iter().any(|value| schema.holds(*value));
                assert!(
                    sentence.contains("digits") || (sentence.contains("contradict") && !has_more),
                    "{text}: {sentence}"
                );
                refused += 1;
                continue;
            }
        };
        for _ in 0..6 {
            let Some(number) = random_number(constraints.pop().unwrap(), &mut random, &text) else {
                continue;
            };
            if number.contains(['e', 'E']) || scaled(&number).is_none() {
                continue;
            }
            drawn += 1;
            let value = scaled(&number).unwrap();
            assert!(schema.holds(value) && is_valid(&number), "{number} of {text}");
            candidates.extend(beside(value).take(8));
        }
        for (value, constraint) in candidates.into_iter().zip(constraints) {
            let number = text_of(value);
            let expected = schema.holds(value) && schema.is_written(&number);
            assert_eq!(accepts_text(constraint, &number, &text), expected, "{number} of {text}");
            assert!(!schema.is_written(&number) || is_valid(&number) == expected, "{number} of {text}");
            accepted += usize::from(expected);
        }
    }
    eprintln!(
        "{drawn} numbers drawn, {accepted} of their neighbours accepted, {refused} and {complex} schemas refused"
    );
    assert!(drawn > 300 && accepted > 500 && refused > 10);
}

/// The grammar computes exactly, the validator with doubles: above 2^53, it found no multiple.
#[test]
fn multiples_of_a_fraction_have_few_digits() {
    let cases = [
        (r#"{"type":"integer","multipleOf":1.5}"#, "5447849327824491591", "544784932782450"),
        (r#"{"type":"integer","multipleOf":0.7}"#, "5458209297800181090", "545820929780014"),
        (r#"{"type":"integer","multipleOf":12.5}"#, "-262514677721118975", "-262514677721125"),
        (r#"{"type":"number","multipleOf":2.5}"#, "9878109508220035", "987810950822002.5"),
        (r#"{"type":"integer","not":{"multipleOf":0.7}}"#, "5458209297800181091", "545820929780018"),
        (
            r#"{"oneOf":[{"type":"integer","multipleOf":7},{"type":"integer","not":{"multipleOf":0.7}}]}"#,
            "5458209297800181091",
            "545820929780018",
        ),
    ];
    for (schema, many, few) in cases {
        let grammar = Grammar::JsonSchema(schema.to_owned());
        assert_eq!(accepts(&grammar, many), Ok(false), "{many} of {schema}");
        let is_short = few.bytes().filter(u8::is_ascii_digit).count() <= 15;
        assert_eq!(accepts(&grammar, few), Ok(is_short), "{few} of {schema}");
    }
    let whole = Grammar::JsonSchema(r#"{"type":"integer","multipleOf":7}"#.to_owned());
    assert_eq!(accepts(&whole, "5458209297800181090"), Ok(true));
    assert_eq!(accepts(&whole, "5458209297800181091"), Ok(false));
}

/// A double in a schema, such as 1.2345678901234567e18, has a shorter text than its value.
#[test]
fn bounds_above_2_to_the_53_are_those_of_the_validator() {
    let grammar = Grammar::JsonSchema(r#"{"type":"integer","minimum":1.2345678901234567e18}"#.to_owned());
    assert_eq!(accepts(&grammar, "1234567890123456767"), Ok(false));
    assert_eq!(accepts(&grammar, "1234567890123456768"), Ok(true));
}

#[test]
fn listed_numbers_are_written_as_they_are() {
    let cases = [
        (r#"{"const":1e20}"#, "100000000000000000000"),
        (r#"{"const":-1e20}"#, "-100000000000000000000"),
        (r#"{"type":"integer","const":1e20}"#, "100000000000000000000"),
        (r#"{"const":1e-20}"#, "0.00000000000000000001"),
        (r#"{"const":12345678901234567890}"#, "12345678901234567890"),
        (r#"{"enum":[1e20,0.5],"maximum":1e30}"#, "100000000000000000000"),
        (r#"{"enum":[1e20,0.5]}"#, "0.5"),
        (r#"{"const":0.1234567890123456}"#, "0.1234567890123456"),
        (r#"{"const":{"a":[1e20]}}"#, r#"{"a":[100000000000000000000]}"#),
    ];
    for (schema, number) in cases {
        let grammar = Grammar::JsonSchema(schema.to_owned());
        assert_eq!(accepts(&grammar, number), Ok(true), "{schema}");
        for other in ["100000000000000000001", "0.00000000000000000002", "12345678901234567891", "0.51", "1"]
        {
            assert_eq!(accepts(&grammar, other), Ok(false), "{other} of {schema}");
        }
    }
}

#[test]
fn a_refusal_for_lack_of_digits_says_so() {
    let refusal = |schema: &str| {
        let grammar = Grammar::JsonSchema(schema.to_owned());
        compiler().compile(&grammar).err().unwrap_or_else(|| panic!("accepted: {schema}")).to_string()
    };
    for schema in [
        r#"{"type":"number","minimum":1e20}"#,
        r#"{"type":"number","minimum":1e16,"maximum":2e16}"#,
        r#"{"type":"integer","minimum":1e16,"multipleOf":1.5}"#,
        r#"{"type":"object","properties":{"a":{"minimum":1e20,"type":"integer"}},"required":["a"]}"#,
    ] {
        assert!(refusal(schema).contains("integers of at most 19 digits"), "{}", refusal(schema));
    }
    for schema in [
        r#"{"type":"integer","minimum":3,"maximum":2}"#,
        r#"{"const":1e20,"maximum":1e19}"#,
        r#"{"type":"integer","const":0.5}"#,
        r#"{"const":0.5,"multipleOf":0.7}"#,
    ] {
        assert!(refusal(schema).contains("contradict"), "{}", refusal(schema));
    }
}
