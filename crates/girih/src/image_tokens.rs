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
    let ImageTokens { begin, row, end, texts, .. } = &facts.image_tokens;
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
    let around: Vec<(&str, &Option<u32>)> = match texts.marks.is_empty() {
        true => vec![(&texts.before, begin), (&texts.after, end)],
        false => texts.marks.iter().map(|mark| (mark.as_str(), &None)).collect(),
    };
    for (text, stated) in around.into_iter().chain([(texts.row.as_str(), row)]) {
        // The template writes the tokens around an image that the description has not.
        let text = text.trim();
        if text.is_empty() {
            continue;
        }
        let found = special(text)?;
        if let Some(stated) = stated.filter(|stated| *stated != found) {
            let sentence = format!(
                "the model's files state the token {stated} for '{text}', but the tokenizer has {found} for it"
            );
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        }
    }
    special(&texts.row)
}

/// The token that stands for a row of a video, if the model has one: its files state it, or the tokenizer knows it as a special
/// one.
///
/// # Errors
/// Of the kind [`ErrorKind::Refused`] when the tokenizer has another token than the files state.
pub(crate) fn video_token(model: &Model, facts: &TowerFacts) -> Result<Option<u32>> {
    let ImageTokens { video, texts, .. } = &facts.image_tokens;
    let (Some(texts), Ok(text)) = (&texts.video, model.text_processor()) else { return Ok(*video) };
    let found = text.tokenizer.id(&texts.row).filter(|id| text.tokenizer.is_special(*id));
    match (found, video) {
        (Some(found), Some(stated)) if found != *stated => {
            let sentence = format!(
                "the model's files state the token {stated} for '{}', but the tokenizer has {found} for it",
                texts.row
            );
            Err(Error::with_kind(ErrorKind::Refused, sentence))
        }
        (found, stated) => Ok(found.or(*stated)),
    }
}
