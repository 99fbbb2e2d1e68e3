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
/// has a few bytes. Encoders write at most some 20.
const SCANS: usize = 100;

/// Decodes a baseline or progressive JPEG image.
pub(super) fn decode(bytes: &[u8], limits: &DecodeLimits) -> Result<Raster> {
    let bytes = image_of(bytes)?;
    let side = limits.side as usize;
    let options = DecoderOptions::default().set_strict_mode(false).set_max_width(side).set_max_height(side);
    let options = options.jpeg_set_max_scans(SCANS);
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

/// The file up to the end of its image. Refuses images with too many scans, and files that end before their image does: the
/// decoder would fill what is missing with grey. What lies within segments, such as a preview, and behind the image does not
/// count.
fn image_of(bytes: &[u8]) -> Result<&[u8]> {
    let (mut markers, mut scans) = (Markers(bytes), 0);
    while let Some((marker, _)) = markers.next() {
        match marker {
            START_OF_SCAN => scans += 1,
            END_OF_IMAGE if scans > 0 => return Ok(&bytes[..bytes.len() - markers.0.len()]),
            _ => {}
        }
        if scans > SCANS {
            return Err(refused(format!("the JPEG image has more than {SCANS} scans, the maximum")));
        }
    }
    Err(refused("the JPEG file ends before its image does"))
}

/// Whether the image has Adobe's marker APP14. Only with it are the values of CMYK known to be inverted.
fn is_by_adobe(bytes: &[u8]) -> bool {
    let mut before_scans = Markers(bytes).take_while(|(marker, _)| *marker != START_OF_SCAN);
    before_scans.any(|(marker, segment)| marker == APP14 && segment.starts_with(b"Adobe"))
}

const APP14: u8 = 0xee;
const START_OF_IMAGE: u8 = 0xd8;
const END_OF_IMAGE: u8 = 0xd9;
const START_OF_SCAN: u8 = 0xda;

/// The markers of a file, and what their segments hold (ITU-T T.81, B.1.1). Data between them is passed over: in
/// a scan, a byte ff is data if 00 follows, and RST0 to RST7 (d0 to d7) stand within it.
struct Markers<'a>(&'a [u8]);

impl<'a> Iterator for Markers<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let at = self.0.iter().position(|byte| *byte == 0xff)?;
            // Bytes ff may fill the room before a marker.
            let fill = self.0[at..].iter().position(|byte| *byte != 0xff)?;
            let (marker, rest) = self.0[at + fill..].split_first()?;
            self.0 = rest;
            match *marker {
                // Data, TEM, and RST0 to RST7.
                0x00 | 0x01 | 0xd0..=0xd7 => {}
                marker @ (START_OF_IMAGE | END_OF_IMAGE) => return Some((marker, &[])),
                marker => {
                    // Its length counts its own two bytes.
                    let (length, _) = rest.split_first_chunk::<2>()?;
                    let length = usize::from(u16::from_be_bytes(*length)).max(2);
                    let segment = rest.get(2..length)?;
                    self.0 = &rest[length..];
                    return Some((marker, segment));
                }
            }
        }
    }
}

fn broken(error: DecodeErrors) -> girih_tensor::Error {
    refused(format!("the JPEG image is broken or of a rare kind: {error:?}"))
}
