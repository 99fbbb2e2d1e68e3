//! From a picture to the rows of numbers that an image tower takes: resize, normalize, cut into patches.

use girih_tensor::Result;

use crate::limits::refused;
use crate::picture::Picture;
use crate::resize::{ResizeFilter, resize};

/// The largest ratio of the sides of a picture under [`SizeRule::Smart`], as in the reference.
const MAX_RATIO: u32 = 200;

/// The size to which a picture is resized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeRule {
    /// Always the same size, without regard to proportions.
    Fixed {
        /// The width in pixels.
        width: u32,
        /// The height in pixels.
        height: u32,
    },
    /// Both sides are multiples of `factor`, the number of pixels lies between two limits, and the proportions stay as
    /// far as that allows. Source: `smart_resize` in transformers' `image_processing_qwen2_vl.py`.
    Smart {
        /// The number that divides each side: patch times cell.
        factor: u32,
        /// The smallest number of pixels.
        min_pixels: u64,
        /// The largest number of pixels.
        max_pixels: u64,
    },
}

impl SizeRule {
    /// The width and height to which a picture of `width` x `height` is resized.
    ///
    /// # Errors
    /// If one side of the picture is more than 200 times the other under [`SizeRule::Smart`], or the rule has a 0.
    pub fn size(self, width: u32, height: u32) -> Result<(u32, u32)> {
        match self {
            SizeRule::Fixed { width, height } => Ok((width, height)),
            SizeRule::Smart { factor, min_pixels, max_pixels } => {
                let (long, short) = (width.max(height), width.min(height));
                if u64::from(long) > u64::from(MAX_RATIO) * u64::from(short) {
                    return Err(refused(format!(
                        "the image has {width} x {height} pixels; one side may be {MAX_RATIO} times the other"
                    )));
                }
                if factor == 0 || min_pixels == 0 || min_pixels > max_pixels {
                    return Err(refused(format!(
                        "no image is a multiple of {factor} with {min_pixels} to {max_pixels} pixels"
                    )));
                }
                Ok(smart_size(width, height, factor, min_pixels, max_pixels))
            }
        }
    }
}

/// The size of [`SizeRule::Smart`]. The order of the operations on floats is that of the reference.
fn smart_size(width: u32, height: u32, factor: u32, min_pixels: u64, max_pixels: u64) -> (u32, u32) {
    let factor = f64::from(factor);
    let (width, height) = (f64::from(width), f64::from(height));
    // Python rounds halves to even.
    let nearest = |side: f64| (side / factor).round_ties_even() * factor;
    let (near_width, near_height) = (nearest(width), nearest(height));
    let (least, most) = (min_pixels as f64, max_pixels as f64);
    let (width, height) = if near_width * near_height > most {
        let shrink = (height * width / most).sqrt();
        let below = |side: f64| ((side / shrink / factor).floor() * factor).max(factor);
        (below(width), below(height))
    } else if near_width * near_height < least {
        let grow = (least / (height * width)).sqrt();
        let above = |side: f64| (side * grow / factor).ceil() * factor;
        (above(width), above(height))
    } else {
        (near_width, near_height)
    };
    (width as u32, height as u32)
}

/// How a picture becomes rows: the fields of a model's `preprocessor_config.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct Preprocess {
    /// The size to which the picture is resized.
    pub size: SizeRule,
    /// How it is resized.
    pub filter: ResizeFilter,
    /// What samples are multiplied by first, usually 1/255.
    pub rescale: f64,
    /// What is subtracted then, for red, green and blue.
    pub mean: [f32; 3],
    /// What the difference is divided by.
    pub std: [f32; 3],
    /// The width and height of a patch in pixels.
    pub patch: u32,
    /// The width and height of a cell in patches: patches come cell after cell, each cell row by row. With
    /// 1 they come row by row.
    pub cell: u32,
    /// How often each channel of a patch is repeated, as the frames of a still video. 1 for most models.
    pub frames: u32,
}

/// A picture as rows of numbers, one row for each patch.
#[derive(Clone, Debug, PartialEq)]
pub struct PatchRows {
    /// The rows one after another. Within a row the order is channel, frame, y, x.
    pub values: Vec<f32>,
    /// The number of values of a row.
    pub width: usize,
    /// The number of patches side by side.
    pub columns: u32,
    /// The number of patches one above the other.
    pub lines: u32,
    /// For each row, where its patch lies: line times `columns` plus column.
    pub positions: Vec<u32>,
}

impl PatchRows {
    /// The number of rows.
    pub fn count(&self) -> usize {
        self.positions.len()
    }
}

impl Preprocess {
    /// The width and height in pixels to which a picture of `width` x `height` is resized.
    ///
    /// # Errors
    /// If the size is not a multiple of patch and cell.
    pub fn resized(&self, width: u32, height: u32) -> Result<(u32, u32)> {
        let (width, height) = self.size.size(width, height)?;
        let unit = self.patch.checked_mul(self.cell).filter(|unit| *unit > 0);
        match unit {
            Some(unit) if width % unit == 0 && height % unit == 0 => Ok((width, height)),
            _ => {
                let (patch, cell) = (self.patch, self.cell);
                Err(refused(format!(
                    "an image of {width} x {height} pixels is not made of {cell} x {cell} patches of {patch} pixels"
                )))
            }
        }
    }

    /// The picture as rows of patches.
    ///
    /// # Errors
    /// If the picture cannot have the size that the rule asks for, or there are no frames or more than 16.
    pub fn rows(&self, picture: &Picture) -> Result<PatchRows> {
        if !(1..=16).contains(&self.frames) {
            return Err(refused(format!("a patch has 1 to 16 frames, not {}", self.frames)));
        }
        let (width, height) = self.resized(picture.width(), picture.height())?;
        let resized = resize(picture, width, height, self.filter)?;
        let (columns, lines) = (width / self.patch, height / self.patch);
        let normalized = [0, 1, 2].map(|channel| self.normalized(channel));
        let patch = self.patch as usize;
        let row = 3 * self.frames as usize * patch * patch;
        let mut values = Vec::with_capacity(row * columns as usize * lines as usize);
        let positions = self.positions(columns, lines);
        for position in &positions {
            let (line, column) = ((position / columns) as usize, (position % columns) as usize);
            let first = 3 * (line * patch * width as usize + column * patch);
            for (channel, normalized) in normalized.iter().enumerate() {
                for _ in 0..self.frames {
                    for y in 0..patch {
                        let pixels = &resized.rgb()[first + 3 * y * width as usize..][..3 * patch];
                        let samples = pixels.iter().skip(channel).step_by(3);
                        values.extend(samples.map(|sample| normalized[usize::from(*sample)]));
                    }
                }
            }
        }
        Ok(PatchRows { values, width: row, columns, lines, positions })
    }

    /// The positions of the patches in the order of the rows.
    fn positions(&self, columns: u32, lines: u32) -> Vec<u32> {
        let cell = self.cell;
        let cells = (0..lines / cell).flat_map(|line| (0..columns / cell).map(move |column| (line, column)));
        let patches = cells.flat_map(|(line, column)| {
            let first = (line * columns + column) * cell;
            (0..cell).flat_map(move |y| (0..cell).map(move |x| first + y * columns + x))
        });
        patches.collect()
    }

    /// What each sample of a channel becomes. The roundings are those of transformers' `rescale` and `normalize`:
    /// the product in 64 bits is rounded to 32, in which the rest is computed.
    fn normalized(&self, channel: usize) -> [f32; 256] {
        let (mean, std) = (self.mean[channel], self.std[channel]);
        std::array::from_fn(|sample| ((sample as f64 * self.rescale) as f32 - mean) / std)
    }
}
