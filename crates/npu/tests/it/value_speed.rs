//! The time to compute values: one layer of Llama-3.2-1B with a prompt of 2048
//! tokens. Also a benchmark:
//!
//! ```text
//! cargo test --release --locked -p girih-npu --test it value_speed -- --ignored --nocapture
//! ```

use std::time::Instant;

use girih_graph::backend::{Block, Input, Range32, Unwatched};
use girih_graph::{Backend as _, Output as _, Outputs, Sequence, Step};
use girih_npu::{Npu, NpuOptions};

use crate::llama::{LLAMA_1B, LlamaSizes, key, llama};
use crate::random::RandomWeights;

/// The time limit for the prefill of one layer on one core, in seconds.
const SECONDS: f64 = 60.0;

#[test]
#[ignore = "takes ten seconds in a release build and minutes in a debug build"]
fn a_layer_of_llama_1b_is_computed_in_a_minute() {
    // With a small vocabulary, the head takes almost no time.
    let sizes = LlamaSizes { layers: 1, vocabulary: 512, ..LLAMA_1B };
    for hazards in [true, false] {
        let npu = Npu::new("xdna2-strix", NpuOptions { hazards, ..NpuOptions::default() }).unwrap();
        let graph = llama(&sizes, key(2048));
        let weights = npu.load(&graph, &RandomWeights(7)).unwrap();
        let program = npu.compile(&graph, &weights).unwrap();
        let mut state = npu.state(&graph, &[32]).unwrap();
        let tokens: Vec<u32> = (0..2048).map(|at| at * 37 % 512).collect();
        let blocks: Vec<Block> = (0..32).map(Block).collect();
        let blocks: &[&[Block]] = &[&blocks];
        let rows = Range32 { start: 0, end: 2048 };
        let sequence = Sequence { blocks, position: 0, rows, outputs: Outputs::Last, spans: &[] };
        let mut output = npu.output(&graph).unwrap();
        let inputs = &[Input::Ids(&tokens)];
        let step = Step { inputs, sequences: &[sequence], watch: &mut Unwatched };
        let begun = Instant::now();
        npu.run(&program, &weights, &mut state, &mut output, step).unwrap();
        let seconds = begun.elapsed().as_secs_f64();
        println!("one layer, 2048 rows, hazard check: {hazards}: {seconds:.1} s");
        assert!(output.rows(0..1).unwrap().iter().all(|logit| logit.is_finite()));
        assert!(seconds < SECONDS, "{seconds} s");
    }
}
