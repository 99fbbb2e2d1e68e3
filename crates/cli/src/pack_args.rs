//! The option `--pack`: the format as which a model in floats is packed when it is loaded.

use clap::{Args, ValueEnum};
use girih::{DType, Model, QuantizationError};
use serde_json::{Value, json};

use crate::args::ArchArgs;

/// How the weights of a model are packed.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct PackArgs {
    /// Quantize weights in floats when they are loaded, as quantize --type does it (changes results; prints the error).
    #[arg(long, value_name = "TYPE", value_enum)]
    pack: Option<PackType>,
}

/// The values of `--pack`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs, non_camel_case_types)] // spelled as in GGUF
enum PackType {
    #[value(name = "q8_0")]
    Q8_0,
}

impl PackArgs {
    /// `arch` for a model whose weights are packed in this way.
    pub fn applied(self, arch: ArchArgs) -> ArchArgs {
        let pack = self.pack.map(|PackType::Q8_0| DType::Q8_0);
        ArchArgs { pack, ..arch }
    }
}

/// The error of packed weights as JSON; null if the weights were loaded as they are.
pub fn packing_json(model: &Model) -> Value {
    let Some(QuantizationError { dtype, matrices, relative_rms, worst }) = model.quantization_error() else {
        return Value::Null;
    };
    let worst = worst.map(|(name, error)| json!({"weight": name, "relative_rms": error}));
    let measured = (matrices > 0).then_some(relative_rms);
    json!({"type": dtype.name(), "matrices": matrices, "relative_rms": measured, "worst": worst})
}
