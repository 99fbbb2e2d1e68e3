//! Interprets a model's files: turns them into facts, weights and graphs. It has
//! no code for text, networks or devices, and does no arithmetic on activations.
#![forbid(unsafe_code)]

pub mod arch;
mod as_gguf;
mod assemble;
mod assistant_files;
mod assistant_parts;
mod draft_files;
mod expert_rows;
#[doc(hidden)]
pub mod fuzz;
mod generation;
mod latent_rows;
mod limits;
mod model;
mod modules;
mod one_position;
mod row_cut;
mod rows_part;
mod shape;
mod special_floats;
mod tensor_names;
mod tensor_place;
mod tensor_rows;
mod weight_bytes;
mod weights;

pub use as_gguf::StatedYarn;
pub use assemble::{GraphOptions, layer_output};
pub use assistant_files::AssistantFiles;
pub use draft_files::DraftFiles;
pub use generation::{GenerationConfig, Ids};
pub use limits::ModelLimits;
pub use model::{Embedded, ModelFiles};
pub use shape::ModelShape;
pub use tensor_place::rows_in_tensor;
pub use weights::{ModelWeights, interleaved_row};
