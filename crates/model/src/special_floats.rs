//! Infinity and NaN in JSON, which has neither: Python writes them as bare words, and transformers 5 as an object
//! with the word as a string.

use std::borrow::Cow;

use serde_json::Value as Json;

/// The key of the object.
const TAG: &str = "__float__";

/// The words, and what each stands for.
const WORDS: [(&str, f64); 3] =
    [("-Infinity", f64::NEG_INFINITY), ("Infinity", f64::INFINITY), ("NaN", f64::NAN)];

/// The text with an object in place of each bare word, as transformers 5 writes it.
pub(crate) fn tagged(text: &[u8]) -> Cow<'_, [u8]> {
    let word_at = |at: usize| WORDS.iter().find(|(word, _)| text[at..].starts_with(word.as_bytes()));
    let (mut made, mut copied, mut at, mut is_string) = (Vec::new(), 0, 0, false);
    while at < text.len() {
        match (text[at], is_string) {
            (b'"', _) => is_string = !is_string,
            (b'\\', true) => at += 1,
            (b'-' | b'I' | b'N', false) => {
                if let Some((word, _)) = word_at(at) {
                    made.extend_from_slice(&text[copied..at]);
                    made.extend_from_slice(format!("{{\"{TAG}\": \"{word}\"}}").as_bytes());
                    copied = at + word.len();
                    at = copied - 1;
                }
            }
            _ => {}
        }
        at += 1;
    }
    if copied == 0 {
        return text.into();
    }
    made.extend_from_slice(&text[copied..]);
    made.into()
}

/// The number that an object stands for, if it is such a one.
pub(crate) fn of_object(value: &Json) -> Option<f64> {
    let object = value.as_object().filter(|object| object.len() == 1)?;
    let word = object.get(TAG)?.as_str()?;
    WORDS.iter().find(|(known, _)| *known == word).map(|(_, number)| *number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_words_become_objects_and_strings_stay() {
        let of = |text: &str| String::from_utf8(tagged(text.as_bytes()).into_owned()).unwrap();
        let text = r#"{"a\"Infinity": [0.0, Infinity], "b": "NaN", "c": -Infinity, "d": -1}"#;
        let made = of(text);
        let json: Json = serde_json::from_str(&made).unwrap();
        assert_eq!(of_object(&json["a\"Infinity"][1]), Some(f64::INFINITY));
        assert_eq!(of_object(&json["c"]), Some(f64::NEG_INFINITY));
        assert_eq!(
            (json["b"].as_str(), json["d"].as_i64(), of_object(&json["b"])),
            (Some("NaN"), Some(-1), None)
        );
        assert_eq!(of_object(&json), None);
        assert!(of_object(&serde_json::json!({ TAG: "1" })).is_none());
        for text in ["", "\"", "\"\\", "Inf", "[1]"] {
            assert_eq!(of(text), text);
        }
    }
}
