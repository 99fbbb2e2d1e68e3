//! A picture as several images: tiles of equal size, and the whole picture. Source: transformers' `Idefics3ImageProcessor`.

use girih_tensor::Result;

use crate::crop::crop;
use crate::limits::refused;
use crate::picture::Picture;
use crate::resize::{ResizeFilter, resize};

/// The largest side in pixels of a picture that is cut into tiles (`MAX_IMAGE_SIZE` of that processor).
const MAX_EDGE: u32 = 4096;

/// The largest number of tiles of a picture: published models make 16.
const MAX_TILES: u32 = 1024;

/// How a picture becomes images of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PictureTiling {
    /// The pixels of the longer side to which a picture is resized first, with its proportions.
    pub edge: u32,
    /// The pixels of a side of an image.
    pub side: u32,
    /// Whether the picture is cut into tiles; else it is resized to one image.
    pub is_split: bool,
}

/// The images of a picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tiles {
    /// The tiles, row by row, and then the whole picture.
    pub images: Vec<Picture>,
    /// The rows and the columns of tiles; 0 if there is only the whole picture.
    pub grid: [u32; 2],
}

impl PictureTiling {
    /// The images of a picture, each of `side` x `side` pixels.
    ///
    /// # Errors
    /// If the rule has a side of 0 or would make a picture of more pixels than [`resize`] does.
    pub fn tiles(&self, picture: &Picture, filter: ResizeFilter) -> Result<Tiles> {
        let side = self.side;
        if side == 0 || self.edge == 0 || self.edge > MAX_EDGE || side > MAX_EDGE {
            return Err(refused(format!(
                "tiles of {side} pixels a side, of pictures with {} at the longer side, are not possible; from 1 to {MAX_EDGE} are",
                self.edge
            )));
        }
        let [width, height] = scaled([picture.width(), picture.height()], self.edge);
        let resized = resize(picture, width, height, filter)?;
        if !self.is_split {
            return Ok(Tiles { images: vec![resize(&resized, side, side, filter)?], grid: [0, 0] });
        }
        let [width, height] = filled([width, height], side);
        let (rows, columns) = (height / side, width / side);
        if rows.saturating_mul(columns) > MAX_TILES {
            return Err(refused(format!(
                "a picture would become {rows} rows of {columns} tiles; at most {MAX_TILES} tiles are possible"
            )));
        }
        let filled = resize(&resized, width, height, filter)?;
        if rows == 1 && columns == 1 {
            return Ok(Tiles { images: vec![filled], grid: [0, 0] });
        }
        let places = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        let mut images = places
            .map(|(row, column)| crop(&filled, [column * side, row * side], [side, side]))
            .collect::<Result<Vec<_>>>()?;
        images.push(resize(&filled, side, side, filter)?);
        Ok(Tiles { images, grid: [rows, columns] })
    }
}

/// The width and height with this longer side and about the same proportions. The shorter side is even. Products are
/// rounded as that processor's are.
fn scaled([width, height]: [u32; 2], edge: u32) -> [u32; 2] {
    let ratio = f64::from(width) / f64::from(height);
    let even = |side: f64| {
        let side = side as u32;
        (side + side % 2).max(1)
    };
    match width >= height {
        true => [edge, even(f64::from(edge) / ratio)],
        false => [even(f64::from(edge) * ratio), edge],
    }
}

/// The width and height in whole tiles, of which the longer side decides.
fn filled([width, height]: [u32; 2], side: u32) -> [u32; 2] {
    let ratio = f64::from(width) / f64::from(height);
    // A side is at least one tile: that processor refuses to resize to 0 pixels.
    let whole = |pixels: u32| pixels.div_ceil(side).max(1) * side;
    match width >= height {
        true => [whole(width), whole((f64::from(whole(width)) / ratio) as u32)],
        false => [whole((f64::from(whole(height)) * ratio) as u32), whole(height)],
    }
}
