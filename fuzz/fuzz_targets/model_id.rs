//! Parses any text as a model id: an error, or an id that prints as a text of
//! the same id.
#![no_main]

use girih_hub::ModelId;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(id) = ModelId::parse(text) else { return };
    if let Some(bare) = text.strip_prefix("hf://") {
        assert_eq!(id.to_string(), bare);
    }
    assert_eq!(ModelId::parse(&id.to_string()).expect("an id prints as an id"), id);
    for part in [id.repo().as_str(), id.revision()] {
        assert!(!part.starts_with('/') && part.split('/').all(|part| !matches!(part, "" | "." | "..")));
    }
});
