//! Tests of the binary and of what needs it.

mod batches;
mod calls;
mod encoders;
mod help;
mod hub;
mod interrupted;
mod little_memory;
mod messages;
mod names;
mod nll;
mod npu;
mod npu_verify;
mod program;
mod quantize;
mod random_model;
mod same;
mod settings;
mod speed;
mod story;
mod templates;
mod terminal;
mod text;
mod verify;
