//! How a picture becomes the patches that a model's image tower reads: by the model's `preprocessor_config.json`.

use girih_file::{ContainerKind, quote, read_companion, shorten};
use girih_graph::{Error, ErrorKind, Result};
use girih_image::{Picture, PictureCrops, PictureTiling, Preprocess, ResizeFilter, TargetSize, ValueOrder};
use girih_model::ModelLimits;
use girih_model::arch::TowerFacts;
use girih_model::arch::schema::{AnySize, CropsSchema, PatchOrder, PictureFilter, PixelsSchema};
use girih_words::TextSpan;
use girih_words::template::Conversation;
use serde_json::{Map, Value};

use crate::image::ImagePatches;
use crate::image_prompt::expanded;
use crate::model::Model;
use crate::picture_preparation::{PictureParts, PicturePreparation};

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

/// The number of rows if the file does not say it.
const USUAL_SOFT_TOKENS: u64 = 280;

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
    if let Some((file, config)) = &config(model)? {
        let read = match (facts.image, facts.sized) {
            (None, AnySize::Largest) => largest(facts, config, USUAL_SOFT_TOKENS),
            _ => preprocess(facts, config),
        };
        return read.map_err(|error| error.of(file));
    }
    if let Some(side) = facts.image {
        return Ok(usual(facts, side));
    }
    // A projector file has no settings of this kind.
    let is_gguf = model.files().weights.container().kind() == ContainerKind::Gguf;
    if is_gguf && facts.sized == AnySize::Largest {
        return largest(facts, &Map::new(), USUAL_SOFT_TOKENS);
    }
    let pixels = facts.pixels.filter(|_| is_gguf);
    let Some(PixelsSchema { min, max }) = pixels else {
        return Err(Error::with_kind(
            ErrorKind::Refused,
            "the model has no preprocessor_config.json, which says how its images are prepared; download it, too",
        ));
    };
    Ok(within(facts, min, max))
}

/// What the model's files say, and the name of the file; `None` if there is none.
fn config(model: &Model) -> Result<Option<(&'static str, Map<String, Value>)>> {
    config_of(model, FILES, PART)
}

/// What the first of two files says, or a part of the second one, and the name of the file; `None` if there is none.
pub(crate) fn config_of(
    model: &Model,
    names: [&'static str; 2],
    part: &str,
) -> Result<Option<(&'static str, Map<String, Value>)>> {
    let files = model.files();
    for file in names {
        let max = ModelLimits::DEFAULT.file.json_bytes;
        let Some(bytes) = read_companion(files.folder(), file, max)? else { continue };
        let read: std::result::Result<Map<String, Value>, _> = serde_json::from_slice(&bytes);
        let mut config =
            read.map_err(|error| Error::new(format!("is not a JSON object: {}", shorten(error))).of(file))?;
        if file == names[0] {
            return Ok(Some((file, config)));
        }
        if let Some(Value::Object(found)) = config.remove(part) {
            return Ok(Some((file, found)));
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
    let parts = facts.tiled_edge.map_or(PictureParts::Whole, |edge| {
        let edge = u32::try_from(edge).unwrap_or(u32::MAX);
        PictureParts::Tiles(PictureTiling { edge, side, is_split: true })
    });
    let stated = TargetSize::Fixed { width: side, height: side };
    PicturePreparation { image: of_size(facts, stated, filter), stated, parts }
}

fn of_size(facts: &TowerFacts, size: TargetSize, filter: ResizeFilter) -> Preprocess {
    let [mean, std] = facts.pixel_norm.mean_and_std();
    Preprocess {
        size,
        filter,
        rescale: 1.0 / 255.0,
        mean,
        std,
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
fn any_size(facts: &TowerFacts, config: &Map<String, Value>) -> Result<PicturePreparation> {
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
    Ok(within(facts, min, max))
}

/// Images of any size of these numbers of pixels, and of no more than girih takes.
fn within(facts: &TowerFacts, min: u64, max: u64) -> PicturePreparation {
    let most = (facts.max_patches() * facts.patch * facts.patch) as u64;
    let multiple = (facts.patch * facts.projector.cell) as u32;
    let size = |max: u64| TargetSize::Within { multiple, min: min.min(max), max };
    let image = of_size(facts, size(max.min(most)), ResizeFilter::Bicubic);
    PicturePreparation { image, stated: size(max), parts: PictureParts::Whole }
}

/// What a file says of a model whose images become as large as its number of rows allows: those of transformers'
/// `Gemma4ImageProcessor`. The tower normalizes pixels itself, which is done here. Pictures with more patches than girih takes become smaller.
/// Without a number of rows, images have at most `usual`.
pub(crate) fn largest(
    facts: &TowerFacts,
    config: &Map<String, Value>,
    usual: u64,
) -> Result<PicturePreparation> {
    let cell = facts.projector.cell;
    let mut found = of_size(facts, TargetSize::Fixed { width: 0, height: 0 }, ResizeFilter::Bicubic);
    let mut rows = usual;
    let is_all = |key: &str, number: f64| {
        let list = config.get(key).and_then(Value::as_array);
        list.is_some_and(|list| list.iter().all(|one| one.as_f64() == Some(number)))
    };
    // With these, it changes nothing.
    let keeps = is_all("image_mean", 0.0) && is_all("image_std", 1.0);
    for (key, value) in config.iter().filter(|(_, value)| !value.is_null()) {
        let supported = match key.as_str() {
            "do_resize" | "do_rescale" | "do_convert_rgb" => value == &Value::Bool(true),
            "do_normalize" if keeps => value.is_boolean(),
            "do_normalize" | "do_pad" | "do_center_crop" => value == &Value::Bool(false),
            "patch_size" => value.as_u64() == Some((facts.patch / facts.merged) as u64),
            "pooling_kernel_size" => value.as_u64() == Some((cell * facts.merged) as u64),
            "max_soft_tokens" => set(&mut rows, value.as_u64().filter(|rows| SOFT_TOKENS.contains(rows))),
            "resample" => set(&mut found.filter, value.as_u64().and_then(ResizeFilter::from_pillow)),
            "rescale_factor" => set(&mut found.rescale, value.as_f64().filter(|factor| factor.is_finite())),
            // Without `do_normalize`, or with 0 and 1, they change nothing.
            "image_mean" | "image_std" => true,
            other => WITHOUT_EFFECT.contains(&other),
        };
        if !supported {
            return Err(unsupported(key, value));
        }
    }
    let size = |patches: usize| TargetSize::Largest {
        multiple: (facts.patch * cell) as u32,
        max: (patches * facts.patch * facts.patch) as u64,
    };
    let patches = rows as usize * cell * cell;
    let image = Preprocess { size: size(patches.min(facts.max_patches())), ..found };
    Ok(PicturePreparation { image, stated: size(patches), parts: PictureParts::Whole })
}

/// The error of a setting that girih does not support.
fn unsupported(key: &str, value: &Value) -> Error {
    let value: String = value.to_string().chars().take(80).collect();
    let sentence = format!("the key {} is {value}, which girih does not support", quote(key));
    Error::with_kind(ErrorKind::Refused, sentence)
}

/// What a file says.
pub(crate) fn preprocess(facts: &TowerFacts, config: &Map<String, Value>) -> Result<PicturePreparation> {
    let PicturePreparation { image: mut found, stated, mut parts } = match facts.image {
        Some(side) => usual(facts, side),
        None => any_size(facts, config)?,
    };
    if let (Some(crops), Some(Value::Bool(true))) = (facts.crops, config.get("do_pan_and_scan")) {
        let CropsSchema { min_side, most, min_ratio } = crops;
        parts = PictureParts::Crops(PictureCrops { min_side, most, min_ratio });
    }
    let is_size = |value: &Value, size: usize| value.as_u64() == Some(size as u64);
    for (key, value) in config.iter().filter(|(_, value)| !value.is_null()) {
        let of_parts = facts.image.and_then(|side| set_parts(&mut parts, key, value, side));
        let supported = match (key.as_str(), facts.image) {
            _ if of_parts.is_some() => of_parts == Some(true),
            ("do_resize" | "do_rescale" | "do_normalize" | "do_convert_rgb", _) => {
                value == &Value::Bool(true)
            }
            ("do_pan_and_scan" | "do_center_crop" | "do_pad", _) => value == &Value::Bool(false),
            ("size", Some(side)) => value == &serde_json::json!({"height": side, "width": side}),
            // `any_size` has read them.
            ("size", None) => value.as_object().is_some_and(|size| {
                size.iter().all(|(key, value)| match key.as_str() {
                    "shortest_edge" | "longest_edge" => true,
                    // transformers replaces them by those beside `size`.
                    "min_pixels" | "max_pixels" => config.get(key) == Some(value),
                    _ => false,
                })
            }),
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
    Ok(PicturePreparation { image: found, stated, parts })
}

/// Sets what a key says of the images that a picture becomes, each of `side` pixels a side. Whether girih supports the value;
/// `None` if the key says nothing of them.
fn set_parts(parts: &mut PictureParts, key: &str, value: &Value, side: usize) -> Option<bool> {
    let size = || u32::try_from(value.as_u64()?).ok().filter(|size| *size > 0);
    match (parts, key) {
        // All images have one size.
        (PictureParts::Tiles(_), "do_pad") => Some(value.is_boolean()),
        (PictureParts::Tiles(tiles), "size") => Some(set(&mut tiles.edge, longest_edge(value))),
        (PictureParts::Tiles(tiles), "do_image_splitting") => Some(set(&mut tiles.is_split, value.as_bool())),
        (PictureParts::Tiles(_), "max_image_size") => {
            Some(longest_edge(value).map(|edge| edge as usize) == Some(side))
        }
        // It is true.
        (PictureParts::Crops(_), "do_pan_and_scan") => Some(true),
        (PictureParts::Crops(crops), "pan_and_scan_min_crop_size") => Some(set(&mut crops.min_side, size())),
        (PictureParts::Crops(crops), "pan_and_scan_max_num_crops") => Some(set(&mut crops.most, size())),
        (PictureParts::Crops(crops), "pan_and_scan_min_ratio_to_activate") => {
            Some(set(&mut crops.min_ratio, value.as_f64().filter(|ratio| ratio.is_finite())))
        }
        (PictureParts::Whole | PictureParts::Tiles(_) | PictureParts::Crops(_), _) => None,
    }
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

    use girih_model::arch::ImageGrid;
    use serde_json::json;

    use super::*;

    fn prepared(config: Value) -> std::result::Result<PicturePreparation, String> {
        prepared_of("gemma3_vision", config)
    }

    /// The path of a committed model.
    fn fixture(name: &str) -> String {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name);
        path.to_str().expect("paths of tests are valid").to_owned()
    }

    fn prepared_of(name: &str, config: Value) -> std::result::Result<PicturePreparation, String> {
        let model = Model::open(&fixture(name)).unwrap();
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
        assert_eq!(found.parts, PictureParts::Tiles(PictureTiling { edge: 120, side: 30, is_split: true }));
        let whole = prepared(json!({"do_image_splitting": false, "size": {"longest_edge": 90}})).unwrap();
        assert_eq!(whole.parts, PictureParts::Tiles(PictureTiling { edge: 90, side: 30, is_split: false }));
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

    /// What the published processors of these models do, with the sizes of the fixtures.
    #[test]
    fn a_gguf_without_settings_is_prepared_as_the_published_models() {
        let of_gguf = |name: &str| {
            let projector = Some(fixture(&format!("mmproj/mmproj-{name}.gguf")).into());
            let options = crate::OpenOptions { projector, ..crate::OpenOptions::default() };
            let model = Model::open_with(&fixture(&format!("gguf/{name}.gguf")), &options).unwrap();
            preparation(&model).unwrap().image
        };
        for (name, multiple, max) in [("qwen2_vl", 8, 4096 * 16), ("qwen2_5_vl_windows", 16, 4096 * 64)] {
            let found = of_gguf(name);
            assert_eq!(found.size, TargetSize::Within { multiple, min: 3136, max });
            assert_eq!((found.mean[0], found.std[2]), (0.481_454_66, 0.275_777_1));
        }
        for (name, mean, multiple, max) in
            [("gemma4_vision", 0.5, 12, 280 * 144), ("gemma4_unified", 0.0, 12, 16 * 144)]
        {
            let found = of_gguf(name);
            assert_eq!(
                (found.size, found.mean),
                (TargetSize::Largest { multiple, max }, [mean; 3]),
                "{name}"
            );
            assert_eq!(found.filter, ResizeFilter::Bicubic);
        }
    }

    /// A picture of more patches than the tower takes becomes smaller, and the note says so.
    #[test]
    fn a_picture_that_becomes_smaller_than_stated_has_a_note() {
        let model = Model::open(&fixture("qwen3_vl")).unwrap();
        let facts = &model.tower_files().unwrap().tower;
        let patches = |config: Value, side: u32| {
            let picture = Picture::from_rgb(side, side, vec![90; 3 * (side * side) as usize]).unwrap();
            prepared_of("qwen3_vl", config).unwrap().patches(&picture, facts).unwrap()
        };
        let stated = |max: usize| {
            json!({"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
            "size": {"shortest_edge": 64, "longest_edge": max}})
        };
        // 64 x 64 patches are all that fit.
        let side = (64 * facts.patch) as u32;
        let most = (side * side) as usize;
        assert_eq!(patches(stated(4 * most), side).note(), None);
        let smaller = patches(stated(4 * most), 2 * side);
        assert_eq!(smaller.grid().map(ImageGrid::patches), Some(4096));
        let (large, note) = (2 * side, smaller.note().unwrap());
        let expected = format!("becomes {side} x {side} pixels, and {large} x {large} by the model's files");
        assert!(note.contains(&expected) && note.ends_with("at most 4096 patches"), "{note}");
        assert_eq!(patches(stated(most), 2 * side).note(), None, "the files say the same");
    }

    #[test]
    fn the_settings_of_crops_are_read() {
        let crops =
            |min_side, most, min_ratio| PictureParts::Crops(PictureCrops { min_side, most, min_ratio });
        let usual = json!({"do_pan_and_scan": true, "pan_and_scan_max_num_crops": null});
        assert_eq!(prepared(usual).unwrap().parts, crops(256, 4, 1.2));
        let config = json!({
            "do_pan_and_scan": true, "pan_and_scan_max_num_crops": 3, "pan_and_scan_min_crop_size": 9,
            "pan_and_scan_min_ratio_to_activate": 2,
        });
        assert_eq!(prepared(config).unwrap().parts, crops(9, 3, 2.0));
        let off = json!({"do_pan_and_scan": false, "pan_and_scan_max_num_crops": 0});
        assert_eq!(prepared(off).unwrap().parts, PictureParts::Whole);
        for (key, value) in [
            ("pan_and_scan_max_num_crops", json!(0)),
            ("pan_and_scan_min_crop_size", json!(-1)),
            ("pan_and_scan_min_ratio_to_activate", json!("1.2")),
        ] {
            let error = prepared(json!({"do_pan_and_scan": true, key: value})).unwrap_err();
            assert!(error.contains(key) && error.contains("does not support"), "{error}");
        }
        let error = prepared_of("idefics3", json!({"do_pan_and_scan": true})).unwrap_err();
        assert!(error.contains("'do_pan_and_scan' is true"), "{error}");
    }

    /// The file of Qwen2-VL 7B, with the sizes of the fixture; a larger picture than girih takes becomes smaller.
    #[test]
    fn the_settings_of_images_of_any_size_are_read() {
        let published = |size: Value| {
            json!({
                "min_pixels": 3136, "max_pixels": 12_845_056, "patch_size": 4, "temporal_patch_size": 2, "merge_size": 2,
                "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711],
                "image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2VLProcessor", "size": size,
            })
        };
        let pixels = json!({"min_pixels": 3136, "max_pixels": 12_845_056});
        for fixture in ["qwen2_vl", "qwen2_5_vl"] {
            for size in [Value::Null, pixels.clone()] {
                let found = prepared_of(fixture, published(size)).unwrap().image;
                assert_eq!(found.size, TargetSize::Within { multiple: 8, min: 3136, max: 4096 * 16 });
                assert_eq!((found.filter, found.mean[2]), (ResizeFilter::Bicubic, 0.408_210_73));
            }
        }
        let other = json!({"min_pixels": 3136, "max_pixels": 1});
        let error = prepared_of("qwen2_vl", published(other)).unwrap_err();
        assert!(error.contains("'size'") && error.contains("does not support"), "{error}");
    }

    #[test]
    fn settings_that_would_change_numbers_are_refused_by_name() {
        for config in [
            json!({"do_resize": false}),
            json!({"do_pan_and_scan": 1}),
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
