//! Images compared with what Pillow and transformers make of them, and files that must be refused.

mod data;
mod decoding;
mod hostile;
mod preprocessing;
