//! Names of models with and without a tag.

/// The name of a model without the tag `latest`, which every model without a tag has.
pub fn without_latest(name: &str) -> &str {
    name.strip_suffix(":latest").unwrap_or(name)
}
