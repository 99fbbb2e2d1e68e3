//! From a picture to the rows of numbers that an image tower takes: resize, normalize, cut into patches.

use std::borrow::Borrow;

use girih_tensor::{Error, Result};

use crate::limits::refused;
use crate::picture::Picture;
use crate::resize::{ResizeFilter, resize};

/// How a picture becomes rows: the fields of a model's `preprocessor_config.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct Preprocess {
    /// The size to which a picture is resized.
    pub size: TargetSize,
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
    /// The number of frames of a patch; a picture is read as equal ones.
    pub frames: u32,
    /// The order of the values of a patch.
    pub order: ValueOrder,
}

/// The order of the values of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueOrder {
    /// Channel, frame, y, x.
    ByChannel,
    /// Frame, y, x, channel.
    ByPixel,
}

/// The size to which pictures are resized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetSize {
    /// One size for all, without regard to proportions.
    Fixed {
        /// The width in pixels.
        width: u32,
        /// The height.
        height: u32,
    },
    /// One that nearly keeps the proportions, as Qwen2-VL's `smart_resize` in transformers.
    Within {
        /// Sides are multiples of this.
        multiple: u32,
        /// The smallest number of pixels.
        min: u64,
        /// The largest number of pixels.
        max: u64,
    },
    /// The largest one that nearly keeps the proportions, as Gemma 4's `get_aspect_ratio_preserving_size` in transformers.
    Largest {
        /// Sides are multiples of this.
        multiple: u32,
        /// The largest number of pixels.
        max: u64,
    },
}

/// The largest ratio of the sides of a picture that nearly keeps its proportions.
const MAX_RATIO: f64 = 200.0;

impl TargetSize {
    /// The width and the height to which a picture of this width and height is resized.
    ///
    /// # Errors
    /// When one side is more than 200 times as long as the other and proportions are kept.
    pub fn of(self, [width, height]: [u32; 2]) -> Result<[u32; 2]> {
        let (multiple, min, max) = match self {
            TargetSize::Fixed { width, height } => return Ok([width, height]),
            TargetSize::Largest { multiple, max } => return largest([width, height], multiple, max),
            TargetSize::Within { multiple, min, max } => (f64::from(multiple), min as f64, max as f64),
        };
        let sides = [f64::from(width), f64::from(height)];
        if sides[0].max(sides[1]) / sides[0].min(sides[1]) > MAX_RATIO {
            return Err(too_long([width, height]));
        }
        let near = sides.map(|side| (side / multiple).round_ties_even() * multiple);
        let area = sides[0] * sides[1];
        let sized = if near[0] * near[1] > max {
            let by = (area / max).sqrt();
            sides.map(|side| ((side / by / multiple).floor() * multiple).max(multiple))
        } else if near[0] * near[1] < min {
            let by = (min / area).sqrt();
            sides.map(|side| (side * by / multiple).ceil() * multiple)
        } else {
            near
        };
        // Sides of more than 32 bits become the largest number, which resizing refuses.
        Ok(sized.map(|side| side as u32))
    }
}

/// The width and the height to which the frames of a video are resized, as Qwen3-VL's `smart_resize` in transformers: sides are
/// multiples of `multiple`, and all frames together have `min` to `max` pixels. `group` frames are one patch in time.
///
/// # Errors
/// When there are fewer frames than a group has, or one side is more than 200 times as long as the other.
pub fn video_size(
    frames: u32,
    group: u32,
    [width, height]: [u32; 2],
    multiple: u32,
    [min, max]: [u64; 2],
) -> Result<[u32; 2]> {
    if frames < group || group == 0 {
        return Err(refused(format!(
            "a video has {frames} frames, but {group} are one patch; give {group} or more"
        )));
    }
    let step = f64::from(multiple);
    let enlarged = [width, height].map(|side| step / f64::from(side)).into_iter().fold(1.0, f64::max);
    let sides = [width, height].map(|side| match enlarged > 1.0 {
        true => (f64::from(side) * enlarged).floor(),
        false => f64::from(side),
    });
    if sides[0].max(sides[1]) / sides[0].min(sides[1]) > MAX_RATIO {
        return Err(too_long([width, height]));
    }
    let groups = (f64::from(frames) / f64::from(group)).round_ties_even();
    let near = sides.map(|side| (side / step).round_ties_even() * step);
    let (all, area) =
        (groups * f64::from(group) * near[0] * near[1], f64::from(frames) * sides[0] * sides[1]);
    let sized = if all > max as f64 {
        let by = (area / max as f64).sqrt();
        sides.map(|side| ((side / by / step).floor() * step).max(step))
    } else if all < min as f64 {
        let by = (min as f64 / area).sqrt();
        sides.map(|side| (side * by / step).ceil() * step)
    } else {
        near
    };
    Ok(sized.map(|side| side as u32))
}

/// The error of a frame that has another size than the first one.
fn other_size(index: usize, [width, height]: [u32; 2], [first_width, first_height]: [u32; 2]) -> Error {
    refused(format!(
        "frame {} has {width} x {height} pixels, but the first one has {first_width} x {first_height}; give frames of one size",
        index + 1
    ))
}

/// The error of a picture that is too long.
fn too_long([width, height]: [u32; 2]) -> Error {
    refused(format!(
        "a picture of {width} x {height} pixels is more than {MAX_RATIO} times as long as wide; crop it"
    ))
}

/// The largest sides that are multiples of `multiple`, have at most `max` pixels and nearly the proportions of these. A side
/// is one multiple at least; then the other one is at most as long as all pixels allow.
fn largest([width, height]: [u32; 2], multiple: u32, max: u64) -> Result<[u32; 2]> {
    let (sides, step) = ([f64::from(width), f64::from(height)], f64::from(multiple));
    let factor = (max as f64 / (sides[0] * sides[1])).sqrt();
    let [across, down] = sides.map(|side| (factor * side / step).floor());
    let most = (max / u64::from(multiple).pow(2)) as f64;
    let strip = |long: f64, short: f64| (long / short).floor().min(most);
    let [across, down] = match (across > 0.0, down > 0.0) {
        (true, true) => [across, down],
        (true, false) => [strip(sides[0], sides[1]), 1.0],
        (false, true) => [1.0, strip(sides[1], sides[0])],
        (false, false) => [0.0, 0.0],
    };
    // Products of whole numbers are exact in 64 bits up to 2^53; larger ones are above `max`, too.
    if across * down == 0.0 || across * down * step * step > max as f64 {
        return Err(refused(format!(
            "a picture of {width} x {height} pixels cannot become at most {max} pixels with sides that are multiples of \
             {multiple}; crop it"
        )));
    }
    Ok([across, down].map(|side| (side * step) as u32))
}

/// The patches of a picture, one row after another.
#[derive(Clone, Debug, PartialEq)]
pub struct PatchRows {
    /// The values of all patches.
    pub values: Vec<f32>,
    /// The patches of a column.
    pub down: u32,
    /// The patches of a row.
    pub across: u32,
}

impl PatchRows {
    /// Appends the patches of another group.
    fn add(&mut self, group: PatchRows) {
        self.values.extend(group.values);
        (self.down, self.across) = (group.down, group.across);
    }
}

impl Preprocess {
    /// The patches of a picture in cells of `cell` x `cell`: cells row by row from the top left, and the patches of a cell in
    /// the same way. Pixels beyond the last whole patch are in none.
    ///
    /// # Errors
    /// If the patches are not whole cells, or the size is too large.
    pub fn rows(&self, picture: &Picture, cell: u32) -> Result<PatchRows> {
        self.rows_of_group(&[self.resized(picture)?], cell)
    }

    /// The patches of a video, group after group. A group has [`Preprocess::frames`] successive frames; the last frame is
    /// repeated until its group is full. `down` and `across` are those of one group. Each frame is dropped before the next one
    /// is taken.
    ///
    /// # Errors
    /// As [`Preprocess::rows`]; those of `frames`; without frames; or when they have several sizes.
    pub fn rows_of_frames<P: Borrow<Picture>, E: From<Error>>(
        &self,
        frames: impl IntoIterator<Item = std::result::Result<P, E>>,
        cell: u32,
    ) -> std::result::Result<PatchRows, E> {
        let mut found = PatchRows { values: Vec::new(), down: 0, across: 0 };
        let (mut group, mut first) = (Vec::new(), None);
        for (index, frame) in frames.into_iter().enumerate() {
            let frame = frame?;
            let frame: &Picture = frame.borrow();
            let sides = [frame.width(), frame.height()];
            let expected = *first.get_or_insert(sides);
            if sides != expected {
                return Err(other_size(index, sides, expected).into());
            }
            group.push(self.resized(frame)?);
            if group.len() >= self.frames as usize {
                found.add(self.rows_of_group(&group, cell)?);
                group.clear();
            }
        }
        if first.is_none() {
            return Err(refused("a video has no frames; give two or more").into());
        }
        if !group.is_empty() {
            found.add(self.rows_of_group(&group, cell)?);
        }
        Ok(found)
    }

    /// A picture of the size that it has for the tower.
    fn resized(&self, picture: &Picture) -> Result<Picture> {
        let [width, height] = self.size.of([picture.width(), picture.height()])?;
        resize(picture, width, height, self.filter)
    }

    /// The patches of a group of resized frames of one size; the last one stands for those that are missing.
    fn rows_of_group(&self, resized: &[Picture], cell: u32) -> Result<PatchRows> {
        let [width, height] = [resized[0].width(), resized[0].height()];
        let patches = |pixels: u32| pixels.checked_div(self.patch).unwrap_or(0);
        let (across, down) = (patches(width), patches(height));
        let is_whole = |patches: u32| patches > 0 && cell > 0 && patches.is_multiple_of(cell);
        if !is_whole(across) || !is_whole(down) {
            return Err(refused(format!(
                "an image of {width} x {height} pixels is not made of cells of {cell} x {cell} patches of {} pixels",
                self.patch
            )));
        }
        let frame = |index: usize| resized[index.min(resized.len() - 1)].rgb();
        let lines =
            || (0..self.frames as usize).flat_map(|index| (0..self.patch as usize).map(move |y| (index, y)));
        let normalized = [0, 1, 2].map(|channel| self.normalized(channel));
        let (patch, cell) = (self.patch as usize, cell as usize);
        let corners = (0..down as usize / cell)
            .flat_map(|y| (0..across as usize / cell).map(move |x| (y * cell, x * cell)));
        let places = corners
            .flat_map(|(top, left)| (0..cell).flat_map(move |y| (0..cell).map(move |x| (top + y, left + x))));
        let count = 3 * self.frames as usize * patch * patch * across as usize * down as usize;
        let mut values = Vec::with_capacity(count);
        for (line, column) in places {
            let first = 3 * (line * patch * width as usize + column * patch);
            if self.order == ValueOrder::ByPixel {
                for (index, y) in lines() {
                    let pixels = frame(index)[first + 3 * y * width as usize..][..3 * patch].chunks_exact(3);
                    let samples = pixels.flat_map(|pixel| pixel.iter().zip(&normalized));
                    values.extend(samples.map(|(sample, normalized)| normalized[usize::from(*sample)]));
                }
                continue;
            }
            for (channel, normalized) in normalized.iter().enumerate() {
                for (index, y) in lines() {
                    let pixels = &frame(index)[first + 3 * y * width as usize..][..3 * patch];
                    let samples = pixels.iter().skip(channel).step_by(3);
                    values.extend(samples.map(|sample| normalized[usize::from(*sample)]));
                }
            }
        }
        Ok(PatchRows { values, down, across })
    }

    /// What each sample of a channel becomes. The roundings are those of transformers' `rescale` and `normalize`:
    /// the product in 64 bits is rounded to 32, in which the rest is computed.
    fn normalized(&self, channel: usize) -> [f32; 256] {
        let (mean, std) = (self.mean[channel], self.std[channel]);
        std::array::from_fn(|sample| ((sample as f64 * self.rescale) as f32 - mean) / std)
    }
}
