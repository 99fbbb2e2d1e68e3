//! From the bytes of an image file to rows of numbers for an image tower.
//!
//! [`Picture::decode`] reads PNG, JPEG, WebP, GIF and BMP under [`DecodeLimits`]. [`Preprocess`] resizes a
//! picture as Pillow up to version 12 does it, bit for bit, and cuts it into patches.
//!
//! ```
//! use girih_image::{Picture, Preprocess, ResizeFilter, TargetSize, ValueOrder};
//!
//! let picture = Picture::from_rgb(2, 1, vec![255, 0, 0, 0, 0, 255])?;
//! let preprocess = Preprocess {
//!     size: TargetSize::Fixed { width: 4, height: 4 },
//!     filter: ResizeFilter::Bilinear,
//!     rescale: 1.0 / 255.0,
//!     mean: [0.5; 3],
//!     std: [0.5; 3],
//!     patch: 2,
//!     frames: 1,
//!     order: ValueOrder::ByChannel,
//! };
//! let rows = preprocess.rows(&picture, 1)?;
//! assert_eq!((rows.down, rows.across, rows.values.len()), (2, 2, 4 * 12));
//! # Ok::<(), girih_image::Error>(())
//! ```
#![forbid(unsafe_code)]

mod crop;
mod crops;
mod exif;
mod formats;
#[doc(hidden)]
pub mod fuzz;
mod limits;
mod orientation;
mod patches;
mod picture;
mod raster;
mod resize;
mod tiles;
mod zeroed;

pub use crops::PictureCrops;
pub use girih_tensor::{Error, ErrorKind, Result};
pub use limits::DecodeLimits;
pub use patches::{PatchRows, Preprocess, TargetSize, ValueOrder, video_size};
pub use picture::Picture;
pub use resize::{ResizeFilter, resize};
pub use tiles::{PictureTiling, Tiles};
