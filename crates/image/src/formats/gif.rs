//! GIF, by the crate `gif`: the first frame, on the screen that the file states.

use std::num::NonZeroU64;

use gif::{ColorOutput, DecodeOptions, DecodingError, MemoryLimit};
use girih_tensor::Result;

use crate::limits::{DecodeLimits, refused};
use crate::orientation::Orientation;
use crate::raster::{PixelChannels, Raster};
use crate::zeroed::zeroed;

/// Decodes the first frame. As in Pillow, pixels outside of the frame have the transparent colour, or the first of
/// the palette; a screen that is smaller than the frame grows.
pub(super) fn decode(bytes: &[u8], limits: &DecodeLimits) -> Result<Raster> {
    let mut options = DecodeOptions::new();
    options.set_color_output(ColorOutput::Indexed);
    options
        .set_memory_limit(NonZeroU64::new(limits.pixels).map_or(MemoryLimit::Unlimited, MemoryLimit::Bytes));
    let mut decoder = options.read_info(bytes).map_err(broken)?;
    let screen = (decoder.width(), decoder.height());
    let frame = decoder.next_frame_info().map_err(broken)?;
    let frame = frame.ok_or_else(|| refused("the GIF file has no image"))?;
    let (left, top) = (u32::from(frame.left), u32::from(frame.top));
    let (frame_width, frame_height) = (u32::from(frame.width), u32::from(frame.height));
    let fill = frame.transparent.unwrap_or(0);
    let width = u32::from(screen.0).max(left + frame_width);
    let height = u32::from(screen.1).max(top + frame_height);
    limits.check_size(frame_width, frame_height)?;
    let pixels = limits.check_size(width, height)?;

    let mut indices = zeroed(decoder.buffer_size())?;
    decoder.read_into_buffer(&mut indices).map_err(broken)?;
    let palette = decoder.palette().map_err(broken)?.to_vec();
    let mut samples = zeroed(3 * pixels)?;
    for pixel in samples.chunks_exact_mut(3) {
        pixel.copy_from_slice(&colour(&palette, fill));
    }
    let rows = samples.chunks_exact_mut(3 * width as usize).skip(top as usize);
    for (row, indices) in rows.zip(indices.chunks_exact(frame_width as usize)) {
        for (pixel, index) in row.chunks_exact_mut(3).skip(left as usize).zip(indices) {
            pixel.copy_from_slice(&colour(&palette, *index));
        }
    }
    // A fault in a later frame changes nothing in the first.
    let is_animated = matches!(decoder.next_frame_info(), Ok(Some(_)));
    Ok(Raster {
        width,
        height,
        channels: PixelChannels::Rgb,
        samples,
        orientation: Orientation::Upright,
        is_animated,
    })
}

/// A colour of the palette; black if it has no such entry.
fn colour(palette: &[u8], index: u8) -> [u8; 3] {
    let start = 3 * usize::from(index);
    palette.get(start..start + 3).map_or([0; 3], |colour| [colour[0], colour[1], colour[2]])
}

fn broken(error: DecodingError) -> girih_tensor::Error {
    refused(format!("the GIF image is broken: {error}"))
}
