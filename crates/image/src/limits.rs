//! How large an image file and its picture may be, and the checks of both.

use girih_tensor::{Error, ErrorKind, Result};

/// The most bytes that a decoder holds for a pixel: a WebP animation has a canvas, a frame and the
/// result with 4 bytes each, a progressive JPEG 2 bytes for each of 4 coefficients and 3 for the result.
const BYTES_PER_PIXEL: u64 = 12;

/// The largest image that is decoded. All limits are checked before memory is allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeLimits {
    /// The maximum number of bytes of the file.
    pub bytes: usize,
    /// The maximum number of pixels.
    pub pixels: u64,
    /// The maximum width and height in pixels.
    pub side: u32,
}

impl Default for DecodeLimits {
    /// 32 MiB, 50 million pixels (the largest that phones take), sides up to 65,535 (the largest of JPEG).
    fn default() -> DecodeLimits {
        DecodeLimits { bytes: 32 << 20, pixels: 50_000_000, side: 65_535 }
    }
}

impl DecodeLimits {
    /// The most memory in bytes that decoding may take: 12 for each pixel, and twice the file for
    /// copies of its metadata.
    pub fn memory(&self) -> u64 {
        self.pixels.saturating_mul(BYTES_PER_PIXEL).saturating_add(2 * self.bytes as u64)
    }

    /// Checks the length of a file.
    pub(crate) fn check_file(&self, bytes: &[u8]) -> Result<()> {
        if bytes.len() <= self.bytes {
            return Ok(());
        }
        Err(refused(format!("the image has {} bytes; at most {} are allowed", bytes.len(), self.bytes)))
    }

    /// Checks a size in pixels, and returns the number of pixels.
    pub(crate) fn check_size(&self, width: u32, height: u32) -> Result<usize> {
        let pixels = u64::from(width) * u64::from(height);
        if pixels == 0 {
            return Err(refused(format!(
                "the image has {width} x {height} pixels; at least 1 x 1 is needed"
            )));
        }
        if width.max(height) > self.side {
            let side = self.side;
            return Err(refused(format!(
                "the image has {width} x {height} pixels; each side has at most {side}"
            )));
        }
        if pixels > self.pixels {
            let most = self.pixels;
            return Err(refused(format!(
                "the image has {width} x {height} pixels; at most {most} are allowed: make it smaller"
            )));
        }
        usize::try_from(pixels).map_err(|_| refused(format!("{pixels} pixels exceed the address space")))
    }
}

/// An error about an image.
pub(crate) fn refused(sentence: impl Into<String>) -> Error {
    Error::with_kind(ErrorKind::Refused, sentence)
}
