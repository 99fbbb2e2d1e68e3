//! JSON files of models.

use girih_file::shorten_parse;
use girih_tensor::{Error, Result};
use serde_json::Value as Json;

use crate::special_floats;

/// Parses JSON.
pub(crate) fn parse_json(text: &[u8]) -> Result<Json> {
    serde_json::from_slice(&special_floats::tagged(text))
        .map_err(|error| Error::new(format!("is not valid JSON: {}", shorten_parse(&error))))
}
