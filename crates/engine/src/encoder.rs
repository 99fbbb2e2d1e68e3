//! Encoders: models without state that turn each sequence into one row.

use girih_graph::backend::{Input, Range32};
use girih_graph::{OutputKind, Outputs, Runner, Sequence, Step, Watch};

use crate::cached_runner::failed;
use crate::step_inputs::{InputSource, InputValues};
use crate::{Error, ErrorKind, Result};

/// A loaded encoder. Each sequence is run whole in one step, so its row depends on nothing else.
pub struct Encoder {
    runner: Box<dyn Runner>,
    sources: Vec<InputSource>,
}

/// A sequence to encode.
#[derive(Clone, Copy, Debug)]
pub struct EncoderInput<'a> {
    /// The token ids, special tokens included.
    pub tokens: &'a [u32],
    /// The type of each token; empty if all are 0.
    pub token_types: &'a [u32],
}

impl Encoder {
    /// Returns an encoder for a loaded model.
    ///
    /// # Errors
    /// Of the kind [`ErrorKind::Refused`] when the model does not pool sequences, keeps state, or
    /// has an input that is not known.
    pub fn new(runner: Box<dyn Runner>) -> Result<Encoder> {
        if runner.max_key().output != OutputKind::Pooled || !runner.groups().is_empty() {
            let sentence = "the loaded model does not pool sequences, or keeps state; load an encoder";
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        }
        let sources = InputSource::of(runner.inputs())?;
        Ok(Encoder { runner, sources })
    }

    /// The loaded model.
    pub fn runner(&self) -> &dyn Runner {
        &*self.runner
    }

    /// The maximum number of tokens of a sequence.
    pub fn max_tokens(&self) -> u32 {
        let key = self.runner.max_key();
        key.rows.min(key.context)
    }

    /// Returns one row for each sequence, in order. A step runs as many sequences as its rows
    /// hold; `watch` receives the values of each step.
    ///
    /// # Errors
    /// Of the kind [`ErrorKind::TooLong`] when a sequence has more than
    /// [`Encoder::max_tokens`], and [`ErrorKind::Refused`] when it has none, an unknown one, or
    /// another number of token types; [`ErrorKind::NotANumber`] when a row is not finite, and
    /// [`ErrorKind::DeviceFailed`] when the device fails.
    pub fn encode(&mut self, sequences: &[EncoderInput<'_>], watch: &mut dyn Watch) -> Result<Vec<Vec<f32>>> {
        self.encode_while(sequences, watch, || true)
    }

    /// As [`Encoder::encode`], as long as `goes_on` is true, which is asked before each step.
    ///
    /// # Errors
    /// As [`Encoder::encode`]; [`ErrorKind::Cancelled`] when `goes_on` is false.
    pub fn encode_while(
        &mut self,
        sequences: &[EncoderInput<'_>],
        watch: &mut dyn Watch,
        goes_on: impl Fn() -> bool,
    ) -> Result<Vec<Vec<f32>>> {
        sequences.iter().try_for_each(|sequence| self.check(sequence))?;
        let max_key = self.runner.max_key();
        let mut rows = Vec::with_capacity(sequences.len());
        let mut rest = sequences;
        while !rest.is_empty() {
            if !goes_on() {
                let sentence = "the texts were no longer wanted before all were encoded";
                return Err(Error::with_kind(ErrorKind::Cancelled, sentence));
            }
            let mut tokens = 0;
            let fits = rest.iter().take(max_key.sequences as usize).take_while(|sequence| {
                tokens += sequence.tokens.len();
                tokens <= max_key.rows as usize
            });
            let (step, others) = rest.split_at(fits.count());
            self.step(step, watch, &mut rows)?;
            rest = others;
        }
        Ok(rows)
    }

    fn check(&self, sequence: &EncoderInput<'_>) -> Result<()> {
        let (have, types, max) = (sequence.tokens.len(), sequence.token_types.len(), self.max_tokens());
        if have > max as usize {
            let sentence = format!("the text has {have} tokens; the encoder takes {max}: shorten the text");
            return Err(Error::with_kind(ErrorKind::TooLong, sentence));
        }
        if have == 0 {
            let sentence = "the text has no tokens; the encoder needs at least one";
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        }
        if types != 0 && types != have {
            let sentence = format!("{types} token types were given for {have} tokens; give one for each");
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        }
        for (source, spec) in self.sources.iter().zip(self.runner.inputs()) {
            let ids = match source {
                InputSource::Tokens => sequence.tokens,
                InputSource::TokenTypes => sequence.token_types,
                InputSource::Positions
                | InputSource::Given
                | InputSource::Adapters { .. }
                | InputSource::Patches
                | InputSource::PositionRows
                | InputSource::Axes { .. }
                | InputSource::Added { .. }
                | InputSource::Hidden { .. } => continue,
            };
            spec.check(&Input::Ids(ids), ids.len())
                .map_err(|error| Error::with_kind(ErrorKind::Refused, error.to_string()))?;
        }
        Ok(())
    }

    /// Runs one step, and appends its rows.
    fn step(
        &mut self,
        encoded: &[EncoderInput<'_>],
        watch: &mut dyn Watch,
        rows: &mut Vec<Vec<f32>>,
    ) -> Result<()> {
        let mut values = InputValues::default();
        let sequences: Vec<Sequence<'_>> = encoded
            .iter()
            .map(|EncoderInput { tokens, token_types }| {
                let start = values.push(tokens, token_types, 0, []);
                let rows = Range32 { start, end: start + tokens.len() as u32 };
                Sequence { blocks: &[], position: 0, rows, outputs: Outputs::None, spans: &[] }
            })
            .collect();
        let step = Step { inputs: &values.inputs(&self.sources), sequences: &sequences, watch };
        self.runner.step(step).and_then(|()| self.runner.output().wait()).map_err(failed)?;
        let width = self.runner.width();
        let pooled = self.runner.output().rows(0..encoded.len()).map_err(failed)?;
        if pooled.iter().any(|value| !value.is_finite()) {
            let sentence = "the model produced a vector with NaN or infinity; \
                 its weights are damaged, or its values overflow";
            return Err(Error::with_kind(ErrorKind::NotANumber, sentence));
        }
        rows.extend(pooled.chunks_exact(width).map(<[f32]>::to_vec));
        Ok(())
    }
}
