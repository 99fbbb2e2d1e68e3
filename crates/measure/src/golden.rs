//! Golden files: what transformers computes for a few prompts.
//!
//! A golden is a safetensors file with, for each prompt `I` and each precision
//! `P` (`f32`, `bf16`): `pI.input_ids [T]`, `pI.hidden_P [L+1, T, D]` (the
//! embeddings, what each layer hands on, the last one after the final norm),
//! `pI.logits_P [T, V]`, `pI.greedy_P [N]` (the continuation by greatest logit),
//! `pI.margin_P [N]` (how far the greatest logit lies above the second) and
//! `pI.step_top5_P [N, 5]` (the ids of the five greatest logits of each step).
//! `scripts/make_golden.py` makes one from any model that transformers runs.

use std::path::Path;

use girih_model::Limits;
use girih_model::file::{Container, TensorInfo};
use girih_tensor::View;

use crate::{Error, Precision, Result};

/// Values above which a golden tensor is refused: 2³¹ of them are 8 GiB.
const MOST_VALUES: usize = 1 << 31;

/// The prompts of a golden file, at one precision.
#[derive(Debug)]
pub struct Golden {
    /// In the order of the file.
    pub prompts: Vec<Prompt>,
}

/// One prompt and what transformers makes of it.
#[derive(Debug)]
pub struct Prompt {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// What is computed from them.
    pub reference: Reference,
}

/// What transformers computes from a prompt.
#[derive(Debug)]
pub struct Reference {
    /// One entry per hidden state, `[T, D]` row after row.
    pub hidden: Vec<Vec<f32>>,
    /// The hidden size.
    pub width: usize,
    /// `[T, V]`, row after row.
    pub logits: Vec<f32>,
    /// Scores in a row of logits.
    pub vocabulary: usize,
    /// The greedy continuation.
    pub greedy: Vec<u32>,
    /// The five likeliest tokens of each step.
    pub top5: Vec<[u32; 5]>,
}

impl Golden {
    /// Reads the goldens of one precision.
    ///
    /// # Errors
    /// When the file is no golden, or has none of this precision.
    pub fn read(path: &Path, precision: Precision) -> Result<Golden> {
        let container = Container::open(path, &Limits::DEFAULT)?;
        let file = File { container, suffix: precision.name() };
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

struct File {
    container: Container,
    suffix: &'static str,
}

impl File {
    fn has(&self, name: &str) -> bool {
        self.container.tensors().contains_key(name)
    }

    fn prompt(&self, index: usize) -> Result<Prompt> {
        let name = |part: &str| format!("p{index}.{part}_{}", self.suffix);
        let tokens = self.ids(&format!("p{index}.input_ids"))?;
        let (hidden, states) = self.numbers(&name("hidden"), 3)?;
        let (logits, table) = self.numbers(&name("logits"), 2)?;
        let top5 = self.ids(&name("step_top5"))?;
        let greedy = self.ids(&name("greedy"))?;
        let [_, rows, width] = states[..] else { unreachable!("asked for three dimensions") };
        let [logit_rows, vocabulary] = table[..] else { unreachable!("asked for two dimensions") };
        if tokens.is_empty() || rows != tokens.len() || logit_rows != rows || top5.len() != 5 * greedy.len() {
            return Err(Error::new(format!(
                "the tensors of prompt {index} do not have the sizes of one prompt"
            )));
        }
        let reference = Reference {
            hidden: hidden.chunks_exact(rows * width).map(<[f32]>::to_vec).collect(),
            width,
            logits,
            vocabulary,
            greedy,
            top5: top5.chunks_exact(5).map(|ids| ids.try_into().expect("chunks of five")).collect(),
        };
        Ok(Prompt { tokens, reference })
    }

    fn info(&self, name: &str, rank: usize) -> Result<&TensorInfo> {
        let info = self.container.tensor(name)?;
        let extents = info.shape.extents();
        if extents.len() != rank || extents.contains(&0) || info.shape.elements() > MOST_VALUES {
            let shape = info.shape;
            return Err(Error::new(format!(
                "tensor '{name}' has the shape {shape}; {rank} dimensions are needed"
            )));
        }
        Ok(info)
    }

    fn numbers(&self, name: &str, rank: usize) -> Result<(Vec<f32>, Vec<usize>)> {
        let info = self.info(name, rank)?;
        let mut bytes = vec![0; info.bytes as usize];
        self.container.read(info, 0, &mut bytes)?;
        let (rows, columns) = (info.shape.rows(), info.shape.columns());
        let view =
            View::new(info.dtype, rows, columns, &bytes).map_err(|error| Error::new(error.to_string()))?;
        let mut numbers = vec![0.0; rows * columns];
        view.unpack_rows(0..rows, &mut numbers);
        Ok((numbers, info.shape.extents().to_vec()))
    }

    /// Token ids, of one or two dimensions.
    fn ids(&self, name: &str) -> Result<Vec<u32>> {
        let rank = self.container.tensor(name)?.shape.extents().len().min(2);
        let info = self.info(name, rank)?;
        if info.dtype != girih_tensor::DType::I32 {
            return Err(Error::new(format!("tensor '{name}' is stored as {}; i32 is needed", info.dtype)));
        }
        let mut bytes = vec![0; info.bytes as usize];
        self.container.read(info, 0, &mut bytes)?;
        let ids = bytes.chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().expect("chunks of four")));
        ids.map(|id| u32::try_from(id).map_err(|_| Error::new(format!("tensor '{name}' holds the id {id}"))))
            .collect()
    }
}
