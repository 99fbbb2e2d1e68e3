//! Tests of the binary and of what needs it.

mod calls;
mod nll;
mod npu;
mod program;
mod same;
mod story;
mod templates;
mod verify;
mod words;
