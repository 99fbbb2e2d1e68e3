//! How a picture becomes the patches that a model's image tower reads: by the model's `preprocessor_config.json`.

use girih_file::{quote, read_companion, shorten};
use girih_graph::{Error, ErrorKind, Result};
use girih_image::{Picture, PictureTiling, Preprocess, ResizeFilter, TargetSize, ValueOrder};
use girih_model::ModelLimits;
use girih_model::arch::TowerFacts;
use girih_model::arch::schema::{AnySize, PatchOrder, PictureFilter};
use girih_words::TextSpan;
use girih_words::template::Conversation;
use serde_json::{Map, Value};

use crate::image::ImagePatches;
use crate::image_prompt::expanded;
use crate::model::Model;
use crate::picture_preparation::PicturePreparation;

/// The files that may say how images are prepared. Transformers 5 writes the second, with the first as a part.
const FILES: [&str; 2] = ["preprocessor_config.json", "processor_config.json"];

/// The part of the second file.
const PART: &str = "image_processor";

/// Keys that change no number, whatever they say: names of classes, layouts of arrays, and settings of what a key
/// below switches off.
const WITHOUT_EFFECT: [&str; 13] = [
    "processor_class",
    "image_processor_type",
    "image_seq_length",
    "data_format",
    "input_data_format",
    "default_to_square",
    "disable_grouping",
    "return_tensors",
    "pan_and_scan_max_num_crops",
    "pan_and_scan_min_crop_size",
    "pan_and_scan_min_ratio_to_activate",
    "return_row_col_info",
    "video_sampling",
];

/// The numbers of rows that transformers' `Gemma4ImageProcessor` allows.
const SOFT_TOKENS: [u64; 5] = [70, 140, 280, 560, 1120];

impl Model {
    /// The patches of a picture, prepared as the model's files say: resized as Pillow does it, and normalized.
    ///
    /// ```
    /// let model = girih::Model::open("stories260k")?;
    /// let picture = girih::Picture::from_rgb(1, 1, vec![255, 0, 0])?;
    /// assert!(model.image_patches(&picture).unwrap_err().to_string().contains("reads no images"));
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Model::image_format`]; when a setting of `preprocessor_config.json` is not supported.
    pub fn image_patches(&self, picture: &Picture) -> Result<ImagePatches> {
        let facts = &self.tower_files()?.tower;
        self.image_preparation(|| preparation(self))?.patches(picture, facts)
    }

    /// Returns a conversation with these images, as the model's chat template writes it, with the model's image tokens in
    /// their places. Its messages have a part of type `image` for each image.
    ///
    /// ```
    /// use girih::{BUILT_IN, BUILT_IN_TEMPLATE, Conversation, Model, OpenOptions};
    ///
    /// let options = OpenOptions { chat_template: Some(BUILT_IN_TEMPLATE.into()), ..OpenOptions::default() };
    /// let model = Model::open_with(BUILT_IN, &options)?;
    /// let chat = Conversation::new().user("Once");
    /// assert_eq!(model.render_with_images(&chat, &[])?, model.render(&chat)?);
    /// let image = girih::ImagePatches::new(vec![0.0; 4]);
    /// assert!(model.render_with_images(&chat, &[image]).is_err());
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Model::render`]; when the model reads no images, or the template wrote another number of images.
    pub fn render_with_images(
        &self,
        conversation: &Conversation,
        images: &[ImagePatches],
    ) -> Result<Vec<TextSpan>> {
        if images.is_empty() {
            return self.render(conversation);
        }
        let facts = &self.tower_files()?.tower;
        expanded(self.render(conversation)?, facts, images)
    }
}

/// How pictures for a model become patches.
fn preparation(model: &Model) -> Result<PicturePreparation> {
    let facts = &model.tower_files()?.tower;
    match (&config(model)?, facts.image) {
        (Some((file, config)), None) if facts.sized == AnySize::Largest => {
            let image = largest(facts, config).map_err(|error| error.of(file))?;
            Ok(PicturePreparation { image, tiles: None })
        }
        (Some((file, config)), _) => preprocess(facts, config).map_err(|error| error.of(file)),
        (None, Some(side)) => Ok(usual(facts, side)),
        (None, None) => Err(Error::with_kind(
            ErrorKind::Refused,
            "the model has no preprocessor_config.json, which says how its images are prepared; download it, too",
        )),
    }
}

/// What the model's files say, and the name of the file; `None` if there is none.
fn config(model: &Model) -> Result<Option<(&'static str, Map<String, Value>)>> {
    let files = model.files();
    for file in FILES {
        let max = ModelLimits::DEFAULT.file.json_bytes;
        let Some(bytes) = read_companion(files.folder(), file, max)? else { continue };
        let read: std::result::Result<Map<String, Value>, _> = serde_json::from_slice(&bytes);
        let mut config =
            read.map_err(|error| Error::new(format!("is not a JSON object: {}", shorten(error))).of(file))?;
        if file == FILES[0] {
            return Ok(Some((file, config)));
        }
        if let Some(Value::Object(part)) = config.remove(PART) {
            return Ok(Some((file, part)));
        }
    }
    Ok(None)
}

/// What transformers' processors of these towers do without a file: the tower's filter and size, mean and deviation 0.5.
fn usual(facts: &TowerFacts, side: usize) -> PicturePreparation {
    let side = side as u32;
    let filter = match facts.filter {
        PictureFilter::Bilinear => ResizeFilter::Bilinear,
        PictureFilter::Lanczos => ResizeFilter::Lanczos,
    };
    let tiles = facts.tiled_edge.map(|edge| PictureTiling {
        edge: u32::try_from(edge).unwrap_or(u32::MAX),
        side,
        is_split: true,
    });
    PicturePreparation {
        image: of_size(facts, TargetSize::Fixed { width: side, height: side }, filter),
        tiles,
    }
}

fn of_size(facts: &TowerFacts, size: TargetSize, filter: ResizeFilter) -> Preprocess {
    Preprocess {
        size,
        filter,
        rescale: 1.0 / 255.0,
        mean: [0.5; 3],
        std: [0.5; 3],
        patch: facts.patch as u32,
        frames: facts.frames as u32,
        order: match facts.order {
            PatchOrder::ByChannel => ValueOrder::ByChannel,
            PatchOrder::ByPixel => ValueOrder::ByPixel,
        },
    }
}

/// What a file says of a model whose images have any size: those of transformers' `Qwen2VLImageProcessor`. Pictures with
/// more pixels than girih takes become smaller.
fn any_size(facts: &TowerFacts, config: &Map<String, Value>) -> Result<Preprocess> {
    let unread = |key: &str| {
        let sentence = format!("the key '{key}' is missing, which says how images are prepared");
        Error::with_kind(ErrorKind::Refused, sentence)
    };
    for key in ["image_mean", "image_std"] {
        config.get(key).ok_or_else(|| unread(key))?;
    }
    let pixels = |old: &str, key: &str| {
        let stated =
            config.get(old).filter(|value| !value.is_null()).or_else(|| config.get("size")?.get(key));
        stated
            .and_then(Value::as_u64)
            .filter(|pixels| *pixels > 0)
            .ok_or_else(|| unread(&format!("size.{key}")))
    };
    let (min, max) = (pixels("min_pixels", "shortest_edge")?, pixels("max_pixels", "longest_edge")?);
    let most = (facts.max_patches() * facts.patch * facts.patch) as u64;
    let max = max.min(most);
    let multiple = (facts.patch * facts.projector.cell) as u32;
    Ok(of_size(facts, TargetSize::Within { multiple, min: min.min(max), max }, ResizeFilter::Bicubic))
}

/// What a file says of a model whose images become as large as its number of rows allows: those of transformers'
/// `Gemma4ImageProcessor`. The tower normalizes pixels itself. Pictures with more patches than girih takes become smaller.
fn largest(facts: &TowerFacts, config: &Map<String, Value>) -> Result<Preprocess> {
    let cell = facts.projector.cell;
    let mut found = of_size(facts, TargetSize::Fixed { width: 0, height: 0 }, ResizeFilter::Bicubic);
    let mut rows = SOFT_TOKENS[2];
    for (key, value) in config.iter().filter(|(_, value)| !value.is_null()) {
        let supported = match key.as_str() {
            "do_resize" | "do_rescale" | "do_convert_rgb" => value == &Value::Bool(true),
            "do_normalize" | "do_pad" | "do_center_crop" => value == &Value::Bool(false),
            "patch_size" => value.as_u64() == Some(facts.patch as u64),
            "pooling_kernel_size" => value.as_u64() == Some(cell as u64),
            "max_soft_tokens" => set(&mut rows, value.as_u64().filter(|rows| SOFT_TOKENS.contains(rows))),
            "resample" => set(&mut found.filter, value.as_u64().and_then(ResizeFilter::from_pillow)),
            "rescale_factor" => set(&mut found.rescale, value.as_f64().filter(|factor| factor.is_finite())),
            // Without `do_normalize`, they change nothing.
            "image_mean" | "image_std" => true,
            other => WITHOUT_EFFECT.contains(&other),
        };
        if !supported {
            return Err(unsupported(key, value));
        }
    }
    let patches = (rows as usize * cell * cell).min(facts.max_patches());
    let max = (patches * facts.patch * facts.patch) as u64;
    Ok(Preprocess { size: TargetSize::Largest { multiple: (facts.patch * cell) as u32, max }, ..found })
}

/// The error of a setting that girih does not support.
fn unsupported(key: &str, value: &Value) -> Error {
    let value: String = value.to_string().chars().take(80).collect();
    let sentence = format!("the key {} is {value}, which girih does not support", quote(key));
    Error::with_kind(ErrorKind::Refused, sentence)
}

/// What a file says.
fn preprocess(facts: &TowerFacts, config: &Map<String, Value>) -> Result<PicturePreparation> {
    let PicturePreparation { image: mut found, mut tiles } = match facts.image {
        Some(side) => usual(facts, side),
        None => PicturePreparation { image: any_size(facts, config)?, tiles: None },
    };
    let is_size = |value: &Value, size: usize| value.as_u64() == Some(size as u64);
    for (key, value) in config.iter().filter(|(_, value)| !value.is_null()) {
        let supported = match (key.as_str(), facts.image) {
            ("do_resize" | "do_rescale" | "do_normalize" | "do_convert_rgb", _) => {
                value == &Value::Bool(true)
            }
            // All images have one size.
            ("do_pad", _) if tiles.is_some() => value.is_boolean(),
            ("size", _) if tiles.is_some() => {
                set_tiles(&mut tiles, longest_edge(value), |tiles, edge| tiles.edge = edge)
            }
            ("do_image_splitting", _) if tiles.is_some() => {
                set_tiles(&mut tiles, value.as_bool(), |tiles, is_split| tiles.is_split = is_split)
            }
            ("max_image_size", Some(side)) if tiles.is_some() => {
                longest_edge(value).map(|edge| edge as usize) == Some(side)
            }
            ("do_pan_and_scan" | "do_center_crop" | "do_pad", _) => value == &Value::Bool(false),
            ("size", Some(side)) => value == &serde_json::json!({"height": side, "width": side}),
            // `any_size` has read them.
            ("size", None) => value
                .as_object()
                .is_some_and(|size| size.keys().all(|key| key == "shortest_edge" || key == "longest_edge")),
            ("min_pixels" | "max_pixels", None) => value.is_u64(),
            ("patch_size", _) => is_size(value, facts.patch),
            ("merge_size", None) => is_size(value, facts.projector.cell),
            ("temporal_patch_size", None) => is_size(value, facts.frames),
            ("resample", _) => set(&mut found.filter, value.as_u64().and_then(ResizeFilter::from_pillow)),
            ("rescale_factor", _) => {
                set(&mut found.rescale, value.as_f64().filter(|factor| factor.is_finite()))
            }
            ("image_mean", _) => set(&mut found.mean, numbers(value)),
            ("image_std", _) => {
                set(&mut found.std, numbers(value).filter(|std| std.iter().all(|one| *one > 0.0)))
            }
            (other, _) => WITHOUT_EFFECT.contains(&other),
        };
        if !supported {
            return Err(unsupported(key, value));
        }
    }
    Ok(PicturePreparation { image: found, tiles })
}

/// Sets a part of the rule of tiles, and whether there is something to set.
fn set_tiles<T>(
    tiles: &mut Option<PictureTiling>,
    value: Option<T>,
    set: impl FnOnce(&mut PictureTiling, T),
) -> bool {
    tiles.as_mut().zip(value).map(|(tiles, value)| set(tiles, value)).is_some()
}

/// The pixels of the longer side, if the value states these only.
fn longest_edge(value: &Value) -> Option<u32> {
    let edge = value.as_object().filter(|object| object.len() == 1)?.get("longest_edge")?.as_u64()?;
    u32::try_from(edge).ok()
}

/// Sets `to`, and whether there is something to set.
fn set<T>(to: &mut T, value: Option<T>) -> bool {
    value.map(|value| *to = value).is_some()
}

/// Three finite numbers.
fn numbers(value: &Value) -> Option<[f32; 3]> {
    let numbers: Option<Vec<f32>> = value.as_array()?.iter().map(|one| Some(one.as_f64()? as f32)).collect();
    numbers?.try_into().ok().filter(|numbers: &[f32; 3]| numbers.iter().all(|one| one.is_finite()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;

    fn prepared(config: Value) -> std::result::Result<PicturePreparation, String> {
        prepared_of("gemma3_vision", config)
    }

    fn prepared_of(fixture: &str, config: Value) -> std::result::Result<PicturePreparation, String> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(fixture);
        let model = Model::open(path.to_str().expect("paths of tests are valid")).unwrap();
        let Value::Object(config) = config else { panic!("no object") };
        preprocess(&model.tower_files().unwrap().tower, &config).map_err(|error| error.to_string())
    }

    /// The file of Gemma 3 4B, with the size of the fixture.
    #[test]
    fn the_published_settings_are_read() {
        let published = json!({
            "do_convert_rgb": null, "do_normalize": true, "do_pan_and_scan": null, "do_rescale": true,
            "do_resize": true, "image_mean": [0.5, 0.5, 0.5], "image_processor_type": "Gemma3ImageProcessor",
            "image_seq_length": 256, "image_std": [0.5, 0.5, 0.5], "pan_and_scan_max_num_crops": null,
            "pan_and_scan_min_crop_size": null, "pan_and_scan_min_ratio_to_activate": null,
            "processor_class": "Gemma3Processor", "resample": 2, "rescale_factor": 0.00392156862745098,
            "size": {"height": 28, "width": 28},
        });
        let found = prepared(published).unwrap();
        let size = TargetSize::Fixed { width: 28, height: 28 };
        assert_eq!(
            (found.image.filter, found.image.patch, found.image.size),
            (ResizeFilter::Bilinear, 7, size)
        );
        assert_eq!(found, prepared(json!({})).unwrap(), "1/255 in 64 bits");
        let other = prepared(json!({"resample": 3, "image_mean": [0.1, 0.2, 0.3]})).unwrap();
        assert_eq!((other.image.filter, other.image.mean), (ResizeFilter::Bicubic, [0.1, 0.2, 0.3]));
    }

    /// The file of SmolVLM2 2.2B, with the sizes of the fixture.
    #[test]
    fn the_settings_of_tiles_are_read() {
        let published = json!({
            "do_convert_rgb": true, "do_image_splitting": true, "do_normalize": true, "do_pad": true,
            "do_rescale": true, "do_resize": true, "image_mean": [0.5, 0.5, 0.5],
            "image_processor_type": "SmolVLMImageProcessor", "image_std": [0.5, 0.5, 0.5],
            "max_image_size": {"longest_edge": 30}, "processor_class": "SmolVLMProcessor", "resample": 1,
            "rescale_factor": 0.00392156862745098, "size": {"longest_edge": 120},
            "video_sampling": {"fps": 1, "max_frames": 64, "video_size": {"longest_edge": 30}},
        });
        let prepared = |config| prepared_of("idefics3", config);
        let found = prepared(published).unwrap();
        assert_eq!(found, prepared(json!({})).unwrap(), "four tiles a side, by Lanczos");
        assert_eq!(found.tiles, Some(PictureTiling { edge: 120, side: 30, is_split: true }));
        let whole = prepared(json!({"do_image_splitting": false, "size": {"longest_edge": 90}})).unwrap();
        assert_eq!(whole.tiles, Some(PictureTiling { edge: 90, side: 30, is_split: false }));
        for config in [
            json!({"max_image_size": {"longest_edge": 60}}),
            json!({"size": {"height": 30, "width": 30}}),
            json!({"size": {"longest_edge": 120, "shortest_edge": 30}}),
            json!({"do_image_splitting": "no"}),
        ] {
            let error = prepared(config.clone()).unwrap_err();
            assert!(error.contains("does not support"), "{config}: {error}");
        }
        let error = prepared_of("gemma3_vision", json!({"do_image_splitting": true})).unwrap_err();
        assert!(error.contains("'do_image_splitting' is true"), "{error}");
    }

    #[test]
    fn settings_that_would_change_numbers_are_refused_by_name() {
        for config in [
            json!({"do_resize": false}),
            json!({"do_pan_and_scan": true}),
            json!({"size": {"height": 56, "width": 28}}),
            json!({"resample": 0}),
            json!({"image_std": [0.5, 0.5, 0.0]}),
            json!({"image_mean": [0.5]}),
            json!({"do_sharpen": true}),
        ] {
            let (key, _) = config.as_object().unwrap().iter().next().unwrap();
            let error = prepared(config.clone()).unwrap_err();
            assert!(error.contains(key.as_str()) && error.contains("does not support"), "{error}");
        }
    }
}
