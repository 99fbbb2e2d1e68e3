//! The tokens that stand for images.

use girih_graph::{Error, ErrorKind, Result};
use girih_model::arch::{ImageTokens, TowerFacts};

use crate::model::Model;

/// The token that stands for a row of an image. The tokenizer, if the model has one, knows it and those around an image as
/// special ones, which users' texts do not become.
///
/// # Errors
/// Of the kind [`ErrorKind::Refused`] when the tokenizer has other tokens, or there is none and the files state no ids.
pub(crate) fn row_token(model: &Model, facts: &TowerFacts) -> Result<u32> {
    let ImageTokens { ids, texts, .. } = &facts.image_tokens;
    let tokenizer = match (model.text_processor(), ids) {
        (Ok(text), _) => &text.tokenizer,
        // Prompts are tokens.
        (Err(_), Some([_, row, _])) => return Ok(*row),
        (Err(error), None) => return Err(error),
    };
    let special = |text: &str| {
        let id = tokenizer.id(text).filter(|id| tokenizer.is_special(*id));
        id.ok_or_else(|| {
            let sentence = format!("the tokenizer has no special token '{text}', which stands for images");
            Error::with_kind(ErrorKind::Refused, sentence)
        })
    };
    let found = [special(texts.before.trim())?, special(&texts.row)?, special(texts.after.trim())?];
    match ids {
        Some(ids) if *ids != found => {
            let sentence = format!(
                "the model's files state the tokens {ids:?} for images, but the tokenizer has {found:?} for them"
            );
            Err(Error::with_kind(ErrorKind::Refused, sentence))
        }
        _ => Ok(found[1]),
    }
}
