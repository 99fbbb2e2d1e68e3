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
    let ImageTokens { row, marks, texts, .. } = &facts.image_tokens;
    let tokenizer = match (model.text_processor(), row) {
        (Ok(text), _) => &text.tokenizer,
        // Prompts are tokens.
        (Err(_), Some(row)) => return Ok(*row),
        (Err(error), None) => return Err(error),
    };
    let special = |text: &str| {
        let id = tokenizer.id(text).filter(|id| tokenizer.is_special(*id));
        id.ok_or_else(|| {
            let sentence = format!("the tokenizer has no special token '{text}', which stands for images");
            Error::with_kind(ErrorKind::Refused, sentence)
        })
    };
    let around = [texts.before.trim(), texts.after.trim()];
    let around = match texts.marks.is_empty() {
        true => around.into_iter().map(special).collect::<Result<Vec<_>>>()?,
        false => texts.marks.iter().map(|mark| special(mark)).collect::<Result<Vec<_>>>()?,
    };
    let found = special(&texts.row)?;
    let is_row = row.is_none_or(|row| row == found);
    if is_row && marks.is_none_or(|marks| marks == around[..]) {
        return Ok(found);
    }
    let stated: Vec<u32> = row.iter().chain(marks.iter().flatten()).copied().collect();
    let sentence = format!(
        "the model's files state the tokens {stated:?} for images, but the tokenizer has {found} and {around:?} for them"
    );
    Err(Error::with_kind(ErrorKind::Refused, sentence))
}
