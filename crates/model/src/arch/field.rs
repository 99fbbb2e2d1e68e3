//! The source of a parameter in an `archs/*.toml`.

use serde::Deserialize;

/// The source of one parameter: paths in `config.json` (those that exist must have the same
/// value), a key of GGUF, and a default.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Field {
    /// Paths in `config.json`, with dots between the levels.
    #[serde(default)]
    pub hf: Names,
    /// Whether the paths may have several values; the first one counts.
    #[serde(default)]
    pub hf_first: bool,
    /// A key of GGUF.
    pub gguf: Option<String>,
    /// The GGUF key that counts where `gguf` is absent.
    pub gguf_or: Option<String>,
    /// Further GGUF keys that must have the same value if they exist, and are written for other
    /// programs.
    #[serde(default)]
    pub gguf_also: Vec<String>,
    /// Whether the key may have a list of sizes instead, one for each layer.
    #[serde(default)]
    pub by_layer: bool,
    /// Where a `config.json` states other values of some layers.
    pub overrides: Option<Box<LayerOverrides>>,
    /// Whether llama.cpp ignores the GGUF key. `quantize` then warns when it writes the key.
    #[serde(default)]
    pub llama_cpp_ignores: bool,
    /// The default.
    pub default: Option<DefaultValue>,
    /// The default in `config.json`, if it is another one.
    pub hf_default: Option<DefaultValue>,
}

/// An object of `config.json` that has objects with other values by the index of a layer. Where a file has it, the
/// field's own keys do not count.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerOverrides {
    /// The object.
    pub hf: String,
    /// The key within the object of a layer.
    pub key: String,
    /// The value of the layers without this key.
    pub others: Field,
}

/// One name, or several in order of preference.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Names {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

impl Default for Names {
    fn default() -> Names {
        Names::Many(Vec::new())
    }
}

impl Names {
    /// The names in order of preference.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        let names = match self {
            Names::One(name) => std::slice::from_ref(name),
            Names::Many(names) => names,
        };
        names.iter().map(String::as_str)
    }
}

/// The default of a parameter.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum DefaultValue {
    /// A bool.
    Flag(bool),
    /// A number.
    Number(f64),
    /// Another size, or a string.
    Word(String),
}
