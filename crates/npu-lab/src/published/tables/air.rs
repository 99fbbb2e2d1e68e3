//! Reads the tables of mlir-air: kernels with their tiles, and the breakdown of a model.

use girih_tensor::Result;

use super::row::{RowReading, TableRow, all_sizes, micros, number, operations, sizes, tile_and_herd};
use crate::published::attend::AirAttention;
use crate::published::breakdown::{self, ATTENTION};
use crate::published::design::divides;
use crate::published::gemm::{AirGemm, GemmOutput};
use crate::published::gemv::AirGemv;
use crate::published::measurement::Measurement;
use crate::published::rows::{RowKernel, herd};
use crate::published::workload::Workload;

/// Columns and rows of the matmuls whose tile names no herd.
const GEMM_HERD: [u64; 2] = [8, 4];

/// A row with a shape, a tile and a rate. `cast` adds a launch that rounds the result.
fn gemm(
    row: &TableRow<'_>,
    label: &str,
    entry: &'static str,
    out: GemmOutput,
    cast: bool,
) -> Result<RowReading> {
    let [m, k, n] = all_sizes("the shape", row.cell(1))?;
    let ([tile_m, k_l2, k_l1, tile_n], named) = tile_and_herd(row.cell(2))?;
    let [columns, rows] = named.unwrap_or(GEMM_HERD);
    if columns < rows {
        return Ok(RowReading::Skipped(
            "its herd has fewer columns than rows, and each row needs a column that reads B".to_owned(),
        ));
    }
    let gemm = AirGemm { entry, m, k, n, tile_m, tile_n, k_l2, k_l1, out, herd: herd(columns, rows)? };
    let (plan, label) = if cast {
        (Workload::GemmAndCast(gemm), format!("{label} {}", row.cell(1)))
    } else {
        (Workload::Gemm(gemm), format!("{label} {} {}", row.cell(1), row.cell(2)))
    };
    let time = number(row.cell(3)).map(|rate| operations([m, k, n], 1e-3) / rate);
    Ok(row.measured(time, |time| Measurement::new(row.file, label, time, plan)))
}

/// Matmuls with results in f32. A row that compares tiles has two rates; each is a reading.
pub(super) fn gemm_f32(row: &TableRow<'_>) -> Result<Vec<RowReading>> {
    let shaped = row.cell(1).contains('×');
    Ok(if row.is_of("EXTERNAL") && shaped {
        vec![gemm(row, "external", "gemm_bf16", GemmOutput::F32, false)?]
    } else if row.is_of("DIRECT") && shaped {
        vec![gemm(row, "direct", "gemm_bf16_direct", GemmOutput::F32, false)?]
    } else if row.is_of("tile choice") {
        let Some([m, k, n]) = named_shape(row.cell(1))? else {
            return Ok(vec![RowReading::Skipped("its shape is not stated".to_owned())]);
        };
        let [k_l2] = sizes(row.cell(2))?;
        let with = |(tile_n, rate): (u64, usize)| {
            let herd = (GEMM_HERD[0] as u8, GEMM_HERD[1] as u8);
            let out = GemmOutput::F32;
            let gemm = AirGemm { entry: "gemm_bf16", m, k, n, tile_m: 64, tile_n, k_l2, k_l1: 32, out, herd };
            let time = number(row.cell(rate)).map(|rate| operations([m, k, n], 1e-3) / rate);
            let label = format!("external {} n={tile_n}", row.cell(1));
            row.measured(time, |time| Measurement::new(row.file, label, time, Workload::Gemm(gemm)))
        };
        vec![with((64, 3)), with((128, 4))]
    } else {
        vec![RowReading::no_figure()]
    })
}

/// The shape of a text such as `2048³`, `Down (K=8192)` or `2048×2048×512`, if it states one.
fn named_shape(text: &str) -> Result<Option<[u64; 3]>> {
    if let Some(cube) = text.strip_suffix('³') {
        let [side] = sizes(cube)?;
        return Ok(Some([side; 3]));
    }
    if text.contains('×') {
        return all_sizes("the shape", text).map(Some);
    }
    // The projection of Llama-3.2-1B, with the 2048 rows of all other rows of the page.
    Ok((text == "Down (K=8192)").then_some([2048, 8192, 2048]))
}

/// Matmuls with results in bf16.
pub(super) fn gemm_bf16(row: &TableRow<'_>) -> Result<RowReading> {
    if !row.cell(1).contains('×') || !row.cell(2).contains('/') {
        return Ok(RowReading::no_figure());
    }
    // The heading of drained rows ends with "fastest at small / thin shapes".
    let has = |part: &str| row.cell(0).contains(part);
    if has("fused-cast") {
        gemm(row, "fused cast", "gemm_bf16", GemmOutput::F32, true)
    } else if has("low-precision") {
        gemm(row, "low", "gemm_bf16_low", GemmOutput::Bf16, false)
    } else if has("drain") || has("thin shapes") {
        gemm(row, "drain", "gemm_bf16", GemmOutput::Drained, false)
    } else {
        Ok(RowReading::Skipped("its heading names no known method".to_owned()))
    }
}

/// Matrix-vector products.
pub(super) fn gemv(row: &TableRow<'_>) -> Result<RowReading> {
    if row.cell(0) != "Tested shapes" || !row.cell(1).contains('×') {
        return Ok(RowReading::no_figure());
    }
    let ([m, k], [columns, tile_m, rows]) =
        (all_sizes("the shape", row.cell(1))?, all_sizes("the tile", row.cell(2))?);
    let gemv = AirGemv { m, k, herd: herd(columns, 1)?.0, tile_m, rows };
    let label = format!("{} {}", row.cell(1), row.cell(2));
    let make = |time| Measurement::new(row.file, label, time, Workload::Gemv(gemv));
    Ok(row.measured(micros(row.cell(3)), make))
}

/// A table of a kernel on elements, and the sizes that its rows do not state.
struct ElementTable {
    entry: &'static str,
    inputs: usize,
    /// Elements, tile and herd, for rows that vary another parameter and do not
    /// state them.
    n: u64,
    tile: u64,
    herd: [u64; 2],
}

fn elements(row: &TableRow<'_>, kind: &ElementTable) -> Result<RowReading> {
    let ElementTable { entry, inputs, n, tile, herd: [columns, rows] } = *kind;
    let tunable = row.is_of("Tunable");
    let (label, time, n, tile, [columns, rows]) = if row.cell(0) == "Tested shapes" {
        if !row.cell(3).contains('/') {
            return Ok(RowReading::no_figure());
        }
        let ([x, y, tile], [n]) = (all_sizes("the tile", row.cell(3))?, sizes(row.cell(1))?);
        (format!("n={n} {}", row.cell(3)), micros(row.cell(4)), n, tile, [x, y])
    } else if tunable && row.column == "herd" && row.cell(1).contains('×') {
        let herd = sizes(row.cell(1))?;
        // Some tables have a rate, in GB/s, instead of a time.
        let bytes = (n * 2 * (inputs as u64 + 1)) as f64;
        let rate = || number(row.cell(3)).map(|rate| bytes / rate * 1e-3);
        (format!("herd {}", row.cell(1)), row.latency().or_else(rate), n, tile, herd)
    } else if tunable && (row.column == "cols" || row.column == "herd_x") {
        let [x] = sizes(row.cell(1))?;
        (format!("columns {x}"), row.latency(), n, tile, [x, 1])
    } else if tunable && row.column == "tile_n" {
        let [tile] = sizes(row.cell(1))?;
        (format!("tile {tile}"), row.latency(), n, tile, [columns, rows])
    } else {
        return Ok(RowReading::no_figure());
    };
    divides("the number of elements", n, tile).map_err(|error| error.of(&label))?;
    let kernel = RowKernel::elements(entry, inputs, n, tile, herd(columns, rows)?);
    Ok(row.measured(time, |time| Measurement::new(row.file, label, time, Workload::Rows(kernel))))
}

/// Additions.
pub(super) fn add(row: &TableRow<'_>) -> Result<RowReading> {
    elements(row, &ElementTable { entry: "add", inputs: 2, n: 4_194_304, tile: 2048, herd: [8, 1] })
}

/// Products of SiLU and another operand.
pub(super) fn silu(row: &TableRow<'_>) -> Result<RowReading> {
    elements(row, &ElementTable { entry: "silu_mul", inputs: 2, n: 16_777_216, tile: 4096, herd: [8, 1] })
}

/// GELU.
pub(super) fn gelu(row: &TableRow<'_>) -> Result<RowReading> {
    elements(row, &ElementTable { entry: "gelu", inputs: 1, n: 3_145_728, tile: 4096, herd: [8, 2] })
}

/// A norm with `constants` vectors of weights. Rows that vary the herd do not state their
/// `shape`, rows and values of a row.
fn norm(row: &TableRow<'_>, entry: &'static str, shape: [u64; 2], constants: usize) -> Result<RowReading> {
    let ([m, n], [columns]) = match row.cell(0) {
        "Tested shapes" if row.cell(1).contains('×') => {
            (all_sizes("the shape", row.cell(1))?, sizes(row.cell(2))?)
        }
        "herd_x choice vs performance" => (shape, sizes(row.cell(1))?),
        _ => return Ok(RowReading::no_figure()),
    };
    let kernel = RowKernel {
        entry,
        numbers: vec![1, n, n, 1],
        inputs: vec![n * 2],
        output: n * 2,
        constants: vec![n * 2; constants],
        calls: m,
        herd: herd(columns, 1)?,
        contiguous: true,
    };
    let label = format!("{m}×{n} columns {columns}");
    let make = |time| Measurement::new(row.file, label, time, Workload::Rows(kernel));
    Ok(row.measured(row.latency(), make))
}

/// RMSNorm.
pub(super) fn rms_norm(row: &TableRow<'_>) -> Result<RowReading> {
    norm(row, "rms_norm", [2048, 2048], 1)
}

/// LayerNorm.
pub(super) fn layer_norm(row: &TableRow<'_>) -> Result<RowReading> {
    norm(row, "layer_norm", [1024, 768], 2)
}

/// Rotations of rows of a head's size.
pub(super) fn rope(row: &TableRow<'_>) -> Result<RowReading> {
    let tunable = row.is_of("Tunable");
    let ([n, size], [x, y], time) = if row.cell(0) == "Tested shapes" {
        let ([n], [size]) = (sizes(row.cell(1))?, sizes(row.cell(2))?);
        ([n, size], sizes(row.cell(3))?, row.latency())
    } else if tunable && row.column == "herd_x" {
        let [x] = sizes(row.cell(1))?;
        (ROPE_SHAPE, [x, 1], row.latency())
    } else if tunable && row.column == "herd" {
        // A rate in GB/s: rows, their angles and the results, two bytes a value.
        let bytes = (ROPE_SHAPE[0] * ROPE_SHAPE[1] * 2 * 3) as f64;
        (ROPE_SHAPE, sizes(row.cell(1))?, number(row.cell(3)).map(|rate| bytes / rate * 1e-3))
    } else {
        return Ok(RowReading::no_figure());
    };
    let kernel = RowKernel {
        entry: "rope_halves",
        numbers: vec![1, 1, size],
        inputs: vec![size * 2; 2],
        output: size * 2,
        constants: Vec::new(),
        calls: n,
        herd: herd(x, y)?,
        contiguous: true,
    };
    let label = format!("{n}×{size} herd {x}×{y}");
    Ok(row.measured(time, |time| Measurement::new(row.file, label, time, Workload::Rows(kernel))))
}

/// Rows and values of a row where a table varies the herd.
const ROPE_SHAPE: [u64; 2] = [65536, 64];

/// FlashAttention.
pub(super) fn flash(row: &TableRow<'_>) -> Result<RowReading> {
    if row.cell(0) == "Tested shapes" && row.cell(1).contains('×') {
        let [rows, keys] = all_sizes("the shape", row.cell(1))?;
        let [size, values] = all_sizes("the size of a head", row.cell(2))?;
        let [heads] = sizes(row.cell(3))?;
        let attend =
            AirAttention { rows, keys, size, values, heads, causal: row.cell(4) == "✓", ..ATTENTION };
        let label = format!("{} d{} heads {}", row.cell(1), row.cell(2), row.cell(3));
        let make = |time| Measurement::new(row.file, label, time, Workload::Attention(attend)).elf();
        return Ok(row.measured(micros(row.cell(6)), make));
    }
    if !row.is_of("tile choice") || row.column != "lqp" {
        return Ok(RowReading::no_figure());
    }
    // Published as a rate, with half the work: 2 matmuls of 32 heads.
    let ([q_tiles], [heads_abreast]) = (sizes(row.cell(2))?, sizes(row.cell(3))?);
    let attend =
        AirAttention { q_tiles: herd(q_tiles, 1)?.0, heads_abreast: herd(heads_abreast, 1)?.0, ..ATTENTION };
    let time = number(row.cell(6)).map(|rate| 2.0 * 32.0 * 2048.0 * 2048.0 * 64.0 / rate * 1e-3);
    let make = |time| {
        Measurement::new(row.file, format!("{q_tiles} query tiles"), time, Workload::Attention(attend)).elf()
    };
    Ok(row.measured(time, make))
}

/// Times of the programs of [`breakdown::launches`].
pub(super) fn breakdown(row: &TableRow<'_>) -> Result<RowReading> {
    let Some(launches) = breakdown::launches(row.cell(0), row.cell(1)) else {
        let host = ["BO ", "NPU run", "cpu ", "python"].iter().any(|begin| row.cell(1).starts_with(begin));
        let reason = if host { "it is work of the host" } else { "its launches are not known" };
        return Ok(RowReading::Skipped(reason.to_owned()));
    };
    let label = format!("{} {}", row.cell(0), row.cell(1));
    let make = |millis| Measurement::new(row.file, label, millis * 1e3, Workload::Program(launches)).elf();
    Ok(row.measured(number(row.cell(3)), make))
}
