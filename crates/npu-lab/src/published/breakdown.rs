//! The published breakdown of mlir-air's Llama-3.2-1B: its programs as lists of
//! launches, its passes, and the host's share.

use super::attend::AirAttention;
use super::gemm::{AirGemm, GemmOutput};
use super::gemv::AirGemv;
use super::rows::RowKernel;
use super::workload::Workload;

/// Published host work in a pass of the breakdown.
#[derive(Clone, Debug, PartialEq)]
pub struct HostTime {
    /// `prefill` or `decode`.
    pub phase: String,
    /// The name of the work.
    pub work: String,
    /// Milliseconds in the pass.
    pub millis: f64,
}

/// The host's rows of the breakdown: CPU work, and buffer objects written and
/// read. Rows without a single number are left out.
pub fn host_times(breakdown: &str) -> Vec<HostTime> {
    let time = |line: &str| {
        let fields: Vec<&str> = line.split(',').collect();
        let (phase, work, millis) = (fields.first()?, fields.get(1)?, fields.get(5)?);
        let host = ["cpu ", "BO ", "python"].iter().any(|start| work.starts_with(start));
        let millis = millis.parse().ok().filter(|_| host)?;
        Some(HostTime { phase: (*phase).to_owned(), work: (*work).to_owned(), millis })
    };
    breakdown.lines().filter_map(time).collect()
}

/// The sizes of the breakdown's model in prefill.
struct BreakdownModel {
    layers: u64,
    rows: u64,
    width: u64,
    /// Width of all keys, and of all values.
    key_width: u64,
    /// Width of the feed-forward network.
    inner_width: u64,
}

const MODEL: BreakdownModel =
    BreakdownModel { layers: 16, rows: 2048, width: 2048, key_width: 512, inner_width: 8192 };

/// Rows and layers of the breakdown's model, and the operations of one layer's
/// matmuls in prefill.
pub fn llama_layers() -> (u64, u64, u64) {
    let BreakdownModel { layers, rows, width, key_width, inner_width } = MODEL;
    (rows, layers, 2 * rows * width * (2 * width + 2 * key_width + 3 * inner_width))
}

/// A pass through the breakdown's model.
pub(super) struct ModelPass {
    pub phase: &'static str,
    /// Its programs, and how often each runs.
    pub programs: &'static [(&'static str, f64)],
    /// The published range of its array time, in milliseconds.
    pub millis: (f64, f64),
}

pub(super) const PASSES: &[ModelPass] = &[
    ModelPass {
        phase: "prefill",
        programs: &[("o_ffn", 16.0), ("flash_attn", 16.0), ("rms_gemms_rope", 16.0), ("lm_head_gemv", 1.0)],
        millis: (1060.0, 1130.0),
    },
    ModelPass {
        phase: "decode",
        programs: &[("o_gemv_ffn", 16.0), ("rms_gemv_rope", 16.0), ("lm_head_gemv", 1.0)],
        millis: (82.0, 92.0),
    },
];

/// The attention of a prefill of 2048 rows of Llama-3.2-1B, tiled as published.
pub(super) const ATTENTION: AirAttention = AirAttention {
    rows: 2048,
    keys: 2048,
    size: 64,
    values: 64,
    heads: 32,
    causal: true,
    q_tiles: 4,
    heads_abreast: 2,
};

/// The launches of a program of the breakdown; none if the program is unknown. Each
/// matmul is one launch, so its results are written to DRAM; each launch
/// configures the array again.
pub(super) fn launches(phase: &str, program: &str) -> Option<Vec<Workload>> {
    Some(match (phase, program) {
        ("prefill", "o_ffn") => o_ffn(),
        ("prefill", "rms_gemms_rope") => rms_gemms_rope(),
        ("prefill", "flash_attn") => vec![Workload::Attention(ATTENTION)],
        ("decode", "o_gemv_ffn") => o_gemv_ffn(),
        ("decode", "rms_gemv_rope") => rms_gemv_rope(),
        (_, "lm_head_gemv") => vec![gemv(16384, MODEL.width); 8],
        _ => return None,
    })
}

fn o_ffn() -> Vec<Workload> {
    let BreakdownModel { rows, width, inner_width: inner, .. } = MODEL;
    let sum = Workload::Rows(RowKernel::elements("add", 2, rows * width, 2048, (8, 1)));
    let gate = Workload::Rows(RowKernel::elements("silu_mul", 2, rows * inner, 4096, (8, 1)));
    vec![
        gemm(width, width),
        sum.clone(),
        rms_norm(rows),
        gemm(width, inner),
        gemm(width, inner),
        gate,
        gemm(inner, width),
        sum,
    ]
}

fn rms_gemms_rope() -> Vec<Workload> {
    let BreakdownModel { rows, width, key_width: keys, .. } = MODEL;
    let rotate = |width: u64| rope(rows * width / 64, 8);
    vec![
        rms_norm(rows),
        gemm(width, width),
        gemm(width, keys),
        gemm(width, keys),
        rotate(width),
        rotate(keys),
    ]
}

fn o_gemv_ffn() -> Vec<Workload> {
    let BreakdownModel { width, inner_width: inner, .. } = MODEL;
    let sum = Workload::Rows(RowKernel::elements("add", 2, width, width / 8, (8, 1)));
    let gate = Workload::Rows(RowKernel::elements("silu_mul", 2, inner, inner / 8, (8, 1)));
    vec![
        gemv(width, width),
        sum.clone(),
        rms_norm(1),
        gemv(inner, width),
        gemv(inner, width),
        gate,
        gemv(width, inner),
        sum,
    ]
}

fn rms_gemv_rope() -> Vec<Workload> {
    let BreakdownModel { width, key_width: keys, .. } = MODEL;
    vec![
        rms_norm(1),
        gemv(width, width),
        gemv(keys, width),
        gemv(keys, width),
        rope(width / 64, 1),
        rope(keys / 64, 1),
    ]
}

fn gemm(k: u64, n: u64) -> Workload {
    Workload::Gemm(AirGemm {
        entry: "gemm_bf16",
        m: MODEL.rows,
        k,
        n,
        tile_m: 32,
        tile_n: 128,
        k_l2: 256,
        k_l1: 32,
        out: GemmOutput::Drained,
        herd: (8, 4),
    })
}

fn gemv(m: u64, k: u64) -> Workload {
    let tile_m = if k > 4096 { 2 } else { 8 };
    Workload::Gemv(AirGemv { m, k, herd: 8, tile_m, rows: tile_m.min(4) })
}

/// A norm of rows of the model's width; each row uses one column, up to eight.
fn rms_norm(rows: u64) -> Workload {
    let n = MODEL.width;
    Workload::Rows(RowKernel {
        entry: "rms_norm",
        numbers: vec![1, n, n, 1],
        inputs: vec![n * 2],
        output: n * 2,
        constants: vec![n * 2],
        calls: rows,
        herd: (rows.min(8) as u8, 1),
        contiguous: true,
    })
}

fn rope(heads: u64, columns: u8) -> Workload {
    Workload::Rows(RowKernel {
        entry: "rope_halves",
        numbers: vec![1, 1, 64],
        inputs: vec![128; 2],
        output: 128,
        constants: Vec::new(),
        calls: heads,
        herd: (columns, 1),
        contiguous: true,
    })
}
