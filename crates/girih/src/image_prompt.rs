//! Images in prompts: the tokens that stand for them, and their rows.

use std::sync::Arc;

use girih_engine::EmbeddedRows;
use girih_graph::backend::Range32;
use girih_graph::{Error, ErrorKind, Result};
use girih_model::arch::TowerFacts;
use girih_words::{TextOrigin, TextSpan};

use crate::image::ImagePatches;
use crate::image_tower::ImageTower;
use crate::model::Model;

/// The maximum number of bytes of a prompt's texts of images.
const MAX_TEXT_BYTES: u64 = 16 << 20;

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
        let places = places(tower, tokens)?;
        let count = images.iter().map(ImagePatches::images).sum();
        if places.len() != count {
            return Err(other_count(places.len(), count));
        }
        let mut rows = ImageRows::default();
        for ((_, content), place) in images.iter().flat_map(ImagePatches::each).zip(places) {
            let (first, count) = (place.start, place.end - place.start);
            let values = Arc::default();
            rows.given.push(EmbeddedRows { first, rows: count, values, content });
            if tower.facts.image_tokens.mutual {
                rows.spans.push(place);
            }
        }
        Ok(rows)
    }
}

/// The places for images in a prompt: runs of the token that stands for a row.
fn places(tower: &ImageTower, tokens: &[u32]) -> Result<Vec<Range32>> {
    let (row, rows) = (tower.row, tower.facts.rows() as u32);
    let mut places: Vec<Range32> = Vec::new();
    for (position, _) in (0..).zip(tokens).filter(|(_, token)| **token == row) {
        match places.last_mut() {
            Some(last) if last.end == position && last.end - last.start < rows => last.end += 1,
            _ => places.push(Range32 { start: position, end: position + 1 }),
        }
    }
    match places.iter().find(|place| place.end - place.start != rows) {
        None => Ok(places),
        Some(place) => {
            let (have, start) = (place.end - place.start, place.start);
            let sentence = format!(
                "the prompt has {have} image tokens at position {start}; an image of this model has {rows}"
            );
            Err(Error::with_kind(ErrorKind::Refused, sentence))
        }
    }
}

/// The spans of a prompt with the tokens of each picture of `grids` in place of what the template wrote for it. What a user
/// wrote stays text. A grid has the rows and columns of a picture's tiles.
///
/// # Errors
/// Of the kind [`ErrorKind::Refused`] when the template wrote another number of images, or they take too much text.
pub(crate) fn expanded(
    spans: Vec<TextSpan>,
    facts: &TowerFacts,
    grids: &[[u32; 2]],
) -> Result<Vec<TextSpan>> {
    let texts = &facts.image_tokens.texts;
    let of_template = |span: &&TextSpan| span.origin == TextOrigin::Template;
    let places: usize =
        spans.iter().filter(of_template).map(|span| span.text.matches(&texts.of_template).count()).sum();
    if places != grids.len() {
        return Err(other_count(places, grids.len()));
    }
    // The least that they take: their rows.
    let images = grids.iter().map(|[rows, columns]| u64::from(*rows) * u64::from(*columns) + 1);
    let count = images.fold(0, u64::saturating_add);
    let bytes = count.saturating_mul((texts.row.len() * facts.rows()) as u64);
    if bytes > MAX_TEXT_BYTES {
        let sentence = format!(
            "the {places} images would take {bytes} bytes of text; the maximum of all is {MAX_TEXT_BYTES}: send fewer"
        );
        return Err(Error::with_kind(ErrorKind::Refused, sentence));
    }
    let mut grids = grids.iter();
    let expand = |span: TextSpan| {
        if span.origin == TextOrigin::User {
            return span;
        }
        let mut parts = span.text.split(&texts.of_template);
        let mut text = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            text += &picture_text(facts, *grids.next().expect("there is one for each place"));
            text += part;
        }
        TextSpan { text, ..span }
    };
    Ok(spans.into_iter().map(expand).collect())
}

/// What stands for a picture with this grid of tiles.
fn picture_text(facts: &TowerFacts, [rows, columns]: [u32; 2]) -> String {
    let texts = &facts.image_tokens.texts;
    let of_image = texts.row.repeat(facts.rows());
    let mut text = String::new();
    if let Some(tiles) = texts.tiles.as_ref().filter(|_| rows > 0 && columns > 0) {
        for row in 1..=rows {
            for column in 1..=columns {
                let before = tiles.before.replace("{row}", &row.to_string());
                text += &before.replace("{column}", &column.to_string());
                text += &of_image;
            }
            text += &tiles.line;
        }
        text += &tiles.end;
    }
    [&text, &texts.before, &of_image, &texts.after].map(String::as_str).concat()
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

    /// `text` is that of transformers' processor, by `scripts/image_golden.py`.
    #[test]
    fn tiles_stand_in_a_prompt_as_in_transformers() {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests");
        let fixture = tests.join("fixtures/idefics3");
        let model = Model::open(fixture.to_str().expect("paths of tests are valid")).unwrap();
        let facts = &model.tower_files().unwrap().tower;
        assert_eq!(facts.rows(), 4);
        let golden = std::fs::read(tests.join("images/golden.json")).unwrap();
        let golden: serde_json::Value = serde_json::from_slice(&golden).unwrap();
        let cases = golden["tiles"].as_array().unwrap();
        let grids: Vec<[u32; 2]> =
            cases.iter().map(|case| [0, 1].map(|at| case["grid"][at].as_u64().unwrap() as u32)).collect();
        assert!(grids.contains(&[2, 3]) && grids.contains(&[0, 0]));
        let span = |text: String| TextSpan { text, origin: TextOrigin::Template };
        let found = expanded(vec![span("User:<image>".repeat(cases.len()))], facts, &grids).unwrap();
        let texts = cases.iter().map(|case| format!("User:{}", case["text"].as_str().unwrap()));
        assert_eq!(found[0].text, texts.collect::<String>());
        let many = expanded(vec![span("<image>".to_owned())], facts, &[[u32::MAX, u32::MAX]]);
        let error = many.unwrap_err().to_string();
        assert!(error.contains("the maximum of all is 16777216"), "{error}");
    }

    /// The bug that this excludes: text of a user would stand for an image, and the wrong place would get its rows.
    #[test]
    fn only_what_the_template_wrote_stands_for_an_image() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/gemma3_vision");
        let model = Model::open(path.to_str().expect("paths of tests are valid")).unwrap();
        let facts = &model.tower_files().unwrap().tower;
        let span = |text: &str, origin| TextSpan { text: text.to_owned(), origin };
        let spans = vec![
            span("<turn><start_of_image>", TextOrigin::Template),
            span("is <start_of_image> this?", TextOrigin::User),
        ];
        let found = expanded(spans.clone(), facts, &[[0, 0]]).unwrap();
        let rows = "<image_soft_token>".repeat(4);
        let image = format!("<turn>\n\n<start_of_image>{rows}<end_of_image>\n\n");
        assert_eq!(found, [span(&image, TextOrigin::Template), spans[1].clone()]);
        let error = expanded(spans, facts, &[[0, 0]; 2]).unwrap_err().to_string();
        assert_eq!(
            error,
            "the prompt has 1 place for images, but the request has 2 images; give one for each place"
        );
        let many = 1 << 19;
        let spans = vec![span(&"<start_of_image>".repeat(many), TextOrigin::Template)];
        let error = expanded(spans, facts, &vec![[0, 0]; many]).unwrap_err().to_string();
        assert!(error.contains("the maximum of all is 16777216: send fewer"), "{error}");
    }
}
