//! Resized pictures and rows of patches, compared with Pillow's and those of transformers.

use std::borrow::Borrow;
use std::cell::Cell;

use girih_image::{
    DecodeLimits, Error, Picture, PictureCrops, PictureTiling, Preprocess, ResizeFilter, TargetSize,
    ValueOrder, resize, video_size,
};
use serde_json::Value;

use crate::data::{folder, golden, picture, sha256};

/// Gemma 3's preprocessing with a resized picture of this side.
fn gemma(side: u32, patch: u32) -> Preprocess {
    Preprocess {
        size: TargetSize::Fixed { width: side, height: side },
        filter: ResizeFilter::Bilinear,
        rescale: 1.0 / 255.0,
        mean: [0.5; 3],
        std: [0.5; 3],
        patch,
        frames: 1,
        order: ValueOrder::ByChannel,
    }
}

fn filter(name: &Value) -> ResizeFilter {
    match name.as_str().unwrap() {
        "bilinear" => ResizeFilter::Bilinear,
        "bicubic" => ResizeFilter::Bicubic,
        "lanczos" => ResizeFilter::Lanczos,
        other => panic!("there is no filter {other}"),
    }
}

#[test]
fn pictures_resize_as_in_pillow_bit_for_bit() {
    let picture = picture("rgb.png");
    let golden = golden();
    let mut faults = Vec::new();
    for case in golden["resized"].as_array().unwrap() {
        let size = [0, 1].map(|side| case[1][side].as_u64().unwrap() as u32);
        let resized = resize(&picture, size[0], size[1], filter(&case[0])).unwrap();
        if sha256(resized.rgb()) != case[2].as_str().unwrap() {
            faults.push(format!("{} to {size:?}", case[0]));
        }
    }
    assert!(faults.is_empty(), "{faults:?}");
}

/// The definition: each pass over the whole picture, sums in 64 bits.
#[test]
fn the_ring_of_rows_equals_two_passes() {
    let tall = Picture::from_rgb(3, 700, (0..6300u32).map(|at| (at * at % 251) as u8).collect()).unwrap();
    for filter in [ResizeFilter::Bilinear, ResizeFilter::Bicubic, ResizeFilter::Lanczos] {
        let across = resize(&tall, 5, 700, filter).unwrap();
        let both = resize(&across, 5, 4, filter).unwrap();
        assert_eq!(resize(&tall, 5, 4, filter).unwrap(), both, "{filter:?}");
    }
}

#[test]
fn impossible_sizes_are_refused() {
    let picture = picture("rgb.png");
    assert!(resize(&picture, 0, 4, ResizeFilter::Bicubic).is_err());
    let sentence = resize(&picture, 1 << 20, 1 << 20, ResizeFilter::Bicubic).unwrap_err().to_string();
    assert!(sentence.contains("16777216"), "{sentence}");
    let sentence = gemma(13, 14).rows(&picture, 1).unwrap_err().to_string();
    assert!(sentence.contains("13 x 13") && sentence.contains("14"), "{sentence}");
    let sentence = gemma(28, 14).rows(&picture, 4).unwrap_err().to_string();
    assert!(sentence.contains("28 x 28 pixels is not made of cells of 4 x 4 patches"), "{sentence}");
}

/// Sizes of transformers' `smart_resize(height, width, 32, 65536, 1 << 20)`.
#[test]
fn pictures_nearly_keep_their_proportions_as_in_transformers() {
    let within = TargetSize::Within { multiple: 32, min: 65_536, max: 1 << 20 };
    for (picture, expected) in [
        ([640, 480], [640, 480]),
        ([1, 1], [256, 256]),
        ([48, 16], [448, 160]),
        ([4000, 3000], [1152, 864]),
        ([112, 80], [320, 224]),
        ([6, 1000], [32, 3328]),
        ([40, 7000], [32, 7008]),
        ([2000, 10], [3648, 32]),
    ] {
        assert_eq!(within.of(picture).unwrap(), expected, "{picture:?}");
    }
    let sentence = within.of([4021, 20]).unwrap_err().to_string();
    assert!(sentence.contains("4021 x 20 pixels is more than 200 times"), "{sentence}");
}

/// Sizes of Qwen3-VL's `smart_resize` for videos in transformers.
#[test]
fn videos_nearly_keep_their_proportions_as_in_transformers() {
    for (frames, picture, multiple, pixels, expected) in [
        (2, [640, 480], 32, [4096, 25_165_824], [640, 480]),
        (8, [1920, 1080], 32, [4096, 25_165_824], [1920, 1088]),
        (100, [1920, 1080], 32, [4096, 25_165_824], [640, 352]),
        (3, [37, 23], 8, [512, 3072], [40, 24]),
        (5, [1920, 1080], 32, [4096, 5 << 20], [1344, 768]),
        (2, [10, 20], 32, [4096, 25_165_824], [32, 64]),
        (2, [33, 50], 32, [65_536, 131_072], [160, 224]),
        (768, [1, 2], 32, [4096, 25_165_824], [32, 64]),
        (7, [100, 90], 32, [131_072, 25_165_824], [160, 160]),
    ] {
        assert_eq!(
            video_size(frames, 2, picture, multiple, pixels).unwrap(),
            expected,
            "{frames}: {picture:?}"
        );
    }
    let sentence = video_size(1, 2, [64, 64], 32, [1, 4096]).unwrap_err().to_string();
    assert!(sentence.contains("a video has 1 frames, but 2 are one patch; give 2 or more"), "{sentence}");
    let sentence = video_size(2, 2, [4021, 20], 32, [1, 4096]).unwrap_err().to_string();
    assert!(sentence.contains("4021 x 20 pixels is more than 200 times"), "{sentence}");
}

#[test]
fn an_odd_last_frame_is_read_twice() {
    let preprocess = Preprocess { frames: 2, ..gemma(28, 7) };
    let [first, second] = [0, 7].map(|first: u8| {
        Picture::from_rgb(5, 4, (0..60).map(|at| first.wrapping_add(at * 4)).collect()).unwrap()
    });
    let found =
        |frames: &[&Picture]| preprocess.rows_of_frames(frames.iter().copied().map(Ok::<_, Error>), 2);
    let rows = |frames: &[&Picture]| found(frames).unwrap().values;
    let pair = rows(&[&first, &second]);
    assert_eq!(rows(&[&first, &first]), preprocess.rows(&first, 2).unwrap().values);
    assert_eq!(rows(&[&first, &second, &second]), [pair, rows(&[&second, &second])].concat());
    assert_ne!(rows(&[&first, &second]), rows(&[&second, &first]));
    let other = Picture::from_rgb(4, 5, vec![0; 60]).unwrap();
    let refused = |frames: &[&Picture]| found(frames).unwrap_err().to_string();
    assert!(
        refused(&[&first, &other])
            .contains("frame 2 has 4 x 5 pixels, but the first one has 5 x 4; give frames of one size")
    );
    assert!(refused(&[]).contains("a video has no frames"));
}

/// A frame that counts how many of them there are.
struct CountedFrame<'a>(Picture, &'a Cell<usize>);

impl Borrow<Picture> for CountedFrame<'_> {
    fn borrow(&self) -> &Picture {
        &self.0
    }
}

impl Drop for CountedFrame<'_> {
    fn drop(&mut self) {
        self.1.set(self.1.get() - 1);
    }
}

/// The bug that this excludes: 768 frames of 50 million pixels each would be in memory together.
#[test]
fn one_frame_of_a_video_is_in_memory_at_once() {
    let (preprocess, alive) = (Preprocess { frames: 2, ..gemma(28, 7) }, Cell::new(0));
    let frame = |height: u32| {
        assert_eq!(alive.replace(1), 0, "the frame before is dropped");
        let picture = Picture::from_rgb(5, height, vec![9; 15 * height as usize])?;
        Ok::<_, Error>(CountedFrame(picture, &alive))
    };
    let rows = preprocess.rows_of_frames([4; 7].into_iter().map(frame), 2);
    assert_eq!(rows.unwrap().values.len(), 4 * 3 * 2 * 28 * 28);
    let taken = Cell::new(0);
    let heights = [4, 5, 4].into_iter().inspect(|_| taken.set(taken.get() + 1));
    assert!(preprocess.rows_of_frames(heights.map(frame), 2).is_err());
    assert_eq!(taken.get(), 2, "no frame behind one of another size is decoded");
}

/// Sizes of transformers' `smart_resize(height, width, 28, 56 * 56, 4096 * 14 * 14)`, for Qwen2-VL with girih's most patches.
#[test]
fn pictures_of_qwen2_vl_become_whole_cells_of_28_pixels() {
    let within = TargetSize::Within { multiple: 28, min: 56 * 56, max: 4096 * 14 * 14 };
    for (picture, expected) in [
        ([640, 480], [644, 476]),
        ([1, 1], [56, 56]),
        ([42, 14], [112, 56]),
        ([4000, 3000], [1008, 756]),
        ([98, 70], [112, 56]),
        ([6, 1000], [28, 728]),
        ([35, 6900], [28, 6888]),
    ] {
        assert_eq!(within.of(picture).unwrap(), expected, "{picture:?}");
    }
}

#[test]
fn patches_come_in_the_order_of_their_positions() {
    let picture = Picture::from_rgb(4, 4, (0..48).collect()).unwrap();
    let rows = gemma(4, 1).rows(&picture, 1).unwrap().values;
    assert_eq!(rows.len(), 16 * 3);
    let cells = [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15];
    let found = gemma(4, 1).rows(&picture, 2).unwrap().values;
    for (row, position) in cells.iter().enumerate() {
        let start = 3 * *position as usize;
        assert_eq!(found[3 * row..3 * row + 3], rows[start..start + 3], "{row}");
    }
    let whole = gemma(4, 4).rows(&picture, 1).unwrap().values;
    let reds: Vec<f32> = (0..16).map(|pixel| rows[3 * pixel]).collect();
    assert_eq!(whole[..16], reds);
}

/// Bicubic, CLIP's mean and deviation, cells of 2 x 2 patches, each channel of a patch twice.
#[test]
fn rows_equal_those_of_qwen2_vls_processor() {
    let golden = golden();
    let expected = &golden["qwen_rows"];
    let [lines, columns] = [1, 2].map(|at| expected["grid"][at].as_u64().unwrap() as u32);
    let preprocess = Preprocess {
        size: TargetSize::Within { multiple: 28, min: 56 * 56, max: 28 * 28 * 1280 },
        filter: ResizeFilter::Bicubic,
        rescale: 1.0 / 255.0,
        mean: [0.481_454_66, 0.457_827_5, 0.408_210_73],
        std: [0.268_629_54, 0.261_302_6, 0.275_777_1],
        patch: 14,
        frames: 2,
        order: ValueOrder::ByChannel,
    };
    let rows = preprocess.rows(&picture("rgb.png"), 2).unwrap();
    assert_eq!([rows.down, rows.across], [lines, columns]);
    let bytes: Vec<u8> = rows.values.into_iter().flat_map(f32::to_le_bytes).collect();
    assert_eq!(sha256(&bytes), expected["sha256"].as_str().unwrap(), "{expected}");
}

/// Sizes of transformers' `get_aspect_ratio_preserving_size` for patches of 16, cells of 3 and 280 rows.
#[test]
fn pictures_become_as_large_as_in_gemma_4() {
    let largest = TargetSize::Largest { multiple: 48, max: 2520 * 256 };
    for (picture, expected) in [
        ([640, 480], [912, 672]),
        ([1, 1], [768, 768]),
        ([48, 16], [1344, 432]),
        ([6, 1000], [48, 10368]),
        ([2000, 10], [11_328, 48]),
        ([20_000, 2], [13_440, 48]),
    ] {
        assert_eq!(largest.of(picture).unwrap(), expected, "{picture:?}");
    }
    let small = TargetSize::Largest { multiple: 48, max: 48 * 47 };
    let sentence = small.of([10, 10]).unwrap_err().to_string();
    assert!(sentence.contains("cannot become at most 2256 pixels"), "{sentence}");
}

/// Cells of 3 x 3 patches, of each pixel its channels.
#[test]
fn rows_equal_those_of_gemma_4s_processor() {
    let expected = &golden()["gemma4_rows"];
    let size = TargetSize::Largest { multiple: 48, max: 70 * 9 * 256 };
    let (filter, order) = (ResizeFilter::Bicubic, ValueOrder::ByPixel);
    let rows = Preprocess { size, filter, order, ..gemma(0, 16) }.rows(&picture("rgb.png"), 3).unwrap();
    assert_eq!(serde_json::json!([rows.down, rows.across]), expected["grid"]);
    let bytes: Vec<u8> = rows.values.into_iter().flat_map(f32::to_le_bytes).collect();
    assert_eq!(sha256(&bytes), expected["sha256"].as_str().unwrap(), "{expected}");
}

/// Whole patches of 48 x 48 pixels, from 0 to 1.
#[test]
fn rows_equal_those_of_gemma_4_12bs_processor() {
    let expected = &golden()["gemma4_unified_rows"];
    let size = TargetSize::Largest { multiple: 48, max: 70 * 48 * 48 };
    let (filter, order) = (ResizeFilter::Bicubic, ValueOrder::ByPixel);
    let (mean, std) = ([0.0; 3], [1.0; 3]);
    let preparation = Preprocess { size, filter, order, mean, std, ..gemma(0, 48) };
    let rows = preparation.rows(&picture("rgb.png"), 1).unwrap();
    assert_eq!(serde_json::json!([rows.down, rows.across]), expected["grid"]);
    let bytes: Vec<u8> = rows.values.into_iter().flat_map(f32::to_le_bytes).collect();
    assert_eq!(sha256(&bytes), expected["sha256"].as_str().unwrap(), "{expected}");
}

/// Pixels beyond the last whole patch are not read, as by a convolution without padding.
#[test]
fn the_rest_of_an_image_beside_its_patches_is_cut() {
    let picture = Picture::from_rgb(3, 3, (0..27).collect()).unwrap();
    let rows = gemma(3, 2).rows(&picture, 1).unwrap().values;
    let reds: Vec<f32> =
        (0..2).flat_map(|y| [9 * y, 9 * y + 3]).map(|red| (red as f32 / 255.0 - 0.5) / 0.5).collect();
    assert_eq!(rows[..4], reds);
    assert!(gemma(3, 2).rows(&picture, 2).is_err());
}

#[test]
fn tiles_equal_those_of_idefics_3s_processor() {
    let golden = golden();
    let cases = golden["tiles"].as_array().unwrap();
    for case in cases {
        let number = |key: &str| case[key].as_u64().unwrap() as u32;
        let (side, filter) = (number("side"), ResizeFilter::Lanczos);
        let rule = PictureTiling { edge: number("edge"), side, is_split: case["split"].as_bool().unwrap() };
        let tiles = rule.tiles(&picture(case["file"].as_str().unwrap()), filter).unwrap();
        let grid = [0, 1].map(|at| case["grid"][at].as_u64().unwrap() as u32);
        assert_eq!((tiles.grid, tiles.images.len() as u32), (grid, number("images")), "{case}");
        let whole = Preprocess { filter, ..gemma(side, side) };
        let rows = tiles.images.iter().flat_map(|image| whole.rows(image, 1).unwrap().values);
        let bytes: Vec<u8> = rows.flat_map(f32::to_le_bytes).collect();
        assert_eq!(sha256(&bytes), case["sha256"].as_str().unwrap(), "{case}");
    }
    assert!(cases.iter().any(|case| case["images"] == 13) && cases.iter().any(|case| case["images"] == 1));
}

#[test]
fn tiles_of_narrow_pictures_are_bounded() {
    let filter = ResizeFilter::Lanczos;
    let line = Picture::from_rgb(3000, 1, vec![9; 9000]).unwrap();
    let rule = PictureTiling { edge: 60, side: 20, is_split: true };
    assert_eq!(rule.tiles(&line, filter).unwrap().grid, [1, 3]);
    for (edge, side) in [(0, 20), (60, 0), (5000, 20), (60, u32::MAX)] {
        let error =
            PictureTiling { edge, side, is_split: true }.tiles(&line, filter).unwrap_err().to_string();
        assert!(error.contains("from 1 to 4096"), "{error}");
    }
    let square = Picture::from_rgb(1, 1, vec![9; 3]).unwrap();
    let tiny = PictureTiling { edge: 4096, side: 1, is_split: true };
    let error = tiny.tiles(&square, filter).unwrap_err().to_string();
    assert!(error.contains("4096 rows of 4096 tiles"), "{error}");
}

/// Pan and scan: the whole picture, and parts of its longer side.
#[test]
fn crops_equal_those_of_gemma_3s_processor() {
    let golden = golden();
    let cases = golden["crops"].as_array().unwrap();
    for case in cases {
        let number = |key: &str| case[key].as_u64().unwrap() as u32;
        let rule = PictureCrops { min_side: number("min_side"), most: number("most"), min_ratio: 1.2 };
        let whole = picture(case["file"].as_str().unwrap());
        let crops = rule.crops(&whole).unwrap();
        assert_eq!(crops.len() as u32, number("crops"), "{case}");
        let images = std::iter::once(&whole).chain(&crops);
        let rows = images.flat_map(|image| gemma(28, 28).rows(image, 1).unwrap().values);
        let bytes: Vec<u8> = rows.flat_map(f32::to_le_bytes).collect();
        assert_eq!(sha256(&bytes), case["sha256"].as_str().unwrap(), "{case}");
    }
    assert!(cases.iter().any(|case| case["crops"] == 4) && cases.iter().any(|case| case["crops"] == 0));
}

#[test]
fn impossible_crops_are_refused() {
    let line = Picture::from_rgb(5, 1, vec![9; 15]).unwrap();
    let rule = PictureCrops { min_side: 1, most: 4, min_ratio: 1.2 };
    for (rule, words) in [
        (PictureCrops { min_side: 0, ..rule }, "4 crops of 0 or more pixels a side are not possible"),
        (PictureCrops { most: 0, ..rule }, "from 1 to 64 of at least 1 are"),
        (PictureCrops { most: u32::MAX, ..rule }, "from 1 to 64"),
        (rule, "a side of 5 pixels has no 4 crops of 2 pixels"),
    ] {
        let error = rule.crops(&line).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let widths = |most| -> Vec<u32> {
        let crops = PictureCrops { most, ..rule }.crops(&line).unwrap();
        crops.iter().map(Picture::width).collect()
    };
    assert_eq!((widths(1), widths(3)), (vec![5], vec![2, 2, 1]));
}

/// Samples in the order channel, y, x, as in transformers' arrays.
fn planes(picture: &Picture) -> Vec<u8> {
    (0..3).flat_map(|channel| picture.rgb().iter().skip(channel).step_by(3).copied()).collect()
}

fn mean(values: &[u8]) -> f64 {
    values.iter().map(|value| f64::from(*value) / 127.5 - 1.0).sum::<f64>() / values.len() as f64
}

/// Photos: PNG bit for bit. Decoders of JPEG differ, so that only means are compared.
#[test]
fn photos_become_gemma_3s_pixels() {
    let Some(folder) = folder() else { return };
    let text = std::fs::read_to_string(folder.join("image-golden/golden.json")).unwrap();
    let golden: Value = serde_json::from_str(&text).unwrap();
    let mut compared = 0;
    for (name, expected) in golden["images"].as_object().unwrap() {
        let Ok(bytes) = std::fs::read(folder.join("images").join(name.rsplit('/').next().unwrap())) else {
            continue;
        };
        let picture = Picture::decode(&bytes, &DecodeLimits::default()).unwrap();
        let resized = planes(&resize(&picture, 896, 896, ResizeFilter::Bilinear).unwrap());
        compared += 1;
        if name.ends_with(".png") {
            assert_eq!(sha256(&resized), expected["sha256_u8"].as_str().unwrap(), "{name}");
            continue;
        }
        for (plane, expected) in resized.chunks(896 * 896).zip(expected["mean"].as_array().unwrap()) {
            let (found, expected) = (mean(plane), expected.as_f64().unwrap());
            assert!((found - expected).abs() < 0.01, "{name}: {found} instead of {expected}");
        }
    }
    assert_eq!(compared, 6, "four PNG files and two JPEG files lie in the folder");
}
