//! Values from JSON texts that callers pass.

use girih::ErrorKind;
use serde_json::Value;

use crate::status::{Fault, Result};

/// The maximum length of a JSON text in bytes.
const MAX_BYTES: usize = 64 << 20;

/// Reads a value; `what` names it in errors. `None` is an empty object.
///
/// # Errors
/// When the text is too long, is no JSON, or has a key twice.
pub fn read(what: &str, text: Option<&str>) -> Result<Value> {
    let text = text.unwrap_or("{}");
    if text.len() > MAX_BYTES {
        let length = text.len();
        return Err(Fault::argument(format!("{what} have {length} bytes; the maximum is {MAX_BYTES}")));
    }
    as_argument(girih::json::parse(what, text))
}

/// Turns a refused value into the status of a wrong argument; other errors keep their own.
///
/// # Errors
/// As the reading.
pub fn as_argument<T>(read: girih::Result<T>) -> Result<T> {
    read.map_err(|error| match error.kind() {
        ErrorKind::Refused => Fault::argument(error.to_string()),
        _ => error.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Status;

    #[test]
    fn a_text_is_json_without_repeated_keys() {
        let read = |text| read("the options", text);
        assert_eq!(read(None), Ok(serde_json::json!({})));
        assert_eq!(read(Some(" {\"lives\": 9}")), Ok(serde_json::json!({"lives": 9})));
        for (bad, named) in [
            ("", "EOF"),
            ("{", "EOF"),
            ("{} {}", "trailing"),
            ("{\"lives\": 9, \"lives\": 9}", "duplicate key 'lives'"),
            ("{\"toys\": [{\"ball\": 1, \"ball\": 2}]}", "duplicate key 'ball'"),
        ] {
            let fault = read(Some(bad)).unwrap_err();
            assert!(fault.sentence.starts_with("the options") && fault.sentence.contains(named), "{fault:?}");
            assert_eq!(fault.status, Status::InvalidArgument);
        }
    }
}
