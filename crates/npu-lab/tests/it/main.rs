//! The tests of the published tables, the report and the search.

#[path = "../../../npu/tests/llama/mod.rs"]
mod llama;
mod published;
mod report;
mod sweep;
