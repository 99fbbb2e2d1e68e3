//! Blocks of zeros are left out of matrices, and no result depends on it.

use girih_cpu::kernels::{Table, tables};
use girih_cpu::{Cpu, CpuOptions, ZeroBlocks};
use girih_graph::backend::Input;
use girih_graph::{Act, Builder, Graph, Op, RouterScore, Weighed};
use girih_tensor::{DType, Shape};

use crate::fixture::{Random, Source, TestSequence, finish, key, on, step};
use crate::two_layers::{Model, logits, model};

fn with(table: Table, threads: usize, zero_blocks: ZeroBlocks) -> Cpu {
    Cpu::with_table(CpuOptions { threads, zero_blocks, ..CpuOptions::default() }, table).unwrap()
}

/// A model whose matrices have zeros, also its table, which is its head.
fn sparse(weights: DType) -> (Graph, Source) {
    let graph = model(Model { width: 256, weights, ..Model::default() });
    let mut source = Source::random(&graph, &mut Random(weights as u64));
    source.zero_units(&graph, weights.tile().1.max(32), &mut Random(3));
    (graph, source)
}

#[test]
fn logits_do_not_depend_on_what_is_left_out() {
    let tokens: Vec<u32> = (0..40).map(|at| at * 7 % 50).collect();
    for weights in [DType::F32, DType::BF16, DType::Q4_0, DType::Q4_1, DType::Q8_0, DType::Q6_K, DType::MXFP4]
    {
        let (graph, source) = sparse(weights);
        for &table in tables() {
            let kept = &mut *on(with(table, 2, ZeroBlocks::Keep), &graph, &source, 4);
            assert!(kept.densities().is_empty());
            let want = logits(kept, &tokens, 40);
            let skipped = &mut *on(with(table, 3, ZeroBlocks::Skip), &graph, &source, 4);
            let densities = skipped.densities();
            assert!(densities.len() > 8, "{weights}: {densities:?}");
            assert!(densities.iter().all(|(_, density)| *density <= 0.9), "{densities:?}");
            for chunk in [1, 7, 40] {
                assert!(logits(skipped, &tokens, chunk) == want, "{} {weights}, {chunk} rows", table.name);
            }
        }
    }
}

#[test]
fn a_matrix_with_few_zeros_keeps_them() {
    let graph = model(Model { width: 256, weights: DType::Q4_0, ..Model::default() });
    let mut source = Source::random(&graph, &mut Random(5));
    let first = source.0.get_mut("layers.0.q.weight").unwrap();
    for row in first.chunks_exact_mut(8 * 18).take(32) {
        row[..18].fill(0);
    }
    let runner = on(with(tables()[0], 1, ZeroBlocks::Skip), &graph, &source, 4);
    assert!(runner.densities().is_empty(), "{:?}", runner.densities());
}

/// Experts have their units in one memory, each its own.
#[test]
fn experts_do_not_depend_on_what_is_left_out() {
    let mut builder = Builder::new(key(40, 64));
    let x = builder.input("embed", &[256], DType::F32);
    let router = builder.weight("router", Shape::matrix(4, 256), DType::F32);
    let scores = builder.shaped("scores", Op::Linear, &[x, router], &[4]);
    let score = RouterScore::Softmax;
    let route = Op::Route { score, near: None, used: 2, normalized: Some(0.0), groups: None, factor: None };
    let weights = builder.same("chosen", route, &[scores]);
    let stack = |rows, columns| Shape::new(&[4, rows, columns]).unwrap();
    let up = builder.weight("up", stack(96, 256), DType::Q4_0);
    let down = builder.weight("down", stack(256, 96), DType::Q4_0);
    let op = Op::Experts { used: 2, act: Act::Silu, limit: None, offset: None, weighed: Weighed::Results };
    let y = builder.shaped("y", op, &[x, weights, up, down], &[256]);
    let graph = finish(builder, y);
    let mut source = Source::random(&graph, &mut Random(6));
    source.zero_units(&graph, 32, &mut Random(7));
    let values: Vec<f32> = (0..40 * 256).map(|at| (at * 31 % 101) as f32 / 50.0 - 1.0).collect();
    for &table in tables() {
        let bits = |zero_blocks, chunk: usize| {
            let runner = &mut *on(with(table, 2, zero_blocks), &graph, &source, 4);
            let held = runner.densities().len();
            assert_eq!(held, if zero_blocks == ZeroBlocks::Skip { 3 } else { 0 });
            let mut all = Vec::new();
            for (index, rows) in values.chunks(chunk * 256).enumerate() {
                let sequence = TestSequence::new(0, (index * chunk) as u32, (rows.len() / 256) as u32);
                all.extend(step(runner, Input::Rows(rows), &[sequence]).into_iter().map(f32::to_bits));
            }
            all
        };
        let want = bits(ZeroBlocks::Keep, 40);
        for chunk in [1, 5, 40] {
            assert!(bits(ZeroBlocks::Skip, chunk) == want, "{}, {chunk} rows", table.name);
        }
    }
}
