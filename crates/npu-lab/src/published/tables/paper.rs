//! Reads the tables of matmuls on Krackan and Phoenix: arXiv 2512.13282, and the megatiles of
//! the Gemma 3 mapping.

use girih_tensor::{Error, Result};

use super::row::{RowReading, TableRow, all_sizes, number, operations, sizes};
use crate::published::design::divides;
use crate::published::measurement::Measurement;
use crate::published::paper::PaperGemm;
use crate::published::workload::Workload;

/// The entry of a precision, and the bytes of an operand's element and of the result's.
const PRECISIONS: &[(&str, &str, [u64; 2])] = &[
    ("int8-int8", "gemm_int8_i8", [1, 1]),
    ("int8-int16", "gemm_int8_i16", [1, 2]),
    ("int8-int32", "gemm_int8", [1, 4]),
    ("bf16-bf16", "gemm_bf16_tuned", [2, 2]),
];

/// Matmuls of tables 1 to 3 of arXiv 2512.13282.
pub(super) fn balance(row: &TableRow<'_>) -> Result<RowReading> {
    let skipped = |reason: &str| Ok(RowReading::Skipped(reason.to_owned()));
    let short = row.cell(2).contains("k_mt=k_ct");
    if row.is_of("1_single_core") {
        return skipped("it is the rate of one core, which the figures of the kernels are derived from");
    }
    if !row.cell(0).ends_with("_array") && !short {
        return skipped("its tiles in L2 are not stated");
    }
    let precision = row.cell(2).split(' ').next().unwrap_or_default();
    let Some((_, entry, [input, output])) = PRECISIONS.iter().find(|(name, ..)| *name == precision) else {
        return skipped("no entry has its precision");
    };
    let value = |at: usize| {
        let missing = |_| Error::new(format!("{:?} has no size in field {at}", row.cells));
        sizes(row.cell(at)).map(|[size]| size).map_err(missing)
    };
    // The paper states only that the short runs were measured at about 4096.
    let [m, k, n] = if short { [4224, 4032, 4224] } else { [value(10)?, value(11)?, value(12)?] };
    let xdna2 = match row.cell(1) {
        "XDNA" => false,
        "XDNA2" => true,
        _ => return skipped("no target is its device: known are XDNA and XDNA2"),
    };
    let [tile_m, tile_k, tile_n] = [value(3)?, value(4)?, value(5)?];
    let herd = if xdna2 { (8, 4) } else { (4, 4) };
    // Double buffers of A and B and one of the result fill the table's L2.
    let c = u64::from(herd.0 * herd.1) * tile_m * tile_n * output;
    let side = u64::from(herd.1) * tile_m + u64::from(herd.0) * tile_n;
    let deep_k = if short {
        tile_k
    } else {
        (value(8)? * 1024).saturating_sub(c) / (2 * input * side) / tile_k * tile_k
    };
    let (input, output) = (*input, *output);
    let (tiled_b, a_feeds) = (false, 1);
    let gemm =
        PaperGemm { entry, m, k, n, tile_m, tile_k, tile_n, input, output, herd, deep_k, tiled_b, a_feeds };
    let label = format!("{} {} {m}×{k}×{n} {tile_m}×{tile_k}×{tile_n}", row.cell(1), row.cell(2));
    let target = if xdna2 { "xdna2-kraken" } else { "xdna1-phoenix" };
    let time = number(row.cell(13)).map(|tops| operations([m, k, n], 1e-6) / tops);
    let make = |time| Measurement::new(row.file, label, time, Workload::PaperGemm(gemm)).on(target);
    Ok(row.measured(time, make))
}

/// The sides of the matmul that the megatiles were measured on.
const MEGATILE_MATMUL: u64 = 2048;

/// Bytes of L1 that buffers may use: 63 KiB (mlir-aie architecture.md).
const L1_BYTES: u64 = 63 << 10;

/// A matmul in bf16 whose results are computed in megatiles of `m × k × n`, one tile for each core.
///
/// By the text, columns of cores share A and rows share B. With 128 rows, B would pass the streams of
/// four rows of cores in 4.7 ms, and 2.9 ms were measured. So rows share A here, and columns B, as
/// in arXiv 2512.13282.
pub(super) fn megatile(row: &TableRow<'_>) -> Result<RowReading> {
    let [m, deep_k, n] = all_sizes("the megatile", row.cell(0))?;
    let (herd, size, side) = ((8, 4), 2, MEGATILE_MATMUL);
    divides("the megatile's m", m, u64::from(herd.1))?;
    divides("the megatile's n", n, u64::from(herd.0))?;
    let (tile_m, tile_n) = (m / u64::from(herd.1), n / u64::from(herd.0));
    // The tile in L1 is not stated. The longest power of two leaves the fewest calls.
    let fits = |k: &u64| 2 * (tile_m + tile_n) * k * size + tile_m * tile_n * size <= L1_BYTES;
    let tile_k = (3..=MEGATILE_MATMUL.ilog2()).map(|bits| 1 << bits).filter(fits).max();
    let Some(tile_k) = tile_k.map(|k: u64| k.min(deep_k)) else {
        return Ok(RowReading::Skipped("its tiles do not fit L1".to_owned()));
    };
    let gemm = PaperGemm {
        entry: "gemm_bf16_tuned",
        m: side,
        k: side,
        n: side,
        tile_m,
        tile_k,
        tile_n,
        input: size,
        output: size,
        herd,
        deep_k,
        // At 76 GB/s, writes included, runs are longer than the 1024 bytes of a row; the paper
        // writes weights to DRAM itself, in any order. One channel for each row of cores would read
        // A for 1.2 of 1.25 ms, and the channels beside it are free.
        tiled_b: true,
        a_feeds: 2,
    };
    let time = number(row.cell(1)).map(|tops| operations([side; 3], 1e-6) / tops);
    let label = format!("{side}³ in {m}×{deep_k}×{n}");
    let make = |time| Measurement::new(row.file, label, time, Workload::PaperGemm(gemm)).on("xdna2-kraken");
    Ok(row.measured(time, make))
}
