//! The tensors of a golden file: those that goldens of decoders and of encoders have in common.

use std::path::Path;

use girih_file::FileLimits;
use girih_file::{Container, TensorInfo};
use girih_model::arch::TowerFacts;
use girih_tensor::{DType, View};

use crate::{Error, GoldenPrecision, Result};

/// The maximum number of values of a golden tensor: 2³¹ values are 8 GiB.
const MAX_VALUES: usize = 1 << 31;

/// The sizes that a golden must have: those of the model.
#[derive(Clone, Debug)]
pub struct GoldenSizes {
    /// The number of layers.
    pub layers: usize,
    /// The number of values of a hidden state.
    pub width: usize,
    /// The number of tokens; ids are below it. A row of logits has as many.
    pub vocabulary: usize,
    /// The sizes of images, if the model reads them.
    pub image: Option<ImageSizes>,
}

/// The sizes of the images that a model reads.
#[derive(Clone, Debug)]
pub struct ImageSizes {
    /// What the tower reads and makes.
    pub tower: TowerFacts,
    /// The layers of the tower.
    pub layers: usize,
    /// The hidden size of the tower.
    pub width: usize,
}

/// The kind of model that a golden was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GoldenKind {
    /// Logits and greedy continuations.
    Decoder,
    /// Hidden states and their means.
    Encoder,
}

impl GoldenKind {
    fn name(self) -> &'static str {
        match self {
            GoldenKind::Decoder => "a model that generates text",
            GoldenKind::Encoder => "an encoder",
        }
    }
}

/// An open golden file, read at one precision.
pub(crate) struct GoldenFile<'a> {
    container: Container,
    precision: GoldenPrecision,
    sizes: &'a GoldenSizes,
}

impl<'a> GoldenFile<'a> {
    /// Opens the golden of a model of these sizes.
    ///
    /// # Errors
    /// When the file is not a golden.
    pub(crate) fn open(
        path: &Path,
        precision: GoldenPrecision,
        sizes: &'a GoldenSizes,
    ) -> Result<GoldenFile<'a>> {
        let container = Container::open(path, &FileLimits::DEFAULT)?;
        let file = GoldenFile { container, precision, sizes };
        if file.prompts() == 0 {
            let path = path.display();
            return Err(Error::new(format!("{path}: has no tensor 'p0.input_ids'; a golden file is needed")));
        }
        Ok(file)
    }

    /// Checks that the golden is that of a model of this kind.
    ///
    /// # Errors
    /// When it is that of the other kind.
    pub(crate) fn check_kind(&self, need: GoldenKind) -> Result<()> {
        let has = |part| self.has(&self.name(0, part));
        let have = match (has("logits"), has("mean")) {
            (true, false) => GoldenKind::Decoder,
            (false, true) => GoldenKind::Encoder,
            // The tensor that is missing is named when it is read.
            _ => need,
        };
        if have == need {
            return Ok(());
        }
        let paths: Vec<String> = self.container.paths().map(|path| path.display().to_string()).collect();
        Err(Error::new(format!(
            "{}: is a golden of {}; this model {}: make a golden of this model",
            paths.join(", "),
            have.name(),
            match need {
                GoldenKind::Decoder => "generates text",
                GoldenKind::Encoder => "is an encoder",
            }
        )))
    }

    pub(crate) fn sizes(&self) -> &GoldenSizes {
        self.sizes
    }

    pub(crate) fn precision(&self) -> GoldenPrecision {
        self.precision
    }

    /// The number of prompts.
    pub(crate) fn prompts(&self) -> usize {
        (0..).take_while(|index| self.has(&format!("p{index}.input_ids"))).count()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.container.tensors().contains_key(name)
    }

    /// The name of a tensor of a prompt at the file's precision.
    pub(crate) fn name(&self, prompt: usize, part: &str) -> String {
        format!("p{prompt}.{part}_{}", self.precision.name())
    }

    /// The tokens of a prompt.
    ///
    /// # Errors
    /// When the prompt has images and the model reads none, or a token outside the model's vocabulary.
    pub(crate) fn tokens(&self, prompt: usize) -> Result<Vec<u32>> {
        let images = format!("p{prompt}.pixel_values");
        if self.sizes.image.is_none() && self.has(&images) {
            return Err(Error::new(format!(
                "tensor '{images}' holds images, which this model does not read: make a golden of prompts of text"
            )));
        }
        let tokens = self.ids(&format!("p{prompt}.input_ids"), 1)?;
        self.check_tokens(&format!("prompt {prompt}"), &tokens)?;
        Ok(tokens)
    }

    /// Checks that tokens are within the model's vocabulary.
    pub(crate) fn check_tokens(&self, what: &str, tokens: &[u32]) -> Result<()> {
        let vocabulary = self.sizes.vocabulary;
        match tokens.iter().find(|id| **id as usize >= vocabulary) {
            None => Ok(()),
            Some(id) => Err(Error::new(format!(
                "{what} has the token {id}, which is outside the model's vocabulary of {vocabulary}"
            ))),
        }
    }

    /// The hidden states of a prompt of `rows` tokens, each row after row.
    pub(crate) fn hidden(&self, prompt: usize, rows: usize) -> Result<Vec<Vec<f32>>> {
        let GoldenSizes { layers, width, .. } = *self.sizes;
        let hidden = self.numbers(&self.name(prompt, "hidden"), &[layers + 1, rows, width])?;
        Ok(hidden.chunks_exact(rows * width).map(<[f32]>::to_vec).collect())
    }

    /// The shape of a matrix.
    pub(crate) fn extents(&self, name: &str) -> Result<[usize; 2]> {
        let shape = self.container.tensor(name)?.shape;
        shape.extents().try_into().map_err(|_| {
            Error::new(format!("tensor '{name}' has the shape {shape}; 2 dimensions are needed"))
        })
    }

    /// The outermost extent of a tensor.
    pub(crate) fn outermost(&self, name: &str) -> Result<usize> {
        Ok(self.container.tensor(name)?.shape.extents()[0])
    }

    /// A tensor of finite floats, row after row.
    pub(crate) fn numbers(&self, name: &str, extents: &[usize]) -> Result<Vec<f32>> {
        let info = self.container.tensor(name)?;
        if info.shape.extents() != extents || info.shape.elements() > MAX_VALUES {
            let shape = info.shape;
            return Err(Error::new(format!(
                "tensor '{name}' has the shape {shape}; for this model and prompt it must be {extents:?}"
            )));
        }
        let bytes = self.bytes(info)?;
        let (rows, columns) = (info.shape.rows(), info.shape.columns());
        let view =
            View::new(info.dtype, rows, columns, &bytes).map_err(|error| Error::new(error.to_string()))?;
        let mut numbers = vec![0.0; rows * columns];
        view.unpack_rows(0..rows, &mut numbers);
        match numbers.iter().position(|number| !number.is_finite()) {
            None => Ok(numbers),
            Some(index) => Err(Error::new(format!(
                "tensor '{name}' has {} at {:?}; finite numbers are needed: make the golden again",
                numbers[index],
                place(index, extents)
            ))),
        }
    }

    /// A tensor of token ids, row after row.
    pub(crate) fn ids(&self, name: &str, rank: usize) -> Result<Vec<u32>> {
        let info = self.container.tensor(name)?;
        let extents = info.shape.extents();
        if extents.len() != rank || extents.contains(&0) || info.shape.elements() > MAX_VALUES {
            let shape = info.shape;
            return Err(Error::new(format!(
                "tensor '{name}' has the shape {shape}; {rank} dimensions are needed, none of them 0"
            )));
        }
        if info.dtype != DType::I32 {
            return Err(Error::new(format!("tensor '{name}' is stored as {}; i32 is needed", info.dtype)));
        }
        let bytes = self.bytes(info)?;
        let ids = bytes.chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().expect("chunks of four")));
        ids.map(|id| u32::try_from(id).map_err(|_| Error::new(format!("tensor '{name}' holds the id {id}"))))
            .collect()
    }

    fn bytes(&self, info: &TensorInfo) -> Result<Vec<u8>> {
        let mut bytes = vec![0; info.bytes as usize];
        self.container.read(info, 0, &mut bytes)?;
        Ok(bytes)
    }
}

/// The indices of a value along each dimension.
fn place(index: usize, extents: &[usize]) -> Vec<usize> {
    let mut rest = index;
    let mut indices: Vec<usize> = extents
        .iter()
        .rev()
        .map(|extent| {
            let at = rest % extent;
            rest /= extent;
            at
        })
        .collect();
    indices.reverse();
    indices
}
