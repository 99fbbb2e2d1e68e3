//! A rectangle of a picture as a picture of its own.

use girih_tensor::Result;

use crate::picture::Picture;
use crate::zeroed::zeroed;

/// The rectangle of this width and height at this place, which lies within the picture.
pub(crate) fn crop(picture: &Picture, [left, top]: [u32; 2], [width, height]: [u32; 2]) -> Result<Picture> {
    let (stride, row) = (3 * picture.width() as usize, 3 * width as usize);
    let mut rgb = zeroed(row * height as usize)?;
    let lines = picture.rgb().chunks_exact(stride).skip(top as usize);
    for (to, line) in rgb.chunks_exact_mut(row).zip(lines) {
        to.copy_from_slice(&line[3 * left as usize..][..row]);
    }
    Picture::from_rgb(width, height, rgb)
}
