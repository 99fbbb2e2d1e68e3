//! PNG, by the crate `png`.

use std::io::Cursor;

use girih_tensor::Result;
use png::{ColorType, Decoder, DecodingError, Limits, Transformations};

use crate::exif;
use crate::limits::{DecodeLimits, refused};
use crate::orientation::Orientation;
use crate::raster::{PixelChannels, Raster};
use crate::zeroed::zeroed;

/// Decodes the first image of a PNG or APNG file. Palettes are looked up; 16 bits are cut to the upper 8.
pub(super) fn decode(bytes: &[u8], limits: &DecodeLimits) -> Result<Raster> {
    let mut decoder = Decoder::new_with_limits(Cursor::new(bytes), Limits { bytes: limits.bytes });
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let header = decoder.read_header_info().map_err(broken)?;
    let (width, height) = (header.width, header.height);
    let pixels = limits.check_size(width, height)?;
    let mut reader = decoder.read_info().map_err(broken)?;
    let channels = match reader.output_color_type().0 {
        ColorType::Grayscale => PixelChannels::Grey,
        ColorType::GrayscaleAlpha => PixelChannels::GreyAlpha,
        ColorType::Rgb | ColorType::Indexed => PixelChannels::Rgb,
        ColorType::Rgba => PixelChannels::RgbAlpha,
    };
    let mut samples = zeroed(pixels * channels.count())?;
    if reader.output_buffer_size() != Some(samples.len()) {
        return Err(refused("the PNG image is broken: its palette is missing"));
    }
    reader.next_frame(&mut samples).map_err(broken)?;
    let info = reader.info();
    let is_animated = info.animation_control.is_some_and(|animation| animation.num_frames > 1);
    let orientation = info.exif_metadata.as_deref().map_or(Orientation::Upright, exif::orientation);
    Ok(Raster { width, height, channels, samples, orientation, is_animated })
}

fn broken(error: DecodingError) -> girih_tensor::Error {
    refused(format!("the PNG image is broken: {error}"))
}
