//! Pan and scan: crops of a long picture, which Gemma 3 looks at beside the whole.

use girih_tensor::Result;

use crate::limits::refused;
use crate::picture::Picture;

/// When a picture is cut into crops along its long side, and into how many. Source: `pan_and_scan` in
/// transformers' `image_processing_gemma3.py`.
#[derive(Clone, Debug, PartialEq)]
pub struct PanAndScan {
    /// The smallest side of a crop in pixels; no crops are made where one would be smaller.
    pub min_crop: u32,
    /// The largest number of crops.
    pub max_crops: u32,
    /// The ratio of the long side to the short one from which crops are made.
    pub min_ratio: f64,
}

impl PanAndScan {
    /// The crops of a picture from left to right or from top to bottom; none if the picture is not long enough.
    pub fn crops(&self, picture: &Picture) -> Result<Vec<Picture>> {
        let (width, height) = (picture.width(), picture.height());
        let Some(size) = self.crop_size(width.max(height), width.min(height))? else { return Ok(Vec::new()) };
        let starts = (0..width.max(height)).step_by(size as usize);
        starts
            .map(|start| {
                if width >= height {
                    picture.crop(start, 0, size, height)
                } else {
                    picture.crop(0, start, width, size)
                }
            })
            .collect()
    }

    /// The length of a crop along the long side; `None` if no crops are made.
    fn crop_size(&self, long: u32, short: u32) -> Result<Option<u32>> {
        if self.min_crop == 0 || self.max_crops == 0 {
            return Err(refused("pan and scan needs a smallest crop and a number of crops of at least 1"));
        }
        let ratio = f64::from(long) / f64::from(short);
        if ratio < self.min_ratio {
            return Ok(None);
        }
        // A cast of a float rounds down here, and saturates.
        let ideal = (ratio + 0.5) as u32;
        let crops = ideal.min(long / self.min_crop).max(2).min(self.max_crops);
        let size = long.div_ceil(crops);
        Ok((size.min(short) >= self.min_crop).then_some(size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEMMA: PanAndScan = PanAndScan { min_crop: 256, max_crops: 4, min_ratio: 1.2 };

    fn sizes(width: u32, height: u32) -> Vec<(u32, u32)> {
        let picture = Picture::from_rgb(width, height, vec![0; 3 * (width * height) as usize]).unwrap();
        GEMMA.crops(&picture).unwrap().iter().map(|crop| (crop.width(), crop.height())).collect()
    }

    /// The sizes were computed by transformers' `pan_and_scan_batched`.
    #[test]
    fn crops_have_the_sizes_of_the_reference() {
        assert_eq!(sizes(1000, 400), [(334, 400), (334, 400), (332, 400)]);
        assert_eq!(sizes(400, 1000), [(400, 334), (400, 334), (400, 332)]);
        assert_eq!(sizes(600, 500), [(300, 500), (300, 500)]);
        assert_eq!(sizes(3000, 260).len(), 4);
    }

    #[test]
    fn square_and_small_pictures_have_no_crops() {
        assert!(sizes(600, 600).is_empty());
        assert!(sizes(599, 500).is_empty());
        assert!(sizes(600, 255).is_empty());
        assert!(sizes(400, 300).is_empty());
    }

    #[test]
    fn a_rule_without_crops_is_refused() {
        let rule = PanAndScan { max_crops: 0, ..GEMMA };
        let picture = Picture::from_rgb(2, 1, vec![0; 6]).unwrap();
        assert!(rule.crops(&picture).unwrap_err().to_string().contains("at least 1"));
    }
}
