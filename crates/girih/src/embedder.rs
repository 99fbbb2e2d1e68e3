//! Embeddings: texts in, one vector each out.

use std::fmt;

use girih_engine::{Encoder, EncoderInput};
use girih_graph::Result;
use girih_graph::backend::Unwatched;

use crate::model::Model;

/// A loaded encoder with its tokenizer.
///
/// ```no_run
/// use girih::{Model, RunOptions};
///
/// let plan = Model::open("models/all-MiniLM-L6-v2")?.plan(RunOptions::default())?;
/// let mut embedder = plan.load_embedder(|_| {})?;
/// let [cat, dog]: [Vec<f32>; 2] = embedder.embed(&["a cat", "a dog"])?.try_into().unwrap();
/// let similarity: f32 = cat.iter().zip(&dog).map(|(a, b)| a * b).sum();
/// # Ok::<(), girih::Error>(())
/// ```
pub struct Embedder {
    model: Model,
    encoder: Encoder,
}

impl fmt::Debug for Embedder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Embedder").field("model", &self.model).finish_non_exhaustive()
    }
}

impl Embedder {
    pub(crate) fn new(model: Model, encoder: Encoder) -> Embedder {
        Embedder { model, encoder }
    }

    /// Returns one vector for each text: pooled as the model defines, and of length 1 if the model
    /// normalizes it. It does not depend on the other texts.
    ///
    /// ```no_run
    /// # let plan = girih::Model::open("models/all-MiniLM-L6-v2")?.plan(girih::RunOptions::default())?;
    /// # let mut embedder = plan.load_embedder(|_| {})?;
    /// assert_eq!(embedder.embed(&["a cat"])?[0].len(), embedder.width());
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// Of the kind [`ErrorKind::TooLong`](crate::ErrorKind::TooLong) when a text has more tokens
    /// than the model takes.
    pub fn embed(&mut self, texts: &[&str]) -> Result<Vec<Vec<f32>>> {
        let tokens = texts.iter().map(|text| self.model.tokenize(text)).collect::<Result<Vec<_>>>()?;
        self.embed_tokens(&tokens)
    }

    /// As [`Embedder::embed`], for texts in tokens with all special tokens.
    ///
    /// ```no_run
    /// # let plan = girih::Model::open("models/all-MiniLM-L6-v2")?.plan(girih::RunOptions::default())?;
    /// # let mut embedder = plan.load_embedder(|_| {})?;
    /// let cat = embedder.model().tokenize("a cat")?;
    /// assert_eq!(embedder.embed_tokens(&[cat])?, embedder.embed(&["a cat"])?);
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Embedder::embed`], and when there are no tokens, or an unknown one.
    pub fn embed_tokens(&mut self, texts: &[Vec<u32>]) -> Result<Vec<Vec<f32>>> {
        self.embed_tokens_while(texts, || true)
    }

    /// As [`Embedder::embed_tokens`], as long as `goes_on` is true. It is asked before each step, which
    /// runs as many texts as fit.
    ///
    /// ```no_run
    /// use std::time::{Duration, Instant};
    ///
    /// # let plan = girih::Model::open("models/all-MiniLM-L6-v2")?.plan(girih::RunOptions::default())?;
    /// # let mut embedder = plan.load_embedder(|_| {})?;
    /// # let texts = [embedder.model().tokenize("a cat")?];
    /// let end = Instant::now() + Duration::from_secs(10);
    /// let vectors = embedder.embed_tokens_while(&texts, || Instant::now() < end)?;
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Embedder::embed_tokens`]; of the kind
    /// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled) when `goes_on` is false.
    pub fn embed_tokens_while(
        &mut self,
        texts: &[Vec<u32>],
        goes_on: impl Fn() -> bool,
    ) -> Result<Vec<Vec<f32>>> {
        let inputs: Vec<EncoderInput<'_>> =
            texts.iter().map(|tokens| EncoderInput { tokens, token_types: &[] }).collect();
        let mut rows = self.encoder.encode_while(&inputs, &mut Unwatched, goes_on)?;
        if self.model.files().facts.pooling.is_some_and(|pooling| pooling.normalized) {
            rows.iter_mut().for_each(|row| normalize(row));
        }
        Ok(rows)
    }

    /// The model.
    ///
    /// ```no_run
    /// # let plan = girih::Model::open("models/all-MiniLM-L6-v2")?.plan(girih::RunOptions::default())?;
    /// let embedder = plan.load_embedder(|_| {})?;
    /// assert!(embedder.model().files().facts.is_encoder());
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The number of values of a vector.
    ///
    /// ```no_run
    /// # let plan = girih::Model::open("models/all-MiniLM-L6-v2")?.plan(girih::RunOptions::default())?;
    /// assert_eq!(plan.load_embedder(|_| {})?.width(), 384);
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn width(&self) -> usize {
        self.encoder.runner().width()
    }

    /// The maximum number of tokens of a text, special tokens included.
    ///
    /// ```no_run
    /// # let plan = girih::Model::open("models/all-MiniLM-L6-v2")?.plan(girih::RunOptions::default())?;
    /// assert_eq!(plan.load_embedder(|_| {})?.max_tokens(), 512);
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn max_tokens(&self) -> u32 {
        self.encoder.max_tokens()
    }
}

/// Divides a vector by its length; one of zeros stays as it is.
fn normalize(row: &mut [f32]) {
    let length = row.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
    if length > 0.0 {
        row.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_is_divided_by_its_length() {
        let mut row = [3.0, -4.0];
        normalize(&mut row);
        assert_eq!(row, [0.6, -0.8]);
        let mut zeros = [0.0; 3];
        normalize(&mut zeros);
        assert_eq!(zeros, [0.0; 3]);
        let mut large = [3e38; 4];
        normalize(&mut large);
        assert_eq!(large, [0.5; 4]);
    }
}
