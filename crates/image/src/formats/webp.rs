//! WebP, by the crate `image-webp`.

use std::io::Cursor;

use girih_tensor::Result;
use image_webp::{DecodingError, WebPDecoder};

use crate::exif;
use crate::limits::{DecodeLimits, refused};
use crate::orientation::Orientation;
use crate::raster::{PixelChannels, Raster};
use crate::zeroed::zeroed;

/// The bytes of a RIFF file before its first chunk: `RIFF`, a length, `WEBP`.
const FILE_HEADER: usize = 12;

/// The flag of an animation in the first byte of `VP8X`.
const ANIMATION: u8 = 2;

/// The bytes before the chunks of a frame of an animation: place, size, duration and flags.
const FRAME_HEADER: usize = 16;

/// Decodes a WebP image, or the first frame of an animation.
pub(super) fn decode(bytes: &[u8], limits: &DecodeLimits) -> Result<Raster> {
    check_frames(bytes, limits)?;
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

/// Checks the sizes that the compressed images state. The decoder allocates the pixels of such an image before it compares
/// their size with that of the picture, which [`DecodeLimits`] bound. Source: the container specification of WebP.
fn check_frames(bytes: &[u8], limits: &DecodeLimits) -> Result<()> {
    let (mut canvas, mut may_be_animated) = (None, false);
    for (name, data) in Chunks(bytes.get(FILE_HEADER..).unwrap_or_default()) {
        match name {
            b"VP8X" => {
                may_be_animated = data.first().is_some_and(|flags| flags & ANIMATION != 0);
                let (width, height) = (u24(data, 4)?, u24(data, 7)?);
                limits.check_size(width, height)?;
                canvas = Some((width, height));
            }
            // The decoder would take its image for that of the whole.
            b"ANMF" if !may_be_animated => {
                return Err(refused("the WebP image is broken: it has frames but is not animated"));
            }
            b"ANMF" => {
                let frame = (u24(data, 6)?, u24(data, 9)?);
                let mut is_behind_alpha = false;
                for (name, data) in Chunks(data.get(FRAME_HEADER..).unwrap_or_default()) {
                    // The decoder takes whatever follows alpha for VP8.
                    let name = if is_behind_alpha { b"VP8 " } else { name };
                    check_frame(name, data, Some(frame), limits)?;
                    is_behind_alpha = name == b"ALPH";
                }
            }
            _ => check_frame(name, data, canvas, limits)?,
        }
    }
    Ok(())
}

/// Checks the size that a chunk states, if it is a compressed image.
fn check_frame(
    name: &[u8; 4],
    data: &[u8],
    expected: Option<(u32, u32)>,
    limits: &DecodeLimits,
) -> Result<()> {
    let short = || refused("the WebP image is broken: a frame ends before its size");
    let (width, height) = match name {
        // A frame of VP8 has a tag of 3 bytes, a start code of 3, and sizes of 14 bits with 2 of scale (RFC 6386, 9.1).
        b"VP8 " => {
            let size = data.get(6..10).ok_or_else(short)?;
            let side = |at: usize| u32::from(u16::from_le_bytes([size[at], size[at + 1]]) & 0x3fff);
            (side(0), side(2))
        }
        // One of VP8L has a signature of 1 byte, and sizes of 14 bits less 1.
        b"VP8L" => {
            let size = data.get(1..5).ok_or_else(short)?;
            let bits = u32::from_le_bytes([size[0], size[1], size[2], size[3]]);
            ((bits & 0x3fff) + 1, (bits >> 14 & 0x3fff) + 1)
        }
        _ => return Ok(()),
    };
    limits.check_size(width, height)?;
    match expected {
        Some(expected) if expected != (width, height) => {
            let (over, down) = expected;
            Err(refused(format!(
                "the WebP image is broken: a frame of {over} x {down} pixels holds one of {width} x {height}"
            )))
        }
        _ => Ok(()),
    }
}

/// A size of 24 bits at `at`, which is stored less 1.
fn u24(data: &[u8], at: usize) -> Result<u32> {
    let bytes =
        data.get(at..at + 3).ok_or_else(|| refused("the WebP image is broken: a header ends too soon"))?;
    Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0]) + 1)
}

/// The chunks of a RIFF file: their names and contents. One that is cut off ends them.
struct Chunks<'a>(&'a [u8]);

impl<'a> Iterator for Chunks<'a> {
    type Item = (&'a [u8; 4], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (name, rest) = self.0.split_first_chunk::<4>()?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let length = u32::from_le_bytes(*length) as usize;
        // The decoder reads what is there of a chunk that is cut off.
        let data = &rest[..length.min(rest.len())];
        // A chunk is padded to an even length.
        self.0 = rest.get(length.saturating_add(length & 1)..).unwrap_or_default();
        Some((name, data))
    }
}
