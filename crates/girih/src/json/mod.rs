//! Options and requests from JSON, and replies as JSON, for bindings of other languages.
//!
//! Names of fields are those of the library, and of the JSON that the program prints. An unknown field is an error, and
//! `null` means that a field is absent.

mod fields;
mod options;
mod replies;
mod requests;
mod text;

pub use options::{open_options, options, run_options};
pub use replies::{event, text_spans};
pub use requests::{conversation, inputs, request};
pub use text::parse;
