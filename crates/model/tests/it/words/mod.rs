//! Text to ids and back.

mod golden;
