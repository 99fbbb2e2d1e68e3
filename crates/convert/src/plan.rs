//! The tensors of a converted model and their storage formats.

use std::ops::Range;

use girih_file::quote;
use girih_model::ModelWeights;
use girih_model::arch::Arch;
use girih_model::arch::schema::{EXPERT, TensorPart, Weight};
use girih_tensor::{DType, Error, Result, Shape};

use super::prune::{Pruning, Sparsity};
use super::recipe::{Recipe, RuleStorage};
use super::report::WrittenTensor;

/// The matrix formats of GGUF that girih writes. In safetensors, those in blocks are only for matrices that are stored by blocks.
pub(super) const MATRIX_DTYPES: [DType; 11] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::Q8_0,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
    DType::MXFP4,
];

/// A weight to write.
#[derive(Clone, Debug)]
pub(super) struct Planned {
    /// girih's name.
    pub weight: String,
    /// The name in the file.
    pub name: String,
    pub shape: Shape,
    /// The format in which the model is read.
    pub source: DType,
    /// The format in the file.
    pub stored: DType,
    pub layout: FileLayout,
    /// The reason if the format differs from that of the file's type.
    pub note: Option<String>,
    pub pruning: Option<Pruning>,
    /// The weights that the tensor consists of, if it holds several, each with its rows of the tensor and the number of all
    /// rows. `weight` is the first one.
    pub parts: Vec<(Planned, Vec<Range<usize>>, usize)>,
}

/// The layout of a weight in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileLayout {
    /// girih's order of rows.
    Ours,
    /// The halves of each of the `heads` heads are interleaved.
    Interleaved { heads: usize },
    /// The values and order of the model's container.
    AsStored,
    /// The columns of the weight are the rows.
    Transposed,
}

impl Planned {
    pub(super) fn written(&self, sparsity: Option<Sparsity>) -> WrittenTensor {
        let Planned { name, shape, source, stored, note, .. } = self.clone();
        WrittenTensor { name, shape, source, stored, note, sparsity }
    }
}

/// The weights of a model in the order of writing: those of the whole model,
/// then layer by layer; each with its description and its layer.
pub(super) fn weights<'a>(
    arch: &'a Arch,
    weights: &'a ModelWeights,
    layers: usize,
) -> impl Iterator<Item = (String, &'a Weight, Option<usize>)> {
    let of_model = arch.weights.iter().filter(|(pattern, _)| !pattern.contains("{i}"));
    let of_model = of_model.map(|(name, weight)| (name.clone(), weight, None));
    let of_layers = (0..layers).flat_map(|layer| {
        let patterns = arch.weights.iter().filter(|(pattern, _)| pattern.contains("{i}"));
        patterns.map(move |(pattern, weight)| (at(pattern, Some(layer)), weight, Some(layer)))
    });
    of_model.chain(of_layers).filter(|(name, ..)| weights.info(name).is_some())
}

/// Fills the layer's number into a pattern.
pub(super) fn at(pattern: &str, layer: Option<usize>) -> String {
    layer.map_or(pattern.to_owned(), |layer| pattern.replace("{i}", &layer.to_string()))
}

/// Refuses a weight that is not all of one tensor of this name in the file.
pub(super) fn check_whole(weight: &str, name: &str, part: Option<TensorPart>) -> Result<()> {
    let what = match part {
        Some(_) => "a part of a tensor",
        None if name.contains(EXPERT) => "assembled of several tensors",
        None => return Ok(()),
    };
    Err(Error::new(format!("'{weight}' is {what} in this type of file, which can be read but not written")))
}

/// Chooses the formats of matrices: by the recipe, else by the file's type.
pub(super) struct Chooser<'a> {
    recipe: Option<&'a Recipe>,
    used: Vec<usize>,
    /// The formats that the container supports.
    supported: &'a [DType],
    /// Whether rows must be whole blocks of their format.
    whole_blocks: bool,
}

impl<'a> Chooser<'a> {
    pub(super) fn new(recipe: Option<&'a Recipe>, supported: &'a [DType]) -> Chooser<'a> {
        Chooser { recipe, used: Vec::new(), supported, whole_blocks: true }
    }

    /// The same for a container that stores rows of any length.
    pub(super) fn of_any_rows(self) -> Chooser<'a> {
        Chooser { whole_blocks: false, ..self }
    }

    /// The format of a matrix with these names, its reason and its pruning; `default` gives
    /// the first two if no rule matches.
    pub(super) fn choose(
        &mut self,
        names: [&str; 2],
        shape: &Shape,
        default: impl FnOnce() -> (DType, Option<String>),
    ) -> Result<(DType, Option<String>, Option<Pruning>)> {
        let Some((rule, storage)) = self.recipe.and_then(|recipe| recipe.rule(names)) else {
            let (dtype, note) = default();
            return Ok((dtype, note, None));
        };
        let RuleStorage { dtype, pruning } = storage;
        self.used.push(rule);
        let of_rule =
            |error: Error| error.of(format!("rule {} of the recipe, tensor {}", rule + 1, quote(names[1])));
        if !self.supported.contains(&dtype) {
            let supported: Vec<&str> = self.supported.iter().map(|dtype| dtype.name()).collect();
            return Err(of_rule(Error::new(format!(
                "{dtype} cannot be stored in this type of file; supported are {}",
                supported.join(", ")
            ))));
        }
        if self.whole_blocks {
            dtype.bytes(shape).map_err(of_rule)?;
        }
        pruning.map_or(Ok(()), |pruning| pruning.check(shape)).map_err(of_rule)?;
        Ok((dtype, Some(format!("rule {} of the recipe", rule + 1)), pruning))
    }

    /// Checks that every rule was used.
    pub(super) fn finish(self) -> Result<()> {
        self.recipe.map_or(Ok(()), |recipe| recipe.check_used(&self.used))
    }
}
