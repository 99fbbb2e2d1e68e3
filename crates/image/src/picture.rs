//! A decoded picture: RGB with 8 bits a channel, upright.

use std::fmt;
use std::panic::catch_unwind;

use girih_tensor::Result;

use crate::formats;
use crate::limits::{DecodeLimits, refused};

/// A picture in RGB with 8 bits a channel.
#[derive(Clone, PartialEq, Eq)]
pub struct Picture {
    width: u32,
    height: u32,
    /// 3 bytes a pixel, rows from top to bottom.
    rgb: Vec<u8>,
    is_animated: bool,
}

impl Picture {
    /// Decodes a file. Its format is told by its content: PNG, JPEG, WebP, GIF or BMP.
    ///
    /// As transformers does with Pillow, an orientation in EXIF data is applied, alpha is dropped and colour
    /// profiles are ignored. The first frame of an animation is taken. 16 bits are cut to the upper 8.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`](crate::ErrorKind::Refused) if the file is broken, incomplete, of another format or
    /// exceeds a limit.
    pub fn decode(bytes: &[u8], limits: &DecodeLimits) -> Result<Picture> {
        limits.check_file(bytes)?;
        // A third-party decoder may panic on a broken file.
        let decoded = catch_unwind(|| formats::decode(bytes, limits));
        let raster = decoded.unwrap_or_else(|_| Err(refused("the image is broken: its decoder gave up")))?;
        let (width, height, orientation) = (raster.width, raster.height, raster.orientation);
        let is_animated = raster.is_animated;
        let (width, height, rgb) = orientation.apply(width, height, raster.into_rgb()?)?;
        Ok(Picture { width, height, rgb, is_animated })
    }

    /// A picture of these samples: 3 bytes a pixel, rows from top to bottom.
    pub fn from_rgb(width: u32, height: u32, rgb: Vec<u8>) -> Result<Picture> {
        let bytes = (width as usize).checked_mul(height as usize).and_then(|pixels| pixels.checked_mul(3));
        if rgb.is_empty() || bytes != Some(rgb.len()) {
            let have = rgb.len();
            return Err(refused(format!(
                "a picture of {width} x {height} pixels does not have {have} bytes"
            )));
        }
        Ok(Picture { width, height, rgb, is_animated: false })
    }

    /// The width in pixels, at least 1.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// The height in pixels, at least 1.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// The samples: 3 bytes a pixel, rows from top to bottom.
    pub fn rgb(&self) -> &[u8] {
        &self.rgb
    }

    /// What the picture leaves out of its file, for people.
    pub fn note(&self) -> Option<&'static str> {
        self.is_animated.then_some("the image is animated; only its first frame is used")
    }
}

impl fmt::Debug for Picture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Picture({} x {})", self.width, self.height)
    }
}
