//! WebP, by the crate `image-webp`.

use std::io::Cursor;

use girih_tensor::Result;
use image_webp::{DecodingError, WebPDecoder};

use crate::exif;
use crate::limits::{DecodeLimits, refused};
use crate::orientation::Orientation;
use crate::raster::{PixelChannels, Raster};
use crate::zeroed::zeroed;

/// Decodes a WebP image, or the first frame of an animation.
pub(super) fn decode(bytes: &[u8], limits: &DecodeLimits) -> Result<Raster> {
    let mut decoder = WebPDecoder::new(Cursor::new(bytes)).map_err(broken)?;
    decoder.set_memory_limit(usize::try_from(limits.memory()).unwrap_or(usize::MAX));
    let (width, height) = decoder.dimensions();
    let pixels = limits.check_size(width, height)?;
    let channels = if decoder.has_alpha() { PixelChannels::RgbAlpha } else { PixelChannels::Rgb };
    let mut samples = zeroed(pixels * channels.count())?;
    decoder.read_image(&mut samples).map_err(broken)?;
    let is_animated = decoder.is_animated() && decoder.num_frames() > 1;
    // Broken metadata does not make an image unreadable.
    let metadata = decoder.exif_metadata().ok().flatten();
    let orientation = metadata.map_or(Orientation::Upright, |data| exif::orientation(&data));
    Ok(Raster { width, height, channels, samples, orientation, is_animated })
}

fn broken(error: DecodingError) -> girih_tensor::Error {
    refused(format!("the WebP image is broken: {error}"))
}
