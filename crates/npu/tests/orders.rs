//! The logits do not depend on the order of events that have no fixed order: 30
//! seeded orders with the tests, 1,000 with
//!
//! ```text
//! cargo test --release --locked -p girih-npu --test orders -- --ignored
//! ```

mod llama;
mod random;

use girih_graph::backend::{Block, Input, Range32, Unwatched};
use girih_graph::{Outputs, Sequence, Step, load};
use girih_npu::pass::{AttentionPlacement, Policy};
use girih_npu::sim::EventOrder;
use girih_npu::{Npu, NpuOptions};
use llama::{SMALL, key, llama};
use random::RandomWeights;

const PROMPT: [u32; 11] = [1, 17, 300, 4, 250, 99, 12, 13, 14, 511, 0];

/// The bits of all logits of a prompt's rows and of a further token.
fn logits(order: EventOrder) -> Vec<u32> {
    let policy = Policy { attention: AttentionPlacement::Array, ..Policy::MLIR_AIR };
    let npu = Npu::new("toy", NpuOptions { policy, order, ..NpuOptions::default() }).unwrap();
    let largest = girih_graph::Key { output_rows: 16, context: 128, ..key(16) };
    let mut runner = load(npu, &RandomWeights(7), largest, &[2], |key| Ok(llama(&SMALL, key))).unwrap();
    let blocks: &[&[Block]] = &[&[Block(0), Block(1)]];
    let (mut position, mut bits) = (0, Vec::new());
    for tokens in [&PROMPT[..], &[500]] {
        let rows = Range32 { start: 0, end: tokens.len() as u32 };
        let sequences = [Sequence { blocks, position, rows, outputs: Outputs::All, spans: &[] }];
        let (inputs, watch) = (&[Input::Ids(tokens)], &mut Unwatched);
        runner.step(Step { inputs, sequences: &sequences, watch }).unwrap();
        position += tokens.len() as u32;
        let output = runner.output().rows(0..tokens.len()).unwrap();
        bits.extend(output.iter().map(|logit| logit.to_bits()));
    }
    bits
}

fn seeded_orders_agree(seeds: std::ops::Range<u64>) {
    let want = logits(EventOrder::Earliest);
    assert_eq!(want.len(), (PROMPT.len() + 1) * SMALL.vocabulary);
    let mut agreed = 0;
    for seed in seeds {
        assert!(logits(EventOrder::Seeded(seed)) == want, "seed {seed} gives other logits");
        agreed += 1;
    }
    println!("{agreed} seeded orders give the same {} logits, bit for bit", want.len());
}

#[test]
fn thirty_orders_give_the_same_logits() {
    seeded_orders_agree(0..30);
}

#[test]
#[ignore = "takes minutes"]
fn a_thousand_orders_give_the_same_logits() {
    seeded_orders_agree(0..1000);
}
