//! Measures loading and tokens of the shape of Llama-3.2-1B whose layers are doubled, and of one whose layers differ, with
//! equal weights shared and with each in memory of its own. All of them run in turns, and logits must have equal bits.
//!
//! ```text
//! cargo test --release --locked -p girih-cpu --test it equal_weight_speed -- --ignored --nocapture
//! ```

use std::time::Instant;

use girih_cpu::{Cpu, CpuOptions, EqualWeights};
use girih_graph::{Error, Graph, Runner, WeightSource, load};
use girih_tensor::{DType, Shape};

use crate::fixture::{Random, stored_values};
use crate::zero_block_speed::{PROMPT, WIDTH, llama, measure};

const ROUNDS: usize = 5;

/// Random weights, in which each layer may be followed by its copy.
struct Layered {
    graph: Graph,
    /// Some blocks of Q4_0 and of Q6_K.
    blocks: [Vec<u8>; 2],
    doubled: bool,
}

impl WeightSource for Layered {
    fn read(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        let (_, weight) =
            self.graph.weights().find(|(_, weight)| weight.name == name).expect("it has the weight");
        let blocks = match weight.dtype {
            DType::Q4_0 => &self.blocks[0],
            DType::Q6_K => &self.blocks[1],
            _ => {
                into.chunks_exact_mut(4).for_each(|number| number.copy_from_slice(&0.1_f32.to_le_bytes()));
                return Ok(());
            }
        };
        let each = weight.dtype.block_bytes();
        let number =
            |digits: &str| digits.parse::<usize>().map_or(0, |layer| layer / (1 + usize::from(self.doubled)));
        let layer = name.split('.').nth(1).map_or(0, number);
        let own = name.bytes().filter(|byte| byte.is_ascii_alphabetic()).map(usize::from).sum::<usize>();
        let first = offset as usize / each + layer * 1013 + own * 31;
        for (index, block) in (first..).zip(into.chunks_exact_mut(each)) {
            let from = index * 7919 % (blocks.len() / each) * each;
            block.copy_from_slice(&blocks[from..from + each]);
        }
        Ok(())
    }
}

fn loaded(source: &Layered, equal_weights: EqualWeights) -> (Box<dyn Runner>, f64) {
    let cpu = Cpu::new(CpuOptions { threads: 2, equal_weights, ..CpuOptions::default() }).unwrap();
    let blocks = vec![16; source.graph.groups.len()];
    let begun = Instant::now();
    let runner = load(cpu, source, source.graph.key, &blocks, |_| Ok(source.graph.clone())).unwrap();
    (runner, begun.elapsed().as_secs_f64())
}

#[test]
#[ignore = "a measurement; takes minutes on an idle machine in a release build"]
fn equal_weight_speed() {
    let rows = Random(1).numbers(PROMPT * WIDTH);
    let stored = |dtype, seed| stored_values(dtype, &Shape::matrix(256, 2048), &mut Random(seed));
    for doubled in [false, true] {
        let blocks = [stored(DType::Q4_0, 3), stored(DType::Q6_K, 4)];
        let source = Layered { graph: llama(), blocks, doubled };
        let mut ratios = [const { Vec::new() }; 3];
        for round in 0..=ROUNDS {
            let [keep, share] = [EqualWeights::Keep, EqualWeights::Share].map(|equal_weights| {
                let (mut runner, seconds) = loaded(&source, equal_weights);
                let (times, bits) = measure(&mut *runner, &rows);
                if round == 0 {
                    println!("doubled {doubled}, {equal_weights:?}: {}", runner.tuning().unwrap_or_default());
                }
                ([seconds, times[0], times[1]], bits)
            });
            assert!(keep.1 == share.1, "logits have equal bits");
            if round > 0 {
                let both = keep.0.iter().zip(share.0);
                ratios.iter_mut().zip(both).for_each(|(ratios, (keep, share))| ratios.push(share / keep));
            }
        }
        for (mut ratios, name) in ratios.into_iter().zip(["load", "token", "prompt of 512"]) {
            ratios.sort_by(f64::total_cmp);
            let (middle, last) = (ratios[ROUNDS / 2], ratios[ROUNDS - 1]);
            println!(
                "doubled {doubled}, {name}: {middle:.3} times the seconds ({:.3} to {last:.3})",
                ratios[0]
            );
        }
    }
}
