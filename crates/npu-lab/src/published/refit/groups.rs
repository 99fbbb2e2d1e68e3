//! The figures that are fitted to rows, and what each is without them.

use std::sync::LazyLock;

use girih_npu::Target;

use super::chain::{Chain, ROW_OF_GEMV};
use super::figures::{CORE, Derivation, FigurePlace, FigureValues, FittedFigure, KRAKEN, PHOENIX, STRIX};
use super::loop_schedule::{AIE2P, LOAD, PRODUCT, STORE, SUM};
use super::vector_loops::loop_cycles;

/// Figures that are fitted together to the same rows.
pub(super) struct FitGroup {
    pub figures: Vec<FittedFigure>,
    /// The rows, by the names of their fits.
    pub fits: &'static [&'static str],
    /// Rows that replace them if all are left out: table and beginning of the label.
    pub spare: &'static [(&'static str, &'static str)],
}

/// All figures that are fitted to rows of the built-in tables, those of the machine first.
pub(super) static GROUPS: LazyLock<Vec<FitGroup>> = LazyLock::new(|| {
    let mut groups = machine();
    groups.extend(loops());
    groups.extend([gemv()]);
    groups.extend(products());
    groups.push(attention());
    groups.push(configuring());
    groups.extend(other_boards());
    groups
});

/// All fitted figures.
pub(super) fn figures() -> impl Iterator<Item = &'static FittedFigure> {
    GROUPS.iter().flat_map(|group| &group.figures)
}

/// The fit of attention, which also decides the cost of configuring a byte.
const ATTENTION_FIT: &str = "cycles of attend and attend_merge, configuring a byte";

/// The fit of each loop over vectors.
const LOOP_FITS: &[(&str, &[&str])] = &[
    ("add.vector", &["cycles of add"]),
    ("rope_halves.head", &["cycles of rope_halves"]),
    ("silu_mul.vector", &["cycles of silu_mul"]),
    ("gelu.vector", &["cycles of gelu"]),
    ("rms_norm.vector", &["cycles of rms_norm"]),
    ("layer_norm.vector", &["cycles of layer_norm"]),
];

/// Cycles of loading and storing the accumulators of a block of 16×16: 16 vectors of 64 bytes each way,
/// two loads and one store a cycle (mm_aie2p.cc).
const ACCUMULATORS: f64 = 8.0 + 16.0;

/// The first pass through a pipelined loop of products.
pub(super) const PIPELINE: f64 = (LOAD + PRODUCT) as f64;

/// A step of a GEMV on 64 terms: 256 bytes are loaded in two cycles, multiplied, and added to a sum that stays f32.
/// Both wait, as `mv.cc` is compiled for the interface of AIE2 (`__AIEARCH__ 20`), which AIE2P emulates.
const STEP_OF_GEMV: f64 = (1 + LOAD + PRODUCT + SUM + STORE) as f64;

/// The loops of a softmax over 32 scores in attn_npu2.cc: maximum, power of two, sum, and the factor of the
/// sums so far.
const SOFTMAX: Chain = Chain { trips: 4, products: 2, sums: 4, functions: 1 };

/// The loops that merge 32 sums: two products by factors and a sum.
const MERGE: Chain = Chain { trips: 3, products: 2, sums: 1, functions: 0 };

/// Vectors of 16 values in the 32 values of a step of attention.
const VECTORS: f64 = 2.0;

/// Steps of a block of attention's products: 64 terms, of a head or of keys, 8 in a step.
const STEPS: f64 = 64.0 / 8.0;

/// Rows of less than 250 µs of other kernels than RoPE: a dispatch is a large part of each.
const SMALL_ROWS: &[(&str, &str)] = &[
    ("mlir_air_kernel_EltwiseAdd_bf16.csv", "n=1048576 "),
    ("mlir_air_kernel_GELU_bf16.csv", "n=1048576 "),
    ("mlir_air_kernel_GEMV_bf16.csv", "512×2048 "),
];

fn group(figures: Vec<FittedFigure>, fits: &'static [&'static str]) -> FitGroup {
    FitGroup { figures, fits, spare: &[] }
}

fn derived(
    reason: &'static str,
    values: impl Fn(&FigureValues) -> Vec<f64> + Send + Sync + 'static,
) -> Option<Derivation> {
    Some(Derivation { values: Box::new(values), reason })
}

fn of_target(
    target: &'static str,
    path: &'static str,
    set: fn(&mut Target, f64),
    without: Option<Derivation>,
) -> FittedFigure {
    let place = FigurePlace::Target { target, path, set };
    FittedFigure { place, followers: &[], without }
}

/// The bandwidth of a target's DRAM; without rows, that which somebody measured.
fn dram(target: &'static str) -> FittedFigure {
    let path = "dram.measured_bytes_per_second";
    let without = derived(path, move |known| vec![known.of(target, path)]);
    of_target(target, "dram.bytes_per_second", |to, value| to.dram.bytes_per_second = value, without)
}

fn short_runs(target: &'static str, without: Option<Derivation>) -> FittedFigure {
    of_target(target, "dram.run_bytes", |to, value| to.dram.run_bytes = value, without)
}

fn machine() -> Vec<FitGroup> {
    let dispatch = of_target(STRIX, "control.dispatch_us", |to, value| to.control.dispatch_us = value, None);
    vec![
        FitGroup { spare: SMALL_ROWS, ..group(vec![dispatch], &["dispatch"]) },
        group(vec![dram(STRIX)], &["DRAM bandwidth of xdna2-strix"]),
        group(
            vec![short_runs(STRIX, derived("one burst of 64 bytes, a guess", |_| vec![64.0]))],
            &["cost of short runs in DRAM"],
        ),
    ]
}

/// A loop over vectors; without rows, it takes the cycles of its schedule.
fn scheduled(path: &'static str) -> FittedFigure {
    let cycles = move |_: &FigureValues| loop_cycles(AIE2P, path).into_iter().collect();
    let without = derived("the schedule of its loop, with published latencies", cycles);
    FittedFigure { place: FigurePlace::Kernel(path), followers: &[], without }
}

fn loops() -> impl Iterator<Item = FitGroup> {
    LOOP_FITS.iter().map(|&(path, fits)| group(vec![scheduled(path)], fits))
}

fn gemv() -> FitGroup {
    let row = derived("six halvings, each a sum", |_| vec![ROW_OF_GEMV.cycles()]);
    let step = derived("two loads, a product and a sum, with published latencies", |_| vec![STEP_OF_GEMV]);
    let step = FittedFigure { place: FigurePlace::Kernel("gemv_bf16.step"), followers: &[], without: step };
    let row = FittedFigure { place: FigurePlace::Kernel("gemv_bf16.row"), followers: &[], without: row };
    group(vec![step, row], &["row and step of gemv_bf16"])
}

/// The block of an entry of products; without rows, a call takes as long as one of `like`.
fn like(
    block: &'static str,
    step: &'static [&'static str],
    [entry, like]: [&'static str; 2],
    reason: &'static str,
) -> FittedFigure {
    let without = derived(reason, move |known| known.as_fast_as(like, entry));
    FittedFigure { place: FigurePlace::Kernel(block), followers: step, without }
}

fn products() -> Vec<FitGroup> {
    let reason = "16 loads, two a cycle, 16 stores, and once through the pipeline";
    let without = derived(reason, |_| vec![ACCUMULATORS + PIPELINE]);
    let external = FittedFigure { place: FigurePlace::Kernel("gemm_bf16.block"), followers: &[], without };
    let direct = like(
        "gemm_bf16_direct.block",
        &["gemm_bf16_direct.step"],
        ["gemm_bf16_direct", "gemm_bf16"],
        "as fast as gemm_bf16",
    );
    let low = like(
        "gemm_bf16_low.block",
        &["gemm_bf16_low.step"],
        ["gemm_bf16_low", "gemm_bf16_direct"],
        "as fast as gemm_bf16_direct",
    );
    vec![
        group(vec![external], &["block of gemm_bf16"]),
        group(vec![direct], &["block of gemm_bf16_direct"]),
        group(vec![low], &["block of gemm_bf16_low"]),
    ]
}

/// Softmax, scores, values and merges of attention, which keep the ratios that a profile gives them.
fn attention() -> FitGroup {
    let reason = "products as in gemm_bf16, the rest by the steps of its loops";
    let without = derived(reason, |known| {
        let product = known.of(CORE, "gemm_bf16.step") + known.of(CORE, "gemm_bf16.block") / STEPS;
        vec![SOFTMAX.cycles() / VECTORS, product, product, MERGE.cycles() / VECTORS]
    });
    let softmax = FittedFigure {
        place: FigurePlace::Kernel("attend.softmax"),
        followers: &["attend.scores", "attend.values", "attend_merge.vector"],
        without,
    };
    group(vec![softmax], &[ATTENTION_FIT])
}

/// The costs of a byte and of a tile, which each row of a configuration has both of.
fn configuring() -> FitGroup {
    let byte =
        of_target(STRIX, "control.configure_byte_ns", |to, value| to.control.configure_byte_ns = value, None);
    let tile =
        of_target(STRIX, "control.configure_tile_us", |to, value| to.control.configure_tile_us = value, None);
    group(vec![byte, tile], &["configuring a byte", "configuring a tile", ATTENTION_FIT])
}

fn other_boards() -> Vec<FitGroup> {
    let as_strix = derived("as xdna2-strix", |known| vec![known.of(STRIX, "dram.run_bytes")]);
    vec![
        group(vec![dram(KRAKEN)], &["DRAM bandwidth of xdna2-kraken"]),
        group(
            vec![dram(PHOENIX), short_runs(PHOENIX, as_strix)],
            &["DRAM bandwidth and cost of short runs of xdna1-phoenix"],
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_exists_and_derives_from_figures_that_exist() {
        let mut values = FigureValues::committed().unwrap();
        for figure in figures() {
            let (file, path) = figure.id();
            let before = values.of_figure(figure);
            assert!(before > 0.0, "{file} {path}");
            if let Some(without) = &figure.without {
                assert_eq!((without.values)(&values).len(), 1 + figure.followers.len(), "{file} {path}");
            }
            values.set(figure, before * 2.0);
            assert_eq!(values.of_figure(figure), before * 2.0, "{file} {path}");
        }
        assert!(values.simulator(STRIX, figures()).is_ok() && values.simulator("toy", figures()).is_err());
    }
}
