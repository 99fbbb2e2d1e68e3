//! Tests of the binary and of what needs it.

mod batches;
mod calls;
mod encoders;
mod hub;
mod interrupted;
mod little_memory;
mod messages;
mod nll;
mod npu;
mod npu_verify;
mod program;
mod quantize;
mod random_model;
mod same;
mod speed;
mod story;
mod templates;
mod terminal;
mod text;
mod verify;
