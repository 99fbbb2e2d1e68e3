//! The tests of the published tables, the report and the search.

mod families;
#[path = "../../../npu/tests/it/llama.rs"]
mod llama;
mod published;
mod report;
mod sweep;
