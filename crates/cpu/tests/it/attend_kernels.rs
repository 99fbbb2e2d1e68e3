//! The kernels of attention: each is compared with its definition in `f64`, and all tables with fused
//! operations must yield equal bits.

use std::ops::Range;

use girih_cpu::kernels::Table;
use girih_cpu::kernels::attend::{
    CHUNK_POSITIONS, Cells, ChunkWeights, Format, KEY_TILE, LANES, MaxSum, ValueBlock, WIDTHS,
};
use girih_cpu::kernels::tables;
use girih_graph::BLOCK_POSITIONS;
use girih_tensor::reference;

use crate::fixture::{Random, U, gamma};

pub const CELL_FORMATS: [Format; 5] = [Format::F32, Format::F16, Format::BF16, Format::Q8_0, Format::Q4_0];

/// The tables with fused multiply-adds, which yield equal bits.
fn fused() -> impl Iterator<Item = &'static Table> {
    tables().iter().filter(|table| table.name != "portable")
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Stored cells with random values of moderate size.
pub fn stored(format: Format, positions: usize, values: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..format.bytes(positions, values)).map(|_| random.bits() as u8).collect();
    // The last byte of a number has its exponent, which is kept small.
    let (step, keep) = match format {
        Format::F32 => (4, 0xbf),
        Format::F16 | Format::Q8_0 | Format::Q4_0 => (2, 0xbf),
        Format::BF16 => (2, 0xbf),
    };
    bytes.iter_mut().skip(step - 1).step_by(step).for_each(|byte| *byte &= keep);
    if format == Format::BF16 || format == Format::F32 {
        bytes.iter_mut().skip(step - 1).step_by(step).for_each(|byte| *byte = *byte & 0x83 | 0x3c);
    }
    bytes
}

/// Decoded tiles of keys, `[tile][dim][position]`.
fn keys(table: &Table, format: Format, tiles: &[u8], size: usize) -> Vec<f32> {
    let mut wide = vec![f32::NAN; tiles.len() / format.bytes(KEY_TILE, size) * size * KEY_TILE];
    (table.attend.widen_keys)(format, tiles, &[], &mut wide);
    wide
}

#[test]
fn all_tables_decode_cells_to_equal_bits() {
    let mut random = Random(1);
    for format in CELL_FORMATS {
        for size in [32, 64, 96, 256] {
            let tiles = stored(format, 2 * KEY_TILE, size, &mut random);
            let first = &tiles[..tiles.len() / 2];
            let block = stored(format, BLOCK_POSITIONS, size, &mut random);
            let all: Vec<_> = tables()
                .iter()
                .map(|table| {
                    let cells = Cells::Stored(format, &block);
                    let mut values = vec![7.0; BLOCK_POSITIONS * size];
                    let block = ValueBlock { cells, positions: 3..61, width: size, next: &[] };
                    (table.attend.widen_values)(block, &mut values);
                    assert!(values[..3 * size].iter().chain(&values[61 * size..]).all(|x| *x == 7.0));
                    let both = bits(&keys(table, format, &tiles, size));
                    assert!(both.starts_with(&bits(&keys(table, format, first, size))), "{}", table.name);
                    (both, bits(&values))
                })
                .collect();
            assert!(all.iter().all(|other| *other == all[0]), "{format:?}, heads of {size}");
        }
    }
}

#[test]
fn scores_keep_their_bound_and_do_not_depend_on_their_neighbours() {
    let mut random = Random(2);
    for format in CELL_FORMATS {
        for size in [1, 5, 16, 31, 32, 48, 64, 80, 96, 128, 256] {
            if format.is_grouped() && size % 32 != 0 {
                continue;
            }
            let tile = stored(format, KEY_TILE, size, &mut random);
            for width in WIDTHS {
                let queries = random.numbers(size * width);
                let mut first: Option<Vec<u32>> = None;
                for table in tables() {
                    let wide = keys(table, format, &tile, size);
                    let scores = |cells: Cells<'_>, queries: &[f32], width: usize| {
                        let mut scores: Vec<ChunkWeights> = vec![[f32::NAN; CHUNK_POSITIONS]; width];
                        (table.attend.score)(queries, cells, &tile, &mut scores, 64);
                        scores
                            .iter()
                            .flat_map(|scores| scores[64..64 + KEY_TILE].to_vec())
                            .collect::<Vec<_>>()
                    };
                    let got = scores(Cells::Stored(format, &tile), &queries, width);
                    assert_eq!(bits(&got), bits(&scores(Cells::Decoded(&wide), &queries, width)));
                    for query in 0..width {
                        let own: Vec<f32> = queries.iter().copied().skip(query).step_by(width).collect();
                        let own_scores = &got[query * KEY_TILE..(query + 1) * KEY_TILE];
                        let alone = scores(Cells::Stored(format, &tile), &own, 1);
                        assert_eq!(bits(own_scores), bits(&alone), "{}, {width}", table.name);
                        for (position, score) in own_scores.iter().enumerate() {
                            let key: Vec<f32> =
                                wide.iter().copied().skip(position).step_by(KEY_TILE).collect();
                            let exact = reference::dot(&own, &key);
                            let distance = (f64::from(*score) - exact.sum).abs();
                            assert!(distance <= exact.bound(size), "{}, {format:?} {size}", table.name);
                        }
                    }
                    if table.name != "portable" {
                        assert_eq!(*first.get_or_insert(bits(&got)), bits(&got), "{}", table.name);
                    }
                }
            }
        }
    }
}

#[test]
fn tiles_of_keys_that_follow_each_other_have_the_scores_of_each_alone() {
    let mut random = Random(9);
    for (format, size) in CELL_FORMATS.into_iter().flat_map(|format| [(format, 32), (format, 96)]) {
        let three: Vec<Vec<u8>> = (0..3).map(|_| stored(format, KEY_TILE, size, &mut random)).collect();
        for (count, width) in [1, 2, 3].into_iter().flat_map(|count| WIDTHS.map(|width| (count, width))) {
            let (tiles, queries) = (three[..count].concat(), random.numbers(size * width));
            for table in tables() {
                let decoded = keys(table, format, &tiles, size);
                let mut alone: Vec<ChunkWeights> = vec![[7.0; CHUNK_POSITIONS]; width];
                for (tile, at) in three[..count].iter().zip((64..).step_by(KEY_TILE)) {
                    (table.attend.score)(&queries, Cells::Stored(format, tile), &[], &mut alone, at);
                }
                for cells in [Cells::Stored(format, &tiles), Cells::Decoded(&decoded)] {
                    let mut together: Vec<ChunkWeights> = vec![[7.0; CHUNK_POSITIONS]; width];
                    (table.attend.score)(&queries, cells, &tiles, &mut together, 64);
                    let same =
                        together.iter().zip(&alone).all(|(together, alone)| bits(together) == bits(alone));
                    assert!(same, "{}, {format:?}: {count} tiles by {width}", table.name);
                }
            }
        }
    }
}

#[test]
fn weighted_sums_keep_their_bound_and_do_not_depend_on_their_neighbours() {
    let mut random = Random(3);
    for format in CELL_FORMATS {
        for columns in [16, 32, 48, 64, 80, 96, 128, 256] {
            if format.is_grouped() && columns % 32 != 0 {
                continue;
            }
            let block = stored(format, BLOCK_POSITIONS, columns, &mut random);
            for (width, positions) in WIDTHS.iter().zip([0..64, 5..6, 17..40, 0..1, 63..64, 8..8]) {
                let weights: Vec<ChunkWeights> =
                    (0..*width).map(|_| random.numbers(CHUNK_POSITIONS).try_into().unwrap()).collect();
                let before = random.numbers(width * columns);
                let mut first: Option<Vec<u32>> = None;
                for table in tables() {
                    let mut wide = vec![f32::NAN; BLOCK_POSITIONS * columns];
                    let of = |cells, positions: Range<usize>| ValueBlock {
                        cells,
                        positions,
                        width: columns,
                        next: &[],
                    };
                    let cells = Cells::Stored(format, &block);
                    (table.attend.widen_values)(of(cells, 0..BLOCK_POSITIONS), &mut wide);
                    let blend = |cells, positions, weights: &[ChunkWeights], sums: &[f32]| {
                        let mut sums = sums.to_vec();
                        (table.attend.blend)(weights, 128, of(cells, positions), &mut sums);
                        sums
                    };
                    let got = blend(cells, positions.clone(), &weights, &before);
                    let decoded = blend(Cells::Decoded(&wide), positions.clone(), &weights, &before);
                    assert_eq!(bits(&got), bits(&decoded), "{}", table.name);
                    for row in 0..*width {
                        let part = row * columns..(row + 1) * columns;
                        let weights = &weights[row..row + 1];
                        // One row alone, in two calls, is the same chain of sums.
                        let middle = positions.start + positions.len() / 2;
                        let half = blend(cells, positions.start..middle, weights, &before[part.clone()]);
                        let alone = blend(cells, middle..positions.end, weights, &half);
                        assert_eq!(bits(&got[part.clone()]), bits(&alone), "{}", table.name);
                        for (column, got) in got[part.clone()].iter().enumerate() {
                            let values: Vec<f32> =
                                positions.clone().map(|p| wide[p * columns + column]).collect();
                            let weights: Vec<f32> = positions.clone().map(|p| weights[0][128 + p]).collect();
                            let mut exact = reference::dot(&weights, &values);
                            let before = before[part.start + column];
                            exact.sum += f64::from(before);
                            exact.size += f64::from(before.abs());
                            let distance = (f64::from(*got) - exact.sum).abs();
                            assert!(distance <= exact.bound(values.len()), "{}, {format:?}", table.name);
                        }
                    }
                    if table.name != "portable" {
                        assert_eq!(*first.get_or_insert(bits(&got)), bits(&got), "{}", table.name);
                    }
                }
            }
        }
    }
}

/// Distances from the largest score: a fine grid of the last octave, powers of
/// two, and the distance from which weights are zero.
fn distances(random: &mut Random) -> Vec<f32> {
    let mut all: Vec<f32> = (0..200_000).map(|_| -(random.number().abs() * 130.0)).collect();
    all.extend((0..200_000).map(|_| -random.number().abs()));
    all.extend((0..=149).map(|power| -f32::powi(0.5, power)));
    all.extend(
        (0..=160)
            .flat_map(|n| [n as f32, n as f32 + 0.5].map(|x| [-x, -x.next_up(), -x.next_down()]))
            .flatten(),
    );
    all.extend([-0.0, -125.0, (-125.0f32).next_down(), (-125.0f32).next_up(), f32::MIN, f32::NEG_INFINITY]);
    all.iter().map(|x| x.min(0.0)).collect()
}

/// Weighs one query.
fn weigh(table: &Table, scores: &mut ChunkWeights, seen: Range<usize>, cap: Option<f32>) -> MaxSum {
    let mut ends = [[f32::NAN; 2]];
    (table.attend.weigh)(std::slice::from_mut(scores), seen, cap, &mut ends);
    ends[0]
}

#[test]
fn weights_do_not_depend_on_the_queries_beside() {
    let mut random = Random(8);
    for (count, cap) in (1..=9).zip([None, Some(2.5)].into_iter().cycle()) {
        for seen in [0..256, 5..6, 0..33, 31..250, 240..256] {
            let raw: Vec<ChunkWeights> =
                (0..count).map(|_| std::array::from_fn(|_| random.number() * 20.0)).collect();
            for table in tables() {
                let (mut together, mut ends) = (raw.clone(), vec![[f32::NAN; 2]; count]);
                (table.attend.weigh)(&mut together, seen.clone(), cap, &mut ends);
                for ((raw, together), ends) in raw.iter().zip(together).zip(ends) {
                    let mut alone = *raw;
                    let own = weigh(table, &mut alone, seen.clone(), cap);
                    assert_eq!(bits(&own), bits(&ends), "{}: {count} queries, {seen:?}", table.name);
                    assert_eq!(bits(&alone), bits(&together), "{}: {count} queries, {seen:?}", table.name);
                }
            }
        }
    }
}

#[test]
fn weights_are_powers_of_two_within_two_ulp() {
    let distances = distances(&mut Random(4));
    for table in tables() {
        let mut worst: f64 = 0.0;
        for part in distances.chunks(CHUNK_POSITIONS - 1) {
            let mut scores = [0.0; CHUNK_POSITIONS];
            scores[1..=part.len()].copy_from_slice(part);
            let [top, _] = weigh(table, &mut scores, 0..part.len() + 1, None);
            assert_eq!((top, scores[0]), (0.0, 1.0), "{}: the largest score has weight 1", table.name);
            for (x, weight) in part.iter().zip(&scores[1..]) {
                if *x < -125.0 {
                    assert_eq!(*weight, 0.0, "{}: {x}", table.name);
                    continue;
                }
                let exact = f64::from(*x).exp2();
                // One ulp of the exact value.
                let unit = 2f64.powi(exact.log2().floor() as i32 - 23);
                worst = worst.max((f64::from(*weight) - exact).abs() / unit);
            }
        }
        println!("{}: at most {worst:.3} ulp", table.name);
        assert!(worst <= 2.0, "{}: {worst} ulp", table.name);
    }
}

#[test]
fn only_visible_positions_have_weight() {
    let mut random = Random(5);
    for cap in [None, Some(3.5f32)] {
        for seen in [0..1, 0..256, 255..256, 7..9, 15..17, 16..32, 3..250, 100..101] {
            let raw: Vec<f32> = (0..CHUNK_POSITIONS).map(|_| random.number() * 20.0).collect();
            let mut first: Option<Vec<u32>> = None;
            for table in tables() {
                let mut scores: ChunkWeights = [f32::NAN; CHUNK_POSITIONS];
                scores[seen.clone()].copy_from_slice(&raw[seen.clone()]);
                let [top, sum] = weigh(table, &mut scores, seen.clone(), cap);
                let capped = |x: f32| match cap {
                    Some(cap) => f64::from(cap) * (f64::from(x) / 2.0 * std::f64::consts::LN_2).tanh(),
                    None => f64::from(x),
                };
                let exact: Vec<f64> = raw[seen.clone()].iter().map(|x| capped(*x)).collect();
                let largest = exact.iter().copied().fold(f64::MIN, f64::max);
                let error = f64::from(cap.unwrap_or(0.0)) * 8.0 * U;
                assert!((f64::from(top) - largest).abs() <= error, "{}: {top}", table.name);
                let weights: Vec<f64> = exact.iter().map(|x| (x - largest).exp2()).collect();
                let total: f64 = weights.iter().sum();
                // The errors of a weight: its distance, the rounding of the distance, and the power.
                let relative = 2.0 * error + 40.0 * U + 4.0 * U + gamma(seen.len());
                assert!((f64::from(sum) - total).abs() <= relative * total, "{}: {sum}", table.name);
                for (got, expected) in scores[seen.clone()].iter().zip(&weights) {
                    assert!((f64::from(*got) - expected).abs() <= relative * expected, "{}", table.name);
                }
                if table.name != "portable" {
                    let all = bits(&[&scores[seen.clone()], &[top, sum]].concat());
                    assert_eq!(*first.get_or_insert(all.clone()), all, "{}", table.name);
                }
            }
        }
    }
}

#[test]
fn joined_sums_keep_their_bound() {
    let mut random = Random(6);
    for (before, now) in [(0.0, 0.0), (3.0, -4.5), (-4.5, 3.0), (f32::NEG_INFINITY, 1.0), (80.0, -80.0)] {
        let (result, sums) = (random.numbers(3 * LANES), random.numbers(3 * LANES));
        let mut first: Option<Vec<u32>> = None;
        for table in tables() {
            let (mut running, mut joined) = ([before, 2.0], result.clone());
            (table.attend.join)(&mut running, &mut joined, [now, 5.0], &sums);
            let larger = before.max(now);
            let factors = [before, now].map(|x| f64::from(x - larger).exp2());
            assert_eq!(running[0], larger);
            let both = [(2.0, 5.0, running[1])]
                .into_iter()
                .chain(result.iter().zip(&sums).zip(&joined).map(|((a, b), got)| (*a, *b, *got)));
            for (a, b, got) in both {
                let (a, b) = (f64::from(a) * factors[0], f64::from(b) * factors[1]);
                let bound = (a.abs() + b.abs()) * (4.0 * U + gamma(3));
                assert!((f64::from(got) - a - b).abs() <= bound, "{}: {got}", table.name);
            }
            if table.name != "portable" {
                let all = bits(&[&joined[..], &running].concat());
                assert_eq!(*first.get_or_insert(all.clone()), all, "{}", table.name);
            }
        }
    }
}

#[test]
fn rounding_to_f16_is_as_defined() {
    let mut random = Random(7);
    let mut values: Vec<f32> = (0..200_000).map(|_| f32::from_bits(random.bits() as u32)).collect();
    values.retain(|x| !x.is_nan());
    values.extend([0.0, -0.0, 65504.0, 65519.9, 65520.0, 1e-8, 5.96e-8, 2.98e-8, f32::INFINITY]);
    for len in (1..40).chain([values.len()]) {
        let mut expected = vec![0; 2 * len];
        girih_tensor::DType::F16.pack(&values[values.len() - len..], &mut expected);
        for table in fused() {
            let mut got = vec![0; 2 * len];
            (table.attend.halve)(&values[values.len() - len..], &mut got);
            assert!(got == expected, "{}, {len} values", table.name);
        }
    }
}
