//! Images in prompts: the tokens that stand for them, and their rows.

use girih_engine::EmbeddedRows;
use girih_graph::backend::Range32;
use girih_graph::{Error, ErrorKind, Result};
use girih_model::arch::schema::ImageTexts;
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
        let images = images.iter().zip(grids);
        let images: Vec<([u8; 32], ImageGrid)> =
            images.flat_map(|(image, grid)| image.each().map(move |(_, content)| (content, grid))).collect();
        let sizes: Vec<u32> = images.iter().map(|(_, grid)| tower.facts.rows(*grid) as u32).collect();
        let mut rows = ImageRows::default();
        for ((content, grid), place) in images.into_iter().zip(places(tower.row, &sizes, tokens)?) {
            let (first, count) = (place.start, place.end - place.start);
            let columns = tower.facts.only_grid().is_none().then(|| tower.facts.rows_across(grid) as u32);
            let token = tower.facts.image_tokens.layer_input;
            let of_image =
                EmbeddedRows { first, rows: count, content, columns, token, ..EmbeddedRows::default() };
            rows.given.push(of_image);
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
    let bytes =
        rows.iter().zip(images).map(|(rows, image)| (around + texts.row.len() * rows) * image.images());
    let bytes = bytes.fold(0, usize::saturating_add);
    if bytes > MAX_TEXT_BYTES {
        let sentence = format!(
            "the {places} images would take {bytes} bytes of text; the maximum is {MAX_TEXT_BYTES}: send fewer"
        );
        return Err(Error::with_kind(ErrorKind::Refused, sentence));
    }
    let mut rows = rows.into_iter().zip(images);
    let mut expand = |span: TextSpan| match span.origin {
        TextOrigin::User => span,
        TextOrigin::Template => {
            let mut parts = span.text.split(&texts.of_template);
            let mut text = parts.next().unwrap_or_default().to_owned();
            for (part, (rows, image)) in parts.zip(&mut rows) {
                text += &picture_text(texts, rows, image);
                text += part;
            }
            TextSpan { text, ..span }
        }
    };
    Ok(spans.into_iter().map(&mut expand).collect())
}

/// What stands for a picture, each of whose images becomes `rows` rows.
fn picture_text(texts: &ImageTexts, rows: usize, image: &ImagePatches) -> String {
    let of_image = texts.row.repeat(rows);
    let whole = [&texts.before, &of_image, &texts.after].map(String::as_str).concat();
    if let Some(crops) = texts.crops.as_ref().filter(|_| image.crops() > 0) {
        let of_crops = vec![whole.as_str(); image.crops() as usize].join(&crops.between);
        return [&crops.before, &whole, &crops.first, &of_crops].map(String::as_str).concat();
    }
    let [down, across] = image.tiles();
    let mut text = String::new();
    if let Some(tiles) = texts.tiles.as_ref().filter(|_| down > 0 && across > 0) {
        for row in 1..=down {
            for column in 1..=across {
                let before = tiles.before.replace("{row}", &row.to_string());
                text += &before.replace("{column}", &column.to_string());
                text += &of_image;
            }
            text += &tiles.line;
        }
        text += &tiles.end;
    }
    text + &whole
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

    /// The text that the golden's pictures of this kind become in a prompt, and the one by transformers' processor, of
    /// `scripts/image_golden.py`.
    fn texts_of(
        fixture: &str,
        kind: &str,
        image: impl Fn(&serde_json::Value, usize) -> ImagePatches,
    ) -> [String; 2] {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests");
        let folder = tests.join("fixtures").join(fixture);
        let model = Model::open(folder.to_str().expect("paths of tests are valid")).unwrap();
        let facts = &model.tower_files().unwrap().tower;
        assert_eq!(facts.max_rows(), 4);
        let golden = std::fs::read(tests.join("images/golden.json")).unwrap();
        let golden: serde_json::Value = serde_json::from_slice(&golden).unwrap();
        let cases = golden[kind].as_array().unwrap();
        let size = facts.max_patches() * facts.patch_values();
        let images: Vec<ImagePatches> = cases.iter().map(|case| image(case, size)).collect();
        let place = format!("User:{}", facts.image_tokens.texts.of_template);
        let span = TextSpan { text: place.repeat(cases.len()), origin: TextOrigin::Template };
        let found = expanded(vec![span], facts, &images).unwrap();
        let texts = cases.iter().map(|case| format!("User:{}", case["text"].as_str().unwrap()));
        [found[0].text.clone(), texts.collect::<String>()]
    }

    #[test]
    fn tiles_stand_in_a_prompt_as_in_transformers() {
        let [found, expected] = texts_of("idefics3", "tiles", |case, size| {
            let [rows, columns] = [0, 1].map(|at| case["grid"][at].as_u64().unwrap() as u32);
            let count = (rows * columns + 1) as usize;
            ImagePatches::tiled(vec![0.0; count * size], [rows, columns]).unwrap()
        });
        assert!(found.contains("<row_2_col_3>"), "{found}");
        assert_eq!(found, expected);
    }

    #[test]
    fn crops_stand_in_a_prompt_as_in_transformers() {
        let [found, expected] = texts_of("gemma3_vision", "crops", |case, size| {
            let crops = case["crops"].as_u64().unwrap() as u32;
            ImagePatches::cropped(vec![0.0; (crops as usize + 1) * size], crops).unwrap()
        });
        assert!(found.contains("Here is the original image"), "{found}");
        assert_eq!(found, expected);
    }

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
