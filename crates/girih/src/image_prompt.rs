//! Images in prompts: the tokens that stand for them, and their rows.

use girih_engine::EmbeddedRows;
use girih_graph::backend::Range32;
use girih_graph::{Error, ErrorKind, Result};
use girih_model::arch::{ImageGrid, TowerFacts};
use girih_words::{TextOrigin, TextSpan};

use crate::image::ImagePatches;
use crate::image_tower::ImageTower;
use crate::model::Model;

/// The maximum number of bytes of a prompt's texts of images.
const MAX_TEXT_BYTES: usize = 16 << 20;

/// The rows of a prompt's images, and the positions that attend to each other both ways.
#[derive(Default)]
pub(crate) struct ImageRows {
    pub given: Vec<EmbeddedRows>,
    pub spans: Vec<Range32>,
}

impl ImageRows {
    /// The rows of these images in a prompt, without their values: [`ImageTower::fill`] makes these when the request is known
    /// to be a valid one.
    ///
    /// # Errors
    /// Of the kind [`ErrorKind::Refused`] when the session takes no images, or the prompt has not as many places.
    pub fn of(
        model: &Model,
        tower: Option<&ImageTower>,
        images: &[ImagePatches],
        tokens: &[u32],
    ) -> Result<ImageRows> {
        let Some(tower) = tower else {
            if images.is_empty() {
                return Ok(ImageRows::default());
            }
            // A model without a tower says so.
            model.tower_files()?;
            let sentence =
                "the request has images, but the model was loaded without its image tower: plan with images";
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        };
        let grids =
            images.iter().map(|image| image.grid_for(&tower.facts)).collect::<Result<Vec<ImageGrid>>>()?;
        let sizes: Vec<u32> = grids.iter().map(|grid| tower.facts.rows(*grid) as u32).collect();
        let mut rows = ImageRows::default();
        for ((image, grid), place) in images.iter().zip(grids).zip(places(tower.row, &sizes, tokens)?) {
            let (first, count) = (place.start, place.end - place.start);
            let columns = tower.facts.only_grid().is_none().then(|| tower.facts.rows_across(grid) as u32);
            let content = image.digest();
            rows.given.push(EmbeddedRows { first, rows: count, content, columns, ..EmbeddedRows::default() });
            if tower.facts.image_tokens.mutual {
                rows.spans.push(place);
            }
        }
        Ok(rows)
    }
}

/// The places for images with these numbers of rows in a prompt: runs of the token that stands for a row.
fn places(row: u32, sizes: &[u32], tokens: &[u32]) -> Result<Vec<Range32>> {
    let mut places: Vec<Range32> = Vec::new();
    // A place for each image, and as many as there are without an image.
    let size = |index: usize| sizes.get(index).or(sizes.last()).copied().unwrap_or(u32::MAX);
    for (position, _) in (0..).zip(tokens).filter(|(_, token)| **token == row) {
        let last = places.len().saturating_sub(1);
        match places.last_mut() {
            Some(place) if place.end == position && place.end - place.start < size(last) => place.end += 1,
            _ => places.push(Range32 { start: position, end: position + 1 }),
        }
    }
    if places.len() != sizes.len() {
        return Err(other_count(places.len(), sizes.len()));
    }
    match places.iter().zip(sizes).find(|(place, rows)| place.end - place.start != **rows) {
        None => Ok(places),
        Some((place, rows)) => {
            let (have, start) = (place.end - place.start, place.start);
            let sentence =
                format!("the prompt has {have} image tokens at position {start}; the image there has {rows}");
            Err(Error::with_kind(ErrorKind::Refused, sentence))
        }
    }
}

/// The spans of a prompt with the tokens of each of these images in place of what the template wrote for it. What a user
/// wrote stays text.
///
/// # Errors
/// Of the kind [`ErrorKind::Refused`] when the template wrote another number of images, they take too much text, or one is
/// not an image of this model.
pub(crate) fn expanded(
    spans: Vec<TextSpan>,
    facts: &TowerFacts,
    images: &[ImagePatches],
) -> Result<Vec<TextSpan>> {
    let texts = &facts.image_tokens.texts;
    let of_template = |span: &&TextSpan| span.origin == TextOrigin::Template;
    let places: usize =
        spans.iter().filter(of_template).map(|span| span.text.matches(&texts.of_template).count()).sum();
    if places != images.len() {
        return Err(other_count(places, images.len()));
    }
    let rows =
        images.iter().map(|image| Ok(facts.rows(image.grid_for(facts)?))).collect::<Result<Vec<usize>>>()?;
    let around = texts.before.len() + texts.after.len();
    let bytes = rows.iter().map(|rows| around + texts.row.len() * rows);
    let bytes = bytes.fold(0, usize::saturating_add);
    if bytes > MAX_TEXT_BYTES {
        let sentence = format!(
            "the {places} images would take {bytes} bytes of text; the maximum is {MAX_TEXT_BYTES}: send fewer"
        );
        return Err(Error::with_kind(ErrorKind::Refused, sentence));
    }
    let mut rows = rows.into_iter();
    let mut expand = |span: TextSpan| match span.origin {
        TextOrigin::User => span,
        TextOrigin::Template => {
            let mut parts = span.text.split(&texts.of_template);
            let mut text = parts.next().unwrap_or_default().to_owned();
            for (part, rows) in parts.zip(&mut rows) {
                text += &texts.before;
                text += &texts.row.repeat(rows);
                text += &texts.after;
                text += part;
            }
            TextSpan { text, ..span }
        }
    };
    Ok(spans.into_iter().map(&mut expand).collect())
}

/// The error of a prompt with another number of places than images.
fn other_count(places: usize, images: usize) -> Error {
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    let sentence = format!(
        "the prompt has {places} place{} for images, but the request has {images} image{}; give one for each place",
        plural(places),
        plural(images)
    );
    Error::with_kind(ErrorKind::Refused, sentence)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// The bug that this excludes: text of a user would stand for an image, and the wrong place would get its rows.
    #[test]
    fn only_what_the_template_wrote_stands_for_an_image() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/gemma3_vision");
        let model = Model::open(path.to_str().expect("paths of tests are valid")).unwrap();
        let facts = &model.tower_files().unwrap().tower;
        let grid = facts.only_grid().unwrap();
        let image = ImagePatches::new(vec![0.0; grid.patches() * facts.patch_values()]);
        let images = |count: usize| vec![image.clone(); count];
        let span = |text: &str, origin| TextSpan { text: text.to_owned(), origin };
        let spans = vec![
            span("<turn><start_of_image>", TextOrigin::Template),
            span("is <start_of_image> this?", TextOrigin::User),
        ];
        let found = expanded(spans.clone(), facts, &images(1)).unwrap();
        let rows = "<image_soft_token>".repeat(4);
        let text = format!("<turn>\n\n<start_of_image>{rows}<end_of_image>\n\n");
        assert_eq!(found, [span(&text, TextOrigin::Template), spans[1].clone()]);
        let error = expanded(spans, facts, &images(2)).unwrap_err().to_string();
        assert_eq!(
            error,
            "the prompt has 1 place for images, but the request has 2 images; give one for each place"
        );
        let many = 1 << 18;
        let spans = vec![span(&"<start_of_image>".repeat(many), TextOrigin::Template)];
        let error = expanded(spans, facts, &images(many)).unwrap_err().to_string();
        assert!(error.contains("the maximum is 16777216: send fewer"), "{error}");
    }
}
