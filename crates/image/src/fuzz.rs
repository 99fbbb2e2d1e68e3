//! The entry point of the fuzz target `image`.

use crate::{
    DecodeLimits, ErrorKind, Picture, PictureCrops, Preprocess, ResizeFilter, TargetSize, ValueOrder,
};

/// Decodes any bytes as an image, and makes crops and rows of it.
///
/// # Panics
/// If a picture has other pixels than its size says, or its rows are not numbers.
pub fn image(bytes: &[u8]) {
    let limits = DecodeLimits { bytes: 1 << 20, pixels: 1 << 20, side: 1 << 14 };
    let Ok(picture) = Picture::decode(bytes, &limits) else { return };
    let pixels = u64::from(picture.width()) * u64::from(picture.height());
    assert!(pixels <= limits.pixels && picture.rgb().len() as u64 == 3 * pixels, "{picture:?}");
    if let Ok(crops) = (PictureCrops { min_side: 1, most: 5, min_ratio: 1.2 }).crops(&picture) {
        let sizes = crops.iter().map(|crop| u64::from(crop.width()) * u64::from(crop.height()));
        assert!(crops.is_empty() || sizes.sum::<u64>() == pixels, "{picture:?}");
    }
    let fixed = TargetSize::Fixed { width: 32, height: 16 };
    let within = TargetSize::Within { multiple: 8, min: 256, max: 4096 };
    for size in [fixed, within, TargetSize::Largest { multiple: 8, max: 4096 }] {
        let preprocess = Preprocess {
            size,
            filter: ResizeFilter::Bicubic,
            rescale: 1.0 / 255.0,
            mean: [0.5; 3],
            std: [0.5; 3],
            patch: 4,
            frames: 1,
            order: ValueOrder::ByPixel,
        };
        match preprocess.rows(&picture, 2) {
            Ok(rows) => {
                assert!(rows.values.iter().all(|value| (-1.0..=1.0).contains(value)), "{picture:?}");
                assert_eq!(rows.values.len() as u64, 48 * u64::from(rows.down) * u64::from(rows.across));
            }
            Err(error) => {
                assert!(size != fixed && error.kind() == ErrorKind::Refused, "{picture:?}: {error}")
            }
        }
    }
}
