//! Emitted designs beside three public examples of mlir-aie, in locks and descriptors: the table of
//! `docs/silicon.md`.
//!
//! The examples are `programming_examples/basic` of mlir-aie: `vector_vector_add`,
//! `matrix_multiplication/single_core` as lowered in its `input_with_addresses.mlir`, and
//! `matrix_multiplication/matrix_vector`, whose object FIFOs become locks and descriptors in the same way.

use std::collections::{BTreeMap, BTreeSet};

use girih_npu::emit::emit;
use girih_npu::emit::mlir::{MlirAttribute, MlirOp};
use girih_npu::form::groups::Kernel;
use girih_npu::form::weights::WeightLayout;

use crate::emit::{TARGET, target};
use crate::locks::scheduled;

/// What a tile of a design has.
#[derive(Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct TileCounts {
    locks: usize,
    /// The first values of its locks.
    first: BTreeSet<i64>,
    descriptors: usize,
    /// Channels into the tile and out of it.
    channels: (usize, usize),
    /// What descriptors acquire and release.
    changes: BTreeSet<(i64, i64)>,
    /// Whether every descriptor leads to another.
    is_cyclic: bool,
    /// The dimensions of descriptors; one for a run.
    dims: BTreeSet<usize>,
}

/// The different tiles of a kernel's only launch, by the name of their DMA.
fn tiles(name: &str, kernel: Kernel) -> BTreeMap<&'static str, BTreeSet<TileCounts>> {
    let program = emit(&scheduled(name, kernel, TARGET), &target()).unwrap();
    let ops = &program.module.devices[0].ops;
    let mut found: BTreeMap<&'static str, BTreeSet<TileCounts>> = BTreeMap::new();
    for memory in ops.iter().filter(|op| matches!(op.name, "aie.mem" | "aie.memtile_dma")) {
        let mut counts = TileCounts { is_cyclic: true, ..TileCounts::default() };
        for lock in ops.iter().filter(|op| op.name == "aie.lock" && op.operands == memory.operands) {
            counts.locks += 1;
            counts.first.extend(lock.number("init"));
        }
        let blocks = &memory.regions[0].blocks;
        let end = blocks.iter().position(|block| block.ops[0].name == "aie.end").unwrap();
        for block in blocks {
            let value = |op: &MlirOp| op.number("value").unwrap();
            match &block.ops[..] {
                [start] if start.name == "aie.dma_start" => match start.number("channel_dir") {
                    Some(0) => counts.channels.0 += 1,
                    _ => counts.channels.1 += 1,
                },
                [acquire, bd, release, next] => {
                    counts.descriptors += 1;
                    counts.changes.insert((value(acquire), value(release)));
                    counts.is_cyclic &= next.successors != [end];
                    counts.dims.insert(match bd.attribute("dimensions") {
                        Some(MlirAttribute::Dims(dims)) => dims.len(),
                        _ => 1,
                    });
                }
                _ => {}
            }
        }
        found.entry(memory.name).or_default().insert(counts);
    }
    found
}

/// Locks with their first values, descriptors with what they change and their dimensions, channels in and out.
fn counts(
    locks: (usize, &[i64]),
    descriptors: (usize, &[(i64, i64)], &[usize]),
    channels: (usize, usize),
) -> TileCounts {
    TileCounts {
        locks: locks.0,
        first: locks.1.iter().copied().collect(),
        descriptors: descriptors.0,
        changes: descriptors.1.iter().copied().collect(),
        dims: descriptors.2.iter().copied().collect(),
        channels,
        is_cyclic: true,
    }
}

#[test]
fn emitted_tiles_have_the_documented_locks_and_descriptors() {
    let once: &[(i64, i64)] = &[(1, 1)];
    // The slices of a transfer acquire once and release once.
    let slices: &[(i64, i64)] = &[(0, 1), (1, 0), (1, 1)];
    // As in the example: three rings of two buffers.
    let add = tiles("add", Kernel::Add { n: 32_768 });
    assert_eq!(add["aie.mem"], [counts((6, &[0, 2]), (6, once, &[1]), (2, 1))].into());
    // The example has six descriptors: its result has two buffers.
    let gemm = Kernel::Gemm { m: 256, n: 256, k: 256, weights: WeightLayout::Rows };
    let gemm = tiles("gemm", gemm);
    assert_eq!(gemm["aie.mem"], [counts((6, &[0, 1, 2]), (5, once, &[1]), (2, 1))].into());
    // The example serves one core from a memory tile: six locks, twelve descriptors. Here it serves a column of four.
    let memory = [
        counts((10, &[0, 1, 2]), (14, slices, &[1, 4]), (5, 2)),
        counts((12, &[0, 1, 2]), (20, slices, &[1, 4]), (6, 3)),
    ];
    assert_eq!(gemm["aie.memtile_dma"], memory.into());
    // The example has six descriptors: each of its vectors has two buffers.
    let gemv = tiles("gemv", Kernel::Gemv { first: 0, n: 288, k: 288, weights: WeightLayout::Rows });
    assert_eq!(gemv["aie.mem"], [counts((6, &[0, 1, 2]), (5, once, &[1]), (2, 1))].into());
    assert!(!gemv.contains_key("aie.memtile_dma"), "matrices go from the shim to the core");
}
