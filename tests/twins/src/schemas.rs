//! The validator of JSON Schema and the crate `jsonschema`.

use girih_grammar::SchemaValidator;
use girih_tensor::Random;
use jsonschema::{PatternOptions, Validator};
use serde_json::{Map, Value, json};

pub const SEVEN: &str = "http://json-schema.org/draft-07/schema#";
pub const LATEST: &str = "https://json-schema.org/draft/2020-12/schema";

/// The library's validator.
pub fn library(schema: &Value) -> Result<Validator, String> {
    let options = jsonschema::options().should_validate_formats(true);
    options.with_pattern_options(PatternOptions::regex()).build(schema).map_err(|error| error.to_string())
}

/// Compares the verdicts on a value.
#[track_caller]
fn compare(schema: &Value, ours: &SchemaValidator, theirs: &Validator, value: &Value, note: &str) {
    let fault = ours.fault(value).expect("a verdict");
    assert_eq!(fault.is_none(), theirs.is_valid(value), "{note}: {schema} and {value}: {fault:?}");
}

/// The table of girih's own tests. Where `exact` is set, the library rounds numbers, or takes `\<` for the beginning of a word.
#[test]
fn the_table_of_keywords_has_the_librarys_verdicts() {
    let table = include_str!("../../../crates/grammar/tests/keywords.jsonl");
    let mut compared = 0;
    for line in table.lines() {
        let case: Value = serde_json::from_str(line).expect("JSON");
        if case["exact"] == true {
            continue;
        }
        for draft in [SEVEN, LATEST] {
            if !case["drafts"].as_array().expect("drafts").contains(&json!(if draft == SEVEN {
                7
            } else {
                2020
            })) {
                continue;
            }
            let mut schema = case["schema"].clone();
            schema["$schema"] = json!(draft);
            let ours = SchemaValidator::new(&schema).expect("a schema");
            let theirs = library(&schema).expect("a schema");
            for value in ["valid", "invalid"].iter().flat_map(|key| case[key].as_array().expect("a list")) {
                compare(&schema, &ours, &theirs, value, "table");
                compared += 1;
            }
        }
    }
    assert!(compared > 500, "{compared}");
}

/// Random schemas of one draft.
struct Schemas {
    random: Random,
    is_latest: bool,
}

impl Schemas {
    fn one_of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.random.below(all.len())].clone()
    }

    fn value(&mut self, depth: usize) -> Value {
        match self.random.below(if depth == 0 { 6 } else { 10 }) {
            0 => Value::Null,
            1 => json!(self.random.once_in(2)),
            2 => json!(self.random.below(9) as i64 - 3),
            3 => json!((self.random.below(12) as f64 - 4.0) / 2.0),
            4 | 5 => self.one_of(&[
                json!(""),
                json!("a"),
                json!("ab"),
                json!("äö"),
                json!("a1"),
                json!("2024-02-29"),
            ]),
            6 | 7 => (0..self.random.below(4)).map(|_| self.value(depth - 1)).collect(),
            _ => {
                let mut members = Map::new();
                for _ in 0..self.random.below(4) {
                    members.insert(self.name(), self.value(depth - 1));
                }
                Value::Object(members)
            }
        }
    }

    fn name(&mut self) -> String {
        self.one_of(&["a", "b", "ab", "c"]).to_owned()
    }

    fn names(&mut self) -> Value {
        let mut names: Vec<String> = (0..self.random.below(3)).map(|_| self.name()).collect();
        names.sort();
        names.dedup();
        json!(names)
    }

    fn schemas(&mut self, depth: usize, is_part: bool) -> Value {
        (0..1 + self.random.below(3)).map(|_| self.schema(depth, is_part)).collect()
    }

    fn named_schemas(&mut self, names: &[&str], depth: usize, is_part: bool) -> Value {
        let count = self.random.below(3);
        (0..count)
            .map(|_| (self.one_of(names).to_owned(), self.schema(depth, is_part)))
            .collect::<Map<_, _>>()
            .into()
    }

    /// A schema. A part of the value may refer to the root; in place, that would be a cycle.
    fn schema(&mut self, depth: usize, is_part: bool) -> Value {
        if depth == 0 || self.random.once_in(8) {
            return match self.random.below(4) {
                0 => json!(self.random.once_in(2)),
                1 if is_part => json!({ "$ref": "#" }),
                2 => json!({ "$ref": "#/definitions/leaf" }),
                _ => self.leaf(),
            };
        }
        let mut schema = self.leaf();
        for _ in 0..1 + self.random.below(3) {
            let (key, value) = self.applicator(depth - 1, is_part);
            schema[key] = value;
        }
        schema
    }

    fn leaf(&mut self) -> Value {
        let mut schema = json!({});
        for _ in 0..self.random.below(3) {
            let types = ["null", "boolean", "number", "integer", "string", "array", "object"];
            let count = json!(self.random.below(3));
            let (key, value) = match self.random.below(18) {
                0 => ("type", json!(self.one_of(&types))),
                1 => ("type", json!([types[self.random.below(3)], types[3 + self.random.below(4)]])),
                2 => ("const", self.value(2)),
                3 => ("enum", (0..self.random.below(4)).map(|_| self.value(1)).collect()),
                4 => ("minimum", json!(self.random.below(6) as f64 / 2.0)),
                5 => ("maximum", json!(self.random.below(6) as i64 - 2)),
                6 => ("exclusiveMinimum", json!(self.random.below(6) as i64 - 3)),
                7 => ("exclusiveMaximum", json!(self.random.below(6) as f64 / 2.0)),
                8 => ("multipleOf", self.one_of(&[json!(1), json!(2), json!(1.5), json!(0.5), json!(3.0)])),
                9 => ("minLength", count),
                10 => ("maxLength", count),
                11 => ("pattern", json!(self.one_of(&["^a", "b$", "\\d", "^.{2}$", "[^a]", ""]))),
                12 => ("minItems", count),
                13 => ("maxItems", count),
                14 => ("uniqueItems", json!(self.random.once_in(2))),
                15 => ("minProperties", count),
                16 => ("maxProperties", count),
                _ => ("required", self.names()),
            };
            schema[key] = value;
        }
        schema
    }

    fn applicator(&mut self, depth: usize, is_part: bool) -> (&'static str, Value) {
        let patterns = ["^a", "b$", ""];
        let names = ["a", "b", "ab"];
        match self.random.below(if self.is_latest { 22 } else { 16 }) {
            0 => ("allOf", self.schemas(depth, is_part)),
            1 => ("anyOf", self.schemas(depth, is_part)),
            2 => ("oneOf", self.schemas(depth, is_part)),
            3 => ("not", self.schema(depth, is_part)),
            4 => ("if", self.schema(depth, is_part)),
            5 => ("then", self.schema(depth, is_part)),
            6 => ("else", self.schema(depth, is_part)),
            7 | 8 => ("properties", self.named_schemas(&names, depth, true)),
            9 => ("patternProperties", self.named_schemas(&patterns, depth, true)),
            10 => ("additionalProperties", self.schema(depth, true)),
            11 => ("propertyNames", self.schema(depth, true)),
            12 => ("items", self.schema(depth, true)),
            13 => ("contains", self.schema(depth, true)),
            14 if self.is_latest => ("prefixItems", self.schemas(depth, true)),
            14 => ("items", self.schemas(depth, true)),
            15 if self.is_latest => ("dependentSchemas", self.named_schemas(&names, depth, is_part)),
            15 if self.random.once_in(2) => ("dependencies", self.named_schemas(&names, depth, is_part)),
            15 => ("additionalItems", self.schema(depth, true)),
            16 => ("dependentRequired", json!({ self.name(): self.names() })),
            17 => ("minContains", json!(self.random.below(3))),
            18 => ("maxContains", json!(self.random.below(3))),
            19 => ("unevaluatedItems", self.schema(depth, true)),
            _ => ("unevaluatedProperties", self.schema(depth, true)),
        }
    }
}

#[test]
fn random_schemas_have_the_librarys_verdicts() {
    let (mut valid, mut all) = (0, 0);
    for seed in 0..30_000 {
        let mut schemas = Schemas { random: Random(seed), is_latest: seed % 3 > 0 };
        let mut schema = schemas.schema(3, false);
        if !schema.is_object() {
            continue;
        }
        schema["definitions"] = json!({ "leaf": schemas.leaf() });
        schema["$schema"] = json!(if schemas.is_latest { LATEST } else { SEVEN });
        let ours =
            SchemaValidator::new(&schema).unwrap_or_else(|error| panic!("seed {seed}: {schema}: {error}"));
        let theirs = library(&schema).unwrap_or_else(|error| panic!("seed {seed}: {schema}: {error}"));
        for _ in 0..20 {
            let value = schemas.value(3);
            compare(&schema, &ours, &theirs, &value, &format!("seed {seed}"));
            valid += usize::from(theirs.is_valid(&value));
            all += 1;
        }
    }
    assert!(valid > all / 10 && valid < all * 9 / 10, "{valid} of {all} are valid");
}

/// Texts of each format, and those where the library deviates from the RFC.
const FORMATS: [(&str, &[&str]); 9] = [
    ("date", &["2024-02-29", "1999-12-31", "1900-02-28"]),
    ("time", &["23:59:59Z", "08:30:06.283185+00:20"]),
    ("date-time", &["1990-12-31T23:59:59Z", "2024-02-29t01:02:03.123-08:00"]),
    ("duration", &["P4DT12H30M5S", "P2W", "P1Y2M3D", "PT1H"]),
    ("email", &["joe.bloggs@example.com", "a+b@c"]),
    ("hostname", &["www.example.com", "a-b.c1"]),
    ("ipv4", &["192.168.0.1", "255.1.20.3"]),
    ("uuid", &["2eb8aa08-aa98-11ea-b4aa-73b441d16380"]),
    ("uri", &["http://foo.bar:80/?baz=qux#quux", "urn:a:b", "ldap://u@[::1]/c=GB?x"]),
];

#[test]
fn edited_texts_of_each_format_have_the_librarys_verdicts() {
    for (name, texts) in FORMATS {
        let schema = json!({ "format": name });
        let (ours, theirs) =
            (SchemaValidator::new(&schema).expect("a schema"), library(&schema).expect("a schema"));
        for seed in 0..4000 {
            let mut random = Random(seed);
            let mut text: Vec<char> = random.of(texts).chars().collect();
            for _ in 0..random.below(3) {
                let at = random.below(text.len());
                let new =
                    random.of(&['0', '1', '9', 'a', 'Z', '-', '.', ':', '/', '@', 'T', 'P', '%', ' ', 'é']);
                match random.below(3) {
                    0 => text[at] = new,
                    1 => text.insert(at, new),
                    _ => drop(text.remove(at)),
                }
                if text.is_empty() {
                    break;
                }
            }
            let text: String = text.into_iter().collect();
            compare(&schema, &ours, &theirs, &Value::from(text), &format!("seed {seed}"));
        }
    }
}

/// Each pattern and texts that it may match.
#[test]
fn patterns_have_the_librarys_verdicts() {
    let atoms = [
        "a", "b", ".", "\\d", "\\w", "\\W", "\\s", "\\S", "[ab]", "[^a]", "[a-c1]", "(?:ab|c)", "(b)",
        "\\p{L}", "\\-", "\\u00e9", "-",
    ];
    let repeats = ["", "", "", "*", "+", "?", "{2}", "{1,}", "{0,2}", "*?"];
    for seed in 0..5000 {
        let mut random = Random(seed);
        let mut pattern = String::from(random.of(&["", "^"]));
        for _ in 0..1 + random.below(4) {
            pattern += random.of(&atoms);
            pattern += random.of(&repeats);
            pattern += random.of(&["", "", "", "|"]);
        }
        pattern += random.of(&["", "$"]);
        let schema = json!({ "pattern": pattern });
        let (ours, theirs) =
            (SchemaValidator::new(&schema).expect("a pattern"), library(&schema).expect("a pattern"));
        for _ in 0..20 {
            let letters = ['a', 'b', 'c', '1', '-', ' ', 'é', '\n', 'ß', '\u{2028}'];
            let text: String = (0..random.below(5)).map(|_| random.of(&letters)).collect();
            compare(&schema, &ours, &theirs, &Value::from(text), &format!("seed {seed}"));
        }
    }
}
