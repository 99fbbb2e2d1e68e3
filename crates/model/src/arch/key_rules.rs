//! What a description says of keys that girih does not read: the values that exclude a model, and those
//! that change no number.

use serde::Deserialize;

/// A key of `config.json` or GGUF that excludes a model.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum ExcludedKey {
    /// It must be absent, null, false or empty; else this is the error.
    Set(String),
    /// It must be absent, null or this value.
    Other(RequiredValue),
    /// It must not be this value.
    Never(ExcludedValue),
    /// It must be stated as null in `config.json`, as transformers takes another value if it is
    /// absent; a GGUF has no such key.
    Null(RequiredNull),
}

/// Null, as the only value that a key may have.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequiredNull {
    /// The error for a model with another value, or without the key.
    pub only_null: String,
}

/// The value that a key may not have.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExcludedValue {
    /// The value.
    pub never: StatedValue,
    /// The error for a model with this value.
    pub why: String,
}

/// The only value that a key may have.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequiredValue {
    /// The value.
    pub unless: StatedValue,
    /// The error for a model with another one.
    pub why: String,
}

/// A number, a string or a bool.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum StatedValue {
    /// A bool.
    Flag(bool),
    /// A number.
    Number(f64),
    /// A string.
    Word(String),
}

/// A key that girih does not read.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HarmlessKey {
    /// The values with which it changes no number; null always counts as absent.
    pub is: HarmlessValues,
    /// The reason.
    pub why: String,
}

/// The values with which a key changes no number.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum HarmlessValues {
    /// All of a kind.
    Kind(ValueKind),
    /// These.
    Listed(Vec<StatedValue>),
    /// Lists of one value.
    Each(ListOf),
}

/// Lists that have no other value.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListOf {
    /// The value.
    pub each: StatedValue,
}

/// A kind of value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueKind {
    /// All values, lists and objects too.
    Any,
    /// True or false.
    Flag,
    /// A number.
    Number,
    /// A string.
    Text,
    /// An integer, or a list of integers.
    Ids,
}
