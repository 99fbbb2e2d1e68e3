//! Parses any text as a model id: an error, or an id that prints as the same
//! text.
#![no_main]

use girih_hub::ModelId;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(id) = ModelId::parse(text) else { return };
    assert_eq!(id.to_string(), text.strip_prefix("hf://").unwrap_or(text));
    for part in [id.repo().as_str(), id.revision()] {
        assert!(!part.starts_with('/') && part.split('/').all(|part| !matches!(part, "" | "." | "..")));
    }
});
