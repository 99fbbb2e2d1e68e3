//! The entry of the fuzz target: what a server answers when it is asked for
//! the files of a repository.

use std::path::{Component, Path};

use super::listing::Listing;
use super::select::select;

/// Any bytes as the list of a repository's files, and the choice of a model's
/// files out of it.
///
/// # Panics
/// If a name leads out of its folder, or one is chosen that the list lacks.
pub fn fuzz(bytes: &[u8]) {
    let Ok(listing) = Listing::parse(bytes) else { return };
    let names: Vec<&str> = listing.files.iter().map(|file| file.name.as_str()).collect();
    for name in &names {
        let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
        assert!(Path::new(name).components().all(plain), "{name:?} leads out of its folder");
    }
    for quant in [None, Some("Q8_0")] {
        let Ok(chosen) = select(&names, quant) else { continue };
        assert!(!chosen.is_empty() && chosen.iter().all(|name| names.contains(name)));
    }
}
