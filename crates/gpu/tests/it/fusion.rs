//! Nodes that one launch computes have the bytes that they have alone.

use girih_graph::Runner;
use girih_graph::backend::Watch;
use girih_graph::testing::{Case, draw_block, draw_decoder};
use girih_tensor::{DType, Shape};

use crate::emulated::emulated;
use crate::opened::{adapter, open};

/// Wants all values, or none.
struct Values {
    all: bool,
    count: usize,
}

impl Watch for Values {
    fn wants(&self, _: &str) -> bool {
        self.all
    }

    fn value(&mut self, _: &str, _: &Shape, _: &[f32]) {
        self.count += 1;
    }
}

/// The results of a case in one step, and the number of values that were watched.
fn results(name: &str, case: &Case, all: bool) -> (Vec<u32>, usize) {
    let built = |key| Ok(case.graph_at(key));
    let mut runner: Box<dyn Runner> =
        open(name).load(&case.weights, case.graph.key, &case.blocks(), &built).expect("the layers run");
    let mut watch = Values { all, count: 0 };
    let rows = case.run_watched(&mut *runner, &case.whole(), &mut watch).expect("the step runs");
    (rows.into_iter().map(f32::to_bits).collect(), watch.count)
}

#[test]
fn watched_values_change_no_byte() {
    let Some(name) = adapter() else {
        eprintln!("skipped: this machine has no adapter; Mesa's software Vulkan is one");
        return;
    };
    let _open = open(name);
    let seeds = std::env::var("GIRIH_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(24);
    for seed in 0..seeds {
        let case = draw_block(seed);
        // Integers without scales.
        if !open(name).refuses(&case.graph).is_empty() {
            continue;
        }
        compare(name, seed, &case);
    }
}

#[test]
fn watched_values_change_no_byte_of_the_kernels_for_cuda() {
    let Some(name) = emulated() else { return };
    let _open = open(name);
    for seed in 0..6 {
        compare(name, seed, &draw_decoder(seed, DType::Q4_0, DType::F16));
    }
}

/// Compares results with those of a step whose values are watched, so that no launch computes several nodes.
fn compare(name: &str, seed: u64, case: &Case) {
    let [(fused, none), (alone, all)] = [false, true].map(|all| results(name, case, all));
    assert!(none == 0 && all > 10, "{all} values were watched");
    assert_eq!(fused, alone, "seed {seed}, {}", case.name);
}
