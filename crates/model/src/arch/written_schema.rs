//! Keys that llama.cpp needs in a GGUF and girih does not read, because other keys or the tensors say the same.

use serde::Deserialize;

/// A key that girih only writes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenKey {
    /// The key; none in a description without a name in GGUF.
    pub gguf: Option<String>,
    /// Its value.
    pub is: WrittenValue,
}

/// The value of such a key.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum WrittenValue {
    /// This flag.
    Flag(bool),
    /// This number.
    Count(u32),
    /// These numbers.
    List(Vec<u32>),
    /// A size that follows from facts.
    Size(WrittenSize),
}

/// A size that follows from facts.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WrittenSize {
    /// That of what latent attention caches: a latent and a rotated key.
    LatentRow,
    /// That of a latent.
    Latent,
}
