//! Text to ids and back.

mod bad;
mod golden;
mod long;
mod spans;
mod vocab;
