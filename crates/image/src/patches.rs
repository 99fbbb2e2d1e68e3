//! From a picture to the rows of numbers that an image tower takes: resize, normalize, cut into patches.

use girih_tensor::Result;

use crate::limits::refused;
use crate::picture::Picture;
use crate::resize::{ResizeFilter, resize};

/// How a picture becomes rows: the fields of a model's `preprocessor_config.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct Preprocess {
    /// The width in pixels to which a picture is resized, without regard to proportions.
    pub width: u32,
    /// The height.
    pub height: u32,
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
}

impl Preprocess {
    /// The patches of a picture at these positions, one row after another. A position counts the patches row by row; within
    /// a patch the order is channel, y, x. Pixels beyond the last whole patch are in none.
    ///
    /// # Errors
    /// If the size is less than a patch, is too large, or has no patch at a position.
    pub fn rows(&self, picture: &Picture, positions: &[u32]) -> Result<Vec<f32>> {
        let Preprocess { width, height, patch, .. } = *self;
        if patch == 0 || width < patch || height < patch {
            return Err(refused(format!(
                "an image of {width} x {height} pixels has no patch of {patch} x {patch} pixels"
            )));
        }
        let (columns, lines) = (width / patch, height / patch);
        let count = u64::from(columns) * u64::from(lines);
        if let Some(position) = positions.iter().find(|position| u64::from(**position) >= count) {
            return Err(refused(format!("an image of {count} patches has none at position {position}")));
        }
        let resized = resize(picture, width, height, self.filter)?;
        let normalized = [0, 1, 2].map(|channel| self.normalized(channel));
        let patch = patch as usize;
        let mut values = Vec::with_capacity(3 * patch * patch * positions.len());
        for position in positions {
            let (line, column) = ((position / columns) as usize, (position % columns) as usize);
            let first = 3 * (line * patch * width as usize + column * patch);
            for (channel, normalized) in normalized.iter().enumerate() {
                for y in 0..patch {
                    let pixels = &resized.rgb()[first + 3 * y * width as usize..][..3 * patch];
                    let samples = pixels.iter().skip(channel).step_by(3);
                    values.extend(samples.map(|sample| normalized[usize::from(*sample)]));
                }
            }
        }
        Ok(values)
    }

    /// What each sample of a channel becomes. The roundings are those of transformers' `rescale` and `normalize`:
    /// the product in 64 bits is rounded to 32, in which the rest is computed.
    fn normalized(&self, channel: usize) -> [f32; 256] {
        let (mean, std) = (self.mean[channel], self.std[channel]);
        std::array::from_fn(|sample| ((sample as f64 * self.rescale) as f32 - mean) / std)
    }
}
