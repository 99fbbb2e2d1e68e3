//! JPEG, by the crate `zune-jpeg`.

use girih_tensor::Result;
use zune_jpeg::JpegDecoder;
use zune_jpeg::errors::DecodeErrors;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use crate::exif;
use crate::limits::{DecodeLimits, refused};
use crate::orientation::Orientation;
use crate::raster::{PixelChannels, Raster};
use crate::zeroed::zeroed;

/// The maximum number of scans. Each scan of a progressive image passes over all of it, and an empty scan
/// has a few bytes. Encoders write at most some 20; files may hold a preview of their own.
const SCANS: usize = 100;

/// Decodes a baseline or progressive JPEG image.
pub(super) fn decode(bytes: &[u8], limits: &DecodeLimits) -> Result<Raster> {
    check_scans(bytes)?;
    let side = limits.side as usize;
    let options = DecoderOptions::default().set_strict_mode(false).set_max_width(side).set_max_height(side);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(broken)?;
    let (width, height) = decoder.dimensions().ok_or_else(|| refused("the JPEG image has no size"))?;
    let pixels = |side: usize| u32::try_from(side).unwrap_or(u32::MAX);
    let (width, height) = (pixels(width), pixels(height));
    let pixels = limits.check_size(width, height)?;
    let channels = match decoder.input_colorspace() {
        Some(ColorSpace::Luma) => PixelChannels::Grey,
        Some(ColorSpace::CMYK | ColorSpace::YCCK) if !is_by_adobe(bytes) => {
            return Err(refused("the JPEG image has CMYK colours that are not Adobe's; convert it to RGB"));
        }
        _ => PixelChannels::Rgb,
    };
    let colours = if channels == PixelChannels::Grey { ColorSpace::Luma } else { ColorSpace::RGB };
    decoder.set_options(options.jpeg_set_out_colorspace(colours));
    if decoder.output_buffer_size() != Some(pixels * channels.count()) {
        return Err(refused("the JPEG image has colours that girih does not read; convert it to RGB"));
    }
    let mut samples = zeroed(pixels * channels.count())?;
    decoder.decode_into(&mut samples).map_err(broken)?;
    let orientation = decoder.exif().map_or(Orientation::Upright, |data| exif::orientation(data));
    Ok(Raster { width, height, channels, samples, orientation, is_animated: false })
}

/// Refuses files with too many scans, and files that end before their image does: the decoder would fill what
/// is missing with grey. Within a scan, a marker's two bytes never stand for data (ITU-T T.81, B.1.1.5).
fn check_scans(bytes: &[u8]) -> Result<()> {
    let (mut scans, mut is_ended) = (0, false);
    for pair in bytes.windows(2) {
        match pair {
            [0xff, 0xda] => (scans, is_ended) = (scans + 1, false),
            [0xff, 0xd9] => is_ended = true,
            _ => {}
        }
    }
    if scans > SCANS {
        return Err(refused(format!("the JPEG image has {scans} scans; at most {SCANS} are allowed")));
    }
    if scans == 0 || !is_ended {
        return Err(refused("the JPEG file ends before its image does"));
    }
    Ok(())
}

/// Whether the file has Adobe's marker APP14. Only with it are the values of CMYK known to be inverted.
fn is_by_adobe(bytes: &[u8]) -> bool {
    bytes.windows(9).any(|window| window[..2] == [0xff, 0xee] && &window[4..] == b"Adobe")
}

fn broken(error: DecodeErrors) -> girih_tensor::Error {
    refused(format!("the JPEG image is broken or of a rare kind: {error:?}"))
}
