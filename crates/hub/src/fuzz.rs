//! The entry point of the fuzz target `hub_listing`.

use std::path::{Component, Path};

use super::listing::Listing;
use super::select::select;

/// Parses any bytes as the list of a repository's files, and selects a model's
/// files from it.
///
/// # Panics
/// If a name leads out of its folder, or a selected file is not in the list.
pub fn fuzz(bytes: &[u8]) {
    let Ok(listing) = Listing::parse(bytes) else { return };
    let names: Vec<&str> = listing.files.iter().map(|file| file.name.as_str()).collect();
    for name in &names {
        let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
        assert!(Path::new(name).components().all(plain), "{name:?} leads out of its folder");
    }
    for quant in [None, Some("Q8_0")] {
        let Ok(chosen) = select(&names, quant) else { continue };
        assert!(!chosen.files.is_empty() && chosen.files.iter().all(|name| names.contains(name)));
    }
}
