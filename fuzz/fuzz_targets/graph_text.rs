//! Parses any bytes as the text of a graph: an error with its line, or a graph that prints
//! and checks without a panic. A graph without faults parses back unchanged and can be
//! planned.
#![no_main]

use girih_graph::{Graph, ScratchPlan, faults};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let graph = match text.parse::<Graph>() {
        Ok(graph) => graph,
        Err(error) => return assert!(error.to_string().starts_with("line ")),
    };
    let printed = graph.to_string();
    if faults(&graph).is_empty() {
        assert_eq!(printed.parse().as_ref(), Ok(&graph));
        ScratchPlan::of(&graph);
    }
});
