//! The formats of image files, told by their first bytes.

mod bmp;
mod gif;
mod jpeg;
mod png;
mod webp;

use girih_tensor::Result;

use crate::limits::{DecodeLimits, refused};
use crate::raster::Raster;

/// Decodes a file of any format that girih reads.
pub(crate) fn decode(bytes: &[u8], limits: &DecodeLimits) -> Result<Raster> {
    match bytes {
        [0x89, b'P', b'N', b'G', ..] => png::decode(bytes, limits),
        [0xff, 0xd8, 0xff, ..] => jpeg::decode(bytes, limits),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => webp::decode(bytes, limits),
        [b'G', b'I', b'F', b'8', ..] => gif::decode(bytes, limits),
        [b'B', b'M', ..] => bmp::decode(bytes, limits),
        _ => {
            let found = other(bytes);
            Err(refused(format!("the image is {found}; girih reads PNG, JPEG, WebP, GIF and BMP")))
        }
    }
}

/// The name of a format that girih does not read.
fn other(bytes: &[u8]) -> &'static str {
    match bytes {
        [] => "empty",
        [b'I', b'I', 42, 0, ..] | [b'M', b'M', 0, 42, ..] => "TIFF",
        [_, _, _, _, b'f', b't', b'y', b'p', b'a', b'v', b'i', b'f' | b's', ..] => "AVIF",
        [_, _, _, _, b'f', b't', b'y', b'p', b'h' | b'm', ..] => "HEIC",
        [b'%', b'P', b'D', b'F', ..] => "PDF",
        [0xff, 0x0a, ..] => "JPEG XL",
        _ if bytes.trim_ascii_start().starts_with(b"<") => "SVG or other markup",
        _ => "of an unknown format",
    }
}
