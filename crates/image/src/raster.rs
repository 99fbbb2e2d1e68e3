//! What each decoder returns: samples of 8 bits, and how to turn them into a picture.

use girih_tensor::Result;

use crate::orientation::Orientation;
use crate::zeroed::zeroed;

/// A decoded image before it is RGB and upright.
pub(crate) struct Raster {
    pub width: u32,
    pub height: u32,
    pub channels: PixelChannels,
    /// The samples of a pixel side by side, rows from top to bottom.
    pub samples: Vec<u8>,
    pub orientation: Orientation,
    /// The file has more frames than this one.
    pub is_animated: bool,
}

/// The samples of a pixel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PixelChannels {
    Grey,
    GreyAlpha,
    Rgb,
    RgbAlpha,
}

impl PixelChannels {
    /// The number of samples of a pixel.
    pub fn count(self) -> usize {
        match self {
            PixelChannels::Grey => 1,
            PixelChannels::GreyAlpha => 2,
            PixelChannels::Rgb => 3,
            PixelChannels::RgbAlpha => 4,
        }
    }
}

impl Raster {
    /// The samples as RGB. Alpha is dropped, not composed: transformers converts images by Pillow's
    /// `convert("RGB")`, which drops it, so that a model sees the colours below transparent pixels.
    pub fn into_rgb(self) -> Result<Vec<u8>> {
        let Raster { channels, mut samples, .. } = self;
        match channels {
            PixelChannels::Rgb => Ok(samples),
            PixelChannels::RgbAlpha => {
                drop_alpha(&mut samples);
                Ok(samples)
            }
            PixelChannels::Grey | PixelChannels::GreyAlpha => grey_to_rgb(&samples, channels.count()),
        }
    }
}

/// Moves the colours of RGBA pixels together.
fn drop_alpha(samples: &mut Vec<u8>) {
    let pixels = samples.len() / 4;
    for pixel in 1..pixels {
        samples.copy_within(4 * pixel..4 * pixel + 3, 3 * pixel);
    }
    samples.truncate(3 * pixels);
}

/// Repeats the first of `step` samples of each pixel three times.
fn grey_to_rgb(samples: &[u8], step: usize) -> Result<Vec<u8>> {
    let mut rgb = zeroed(samples.len() / step * 3)?;
    for (pixel, sample) in rgb.chunks_exact_mut(3).zip(samples.iter().step_by(step)) {
        pixel.fill(*sample);
    }
    Ok(rgb)
}
