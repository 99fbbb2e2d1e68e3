//! Resizes pictures as Pillow does, bit for bit. Source: `precompute_coeffs`, `normalize_coeffs_8bpc` and
//! `ImagingResampleHorizontal_8bpc` in Pillow's `Resample.c`.
//!
//! Each row is resized first and rounded to 8 bits, then the columns, as in Pillow up to 12; Pillow 13 takes the columns of
//! some shapes first, which changes a sample by at most a few units. Weights are integers with 22 bits after
//! the point, so that a sum is exact and has no order. No sum overflows: the weights of a window add up to 1, negative
//! ones to less than 0.4 of it, so that a sum lies below 1.8 · 255 · 2²² < 2³¹.

use std::f64::consts::PI;

use girih_tensor::Result;

use crate::limits::refused;
use crate::picture::Picture;
use crate::zeroed::zeroed;

/// The bits after the point of a weight: 32 less 8 of a sample and 2 for sums above 1.
const PRECISION: u32 = 22;

/// The largest number of pixels of a resized picture: 4096 x 4096.
const MAX_PIXELS: u64 = 1 << 24;

/// How pixels of a resized picture are made of those around them. The numbers in brackets are Pillow's, which
/// `preprocessor_config.json` calls `resample`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResizeFilter {
    /// A triangle (2).
    Bilinear,
    /// A cubic with a = −0.5 (3).
    Bicubic,
    /// A windowed sinc of three lobes (1).
    Lanczos,
}

impl ResizeFilter {
    /// The filter with this number in Pillow, if girih has it.
    pub fn from_pillow(number: u64) -> Option<ResizeFilter> {
        match number {
            1 => Some(ResizeFilter::Lanczos),
            2 => Some(ResizeFilter::Bilinear),
            3 => Some(ResizeFilter::Bicubic),
            _ => None,
        }
    }

    /// How far the filter reaches at scale 1.
    fn support(self) -> f64 {
        match self {
            ResizeFilter::Bilinear => 1.0,
            ResizeFilter::Bicubic => 2.0,
            ResizeFilter::Lanczos => 3.0,
        }
    }

    /// The weight of a pixel at this distance.
    fn weight(self, distance: f64) -> f64 {
        let x = distance.abs();
        match self {
            ResizeFilter::Bilinear => (1.0 - x).max(0.0),
            ResizeFilter::Bicubic => cubic(x),
            // Pillow's window is open at +3.
            ResizeFilter::Lanczos if (-3.0..3.0).contains(&distance) => sinc(distance) * sinc(distance / 3.0),
            ResizeFilter::Lanczos => 0.0,
        }
    }
}

fn cubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 { 1.0 } else { (x * PI).sin() / (x * PI) }
}

/// Which pixels of a line become which pixel of the resized line, and with what weights.
struct LineTaps {
    /// For each pixel of the resized line: the first pixel and the number of pixels.
    windows: Vec<(usize, usize)>,
    /// The weights of all windows, `stride` for each.
    weights: Vec<i32>,
    stride: usize,
}

impl LineTaps {
    fn new(from: u32, to: u32, filter: ResizeFilter) -> LineTaps {
        let scale = f64::from(from) / f64::from(to);
        let stretch = scale.max(1.0);
        let support = filter.support() * stretch;
        let stride = support.ceil() as usize * 2 + 1;
        let mut windows = Vec::with_capacity(to as usize);
        let mut weights = vec![0; stride * to as usize];
        let mut exact = Vec::with_capacity(stride);
        for (pixel, weights) in weights.chunks_exact_mut(stride).enumerate() {
            let centre = (pixel as f64 + 0.5) * scale;
            // The casts round towards 0, and to 0 what is negative.
            let first = (centre - support + 0.5) as usize;
            let end = ((centre + support + 0.5) as usize).min(from as usize);
            exact.clear();
            exact.extend((first..end).map(|at| filter.weight((at as f64 - centre + 0.5) * (1.0 / stretch))));
            let sum: f64 = exact.iter().sum();
            for (weight, exact) in weights.iter_mut().zip(&exact) {
                let share = if sum == 0.0 { *exact } else { exact / sum };
                let scaled = share * f64::from(1 << PRECISION);
                *weight = (scaled + if share < 0.0 { -0.5 } else { 0.5 }) as i32;
            }
            windows.push((first, end - first));
        }
        LineTaps { windows, weights, stride }
    }

    /// The window of each pixel of the resized line: its first pixel and its weights.
    fn windows(&self) -> impl Iterator<Item = (usize, &[i32])> {
        let weights = self.weights.chunks_exact(self.stride);
        self.windows.iter().zip(weights).map(|((first, count), weights)| (*first, &weights[..*count]))
    }
}

/// The sample of a sum: rounded, and cut to 8 bits.
fn sample(sum: i32) -> u8 {
    (sum >> PRECISION).clamp(0, 255) as u8
}

/// Half a unit of the result, so that the shift rounds.
const HALF: i32 = 1 << (PRECISION - 1);

/// The picture with `width` x `height` pixels, without regard to its proportions.
///
/// # Errors
/// If the size is 0 or has more than 16,777,216 pixels.
pub fn resize(picture: &Picture, width: u32, height: u32, filter: ResizeFilter) -> Result<Picture> {
    let pixels = u64::from(width) * u64::from(height);
    if pixels == 0 || pixels > MAX_PIXELS {
        return Err(refused(format!(
            "an image cannot be resized to {width} x {height} pixels; from 1 to {MAX_PIXELS} are allowed"
        )));
    }
    if (picture.width(), picture.height()) == (width, height) {
        return Ok(picture.clone());
    }
    let across = LineTaps::new(picture.width(), width, filter);
    let down = LineTaps::new(picture.height(), height, filter);
    let row_bytes = 3 * width as usize;
    let mut resized = zeroed(row_bytes * height as usize)?;
    // Rows that are resized across, in a ring as large as the largest window: windows only move down.
    let mut ring = zeroed(row_bytes * down.stride)?;
    let mut sources = picture.rgb().chunks_exact(3 * picture.width() as usize);
    let mut ready = 0;
    let mut sums = vec![0; row_bytes];
    for (to, (first, weights)) in resized.chunks_exact_mut(row_bytes).zip(down.windows()) {
        let end = first + weights.len();
        for (row, source) in (ready..end).zip(&mut sources) {
            let slot = row % down.stride * row_bytes;
            resize_row(source, &across, &mut ring[slot..slot + row_bytes]);
        }
        ready = ready.max(end);
        sums.fill(HALF);
        for (row, weight) in (first..).zip(weights) {
            let slot = row % down.stride * row_bytes;
            for (sum, value) in sums.iter_mut().zip(&ring[slot..slot + row_bytes]) {
                *sum = sum.wrapping_add(i32::from(*value).wrapping_mul(*weight));
            }
        }
        for (to, sum) in to.iter_mut().zip(&sums) {
            *to = sample(*sum);
        }
    }
    Picture::from_rgb(width, height, resized)
}

/// Resizes one row of RGB pixels.
fn resize_row(from: &[u8], taps: &LineTaps, to: &mut [u8]) {
    for (pixel, (first, weights)) in to.chunks_exact_mut(3).zip(taps.windows()) {
        let mut sums = [HALF; 3];
        for (source, weight) in from[3 * first..].chunks_exact(3).zip(weights) {
            for (sum, value) in sums.iter_mut().zip(source) {
                *sum = sum.wrapping_add(i32::from(*value).wrapping_mul(*weight));
            }
        }
        pixel.copy_from_slice(&sums.map(sample));
    }
}
