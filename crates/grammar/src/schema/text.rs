//! The text of a schema.

use girih_tensor::Result;
use serde_json::Value;

use crate::limits::{MAX_TEXT_BYTES, check_bytes, check_json_depth, refused};
use crate::mask_thread::first_line;

/// Reads the text of a schema.
pub(super) fn read(text: &str) -> Result<Value> {
    check_bytes("schema", text, MAX_TEXT_BYTES)?;
    check_json_depth(text)?;
    serde_json::from_str(text)
        .map_err(|error| refused(format!("the schema is not JSON: {}", first_line(&error))))
}
