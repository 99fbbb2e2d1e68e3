//! Numbers: element types, block formats, shapes, and reference arithmetic. This
//! crate has no notion of files, operators or devices.
//!
//! ```
//! use girih_tensor::{DType, View};
//!
//! let values: Vec<f32> = (0..64).map(|i| i as f32 - 32.0).collect();
//! let bytes = DType::Q8_0.pack_matrix(2, 32, &values)?;
//! let view = View::new(DType::Q8_0, 2, 32, &bytes)?;
//! let mut row = [0.0; 32];
//! view.unpack_rows(1..2, &mut row);
//! assert!((row[5] - values[37]).abs() <= 31.0 / 127.0 / 2.0);
//! # Ok::<(), girih_tensor::Error>(())
//! ```
#![forbid(unsafe_code)]

mod coded_group;
mod dtype;
mod error;
pub mod format;
mod q4nx_tiles;
pub mod random;
pub mod reference;
mod shape;
mod view;

pub use coded_group::{CodeKind, CodedGroup, coded_group};
pub use dtype::DType;
pub use error::{Error, ErrorKind, Result};
pub use format::{BlockFormat, Levels, Pack};
pub use q4nx_tiles::q4nx_tiles;
pub use random::Random;
pub use shape::Shape;
pub use view::View;
