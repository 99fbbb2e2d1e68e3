//! The paths through the kernels of attention, with their checks.

use girih_cpu::kernels::Table;
use girih_cpu::kernels::attend::{
    CHUNK_POSITIONS, Cells, ChunkWeights, Format, KEY_TILE, LANES, ValueBlock, WIDTHS,
};
use girih_graph::BLOCK_POSITIONS;
use girih_tensor::{DType, reference};

use crate::attend_kernels::{CELL_FORMATS, stored};
use crate::bands::below;
use crate::fixture::{Random, U, gamma, portable};
use crate::path::{KernelPath, Operands, Tally};

/// The caps of scores that `weigh` is checked with.
const CAPS: [Option<f32>; 2] = [None, Some(3.5)];

pub fn paths() -> Vec<KernelPath> {
    let mut paths = Vec::new();
    for format in CELL_FORMATS {
        for width in WIDTHS {
            paths.push(KernelPath::new(
                format!("score {format:?} x{width}"),
                move |table, operands, tally| {
                    score(table, format, width, operands, tally);
                },
            ));
            paths.push(KernelPath::new(
                format!("blend {format:?} x{width}"),
                move |table, operands, tally| {
                    blend(table, format, width, operands, tally);
                },
            ));
        }
        paths.push(KernelPath::new(format!("widen_keys {format:?}"), move |table, operands, tally| {
            widen_keys(table, format, operands, tally);
        }));
        paths.push(KernelPath::new(format!("widen_values {format:?}"), move |table, operands, tally| {
            widen_values(table, format, operands, tally);
        }));
    }
    for cap in CAPS {
        paths.push(KernelPath::new(format!("weigh, cap {cap:?}"), move |table, operands, tally| {
            weigh(table, cap, operands, tally);
        }));
    }
    paths.push(KernelPath::new("join".into(), join));
    paths.push(KernelPath::new("halve".into(), halve));
    paths
}

/// A random size of a head; types with scales need a multiple of 32.
fn head(format: Format, random: &mut Random) -> usize {
    if format.is_grouped() { 32 * (1 + below(4, random)) } else { 1 + below(130, random) }
}

/// A random size of a head, padded to whole vectors.
fn padded_head(format: Format, random: &mut Random) -> usize {
    head(format, random).next_multiple_of(if format.is_grouped() { 32 } else { LANES })
}

/// The cells that a kernel is to prefetch: these, or none.
fn prefetched<'a>(cells: &'a [u8], random: &mut Random) -> &'a [u8] {
    if random.bits().is_multiple_of(2) { cells } else { &[] }
}

fn score(table: &Table, format: Format, width: usize, operands: &mut Operands, tally: &mut Tally) {
    let (size, count) = (head(format, operands), 1 + below(2, operands));
    let tiles = operands.memory.place(&stored(format, count * KEY_TILE, size, operands));
    let mut keys = operands.results(count * size * KEY_TILE);
    (portable().attend.widen_keys)(format, &tiles, &[], &mut keys);
    let queries = operands.numbers(size * width);
    let at = KEY_TILE * below(CHUNK_POSITIONS / KEY_TILE - count + 1, operands);
    let cells =
        if operands.bits().is_multiple_of(8) { Cells::Decoded(&keys) } else { Cells::Stored(format, &tiles) };
    let mut scores = operands.memory.place(&vec![[7.0; CHUNK_POSITIONS]; width]);
    (table.attend.score)(&queries, cells, prefetched(&tiles, operands), &mut scores, at);
    for (query, scores) in scores.iter().enumerate() {
        let own: Vec<f32> = queries.iter().copied().skip(query).step_by(width).collect();
        for (position, score) in scores.iter().enumerate() {
            if !(at..at + count * KEY_TILE).contains(&position) {
                assert!(
                    *score == 7.0,
                    "{}: score {position} lies outside the tiles and was written",
                    table.name
                );
                continue;
            }
            let (tile, within) = ((position - at) / KEY_TILE, (position - at) % KEY_TILE);
            let keys = &keys[tile * size * KEY_TILE..][..size * KEY_TILE];
            let key: Vec<f32> = keys.iter().copied().skip(within).step_by(KEY_TILE).collect();
            let exact = reference::dot(&own, &key);
            let bound = exact.bound(size) + size as f64 * 2f64.powi(-149);
            tally.record(*score, exact.sum, bound, || {
                format!("query {query}, position {position}, {size} dims, {count} tiles from {at}")
            });
        }
    }
}

fn blend(table: &Table, format: Format, width: usize, operands: &mut Operands, tally: &mut Tally) {
    let columns = padded_head(format, operands);
    let cells = operands.memory.place(&stored(format, BLOCK_POSITIONS, columns, operands));
    let end = 1 + below(BLOCK_POSITIONS, operands);
    let positions = below(end, operands)..end;
    let block = |cells, positions| ValueBlock { cells, positions, width: columns, next: &[] };
    let mut wide = vec![f32::NAN; BLOCK_POSITIONS * columns];
    (portable().attend.widen_values)(block(Cells::Stored(format, &cells), 0..BLOCK_POSITIONS), &mut wide);
    let at = BLOCK_POSITIONS * below(CHUNK_POSITIONS / BLOCK_POSITIONS, operands);
    let weights: Vec<ChunkWeights> = (0..width)
        .map(|_| operands.random.numbers(CHUNK_POSITIONS).try_into().expect("a chunk of numbers"))
        .collect();
    let weights = operands.memory.place(&weights);
    let before = operands.random.numbers(width * columns);
    let mut sums = operands.memory.place(&before);
    let stored = ValueBlock {
        next: prefetched(&cells, operands),
        ..block(Cells::Stored(format, &cells), positions.clone())
    };
    (table.attend.blend)(&weights, at, stored, &mut sums);
    for (index, got) in sums.iter().enumerate() {
        let (query, column) = (index / columns, index % columns);
        let (mut expected, mut size) = (f64::from(before[index]), f64::from(before[index].abs()));
        for position in positions.clone() {
            let term =
                f64::from(weights[query][at + position]) * f64::from(wide[position * columns + column]);
            expected += term;
            size += term.abs();
        }
        let terms = positions.len();
        let bound = gamma(terms + 1) * size + terms as f64 * 2f64.powi(-149);
        tally.record(*got, expected, bound, || format!("query {query}, column {column}, {positions:?}"));
    }
}

/// Value `index` of `bytes`, as the format defines it.
fn defined(format: Format, bytes: &[u8], index: usize) -> f32 {
    let (dtype, size) = match format {
        Format::F32 => (DType::F32, 4),
        Format::F16 => (DType::F16, 2),
        _ => (DType::BF16, 2),
    };
    let mut value = [0.0];
    dtype.unpack(&bytes[index * size..][..size], &mut value);
    value[0]
}

/// The code of value `index`. Of 32 codes of Q4_0, 16 lie in the lower halves of 16 bytes.
fn code(format: Format, codes: &[u8], index: usize) -> f32 {
    if format == Format::Q8_0 {
        return f32::from(codes[index] as i8);
    }
    let byte = codes[index / 32 * 16 + index % 16];
    f32::from(if index % 32 < 16 { byte % 16 } else { byte / 16 }) - 8.0
}

fn widen_keys(table: &Table, format: Format, operands: &mut Operands, tally: &mut Tally) {
    let (size, count) = (head(format, operands), 1 + below(2, operands));
    let tiles = operands.memory.place(&stored(format, count * KEY_TILE, size, operands));
    let mut wide = operands.results(count * size * KEY_TILE);
    (table.attend.widen_keys)(format, &tiles, prefetched(&tiles, operands), &mut wide);
    for (index, got) in wide.iter().enumerate() {
        let expected = if format.is_grouped() {
            let (group, within) = (index / (32 * KEY_TILE), index % (32 * KEY_TILE));
            let group = &tiles[group * format.bytes(KEY_TILE, 32)..];
            defined(Format::F16, group, within % KEY_TILE) * code(format, &group[2 * KEY_TILE..], within)
        } else {
            defined(format, &tiles, index)
        };
        tally.record(*got, f64::from(expected), 0.0, || {
            format!("value {index} of {count} tiles of {size} dims")
        });
    }
}

fn widen_values(table: &Table, format: Format, operands: &mut Operands, tally: &mut Tally) {
    let columns = padded_head(format, operands);
    let cells = operands.memory.place(&stored(format, BLOCK_POSITIONS, columns, operands));
    let end = 1 + below(BLOCK_POSITIONS, operands);
    let positions = below(end, operands)..end;
    let block = ValueBlock {
        cells: Cells::Stored(format, &cells),
        positions: positions.clone(),
        width: columns,
        next: prefetched(&cells, operands),
    };
    let mut wide = operands.memory.place(&vec![7.0; BLOCK_POSITIONS * columns]);
    (table.attend.widen_values)(block, &mut wide);
    for (index, got) in wide.iter().enumerate() {
        let (position, column) = (index / columns, index % columns);
        let expected = match format {
            _ if !positions.contains(&position) => 7.0,
            Format::Q8_0 | Format::Q4_0 => {
                let codes = format.bytes(BLOCK_POSITIONS, columns) - 2 * BLOCK_POSITIONS * (columns / 32);
                let (codes, scales) = cells.split_at(codes);
                let scale = defined(Format::F16, scales, column / 32 * BLOCK_POSITIONS + position);
                scale * code(format, codes, index)
            }
            _ => defined(format, &cells, index),
        };
        tally.record(*got, f64::from(expected), 0.0, || {
            format!("value {index}, {columns} columns, {positions:?}")
        });
    }
}

/// A capped score has the error of eight roundings. A weight has that of its distance, of the rounding of
/// the distance, and of its power, 2 ulp.
fn weigh(table: &Table, cap: Option<f32>, operands: &mut Operands, tally: &mut Tally) {
    let end = 1 + below(CHUNK_POSITIONS, operands);
    let seen = below(end, operands)..end;
    let raw: Vec<f32> = (0..CHUNK_POSITIONS).map(|_| operands.number() * 20.0).collect();
    let mut scores = operands.memory.place(&[[f32::NAN; CHUNK_POSITIONS]]);
    scores[0][seen.clone()].copy_from_slice(&raw[seen.clone()]);
    let mut ends = [[f32::NAN; 2]];
    (table.attend.weigh)(&mut scores, seen.clone(), cap, &mut ends);
    let (scores, [top, sum]) = (&mut scores[0], ends[0]);
    let capped = |x: f32| match cap {
        Some(cap) => f64::from(cap) * (f64::from(x) / 2.0 * std::f64::consts::LN_2).tanh(),
        None => f64::from(x),
    };
    let exact: Vec<f64> = raw[seen.clone()].iter().map(|x| capped(*x)).collect();
    let largest = exact.iter().copied().fold(f64::MIN, f64::max);
    let error = f64::from(cap.unwrap_or(0.0)) * 8.0 * U;
    tally.record(top, largest, error, || format!("the maximum of {seen:?}"));
    let weights: Vec<f64> = exact.iter().map(|x| (x - largest).exp2()).collect();
    let relative = 2.0 * error + 44.0 * U;
    let total: f64 = weights.iter().sum();
    let bound = (relative + gamma(seen.len())) * total;
    tally.record(sum, total, bound, || format!("the sum over {seen:?}"));
    for (index, (got, expected)) in scores[seen.clone()].iter().zip(&weights).enumerate() {
        tally.record(*got, *expected, relative * expected, || format!("weight {index} of {seen:?}"));
    }
}

/// Each factor has an error of 2 ulp; two products and a sum are rounded.
fn join(table: &Table, operands: &mut Operands, tally: &mut Tally) {
    let len = LANES * (1 + below(8, operands));
    let (result, sums) = (operands.numbers(len), operands.numbers(len));
    let before = if operands.bits().is_multiple_of(8) { f32::NEG_INFINITY } else { operands.number() * 40.0 };
    let now = operands.number() * 40.0;
    let (mut running, mut joined) = ([before, 2.0], operands.memory.place(&result));
    (table.attend.join)(&mut running, &mut joined, [now, 5.0], &sums);
    let larger = before.max(now);
    tally.record(running[0], f64::from(larger), 0.0, || "the maximum".into());
    let factors = [before, now].map(|x| f64::from(x - larger).exp2());
    let all = result.iter().zip(sums.iter()).zip(joined.iter()).map(|((a, b), got)| (*a, *b, *got));
    for (a, b, got) in all.chain([(2.0, 5.0, running[1])]) {
        let (a, b) = (f64::from(a) * factors[0], f64::from(b) * factors[1]);
        let bound = (a.abs() + b.abs()) * (4.0 * U + gamma(3)) + 2f64.powi(-148);
        tally.record(got, a + b, bound, || format!("{before} joined with {now}"));
    }
}

/// Rounding to nearest even, of random finite numbers.
fn halve(table: &Table, operands: &mut Operands, tally: &mut Tally) {
    let values: Vec<f32> = (0..1 + below(70, operands))
        .map(|_| match operands.bits() % 4 {
            0 => f32::from_bits(operands.bits() as u32 & 0xbfff_ffff),
            1 => operands.number() * 2f32.powi(-14),
            2 => (1.0 + (operands.bits() % 1024) as f32 / 1024.0) + 2f32.powi(-11), // ties
            _ => operands.number() * 70_000.0,
        })
        .collect();
    let values = operands.memory.place(&values);
    let mut bytes = operands.memory.place(&vec![0; 2 * values.len()]);
    (table.attend.halve)(&values, &mut bytes);
    let wrong = values.iter().zip(bytes.as_chunks().0).find_map(|(value, bytes)| {
        let (got, expected) = (u16::from_le_bytes(*bytes), half::f16::from_f32(*value).to_bits());
        (got != expected).then(|| format!("{value} is {got:04x}, not {expected:04x}"))
    });
    tally.record_exact(values.len(), wrong);
}
