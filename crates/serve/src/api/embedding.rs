//! What the routes for embeddings of all APIs share.

use std::sync::Arc;

use crate::background::in_background;
use crate::caller::ApiCaller;
use crate::error::ApiError;
use crate::find_model::find_model;
use crate::state::ServerState;

/// The maximum number of texts of a request.
pub const MAX_INPUTS: usize = 64;

/// A text, as a client gives it.
#[derive(Clone, Debug)]
pub enum EmbeddingInput {
    /// The text.
    Text(String),
    /// Its tokens, with all special tokens.
    Tokens(Vec<u32>),
}

/// What happens to a text with more tokens than the model takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LongInput {
    /// The request is refused.
    Refuse,
    /// The text's end is cut; a special token that the tokenizer adds there is kept.
    Cut,
}

/// The vectors of texts.
#[derive(Clone, Debug)]
pub struct Embeddings {
    /// The model's name.
    pub model: String,
    /// One vector for each text.
    pub vectors: Vec<Vec<f32>>,
    /// The number of tokens of all texts.
    pub tokens: usize,
}

/// Embeds texts.
///
/// # Errors
/// When there are none or too many, the model is no encoder, the queue is full, a text is too long,
/// or `dimensions` is not the size of the model's vectors.
pub async fn embed(
    state: &Arc<ServerState>,
    caller: &ApiCaller,
    model: &str,
    inputs: Vec<EmbeddingInput>,
    (long, dimensions): (LongInput, Option<usize>),
) -> Result<Embeddings, ApiError> {
    let count = inputs.len();
    if count == 0 || count > MAX_INPUTS {
        let message = format!("input has {count} texts; it must have 1 to {MAX_INPUTS}");
        return Err(ApiError::invalid("input", message));
    }
    let served = find_model(state, Some(model)).await?;
    let width = state.models.encoder(&served.name)?.model().files().facts.sizes.width;
    if dimensions.is_some_and(|dimensions| dimensions != width) {
        let message =
            format!("the model's vectors have {width} dimensions and cannot be shortened; omit dimensions");
        return Err(ApiError::unsupported("dimensions", message));
    }
    let admission = state.admit(&served, caller, 1)?;
    let (name, state) = (served.name.clone(), Arc::clone(state));
    let caller = Arc::new(());
    let wanted = Arc::downgrade(&caller);
    let turn = state.models.encoder(&name)?.turn().await?;
    let work = in_background(move || {
        let (_admission, _turn) = (admission, turn);
        let encoder = state.models.encoder(&name)?;
        let model = encoder.model();
        let tokens = |input| match input {
            EmbeddingInput::Text(text) => model.tokenize(&text),
            EmbeddingInput::Tokens(tokens) => Ok(tokens),
        };
        let texts = inputs.into_iter().map(tokens).collect::<girih::Result<Vec<_>>>()?;
        let last = model.tokenize("")?.last().copied();
        let cut = move |texts: &mut [Vec<u32>], max: usize| {
            if long == LongInput::Cut {
                texts.iter_mut().for_each(|text| shorten(text, max, last));
            }
        };
        let embedded = encoder.embed(texts, cut, move || wanted.strong_count() > 0)?;
        let tokens = embedded.texts.iter().map(Vec::len).sum();
        Ok(Embeddings { model: name, vectors: embedded.vectors, tokens })
    });
    let embeddings = work.await;
    // A caller that leaves drops this, and the work ends before its next step.
    drop(caller);
    embeddings
}

/// Cuts a text to `max` tokens; keeps its last one if that is `last`.
fn shorten(text: &mut Vec<u32>, max: usize, last: Option<u32>) {
    if text.len() <= max {
        return;
    }
    let end = text.last().copied().filter(|end| Some(*end) == last);
    text.truncate(max.saturating_sub(usize::from(end.is_some())));
    text.extend(end);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_before_its_last_special_token() {
        let of = |max, last| {
            let mut text = vec![101, 7, 8, 9, 102];
            shorten(&mut text, max, last);
            text
        };
        assert_eq!(of(5, Some(102)), [101, 7, 8, 9, 102]);
        assert_eq!(of(3, Some(102)), [101, 7, 102]);
        assert_eq!(of(3, Some(9)), [101, 7, 8]);
        assert_eq!(of(3, None), [101, 7, 8]);
    }
}
