//! Interprets a model's files: turns them into facts, weights and graphs. It has
//! no code for text, networks or devices, and does no arithmetic on activations.
#![forbid(unsafe_code)]

mod adapter;
mod adapter_config;
mod adapter_stack;
pub mod arch;
mod as_gguf;
mod assemble;
mod assistant_files;
mod assistant_parts;
mod draft_files;
mod expert_rows;
mod frame_rows;
#[doc(hidden)]
pub mod fuzz;
mod generation;
mod image_order;
mod json;
mod latent_rows;
mod limits;
mod lone_weight;
mod made_weight;
mod merged_weight;
mod mlx_config;
mod model;
mod modules;
mod one_position;
mod pixel_rows;
mod projector_file;
mod quantized_weight;
mod row_cut;
mod rows_part;
mod shape;
mod special_floats;
mod stored_format;
mod tensor_names;
mod tensor_place;
mod tensor_rows;
mod tile_shapes;
mod tower_files;
mod tower_part;
mod weight_bytes;
mod weight_entry;
mod weights;

pub use adapter::{AdapterFiles, TensorChange};
pub use as_gguf::StatedYarn;
pub use assemble::{GraphOptions, TOWER_HIDDEN, TOWER_ROWS, layer_output};
pub use assistant_files::AssistantFiles;
pub use draft_files::DraftFiles;
pub use generation::{GenerationConfig, Ids};
pub use image_order::ImageOrder;
pub use limits::ModelLimits;
pub use model::{Embedded, ModelFiles};
pub use quantized_weight::QuantizationError;
pub use shape::ModelShape;
pub use stored_format::{fitting_format, is_exact};
pub use tensor_place::rows_in_tensor;
pub use tensor_rows::interleaved_row;
pub use tile_shapes::padded_in_q4nx;
pub use tower_files::{ImageInputs, TowerFiles};
pub use tower_part::TowerPart;
pub use weights::ModelWeights;
