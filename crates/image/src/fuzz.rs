//! The entry point of the fuzz target `image`.

use crate::{DecodeLimits, Picture, Preprocess, ResizeFilter};

/// Decodes any bytes as an image, and makes rows of it.
///
/// # Panics
/// If a picture has other pixels than its size says, or its rows are not numbers.
pub fn image(bytes: &[u8]) {
    let limits = DecodeLimits { bytes: 1 << 20, pixels: 1 << 20, side: 1 << 14 };
    let Ok(picture) = Picture::decode(bytes, &limits) else { return };
    let pixels = u64::from(picture.width()) * u64::from(picture.height());
    assert!(pixels <= limits.pixels && picture.rgb().len() as u64 == 3 * pixels, "{picture:?}");
    let preprocess = Preprocess {
        width: 32,
        height: 16,
        filter: ResizeFilter::Bicubic,
        rescale: 1.0 / 255.0,
        mean: [0.5; 3],
        std: [0.5; 3],
        patch: 4,
    };
    let positions: Vec<u32> = (0..32).collect();
    let rows =
        preprocess.rows(&picture, &positions).expect("a picture of any size becomes one of a fixed size");
    assert!(rows.iter().all(|value| (-1.0..=1.0).contains(value)), "{picture:?}");
}
