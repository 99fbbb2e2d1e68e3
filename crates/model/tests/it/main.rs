//! The integration tests of the model crate, in one program.

mod hub;
