//! Figures that follow from counted instructions and from other figures. Tests compare the files of figures with them.

use std::collections::BTreeMap;

use girih_npu::kernel::ENTRIES;

use super::chain::ROW_OF_GEMV;
use super::figures::CORE;
use super::function_code::{CASCADE_LATENCY, LOCK_CYCLES, LOOP_END};
use super::groups::PIPELINE;
use super::kernel_code::{entry_cycles, program_bytes};
use super::loop_schedule::{AIE2, AIE2P};
use super::product_code::{SUMS, step_of_gemm, step_of_gemv};
use super::vector_loops::{loop_cycles, vector_loops};

/// The figures of the kernels of a kind of core that follow from their public sources, by path: bytes of code, cycles of
/// calls, and cycles of loops without a row in a table.
pub fn derived_kernel_figures(core: &str) -> BTreeMap<String, f64> {
    let unit = if core == CORE { AIE2P } else { AIE2 };
    let mut figures = BTreeMap::new();
    for entry in ENTRIES.iter().filter(|entry| unit == AIE2P || entry.name != "gemm_bfp16") {
        let name = entry.name;
        let of_code = [("program", program_bytes(unit, name)), ("call", entry_cycles(unit, name))];
        figures
            .extend(of_code.into_iter().filter_map(|(part, value)| Some((format!("{name}.{part}"), value?))));
        if vector_loops(unit, name).is_some() {
            let loop_name = if name.starts_with("rope") { "head" } else { "vector" };
            let path = format!("{name}.{loop_name}");
            figures.extend(loop_cycles(unit, &path).map(|cycles| (path, cycles)));
        }
    }
    if unit == AIE2 {
        figures.extend(products_of_aie2().map(|(path, value)| (path.to_owned(), value)));
    }
    // A product more than GELU, whose cycles are fitted.
    figures.remove("gelu_mul.vector");
    figures
}

/// The figures of a target's cores that follow from published latencies, by path.
pub fn derived_core_figures() -> [(&'static str, u32); 3] {
    [
        ("core_unit.lock_cycles", LOCK_CYCLES),
        ("core_unit.loop_cycles", LOOP_END),
        ("cascade.latency_cycles", CASCADE_LATENCY),
    ]
}

/// Products on AIE2, whose unit multiplies bf16 without a conversion: sums are loaded and stored around a pipelined loop.
fn products_of_aie2() -> [(&'static str, f64); 4] {
    let vectors = f64::from(AIE2.vectors(SUMS));
    [
        ("gemm_bf16.block", vectors / 2.0 + vectors + PIPELINE),
        ("gemm_bf16.step", f64::from(step_of_gemm(AIE2).cycles(AIE2))),
        ("gemv_bf16.row", ROW_OF_GEMV.cycles()),
        ("gemv_bf16.step", f64::from(step_of_gemv(AIE2).cycles(AIE2))),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use girih_npu::Target;
    use girih_npu::kernel::KernelTimes;
    use girih_npu::target::{Figure, Grade};

    use super::super::figures::{KRAKEN, PHOENIX, STRIX};
    use super::super::groups::figures as fitted_figures;
    use super::*;

    /// Figures that are fitted to rates of one core in tables 1 to 3 of arXiv 2512.13282.
    const RATES: &[&str] = &[
        "gemm_bf16_tuned.block",
        "gemm_bf16_tuned.step",
        "gemm_int8.block",
        "gemm_int8.step",
        "gemm_int8_i8.block",
        "gemm_int8_i16.block",
    ];

    /// Figures that are those of another entry.
    const SAME: &[(&str, &str)] = &[
        ("gemm_bfp16.block", "gemm_bf16.block"),
        ("gemm_bfp16.step", "gemm_bf16.step"),
        ("gemv_bf16_part.row", "gemv_bf16.row"),
        ("gemv_bf16_part.step", "gemv_bf16.step"),
        ("unpack_q4nx.group", "dequant_q4nx.group"),
        ("attend_scores.scores", "attend.scores"),
        ("attend_scores.softmax", "attend.softmax"),
        ("attend_values.values", "attend.values"),
    ];

    /// The figures of the kernels of a target's cores.
    fn kernels(target: &str) -> Vec<Figure> {
        KernelTimes::of(&Target::named(target).unwrap()).unwrap().figures().to_vec()
    }

    fn value(figures: &[Figure], path: &str) -> f64 {
        let found = figures.iter().find(|figure| figure.path == path).unwrap_or_else(|| panic!("{path}"));
        found.value.parse().unwrap()
    }

    /// Tiles of Q4NX: 16 cores take in 60 GB/s at 1.8 GHz, in tiles of 5,120 bytes with eight groups. AIE2 takes twice
    /// the cycles.
    fn of_tiles(path: &str, factor: f64) -> Option<f64> {
        let tile = (5120.0 * 16.0 * 1.8e9 / 60e9_f64).floor() * factor;
        match path {
            "gemv_q4nx.tile" => Some(tile),
            "dequant_q4nx.group" => Some((tile / 8.0 * 10.0).floor() / 10.0),
            _ => None,
        }
    }

    /// Every derived figure of a kernel is recomputed, that of another one, or fitted to rows of a table.
    #[test]
    fn every_derived_figure_of_kernels_is_recomputed_or_fitted() {
        for (target, core, factor) in [(STRIX, "aie2p", 1.0), (PHOENIX, "aie2", 2.0)] {
            let (all, derived) = (kernels(target), derived_kernel_figures(core));
            let followers = fitted_figures().flat_map(|figure| figure.followers.iter().copied());
            let fitted: BTreeSet<&str> =
                fitted_figures().map(|figure| figure.id().1).chain(followers).collect();
            for figure in all.iter().filter(|figure| figure.grade == Grade::Derived) {
                let path = figure.path.as_str();
                if RATES.contains(&path) || core == "aie2p" && fitted.contains(path) {
                    continue;
                }
                let same = SAME.iter().find(|(part, _)| *part == path).map(|(_, whole)| value(&all, whole));
                let gated = (path == "gelu_mul.vector").then(|| value(&all, "gelu.vector") + 8.0);
                let turned = (path == "rope_neighbours.head").then(|| value(&all, "rope_halves.head"));
                let best = (path == "gemm_bf16.step").then_some((2048.0 / 158.0_f64).round());
                let known = same.or(gated).or(turned).or(of_tiles(path, factor));
                let known = known.or_else(|| derived.get(path).copied()).or(best);
                assert_eq!(Some(value(&all, path)), known, "{core} {path}");
            }
        }
    }

    /// The numbers of guesses are those of `docs/npu.md`, with those of kernels.
    #[test]
    fn guesses_are_as_many_as_documented() {
        for (target, count) in [(STRIX, 24), (KRAKEN, 24), (PHOENIX, 46)] {
            let own = Target::named(target).unwrap().figures.clone();
            let all = own.into_iter().chain(kernels(target));
            let guessed: Vec<String> =
                all.filter(|figure| figure.grade == Grade::Guessed).map(|figure| figure.path).collect();
            assert_eq!(guessed.len(), count, "{target}: {guessed:?}");
        }
    }

    #[test]
    fn figures_of_cores_follow_from_latencies() {
        let strix = Target::named(STRIX).unwrap();
        for (path, cycles) in derived_core_figures() {
            let figure = strix.figures.iter().find(|figure| figure.path == path).unwrap();
            assert_eq!((figure.value.parse(), figure.grade), (Ok(cycles), Grade::Derived), "{path}");
        }
    }

    /// Rates of one core on AIE2P, in MAC a cycle, call included, within 3 %.
    #[test]
    fn products_have_the_rates_of_their_tables() {
        let all = kernels(STRIX);
        for (entry, [m, k, n], rate) in [
            ("gemm_bf16_tuned", [48, 152, 48], 158.1),
            ("gemm_bf16_tuned", [112, 48, 96], 137.2),
            ("gemm_int8", [48, 280, 48], 384.0),
            ("gemm_int8", [96, 64, 96], 256.0),
            ("gemm_int8_i8", [144, 72, 144], 343.0),
            ("gemm_int8_i16", [64, 216, 64], 419.8),
            ("gemm_int8_i16", [128, 72, 112], 307.2),
        ] {
            let of = |part: &str| value(&all, &format!("{entry}.{part}"));
            let block = of("block") + f64::from(k / 8) * of("step");
            let cycles = of("call") + f64::from(m / 16 * (n / 16)) * block;
            let simulated = f64::from(m * k * n) / cycles;
            assert!((simulated / rate - 1.0).abs() < 0.03, "{entry} {m}x{k}x{n}: {simulated}, {rate}");
        }
    }
}
