//! The eight orientations of EXIF, and how a picture is turned upright.

use girih_tensor::Result;

use crate::zeroed::zeroed;

/// How a stored image is to be shown. The names are those of Pillow's operations that turn it upright.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Orientation {
    #[default]
    Upright,
    FlipLeftRight,
    Rotate180,
    FlipTopBottom,
    Transpose,
    Rotate270,
    Transverse,
    Rotate90,
}

impl Orientation {
    /// The orientation with this number in EXIF 2.32, 4.6.4; unknown ones change nothing.
    pub fn from_exif(number: u16) -> Orientation {
        match number {
            2 => Orientation::FlipLeftRight,
            3 => Orientation::Rotate180,
            4 => Orientation::FlipTopBottom,
            5 => Orientation::Transpose,
            6 => Orientation::Rotate270,
            7 => Orientation::Transverse,
            8 => Orientation::Rotate90,
            _ => Orientation::Upright,
        }
    }

    /// Turns an RGB picture of `width` x `height` upright: its new width, height and samples.
    pub fn apply(self, width: u32, height: u32, rgb: Vec<u8>) -> Result<(u32, u32, Vec<u8>)> {
        let (last_x, last_y) = (width as usize - 1, height as usize - 1);
        let stored = StoredPixels { rgb: &rgb, width: width as usize };
        match self {
            Orientation::Upright => Ok((width, height, rgb)),
            Orientation::FlipLeftRight => stored.map(width, height, |x, y| (last_x - x, y)),
            Orientation::Rotate180 => stored.map(width, height, |x, y| (last_x - x, last_y - y)),
            Orientation::FlipTopBottom => stored.map(width, height, |x, y| (x, last_y - y)),
            Orientation::Transpose => stored.map(height, width, |x, y| (y, x)),
            Orientation::Rotate270 => stored.map(height, width, |x, y| (y, last_y - x)),
            Orientation::Transverse => stored.map(height, width, |x, y| (last_x - y, last_y - x)),
            Orientation::Rotate90 => stored.map(height, width, |x, y| (last_x - y, x)),
        }
    }
}

/// The picture before it is turned.
struct StoredPixels<'a> {
    rgb: &'a [u8],
    width: usize,
}

impl StoredPixels<'_> {
    /// The picture of `width` x `height` whose pixel at (x, y) is the one of this picture at `from(x, y)`.
    fn map(
        &self,
        width: u32,
        height: u32,
        from: impl Fn(usize, usize) -> (usize, usize),
    ) -> Result<(u32, u32, Vec<u8>)> {
        let mut turned = zeroed(self.rgb.len())?;
        for (y, row) in turned.chunks_exact_mut(3 * width as usize).enumerate() {
            for (x, pixel) in row.chunks_exact_mut(3).enumerate() {
                let (from_x, from_y) = from(x, y);
                let start = 3 * (from_y * self.width + from_x);
                pixel.copy_from_slice(&self.rgb[start..start + 3]);
            }
        }
        Ok((width, height, turned))
    }
}
