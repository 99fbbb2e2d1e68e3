//! Tokens through a runner, with the logits of every row: what `verify` and
//! `perplexity` need and text generation does not.

use girih_graph::backend::{Block, Inputs, Range32, Unwatched};
use girih_graph::{BLOCK_POSITIONS, Lane, Runner, Step, Want, Watch};
use girih_model::layer_output;
use girih_tensor::Shape;

use crate::{Error, Result};

/// One sequence on a runner, from its first token on.
pub struct Pass<'a> {
    runner: &'a mut dyn Runner,
    blocks: Vec<Vec<Block>>,
    position: u32,
}

impl<'a> Pass<'a> {
    /// A sequence of no tokens; it takes all of the runner's state.
    pub fn new(runner: &'a mut dyn Runner) -> Pass<'a> {
        let blocks = runner.blocks().iter().map(|&count| (0..count).map(Block).collect()).collect();
        Pass { runner, blocks, position: 0 }
    }

    /// How many values a row of logits has.
    pub fn width(&self) -> usize {
        self.runner.width()
    }

    /// Appends `tokens` and hands the logits of each to `each`, in order, with
    /// the index of the token.
    ///
    /// # Errors
    /// When the sequence outgrows the runner's context, or a step fails.
    pub fn extend(
        &mut self,
        tokens: &[u32],
        watch: &mut dyn Watch,
        mut each: impl FnMut(usize, &[f32]),
    ) -> Result<()> {
        let most = self.runner.most();
        let room = most.context.min(self.blocks[0].len() as u32 * BLOCK_POSITIONS as u32);
        let end = self.position as usize + tokens.len();
        if end > room as usize {
            return Err(Error::new(format!(
                "a sequence of {end} tokens does not fit into a context of {room}"
            )));
        }
        let chunk = most.rows.min(most.wanted).max(1) as usize;
        for (index, tokens) in tokens.chunks(chunk).enumerate() {
            let width = self.width();
            let mut output = vec![0.0; tokens.len() * width];
            self.step(tokens, &mut output, watch)?;
            for (row, logits) in output.chunks_exact(width).enumerate() {
                each(index * chunk + row, logits);
            }
        }
        Ok(())
    }

    /// Appends one token and yields its logits.
    ///
    /// # Errors
    /// As [`Pass::extend`].
    pub fn push(&mut self, token: u32) -> Result<Vec<f32>> {
        let mut logits = Vec::new();
        self.extend(&[token], &mut Unwatched, |_, row| logits = row.to_vec())?;
        Ok(logits)
    }

    fn step(&mut self, tokens: &[u32], output: &mut [f32], watch: &mut dyn Watch) -> Result<()> {
        let blocks: Vec<&[Block]> = self.blocks.iter().map(Vec::as_slice).collect();
        let rows = Range32 { start: 0, end: tokens.len() as u32 };
        let lane = Lane { blocks: &blocks, position: self.position, rows, want: Want::All, spans: &[] };
        self.runner.step(Step { inputs: Inputs::Tokens(tokens), lanes: &[lane], output, watch })?;
        self.position += rows.end;
        Ok(())
    }
}

/// Collects the hidden states of a pass as transformers numbers them: what the
/// first layer reads, what each layer but the last hands on, and what the
/// head's norm makes of the last.
#[derive(Debug)]
pub struct Hidden {
    names: Vec<String>,
    /// One entry per hidden state: its rows, one after another.
    pub states: Vec<Vec<f32>>,
}

impl Hidden {
    /// The hidden states of a model of `layers` layers.
    pub fn of(layers: usize) -> Hidden {
        let inner = (0..layers.saturating_sub(1)).map(layer_output);
        let names: Vec<String> =
            std::iter::once("embed".to_owned()).chain(inner).chain(["head.norm".to_owned()]).collect();
        Hidden { states: vec![Vec::new(); names.len()], names }
    }

    /// What a hidden state is called.
    pub fn name(&self, index: usize) -> &str {
        &self.names[index]
    }
}

impl Watch for Hidden {
    fn wants(&self, name: &str) -> bool {
        self.names.iter().any(|wanted| wanted == name)
    }

    fn value(&mut self, name: &str, _: &Shape, data: &[f32]) {
        let index = self.names.iter().position(|wanted| wanted == name);
        self.states[index.expect("only wanted values are handed over")].extend_from_slice(data);
    }
}
