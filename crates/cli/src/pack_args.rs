//! The option `--pack`: the format to which a model in floats is quantized when it is loaded.

use clap::{Args, ValueEnum};
use girih::{DType, Model, QuantizationError};
use serde_json::{Value, json};

use crate::args::ArchArgs;

/// The format of the weights of a model.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct PackArgs {
    /// Quantize weights in floats when they are loaded, as quantize --type does it (changes results; prints the error) [default: off]
    #[arg(long, value_name = "TYPE", value_enum)]
    pack: Option<PackType>,
}

/// The values of `--pack`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs, non_camel_case_types)] // spelled as in GGUF
enum PackType {
    #[value(name = "off")]
    Off,
    #[value(name = "q8_0")]
    Q8_0,
}

impl PackArgs {
    /// `arch` for a model whose weights are packed in this way.
    pub fn applied(self, arch: ArchArgs) -> ArchArgs {
        let pack = match self.pack {
            Some(PackType::Q8_0) => Some(DType::Q8_0),
            Some(PackType::Off) | None => None,
        };
        ArchArgs { pack, ..arch }
    }
}

/// The error of quantized weights as JSON; null if the weights were loaded as they are.
pub fn packing_json(model: &Model) -> Value {
    let Some(QuantizationError { dtype, matrices, relative_rms, worst }) = model.quantization_error() else {
        return Value::Null;
    };
    let worst = worst.map(|(name, error)| json!({"weight": name, "relative_rms": error}));
    let measured = (matrices > 0).then_some(relative_rms);
    json!({"type": dtype.name(), "matrices": matrices, "relative_rms": measured, "worst": worst})
}
