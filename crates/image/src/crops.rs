//! Crops of a picture with one side much longer than the other (pan and scan). Source: transformers'
//! `Gemma3ImageProcessor`.

use girih_tensor::Result;

use crate::crop::crop;
use crate::limits::refused;
use crate::picture::Picture;

/// The largest number of crops of a picture: published models make 4.
const MAX_CROPS: u32 = 64;

/// Which crops a picture has beside the whole of it: parts of its longer side, of equal size but for the last one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PictureCrops {
    /// The least pixels of a side of a crop.
    pub min_side: u32,
    /// The largest number of crops.
    pub most: u32,
    /// The least ratio of the longer side to the shorter one of a picture that has crops.
    pub min_ratio: f64,
}

impl PictureCrops {
    /// The crops of a picture, from the left to the right or from the top to the bottom; none if the picture is nearly a square, or
    /// they would be too small.
    ///
    /// # Errors
    /// If the rule has a side of 0, or no or too many crops, or a crop would be empty.
    pub fn crops(&self, picture: &Picture) -> Result<Vec<Picture>> {
        let PictureCrops { min_side, most, min_ratio } = *self;
        if min_side == 0 || most == 0 || most > MAX_CROPS {
            return Err(refused(format!(
                "{most} crops of {min_side} or more pixels a side are not possible; from 1 to {MAX_CROPS} of at least 1 are"
            )));
        }
        let sides = [picture.width(), picture.height()];
        let [long, short] = if sides[0] >= sides[1] { sides } else { [sides[1], sides[0]] };
        let ratio = f64::from(long) / f64::from(short);
        if ratio < min_ratio {
            return Ok(Vec::new());
        }
        let count = ((ratio + 0.5).floor() as u32).min(long / min_side).max(2).min(most);
        let step = long.div_ceil(count);
        if step.min(short) < min_side {
            return Ok(Vec::new());
        }
        if (count - 1).saturating_mul(step) >= long {
            return Err(refused(format!("a side of {long} pixels has no {count} crops of {step} pixels")));
        }
        let crops = (0..count).map(|index| {
            let (start, size) = (index * step, step.min(long - index * step));
            match sides[0] >= sides[1] {
                true => crop(picture, [start, 0], [size, short]),
                false => crop(picture, [0, start], [short, size]),
            }
        });
        crops.collect()
    }
}
