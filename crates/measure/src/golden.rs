//! Golden files: the outputs of transformers for a few prompts.
//!
//! A golden is a safetensors file with, for each prompt `I` and each precision
//! `P` (`f32`, `bf16`): `pI.input_ids [T]`, `pI.hidden_P [L+1, T, D]` (the
//! embeddings, then the output of each layer, the last one after the final
//! norm), `pI.logits_P [T, V]`, `pI.greedy_P [N]` (the greedy continuation),
//! `pI.margin_P [N]` (the difference between the two largest logits) and
//! `pI.step_top5_P [N, 5]` (the ids of the five largest logits of each step).
//! `scripts/make_golden.py` writes one from any model that transformers runs.

use std::path::Path;

use girih_file::FileLimits;
use girih_file::{Container, TensorInfo};
use girih_tensor::{DType, View};

use crate::{Error, GoldenPrecision, Result};

/// The maximum number of values of a golden tensor: 2³¹ values are 8 GiB.
const MAX_VALUES: usize = 1 << 31;

/// The sizes that a golden must have: those of the model.
#[derive(Clone, Copy, Debug)]
pub struct GoldenSizes {
    /// The number of layers.
    pub layers: usize,
    /// The number of values of a hidden state.
    pub width: usize,
    /// The number of logits of a row; ids are below it.
    pub vocabulary: usize,
}

/// The prompts of a golden file, at one precision.
#[derive(Debug)]
pub struct Golden {
    /// The prompts in the order of the file.
    pub prompts: Vec<GoldenPrompt>,
}

/// One prompt and the outputs of transformers for it.
#[derive(Debug)]
pub struct GoldenPrompt {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// The outputs for them.
    pub reference: ReferenceOutputs,
}

/// The outputs of transformers for a prompt.
#[derive(Debug)]
pub struct ReferenceOutputs {
    /// The hidden states, each `[T, D]`, row after row.
    pub hidden: Vec<Vec<f32>>,
    /// The hidden size.
    pub width: usize,
    /// `[T, V]`, row after row.
    pub logits: Vec<f32>,
    /// The number of logits of a row.
    pub vocabulary: usize,
    /// The greedy continuation.
    pub greedy: Vec<u32>,
    /// The five most likely tokens of each step.
    pub top5: Vec<[u32; 5]>,
}

impl Golden {
    /// Reads the goldens of one precision for a model of these sizes.
    ///
    /// # Errors
    /// When the file is not a golden, lacks this precision, or has other sizes.
    pub fn read(path: &Path, precision: GoldenPrecision, sizes: &GoldenSizes) -> Result<Golden> {
        let container = Container::open(path, &FileLimits::DEFAULT)?;
        let file = GoldenFile { container, suffix: precision.name(), sizes };
        let mut prompts = Vec::new();
        while file.has(&format!("p{}.input_ids", prompts.len())) {
            let prompt = file.prompt(prompts.len());
            prompts.push(prompt.map_err(|error| error.of(path.display()))?);
        }
        if prompts.is_empty() {
            let path = path.display();
            return Err(Error::new(format!("{path}: has no tensor 'p0.input_ids'; a golden file is needed")));
        }
        Ok(Golden { prompts })
    }
}

struct GoldenFile<'a> {
    container: Container,
    suffix: &'static str,
    sizes: &'a GoldenSizes,
}

impl GoldenFile<'_> {
    fn has(&self, name: &str) -> bool {
        self.container.tensors().contains_key(name)
    }

    fn prompt(&self, index: usize) -> Result<GoldenPrompt> {
        let name = |part: &str| format!("p{index}.{part}_{}", self.suffix);
        let tokens = self.ids(&format!("p{index}.input_ids"), 1)?;
        let GoldenSizes { layers, width, vocabulary } = *self.sizes;
        let rows = tokens.len();
        let hidden = self.numbers(&name("hidden"), &[layers + 1, rows, width])?;
        let logits = self.numbers(&name("logits"), &[rows, vocabulary])?;
        let top5 = self.ids(&name("step_top5"), 2)?;
        let greedy = self.ids(&name("greedy"), 1)?;
        if top5.len() != 5 * greedy.len() {
            let (steps, top5) = (greedy.len(), top5.len());
            return Err(Error::new(format!(
                "prompt {index} has {steps} greedy tokens and {top5} top-5 tokens; 5 per step are needed"
            )));
        }
        if let Some(id) = tokens.iter().find(|id| **id as usize >= vocabulary) {
            return Err(Error::new(format!(
                "prompt {index} has the token {id}, which is outside the model's vocabulary of {vocabulary}"
            )));
        }
        let reference = ReferenceOutputs {
            hidden: hidden.chunks_exact(rows * width).map(<[f32]>::to_vec).collect(),
            width,
            logits,
            vocabulary,
            greedy,
            top5: top5.chunks_exact(5).map(|ids| ids.try_into().expect("chunks of five")).collect(),
        };
        Ok(GoldenPrompt { tokens, reference })
    }

    /// A tensor of floats, row after row.
    fn numbers(&self, name: &str, extents: &[usize]) -> Result<Vec<f32>> {
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
        Ok(numbers)
    }

    /// A tensor of token ids, row after row.
    fn ids(&self, name: &str, rank: usize) -> Result<Vec<u32>> {
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
