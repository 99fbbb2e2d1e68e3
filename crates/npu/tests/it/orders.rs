//! The logits do not depend on the order of events that have no fixed order. With the tests run 30
//! seeded orders, and a few of each of five shapes of heads. 1,000 orders of each on the small
//! array, and 100 of each shape on the full one, all with weights in bf16 and in Q4NX, run with
//!
//! ```text
//! cargo test --release --locked -p girih-npu --test it orders -- --ignored --nocapture
//! ```

use girih_graph::backend::{Block, Input, Range32, Unwatched};
use girih_graph::{Outputs, Sequence, Step, load};
use girih_npu::pass::{ArrayMapping, ArrayWeights, AttentionPlacement, Grouping, Policy};
use girih_npu::sim::EventOrder;
use girih_npu::{Npu, NpuOptions};

use crate::llama::{LlamaSizes, SMALL, key, llama};
use crate::random::RandomWeights;

const PROMPT: [u32; 11] = [1, 17, 300, 4, 250, 99, 12, 13, 14, 511, 0];

const ONE: LlamaSizes = LlamaSizes { layers: 1, ..SMALL };

/// Shapes of heads: of 20 and 24 values, of 256 values, which arrive in several chunks, groups of 3
/// and of 6 query heads, and a window.
const SHAPES: [(&str, LlamaSizes); 5] = [
    ("heads of 20", LlamaSizes { heads: 4, kv_heads: 2, head: 20, ..ONE }),
    ("heads of 24 in groups of 3", LlamaSizes { heads: 6, kv_heads: 2, head: 24, ..ONE }),
    ("heads of 16 in groups of 6", LlamaSizes { heads: 6, kv_heads: 1, head: 16, ..ONE }),
    ("heads of 256", LlamaSizes { heads: 2, kv_heads: 1, head: 256, ..ONE }),
    ("a window of 5", LlamaSizes { window: Some(5), ..ONE }),
];

/// The bits of all logits of a prompt's rows and of a further token, with attention of single rows
/// on the array.
fn logits(
    sizes: &LlamaSizes,
    target: &str,
    (grouping, weights): (Grouping, ArrayWeights),
    order: EventOrder,
) -> Vec<u32> {
    let policy = Policy { grouping, attention: AttentionPlacement::Array };
    let mapping = ArrayMapping { weights, ..ArrayMapping::from(policy) };
    let npu = Npu::new(target, NpuOptions { order, ..NpuOptions::default() }).unwrap().with_mapping(mapping);
    let largest = girih_graph::Key { output_rows: 16, context: 128, ..key(16) };
    let mut runner = load(npu, &RandomWeights(7), largest, &[2], |key| Ok(llama(sizes, key))).unwrap();
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

fn seeded_orders_agree(
    name: &str,
    sizes: &LlamaSizes,
    (target, grouping): (&str, Grouping),
    seeds: std::ops::Range<u64>,
) {
    for weights in [ArrayWeights::Bf16, ArrayWeights::Q4nx] {
        let want = logits(sizes, target, (Grouping::Stitched, weights), EventOrder::Earliest);
        assert_eq!(want.len(), (PROMPT.len() + 1) * sizes.vocabulary);
        let mut agreed = 0;
        for seed in seeds.clone() {
            let found = logits(sizes, target, (grouping, weights), EventOrder::Seeded(seed));
            assert!(found == want, "{name} on {target}, {weights:?}: seed {seed} gives other logits");
            agreed += 1;
        }
        let count = want.len();
        println!("{target}, {name}, {weights:?}: {agreed} orders give the same {count} logits, bit for bit");
    }
}

fn every_shape(target: (&str, Grouping), seeds: std::ops::Range<u64>) {
    for (name, sizes) in &SHAPES {
        seeded_orders_agree(name, sizes, target, seeds.clone());
    }
}

#[test]
fn thirty_orders_give_the_same_logits() {
    seeded_orders_agree("three layers", &SMALL, ("toy", Grouping::Stitched), 0..30);
}

#[test]
fn one_order_of_every_shape_gives_the_same_logits() {
    every_shape(("toy", Grouping::Stitched), 0..1);
    every_shape(("xdna2-strix", Grouping::Stitched), 0..1);
}

/// Resident launches do not wait for the tasks of their operands.
#[test]
fn some_orders_of_resident_launches_give_the_same_logits() {
    seeded_orders_agree("three layers", &SMALL, ("toy", Grouping::Resident), 0..4);
    every_shape(("toy", Grouping::Resident), 0..1);
    every_shape(("xdna2-strix", Grouping::Resident), 0..1);
}

#[test]
#[ignore = "takes minutes"]
fn a_hundred_orders_of_resident_launches_of_every_shape_give_the_same_logits() {
    every_shape(("toy", Grouping::Resident), 0..100);
    every_shape(("xdna2-strix", Grouping::Resident), 0..100);
}

#[test]
#[ignore = "takes minutes"]
fn a_thousand_orders_give_the_same_logits() {
    seeded_orders_agree("three layers", &SMALL, ("toy", Grouping::Stitched), 0..1000);
}

#[test]
#[ignore = "takes minutes"]
fn a_thousand_orders_of_every_shape_give_the_same_logits_on_the_toy_array() {
    every_shape(("toy", Grouping::Stitched), 0..1000);
}

#[test]
#[ignore = "takes minutes"]
fn a_hundred_orders_of_every_shape_give_the_same_logits_on_the_full_array() {
    every_shape(("xdna2-strix", Grouping::Stitched), 0..100);
}
