//! Images in prompts: the tokens that stand for them, and their rows.

use std::ops::Range;

use girih_engine::EmbeddedRows;
use girih_graph::backend::Range32;
use girih_graph::{Error, ErrorKind, Result};
use girih_model::arch::schema::{ImageTexts, VideoTexts};
use girih_model::arch::{GroupTimes, ImageGrid, TowerFacts};
use girih_words::{TextOrigin, TextSpan};
use sha2::{Digest as _, Sha256};

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
        let images = images.flat_map(|(image, grid)| {
            let (is_video, step) = (image.seconds().is_some(), image.step());
            image.each().enumerate().map(move |(index, (_, content))| PromptImage {
                content,
                grid,
                is_video,
                time: step.and_then(|step| group_time(tower.facts.group_times, index, step)),
            })
        });
        let images: Vec<PromptImage> = images.collect();
        let size = |image: &PromptImage| PlaceSize {
            rows: tower.facts.rows(image.grid) as u32,
            is_video: image.is_video,
        };
        let sizes: Vec<PlaceSize> = images.iter().map(size).collect();
        let mut rows = ImageRows::default();
        check_times(&images)?;
        let places = places([Some(tower.row), tower.video], &sizes, tokens)?;
        for (image, place) in images.into_iter().zip(places) {
            let PromptImage { grid, time, .. } = image;
            let (first, count) = (place.start, place.end - place.start);
            let columns = tower.facts.only_grid().is_none().then(|| tower.facts.rows_across(grid) as u32);
            let token = tower.facts.image_tokens.layer_input;
            rows.given.push(EmbeddedRows {
                first,
                rows: count,
                content: image.content_at_its_time(),
                columns,
                time,
                token,
                ..EmbeddedRows::default()
            });
            if tower.facts.image_tokens.mutual {
                rows.spans.push(place);
            }
        }
        Ok(rows)
    }
}

/// An image of a prompt, or a group of frames.
struct PromptImage {
    content: [u8; 32],
    grid: ImageGrid,
    is_video: bool,
    /// How far it lies behind the first group of its video along the axis of time, if their positions start at one place.
    time: Option<u32>,
}

impl PromptImage {
    /// What identifies its values and its place behind the first group of its video.
    fn content_at_its_time(&self) -> [u8; 32] {
        let Some(time) = self.time else { return self.content };
        let mut digest = Sha256::new();
        digest.update(b"time");
        digest.update(time.to_le_bytes());
        digest.update(self.content);
        digest.finalize().into()
    }
}

/// Checks that no frames lie too far behind the first ones of their video.
fn check_times(images: &[PromptImage]) -> Result<()> {
    let most = EmbeddedRows::MAX_TIME;
    match images.iter().filter_map(|image| image.time).find(|time| *time > most) {
        None => Ok(()),
        Some(time) => {
            let sentence = format!(
                "frames of a video are {time} positions behind the first ones; the maximum is {most}: give more frames per second"
            );
            Err(Error::with_kind(ErrorKind::Refused, sentence))
        }
    }
}

/// How far the group of frames `index` of a video lies behind the first one along the axis of time, if both start at one
/// position; groups begin `step` seconds after one another. The products are those of transformers' `Qwen2_5_VLModel`, in
/// 32 bits.
fn group_time(times: GroupTimes, index: usize, step: f64) -> Option<u32> {
    match times {
        _ if index == 0 => None,
        GroupTimes::Apart => None,
        GroupTimes::Counted => Some(index as u32),
        GroupTimes::PerSecond(positions) => Some((index as f32 * (positions as f32 * step as f32)) as u32),
    }
}

/// What a place of a prompt has to have for an image, or a group of frames of a video.
struct PlaceSize {
    rows: u32,
    is_video: bool,
}

/// The places for these images in a prompt: runs of the token that stands for a row of an image, or of the one for a video.
fn places([image, video]: [Option<u32>; 2], sizes: &[PlaceSize], tokens: &[u32]) -> Result<Vec<Range32>> {
    let mut places: Vec<(Range32, bool)> = Vec::new();
    // A place for each image, and as many as there are without an image.
    let size = |index: usize| sizes.get(index).or(sizes.last()).map_or(u32::MAX, |size| size.rows);
    let is_row = |token: &u32| Some(*token) == image || Some(*token) == video;
    for (position, token) in (0..).zip(tokens).filter(|(_, token)| is_row(token)) {
        let (last, is_video) = (places.len().saturating_sub(1), Some(*token) == video);
        match places.last_mut() {
            Some((place, kind))
                if place.end == position && *kind == is_video && place.end - place.start < size(last) =>
            {
                place.end += 1;
            }
            _ => places.push((Range32 { start: position, end: position + 1 }, is_video)),
        }
    }
    if places.len() != sizes.len() {
        return Err(other_count(places.len(), sizes.len()));
    }
    let refused = |sentence: String| Err(Error::with_kind(ErrorKind::Refused, sentence));
    for ((place, is_video), size) in places.iter().zip(sizes) {
        let (have, start, rows) = (place.end - place.start, place.start, size.rows);
        if *is_video != size.is_video {
            let [need, given] = if *is_video { ["a video", "an image"] } else { ["an image", "a video"] };
            return refused(format!(
                "the prompt has the place of {need} at position {start}, but {given} was given for it"
            ));
        }
        if have != rows {
            return refused(format!(
                "the prompt has {have} image tokens at position {start}; the image there has {rows}"
            ));
        }
    }
    Ok(places.into_iter().map(|(place, _)| place).collect())
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
    let kinds: Vec<bool> = spans
        .iter()
        .filter(of_template)
        .flat_map(|span| written(texts, &span.text))
        .map(|(_, is_video)| is_video)
        .collect();
    if kinds.len() != images.len() {
        return Err(other_count(kinds.len(), images.len()));
    }
    if let Some(at) =
        kinds.iter().zip(images).position(|(is_video, image)| *is_video != image.seconds().is_some())
    {
        let [need, given] = if kinds[at] { ["a video", "an image"] } else { ["an image", "a video"] };
        let sentence =
            format!("place {} of the prompt is that of {need}, but {given} was given for it", at + 1);
        return Err(Error::with_kind(ErrorKind::Refused, sentence));
    }
    let rows =
        images.iter().map(|image| Ok(facts.rows(image.grid_for(facts)?))).collect::<Result<Vec<usize>>>()?;
    let bytes = rows.iter().zip(images).map(|(rows, image)| text_bytes(texts, *rows, image));
    let bytes = bytes.fold(0, usize::saturating_add);
    if bytes > MAX_TEXT_BYTES {
        let sentence = format!(
            "the {} images would take {bytes} bytes of text; the maximum is {MAX_TEXT_BYTES}: send fewer",
            images.len()
        );
        return Err(Error::with_kind(ErrorKind::Refused, sentence));
    }
    let mut rows = rows.into_iter().zip(images);
    let mut expand = |span: TextSpan| match span.origin {
        TextOrigin::User => span,
        TextOrigin::Template => {
            let (mut text, mut end) = (String::new(), 0);
            for ((place, _), (rows, image)) in written(texts, &span.text).into_iter().zip(&mut rows) {
                text += &span.text[end..place.start];
                text += &picture_text(texts, rows, image);
                end = place.end;
            }
            text += &span.text[end..];
            TextSpan { text, ..span }
        }
    };
    Ok(spans.into_iter().map(&mut expand).collect())
}

/// The places in a template's text that stand for images and videos, in order, and which of them are of videos.
fn written(texts: &ImageTexts, text: &str) -> Vec<(Range<usize>, bool)> {
    let found = |of_template: &str, is_video: bool| -> Vec<(Range<usize>, bool)> {
        text.match_indices(of_template).map(|(at, found)| (at..at + found.len(), is_video)).collect()
    };
    let videos = texts.video.as_ref().map(|video| found(&video.of_template, true));
    let mut places = [found(&texts.of_template, false), videos.unwrap_or_default()].concat();
    places.sort_by_key(|(place, _)| place.start);
    places
}

/// The most bytes that stand for a picture or a video, each of whose images becomes `rows` rows; those around tiles and crops
/// are not counted.
fn text_bytes(texts: &ImageTexts, rows: usize, image: &ImagePatches) -> usize {
    let [before, row, after] = match texts.video.as_ref().filter(|_| image.seconds().is_some()) {
        Some(video) => [&video.before, &video.row, &video.after],
        None => [&texts.before, &texts.row, &texts.after],
    };
    let between = texts.video.as_ref().map_or(0, |video| video.between.len());
    (before.len() + after.len() + between + row.len() * rows).saturating_mul(image.images())
}

/// What stands for a video whose groups of frames, at these times, become `rows` rows each.
fn video_text(texts: &VideoTexts, rows: usize, seconds: &[f64]) -> String {
    let of_group = texts.row.repeat(rows);
    let group = |seconds: &f64| {
        let clock = format!("{:02}:{:02}", (seconds / 60.0) as u64, (seconds % 60.0) as u64);
        let before = texts.before.replace("{seconds}", &format!("{seconds:.1}")).replace("{clock}", &clock);
        [&before, &of_group, &texts.after].map(String::as_str).concat()
    };
    seconds.iter().map(group).collect::<Vec<String>>().join(&texts.between)
}

/// What stands for a picture, each of whose images becomes `rows` rows.
fn picture_text(texts: &ImageTexts, rows: usize, image: &ImagePatches) -> String {
    if let (Some(video), Some(seconds)) = (&texts.video, image.seconds()) {
        return video_text(video, rows, seconds);
    }
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

    /// `Qwen2_5_VLModel.get_vision_position_ids`: 2 positions in a second, of groups of two frames.
    #[test]
    fn positions_in_time_follow_from_the_rate() {
        let of_rate = |rate: f64| {
            let time = |index| group_time(GroupTimes::PerSecond(2), index, 2.0 / rate);
            (0..5).map(time).collect::<Vec<Option<u32>>>()
        };
        assert_eq!(of_rate(2.0), [None, Some(2), Some(4), Some(6), Some(8)]);
        assert_eq!(of_rate(3.0), [None, Some(1), Some(2), Some(4), Some(5)]);
        assert_eq!(of_rate(10.0), [None, Some(0), Some(0), Some(1), Some(1)]);
        assert_eq!(group_time(GroupTimes::Counted, 3, 0.1), Some(3));
        assert_eq!(group_time(GroupTimes::Apart, 3, 0.1), None);
        assert_eq!(group_time(GroupTimes::PerSecond(2), 1, f64::MAX), Some(u32::MAX));
    }

    #[test]
    fn clocks_of_frames_have_minutes_and_seconds() {
        let texts = VideoTexts {
            of_template: String::new(),
            before: "{clock} <".to_owned(),
            row: "r".to_owned(),
            after: ">".to_owned(),
            between: " ".to_owned(),
        };
        assert_eq!(
            video_text(&texts, 2, &[0.0, 59.9, 60.0, 6001.5]),
            "00:00 <rr> 00:59 <rr> 01:00 <rr> 100:01 <rr>"
        );
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
