//! Tests of the library on the built-in model.

mod drafts;
mod given;
mod hooks;
mod sessions;
mod starts;
