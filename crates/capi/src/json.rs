//! Reads JSON objects of a known form; unknown and repeated keys are refused.

use girih::tools::shorten_parse;
use serde::de::DeserializeOwned;

use crate::status::{Fault, Result};

/// The maximum length of a JSON text in bytes.
const MAX_BYTES: usize = 64 << 20;

/// Reads an object; `what` names it in errors. `None` is an empty object.
///
/// # Errors
/// When the text is too long, is no JSON object, or has unknown, repeated or wrong keys.
pub fn read<T: DeserializeOwned>(what: &str, text: Option<&str>) -> Result<T> {
    let text = text.unwrap_or("{}");
    if text.len() > MAX_BYTES {
        let length = text.len();
        return Err(Fault::argument(format!("{what} have {length} bytes; the maximum is {MAX_BYTES}")));
    }
    // What serde derives for structs also reads a list of the fields' values.
    if !text.trim_start().starts_with('{') {
        return Err(Fault::argument(format!("{what} are no JSON object: pass one, such as {{}}")));
    }
    serde_json::from_str(text).map_err(|error| Fault::argument(format!("{what}: {}", shorten_parse(&error))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Cat {
        lives: Option<u32>,
    }

    #[test]
    fn an_object_has_known_keys_only() {
        let read = |text| read::<Cat>("the options", text);
        assert_eq!(read(None), Ok(Cat { lives: None }));
        assert_eq!(read(Some(" {\"lives\": 9}")), Ok(Cat { lives: Some(9) }));
        for (bad, named) in [
            ("[9]", "no JSON object"),
            ("", "no JSON object"),
            ("{", "EOF"),
            ("{\"lifes\": 9}", "lifes"),
            ("{\"lives\": 9, \"lives\": 9}", "duplicate"),
            ("{\"lives\": -9}", "-9"),
        ] {
            let fault = read(Some(bad)).unwrap_err();
            assert!(fault.sentence.starts_with("the options") && fault.sentence.contains(named), "{fault:?}");
        }
    }
}
