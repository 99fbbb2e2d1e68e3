//! Reads the published tables: the design and the time of each row.

use girih_tensor::{Error, Result};

use super::attend::AirAttention;
use super::breakdown;
use super::design::divides;
use super::gemm::{AirGemm, GemmOutput};
use super::gemv::AirGemv;
use super::measurement::Measurement;
use super::paper::PaperGemm;
use super::rows::{RowKernel, herd};
use super::workload::Workload;

/// Reads the rows of a table with this file name, and adds a sentence for each row that is
/// skipped.
type TableReader = fn(&str, &[Vec<String>], &mut Vec<String>) -> Result<Vec<Measurement>>;

/// Files that lie beside published tables and are no measurements of launches, and why.
const OTHER_FILES: &[(&str, &str)] = &[
    ("gemm_gemma3_paper_megatile.csv", "its tiles in L1 are not stated"),
    ("npuw_llm_options_defaults.csv", "it lists options"),
    ("npuw_on_cpu_oracle_check.csv", "it compares tokens"),
    ("overheads_dispatch_reconfig.csv", "it lists overheads, which are figures of the targets"),
    ("power_seed001_table5.csv", "it lists power"),
    ("seed001_gemma3_kraken.csv", "its times are of whole models"),
    ("simulators.csv", "it lists simulators"),
    ("xdna_dpm_clocks.csv", "it lists clocks"),
];

/// Reads the measurements of a table that can be simulated. Adds a sentence to `skipped` for
/// each row without a figure, and for a file that has no measurements of launches.
///
/// # Errors
/// When the table is unknown, a measurement's row cannot be read, or its sizes do not fit its
/// tiles.
pub(super) fn measurements(file: &str, text: &str, skipped: &mut Vec<String>) -> Result<Vec<Measurement>> {
    let rows: Vec<Vec<String>> = text.lines().map(fields).collect();
    let read: TableReader = match file {
        "mlir_air_kernel_GEMM_bf16_in_fp32_out.csv" => gemm_f32,
        "mlir_air_kernel_GEMM_bf16_in_bf16_out.csv" => gemm_bf16,
        "mlir_air_kernel_GEMV_bf16.csv" => gemv,
        "mlir_air_kernel_EltwiseAdd_bf16.csv" => add,
        "mlir_air_kernel_SiLU_Mul_bf16.csv" => silu,
        "mlir_air_kernel_GELU_bf16.csv" => gelu,
        "mlir_air_kernel_RMSNorm_bf16.csv" => rms_norm,
        "mlir_air_kernel_LayerNorm_bf16.csv" => layer_norm,
        "mlir_air_kernel_RoPE_bf16.csv" => rope,
        "mlir_air_kernel_FlashAttention_bf16.csv" => flash,
        "gemm_xdna_xdna2_striking_the_balance.csv" => paper,
        "mlir_air_llama1b_kernel_breakdown.csv" => breakdown,
        _ => {
            let other = OTHER_FILES.iter().find(|(name, _)| *name == file);
            let (_, why) = other.ok_or_else(|| {
                let sentence =
                    "is an unknown table: the names of files tell their forms apart; correct its name";
                Error::new(sentence).of(file)
            })?;
            skipped.push(format!("{file}: {why}"));
            return Ok(Vec::new());
        }
    };
    let all = read(file, &rows, skipped).map_err(|error| error.of(file))?;
    let fits = |one: &Measurement| one.fits().map_err(|error| error.of(format!("{file} {}", one.label)));
    all.iter().try_for_each(fits)?;
    Ok(all)
}

/// The fields of a line of CSV; quoted fields may contain commas.
fn fields(line: &str) -> Vec<String> {
    let (mut all, mut field, mut quoted) = (Vec::new(), String::new(), false);
    for letter in line.chars() {
        match letter {
            '"' => quoted = !quoted,
            ',' if !quoted => all.push(std::mem::take(&mut field)),
            _ => field.push(letter),
        }
    }
    all.push(field);
    all
}

/// The largest size that a row may contain.
const MAX_TABLE_SIZE: u64 = 1 << 28;

/// The sizes in a text, with any separators.
fn numbers(text: &str) -> Vec<u64> {
    let parts = text.split(|letter: char| !letter.is_ascii_digit());
    let sizes = parts.filter_map(|part| part.parse().ok());
    sizes.filter(|size| (1..=MAX_TABLE_SIZE).contains(size)).collect()
}

/// The sizes of a tile, and its herd if the text names one: `64/512/32/128 (8×4)`.
fn tile_and_herd(text: &str) -> Result<([u64; 4], Option<[u64; 2]>)> {
    let named = text.split_once(['(', '@']).map(|(tile, herd)| (tile, Some(herd)));
    let (tile, herd) = named.unwrap_or((text, None));
    Ok((four(tile)?, herd.map(sizes).transpose()?))
}

/// The time of a row: the first field that has one.
fn latency(row: &[String]) -> Option<f64> {
    row.iter()
        .find(|field| field.contains("µs") || field.trim_end().ends_with("ms"))
        .and_then(|field| micros(field))
}

/// A figure of a row. Without one, the row is skipped.
fn figure(value: Option<f64>, row: &[String], skipped: &mut Vec<String>) -> Option<f64> {
    let value = value.filter(|value| *value > 0.0);
    if value.is_none() {
        skipped.push(format!("{}: the row has no time and no rate", row.join(",")));
    }
    value
}

/// The first `COUNT` sizes in a text.
fn sizes<const COUNT: usize>(text: &str) -> Result<[u64; COUNT]> {
    let found = numbers(text).first_chunk().copied();
    found.ok_or_else(|| Error::new(format!("{text:?} has too few sizes: {COUNT} are needed")))
}

/// The operations of a matmul, times `unit`.
fn operations([m, k, n]: [u64; 3], unit: f64) -> f64 {
    2.0 * unit * m as f64 * k as f64 * n as f64
}

/// The first number in a text, `437 µs`, or the middle of a range, `15.4–16.1 ms`.
fn number(text: &str) -> Option<f64> {
    let mut parts = text.split(|letter: char| !letter.is_ascii_digit() && letter != '.');
    let values: Vec<f64> = parts.by_ref().filter_map(|part| part.parse().ok()).collect();
    match (text.contains('–'), &values[..]) {
        (true, [low, high, ..]) => Some((low + high) / 2.0),
        (_, [value, ..]) => Some(*value),
        _ => None,
    }
}

fn micros(text: &str) -> Option<f64> {
    let value = number(text)?;
    Some(if text.contains("ms") { value * 1e3 } else { value })
}

fn four(text: &str) -> Result<[u64; 4]> {
    let all = numbers(text);
    all.try_into()
        .map_err(|all| Error::new(format!("the tile {text:?} has the sizes {all:?}: four are needed")))
}

fn three(text: &str) -> Result<[u64; 3]> {
    let all = numbers(text);
    all.try_into()
        .map_err(|all| Error::new(format!("the shape {text:?} has the sizes {all:?}: three are needed")))
}

/// The herd of the measured matmuls of mlir-air.
const GEMM_HERD: [u64; 2] = [8, 4];

fn gemm(
    file: &str,
    row: &[String],
    label: &str,
    entry: &'static str,
    out: GemmOutput,
    cast: bool,
    skipped: &mut Vec<String>,
) -> Result<Option<Measurement>> {
    let ([m, k, n], ([tile_m, k_l2, k_l1, tile_n], herd)) = (three(&row[1])?, tile_and_herd(&row[2])?);
    if herd.is_some_and(|herd| herd != GEMM_HERD) {
        skipped.push(format!("{}: only herds of 8×4 are simulated", row.join(",")));
        return Ok(None);
    }
    let Some(gigaflops) = figure(number(&row[3]), row, skipped) else { return Ok(None) };
    let gemm = AirGemm { entry, m, k, n, tile_m, tile_n, k_l2, k_l1, out };
    let (plan, label) = if cast {
        (Workload::GemmAndCast(gemm), format!("{label} {}", row[1]))
    } else {
        (Workload::Gemm(gemm), format!("{label} {} {}", row[1], row[2]))
    };
    Ok(Some(Measurement::new(file, label, operations([m, k, n], 1e-3) / gigaflops, plan)))
}

fn gemm_f32(file: &str, rows: &[Vec<String>], skipped: &mut Vec<String>) -> Result<Vec<Measurement>> {
    let mut all = Vec::new();
    for row in rows.iter().filter(|row| row.len() > 4) {
        if row[0].starts_with("EXTERNAL") && row[1].contains('×') {
            all.extend(gemm(file, row, "external", "gemm_bf16", GemmOutput::F32, false, skipped)?);
        } else if row[0].starts_with("DIRECT") && row[1].contains('×') {
            all.extend(gemm(file, row, "direct", "gemm_bf16_direct", GemmOutput::F32, false, skipped)?);
        } else if row[0].starts_with("tile choice") && row[1] != "shape" {
            let [m, k, n] = match row[1].as_str() {
                "2048³" => [2048; 3],
                "4096³" => [4096; 3],
                _ => [2048, 8192, 2048],
            };
            let [k_l2] = sizes(&row[2])?;
            for (tile_n, rate) in [(64, &row[3]), (128, &row[4])] {
                let gemm = AirGemm {
                    entry: "gemm_bf16",
                    m,
                    k,
                    n,
                    tile_m: 64,
                    tile_n,
                    k_l2,
                    k_l1: 32,
                    out: GemmOutput::F32,
                };
                let Some(rate) = figure(number(rate), row, skipped) else { continue };
                let micros = operations([m, k, n], 1e-3) / rate;
                let label = format!("external {} n={tile_n}", row[1]);
                all.push(Measurement::new(file, label, micros, Workload::Gemm(gemm)));
            }
        }
    }
    Ok(all)
}

fn gemm_bf16(file: &str, rows: &[Vec<String>], skipped: &mut Vec<String>) -> Result<Vec<Measurement>> {
    let mut all = Vec::new();
    for row in rows.iter().filter(|row| row.len() > 4 && row[1].contains('×') && row[2].contains('/')) {
        all.extend(if row[0].contains("fused-cast") {
            gemm(file, row, "fused cast", "gemm_bf16", GemmOutput::F32, true, skipped)?
        } else if row[0].contains("low-precision") {
            gemm(file, row, "low", "gemm_bf16_low", GemmOutput::Bf16, false, skipped)?
        } else {
            gemm(file, row, "drain", "gemm_bf16", GemmOutput::Drained, false, skipped)?
        });
    }
    Ok(all)
}

fn gemv(file: &str, rows: &[Vec<String>], skipped: &mut Vec<String>) -> Result<Vec<Measurement>> {
    let mut all = Vec::new();
    let tested = |row: &&Vec<String>| row.len() > 3 && row[0] == "Tested shapes" && row[1].contains('×');
    for row in rows.iter().filter(tested) {
        let ([m, k], [columns, tile_m, rows]) = (sizes(&row[1])?, three(&row[2])?);
        let gemv = AirGemv { m, k, herd: herd(columns, 1)?.0, tile_m, rows };
        let label = format!("{} {}", row[1], row[2]);
        let Some(time) = figure(micros(&row[3]), row, skipped) else { continue };
        all.push(Measurement::new(file, label, time, Workload::Gemv(gemv)));
    }
    Ok(all)
}

/// A table of a kernel on elements, and the sizes that its rows do not state.
struct ElementTable {
    entry: &'static str,
    inputs: usize,
    /// Elements, tile and herd, for rows that vary another parameter and do not
    /// state them.
    n: u64,
    tile: u64,
    herd: (u8, u8),
}

fn elements(
    file: &str,
    rows: &[Vec<String>],
    kind: &ElementTable,
    skipped: &mut Vec<String>,
) -> Result<Vec<Measurement>> {
    let mut all = Vec::new();
    let mut add = |label: String, time: f64, n: u64, tile: u64, herd: (u8, u8)| {
        divides("the number of elements", n, tile).map_err(|error| error.of(&label))?;
        let kernel = RowKernel::elements(kind.entry, kind.inputs, n, tile, herd);
        all.push(Measurement::new(file, label, time, Workload::Rows(kernel)));
        Ok::<(), Error>(())
    };
    let mut head = "";
    for row in rows.iter().filter(|row| row.len() > 3) {
        if row[0] == "section" {
            head = row[1].as_str();
            continue;
        }
        let tunable = row[0].starts_with("Tunable");
        if row[0] == "Tested shapes" && row.len() > 4 && row[3].contains('/') {
            let ([x, y, tile], [n]) = (three(&row[3])?, sizes(&row[1])?);
            let Some(time) = figure(micros(&row[4]), row, skipped) else { continue };
            add(format!("n={n} {}", row[3]), time, n, tile, herd(x, y)?)?;
        } else if tunable && row.iter().any(|field| field.contains('❌')) {
            continue;
        } else if tunable && head == "herd" && row[1].contains('×') {
            let [x, y] = sizes(&row[1])?;
            let time = micros(&row[3]).filter(|_| row[3].contains("µs"));
            // Some tables have a rate, in GB/s, instead of a time.
            let bytes = (kind.n * 2 * (kind.inputs as u64 + 1)) as f64;
            let time = time.or_else(|| number(&row[3]).map(|rate| bytes / rate * 1e-3));
            let Some(time) = figure(time, row, skipped) else { continue };
            add(format!("herd {}", row[1]), time, kind.n, kind.tile, herd(x, y)?)?;
        } else if tunable && (head == "cols" || head == "herd_x") {
            let [x] = sizes(&row[1])?;
            let Some(time) = figure(latency(row), row, skipped) else { continue };
            add(format!("columns {x}"), time, kind.n, kind.tile, herd(x, 1)?)?;
        } else if tunable && head == "tile_n" {
            let [tile] = sizes(&row[1])?;
            let Some(time) = figure(latency(row), row, skipped) else { continue };
            add(format!("tile {tile}"), time, kind.n, tile, kind.herd)?;
        }
    }
    Ok(all)
}

fn add(file: &str, rows: &[Vec<String>], skipped: &mut Vec<String>) -> Result<Vec<Measurement>> {
    elements(
        file,
        rows,
        &ElementTable { entry: "add", inputs: 2, n: 4_194_304, tile: 2048, herd: (8, 1) },
        skipped,
    )
}

fn silu(file: &str, rows: &[Vec<String>], skipped: &mut Vec<String>) -> Result<Vec<Measurement>> {
    elements(
        file,
        rows,
        &ElementTable { entry: "silu_mul", inputs: 2, n: 16_777_216, tile: 4096, herd: (8, 1) },
        skipped,
    )
}

fn gelu(file: &str, rows: &[Vec<String>], skipped: &mut Vec<String>) -> Result<Vec<Measurement>> {
    elements(
        file,
        rows,
        &ElementTable { entry: "gelu", inputs: 1, n: 3_145_728, tile: 4096, herd: (8, 2) },
        skipped,
    )
}

/// A table of a norm with `constants` vectors of weights. Its rows that vary the herd do not
/// state their `shape`, rows and values of a row.
struct NormTable {
    entry: &'static str,
    shape: [u64; 2],
    constants: usize,
}

fn norm(
    file: &str,
    rows: &[Vec<String>],
    kind: &NormTable,
    skipped: &mut Vec<String>,
) -> Result<Vec<Measurement>> {
    let NormTable { entry, shape, constants } = *kind;
    let mut all = Vec::new();
    for row in rows.iter().filter(|row| row.len() > 2) {
        let ([m, n], [columns]) = match row[0].as_str() {
            "Tested shapes" if row[1].contains('×') => (sizes(&row[1])?, sizes(&row[2])?),
            "herd_x choice vs performance" if row[2].contains("µs") => (shape, sizes(&row[1])?),
            _ => continue,
        };
        let Some(time) = figure(latency(row), row, skipped) else { continue };
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
        all.push(Measurement::new(file, label, time, Workload::Rows(kernel)));
    }
    Ok(all)
}

fn rms_norm(file: &str, rows: &[Vec<String>], skipped: &mut Vec<String>) -> Result<Vec<Measurement>> {
    norm(file, rows, &NormTable { entry: "rms_norm", shape: [2048, 2048], constants: 1 }, skipped)
}

fn layer_norm(file: &str, rows: &[Vec<String>], skipped: &mut Vec<String>) -> Result<Vec<Measurement>> {
    norm(file, rows, &NormTable { entry: "layer_norm", shape: [1024, 768], constants: 2 }, skipped)
}

fn rope(file: &str, rows: &[Vec<String>], skipped: &mut Vec<String>) -> Result<Vec<Measurement>> {
    let mut all = Vec::new();
    let mut head = "";
    for row in rows.iter().filter(|row| row.len() > 3) {
        if row[0] == "section" {
            head = row[1].as_str();
            continue;
        }
        let (n, size, (x, y)) = if row[0] == "Tested shapes" {
            let ([n], [size], [x, y]) = (sizes(&row[1])?, sizes(&row[2])?, sizes(&row[3])?);
            (n, size, (x, y))
        } else if row[0].starts_with("Tunable") && head == "herd_x" {
            let [x] = sizes(&row[1])?;
            (65536, 64, (x, 1))
        } else {
            continue;
        };
        let Some(time) = figure(latency(row), row, skipped) else { continue };
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
        all.push(Measurement::new(file, label, time, Workload::Rows(kernel)));
    }
    Ok(all)
}

fn flash(file: &str, rows: &[Vec<String>], skipped: &mut Vec<String>) -> Result<Vec<Measurement>> {
    let mut all = Vec::new();
    for row in rows.iter().filter(|row| row.len() > 6) {
        let base = breakdown::ATTENTION;
        if row[0] == "Tested shapes" && row[1].contains('×') {
            let ([rows, keys], [size, values], [heads]) = (sizes(&row[1])?, sizes(&row[2])?, sizes(&row[3])?);
            let causal = row[4] == "✓";
            let attend = AirAttention { rows, keys, size, values, heads, causal, ..base };
            let label = format!("{} d{} heads {}", row[1], row[2], row[3]);
            let Some(time) = figure(micros(&row[6]), row, skipped) else { continue };
            all.push(Measurement::new(file, label, time, Workload::Attention(attend)).elf());
        } else if row[0].starts_with("tile choice") && row[2] == "8" {
            // Published as a rate, with half the work: 2 matmuls of 32 heads.
            let Some(rate) = figure(number(&row[6]), row, skipped) else { continue };
            let attend = AirAttention { q_tiles: 8, heads_abreast: 1, ..base };
            let micros = 2.0 * 32.0 * 2048.0 * 2048.0 * 64.0 / rate * 1e-3;
            all.push(
                Measurement::new(file, "8 query tiles".to_owned(), micros, Workload::Attention(attend)).elf(),
            );
        }
    }
    Ok(all)
}

fn paper(file: &str, rows: &[Vec<String>], skipped: &mut Vec<String>) -> Result<Vec<Measurement>> {
    let mut all = Vec::new();
    let kept =
        |row: &&Vec<String>| row.len() > 13 && (row[0].ends_with("_array") || row[2].contains("k_mt=k_ct"));
    for row in rows.iter().filter(kept) {
        let value = |at: usize| {
            sizes(&row[at])
                .map(|[size]| size)
                .map_err(|_| Error::new(format!("{row:?} has no size in field {at}")))
        };
        let short = row[2].contains("k_mt=k_ct");
        // The paper states only that the short runs were measured at about 4096.
        let (m, k, n) = if short { (4224, 4032, 4224) } else { (value(10)?, value(11)?, value(12)?) };
        let bf16 = row[2].starts_with("bf16");
        let output = match row[2].as_str() {
            "int8-int8" => 1,
            "int8-int16" => 2,
            _ if bf16 => 2,
            _ => 4,
        };
        // The kernels accumulate in the output's type; only bf16 and int32 are entries.
        if !bf16 && output != 4 {
            skipped.push(format!(
                "{} {} {m}×{k}×{n}: no entry stores {output} bytes of int8 products",
                row[1], row[2]
            ));
            continue;
        }
        let xdna2 = row[1] == "XDNA2";
        let (tile_m, tile_k, tile_n) = (value(3)?, value(4)?, value(5)?);
        let (input, herd) = (if bf16 { 2 } else { 1 }, if xdna2 { (8, 4) } else { (4, 4) });
        // Double buffers of A and B and one of the result fill the table's L2.
        let c = u64::from(herd.0 * herd.1) * tile_m * tile_n * output;
        let side = u64::from(herd.1) * tile_m + u64::from(herd.0) * tile_n;
        let deep_k = if short {
            tile_k
        } else {
            (value(8)? * 1024).saturating_sub(c) / (2 * input * side) / tile_k * tile_k
        };
        let gemm = PaperGemm {
            entry: if bf16 { "gemm_bf16_tuned" } else { "gemm_int8" },
            m,
            k,
            n,
            tile_m,
            tile_k,
            tile_n,
            input,
            output,
            herd,
            deep_k,
        };
        let Some(tops) = figure(number(&row[13]), row, skipped) else { continue };
        let label = format!("{} {} {m}×{k}×{n} {tile_m}×{tile_k}×{tile_n}", row[1], row[2]);
        let mut measured =
            Measurement::new(file, label, operations([m, k, n], 1e-6) / tops, Workload::PaperGemm(gemm));
        measured.target = if xdna2 { "xdna2-kraken" } else { "xdna1-phoenix" };
        all.push(measured);
    }
    Ok(all)
}

/// Times of the programs of [`breakdown::launches`].
fn breakdown(file: &str, rows: &[Vec<String>], skipped: &mut Vec<String>) -> Result<Vec<Measurement>> {
    let mut all = Vec::new();
    for row in rows.iter().filter(|row| row.len() > 3) {
        let Some(launches) = breakdown::launches(&row[0], &row[1]) else { continue };
        let Some(millis) = figure(number(&row[3]), row, skipped) else { continue };
        let label = format!("{} {}", row[0], row[1]);
        all.push(Measurement::new(file, label, millis * 1e3, Workload::Program(launches)).elf());
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use girih_tensor::Random;

    use super::*;

    #[test]
    fn a_row_without_its_sizes_is_an_error() {
        let refused = |table: &str, row: &str| {
            let error =
                measurements(&format!("mlir_air_kernel_{table}_bf16.csv"), row, &mut Vec::new()).unwrap_err();
            assert!(error.to_string().contains("too few sizes"), "{row}: {error}");
        };
        refused("GEMV", "Tested shapes,2048×,8/8/4,437 µs");
        refused("GEMV", "Tested shapes,2048×0,8/8/4,437 µs");
        refused("GEMV", "Tested shapes,2048×99999999999,8/8/4,437 µs");
        refused("EltwiseAdd", "Tested shapes,n,,8/1/64,437 µs");
        refused("RMSNorm", "Tested shapes,2048×2048,columns,437 µs");
        refused("RoPE", "Tested shapes,65536,64,8,437 µs");
        refused("FlashAttention", "Tested shapes,2048×2048,64,32,✓,,15.4 ms");
        let short = measurements(
            "mlir_air_kernel_GEMV_bf16.csv",
            "Tested shapes\n\nTested shapes,1×1",
            &mut Vec::new(),
        );
        assert!(short.unwrap().is_empty(), "a row without a time is no measurement");
    }

    /// The bugs: norms had the shape of another row, sizes above 2^24 were dropped, a time in
    /// milliseconds was not found, and a tile with its herd was refused.
    #[test]
    fn rows_are_read_as_they_are() {
        let read = |table: &str, row: &str| {
            let mut skipped = Vec::new();
            let all = measurements(&format!("mlir_air_kernel_{table}.csv"), row, &mut skipped).unwrap();
            let labels = all.iter().map(|one| format!("{} {}us", one.label, one.micros)).collect::<Vec<_>>();
            (labels, skipped)
        };
        let one = |label: &str| (vec![label.to_owned()], Vec::<String>::new());
        let norm = "Tested shapes,512×1024,4,1.5 ms";
        assert_eq!(read("RMSNorm_bf16", norm), one("512×1024 columns 4 1500us"));
        let add = "Tested shapes,33554432,-,8/1/2048,3200 µs,x";
        assert_eq!(read("EltwiseAdd_bf16", add), one("n=33554432 8/1/2048 3200us"));
        let gemm = "DIRECT,2048×2048×2048,64/256/32/128 (8×4),8000,ok";
        assert_eq!(read("GEMM_bf16_in_fp32_out", gemm).0.len(), 1);
        let (none, skipped) = read("GEMM_bf16_in_fp32_out", &gemm.replace("8×4", "4×4"));
        assert!(none.is_empty() && skipped[0].ends_with("only herds of 8×4 are simulated"), "{skipped:?}");
        let (none, skipped) = read("GEMV_bf16", "Tested shapes,2048×2048,8/8/8,—,x");
        assert!(none.is_empty() && skipped[0].ends_with("the row has no time and no rate"), "{skipped:?}");
        let unknown = measurements("notes.csv", "a,b", &mut Vec::new()).unwrap_err().to_string();
        assert!(unknown.starts_with("notes.csv: is an unknown table"), "{unknown}");
        let mut skipped = Vec::new();
        assert!(measurements("simulators.csv", "a,b", &mut skipped).unwrap().is_empty());
        assert_eq!(skipped, ["simulators.csv: it lists simulators"]);
    }

    /// A row of each kind; each `#` is replaced by a size.
    const ROW_TEMPLATES: &[(&str, &str)] = &[
        ("mlir_air_kernel_GEMM_bf16_in_fp32_out.csv", "EXTERNAL,#×#×#,#/#/#/#,900,ok"),
        ("mlir_air_kernel_GEMM_bf16_in_fp32_out.csv", "tile choice,2048³,#,900,900"),
        ("mlir_air_kernel_GEMM_bf16_in_bf16_out.csv", "fused-cast,#×#×#,#/#/#/#,900,ok"),
        ("mlir_air_kernel_GEMM_bf16_in_bf16_out.csv", "low-precision,#×#×#,#/#/#/#,900,ok"),
        ("mlir_air_kernel_GEMM_bf16_in_bf16_out.csv", "drain,#×#×#,#/#/#/#,900,ok"),
        ("mlir_air_kernel_GEMV_bf16.csv", "Tested shapes,#×#,#/#/#,437 µs"),
        ("mlir_air_kernel_EltwiseAdd_bf16.csv", "Tested shapes,#,-,#/#/#,437 µs,x"),
        ("mlir_air_kernel_GELU_bf16.csv", "Tested shapes,#,-,#/#/#,437 µs,x"),
        ("mlir_air_kernel_RMSNorm_bf16.csv", "Tested shapes,#×#,#,437 µs"),
        ("mlir_air_kernel_LayerNorm_bf16.csv", "herd_x choice vs performance,#,437 µs"),
        ("mlir_air_kernel_RoPE_bf16.csv", "Tested shapes,#,#,#/#,437 µs"),
        ("mlir_air_kernel_FlashAttention_bf16.csv", "Tested shapes,#×#,#/#,#/8,✓,1,15.4 ms"),
        ("gemm_xdna_xdna2_striking_the_balance.csv", "2_array,XDNA2,bf16-bf16,#,#,#,x,x,#,x,#,#,#,9"),
        ("gemm_xdna_xdna2_striking_the_balance.csv", "2_array,XDNA,int8-int32,#,#,#,x,x,#,x,#,#,#,9"),
    ];

    /// Sizes from published tables, and some that no design can use.
    const TRIED_SIZES: [u64; 16] =
        [1, 2, 3, 4, 8, 16, 32, 64, 96, 256, 257, 512, 2048, 4096, 1 << 20, MAX_TABLE_SIZE];

    /// The bug: sizes that do not fit their tiles caused panics from buffers
    /// beyond 32 bits, a lack of channels, or a division by zero.
    #[test]
    fn any_sizes_are_built_or_refused() {
        let mut random = Random(1);
        let (mut built, mut refused) = (0, 0);
        for (table, row) in ROW_TEMPLATES {
            for _ in 0..2000 {
                let mut size = || random.of(&TRIED_SIZES).to_string();
                let mut parts = row.split('#');
                let first = parts.next().unwrap_or_default().to_owned();
                let row = parts.fold(first, |row, part| row + &size() + part);
                match measurements(table, &row, &mut Vec::new()) {
                    Ok(all) => {
                        built += all.len();
                        all.iter().for_each(|one| assert!(!one.schedule().launches.is_empty(), "{row}"));
                    }
                    Err(error) => {
                        refused += 1;
                        assert!(error.to_string().contains("correct the row"), "{row}: {error}");
                    }
                }
            }
        }
        assert!(built > 100 && refused > 1000, "{built} built, {refused} refused");
    }

    #[test]
    fn sizes_that_do_not_fit_their_tiles_are_named() {
        let refused = |table: &str, row: &str, want: &str| {
            let error = measurements(table, row, &mut Vec::new()).unwrap_err().to_string();
            assert!(error.starts_with(table) && error.contains(want), "{row}: {error}");
        };
        let gemm = "mlir_air_kernel_GEMM_bf16_in_fp32_out.csv";
        refused(
            gemm,
            "DIRECT,2000×2048×2048,64/256/32/128,900,ok",
            "m is 2000, and must be a multiple of 512",
        );
        refused(
            gemm,
            "DIRECT,512×16777216×512,64/16777216/32/128,900,ok",
            "2147483648 bytes of A in L2 exceed the simulated maximum of 1048576",
        );
        let gemv = "mlir_air_kernel_GEMV_bf16.csv";
        refused(
            gemv,
            "Tested shapes,2048×2048,256/8/8,437 µs",
            "a herd of 256×1 tiles does not fit an array",
        );
        let add = "mlir_air_kernel_EltwiseAdd_bf16.csv";
        refused(
            add,
            "Tested shapes,1048576,-,8/4/2048,437 µs,x",
            "32 tiles with 2 streams each exceed the 16 streams",
        );
        refused(
            add,
            "Tested shapes,8,-,8/1/1,437 µs,x",
            "the byte count of an operand is 2, and must be a multiple of 4",
        );
        let paper = "gemm_xdna_xdna2_striking_the_balance.csv";
        refused(
            paper,
            "2_array,XDNA2,bf16-bf16,112,48,96,x,x,1,x,4032,4224,4608,9",
            "the step of k in L2 is 0",
        );
    }
}
