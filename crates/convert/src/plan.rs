//! Which tensors a converted model consists of, and how each is stored.

use girih_model::Weights;
use girih_model::arch::Arch;
use girih_model::arch::schema::Weight;
use girih_tensor::{DType, Error, Result, Shape};

use super::recipe::Recipe;
use super::report::Written;

/// One weight that is to be written.
#[derive(Clone, Debug)]
pub(super) struct Planned {
    /// girih's name.
    pub weight: String,
    /// The name in the file.
    pub name: String,
    pub shape: Shape,
    /// How the model hands it out.
    pub source: DType,
    /// How it is stored.
    pub stored: DType,
    pub layout: Layout,
    /// Why it is stored otherwise than the type of the file says.
    pub note: Option<String>,
}

/// What stands between a weight and the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// The file has girih's own order of rows.
    Ours,
    /// The file has the halves of each of so many heads interleaved.
    Interleaved { heads: usize },
    /// The file has what the model's own container has, values and order.
    AsStored,
}

impl Planned {
    pub(super) fn written(&self) -> Written {
        let Planned { name, shape, source, stored, note, .. } = self.clone();
        Written { name, shape, source, stored, note }
    }
}

/// The weights that a model has, in the order in which they are written: those
/// of the whole model, then layer by layer. Each with its pattern's entry and
/// the layer.
pub(super) fn weights<'a>(
    arch: &'a Arch,
    weights: &'a Weights,
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

/// The name that a pattern has in a layer.
pub(super) fn at(pattern: &str, layer: Option<usize>) -> String {
    layer.map_or(pattern.to_owned(), |layer| pattern.replace("{i}", &layer.to_string()))
}

/// Decides the formats of matrices: by the recipe, else by what the type of
/// the file wants.
pub(super) struct Chooser<'a> {
    recipe: Option<&'a Recipe>,
    used: Vec<usize>,
    /// What the container has a place for.
    taken: &'a [DType],
}

impl<'a> Chooser<'a> {
    pub(super) fn new(recipe: Option<&'a Recipe>, taken: &'a [DType]) -> Chooser<'a> {
        Chooser { recipe, used: Vec::new(), taken }
    }

    /// The format of a matrix with these names and its reason; `default` gives
    /// both where no rule does.
    pub(super) fn choose(
        &mut self,
        names: [&str; 2],
        shape: &Shape,
        default: impl FnOnce() -> (DType, Option<String>),
    ) -> Result<(DType, Option<String>)> {
        let Some((rule, dtype)) = self.recipe.and_then(|recipe| recipe.rule(names)) else {
            return Ok(default());
        };
        self.used.push(rule);
        let of_rule =
            |error: Error| error.of(format!("rule {} of the recipe, tensor '{}'", rule + 1, names[1]));
        if !self.taken.contains(&dtype) {
            let taken: Vec<&str> = self.taken.iter().map(|dtype| dtype.name()).collect();
            return Err(of_rule(Error::new(format!(
                "there is no place for {dtype} in such a file; there is for {}",
                taken.join(", ")
            ))));
        }
        dtype.bytes(shape).map_err(of_rule)?;
        Ok((dtype, Some(format!("rule {} of the recipe", rule + 1))))
    }

    /// Checks that every rule decided for a matrix.
    pub(super) fn finish(self) -> Result<()> {
        self.recipe.map_or(Ok(()), |recipe| recipe.check_used(&self.used))
    }
}
