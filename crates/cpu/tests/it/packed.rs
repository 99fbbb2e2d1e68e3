//! The kernels for packed weights of every table: integer kernels have the bits of the portable ones, which
//! are compared with `f64`, and float kernels are within their bound.

use girih_cpu::kernels::packed::{
    BAND, Band, Coding, DEPTH, GROUP, INTEGER_BIAS, LANES, LINE, Layout, MatmulTileOperands, NARROW, Panel,
    PanelGroup, Scales, TILE,
};
use girih_cpu::kernels::prefetch::PrefetchChoice;
use girih_cpu::kernels::{Table, tables};

use crate::fixture::{Random, gamma, portable};

/// What bytes are filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fill {
    Random,
    Byte(u8),
}

/// Codes of weights and of activations. 0x81 is −127 among activations; 0x77 is the largest number of E2M1
/// among weights.
const FILLS: [[Fill; 2]; 9] = [
    [Fill::Random, Fill::Random],
    [Fill::Random, Fill::Byte(0x7f)],
    [Fill::Byte(0), Fill::Byte(0x7f)],
    [Fill::Byte(0), Fill::Byte(0x81)],
    [Fill::Byte(0xff), Fill::Byte(0x7f)],
    [Fill::Byte(0xff), Fill::Byte(0x81)],
    [Fill::Byte(0x77), Fill::Byte(0x7f)],
    [Fill::Byte(0x77), Fill::Byte(0x81)],
    [Fill::Byte(0x7f), Fill::Random],
];

fn bytes(fill: Fill, count: usize, random: &mut Random) -> Vec<u8> {
    (0..count).map(|_| if let Fill::Byte(byte) = fill { byte } else { random.bits() as u8 }).collect()
}

/// A band of `groups` groups, with scales of moderate size.
fn band(layout: Layout, groups: usize, fill: Fill, random: &mut Random) -> Vec<u8> {
    let (columns, unit) = layout.unit();
    let (_, scales) = layout.parts().expect("an integer layout");
    let mut band = bytes(fill, (groups * GROUP).div_ceil(columns) * unit, random);
    // The last lines of a unit hold numbers of two bytes.
    let lines = match scales {
        Scales::Half | Scales::Bytes | Scales::HalvedBytes => 1,
        Scales::HalfOffset | Scales::Sixes | Scales::Fours => 2,
        Scales::Bf16Offset => 16,
        Scales::Powers => 0,
    };
    for unit in band.chunks_exact_mut(unit) {
        let (rest, numbers) = unit.split_at_mut(unit.len() - lines * LINE);
        for number in numbers.chunks_exact_mut(2) {
            // Any sign and fraction, sizes from 2⁻⁸ to 2.
            let (bits, size) = (random.bits() as u16, random.bits() as u16 % 9);
            let half = bits & 0x83ff | (7 + size) << 10;
            let bf16 = bits & 0x807f | (119 + size) << 7;
            let number_bits = if scales == Scales::Bf16Offset { bf16 } else { half };
            number.copy_from_slice(&number_bits.to_le_bytes());
        }
        if scales == Scales::Powers {
            let at = rest.len() - LINE;
            rest[at..].iter_mut().for_each(|exponent| *exponent = 120 + (random.bits() % 9) as u8);
        }
    }
    band
}

/// Packed activations of `groups` groups and `columns` columns.
fn activations(coding: Coding, groups: usize, columns: usize, fill: Fill, random: &mut Random) -> Vec<u32> {
    let mut words = Vec::new();
    for _ in 0..groups {
        let mut group = vec![0; coding.words() * columns];
        for column in 0..columns {
            let codes = bytes(fill, GROUP, random);
            let codes: Vec<i8> = codes.iter().map(|&code| (code as i8).max(-127)).collect();
            let scale = random.number() / 16.0;
            let each = codes.chunks_exact(4).map(|codes| {
                u32::from_le_bytes([codes[0] as u8, codes[1] as u8, codes[2] as u8, codes[3] as u8])
            });
            let sums = codes.chunks_exact(GROUP / coding.sums()).map(|codes| {
                let sum: i32 = codes.iter().map(|&code| i32::from(code)).sum();
                let begin = (INTEGER_BIAS - i32::from(coding.zero) * sum) as u32;
                if coding.minimums { (scale * sum as f32).to_bits() } else { begin }
            });
            for (row, word) in each.chain(sums).chain([scale.to_bits()]).enumerate() {
                group[row * columns + column] = word;
            }
        }
        words.extend(group);
    }
    words
}

fn bits(sums: &[[f32; BAND]]) -> Vec<u32> {
    sums.as_flattened().iter().map(|sum| sum.to_bits()).collect()
}

fn decoded(table: &Table, band: Band<'_>, first: usize, count: usize) -> [Panel; 2] {
    let mut panels = [[PanelGroup::ZERO; DEPTH]; 2];
    (table.matmul.decode)(band, first, count, &mut panels);
    panels
}

/// Numbers of groups, which fill units and panels completely or partly.
const GROUP_COUNTS: [usize; 8] = [1, 2, 3, 8, 15, 16, 17, 40];

/// Calls `check` with a band and activations of every kind.
fn each_case(columns: &[usize], check: impl Fn(Band<'_>, &[u32], usize, usize, &str)) {
    let mut random = Random(21);
    for &layout in Layout::INTEGERS {
        let coding = layout.coding().expect("an integer layout");
        for groups in GROUP_COUNTS {
            for [weights, x] in FILLS {
                let bytes = band(layout, groups, weights, &mut random);
                let band = Band {
                    layout,
                    columns: groups * GROUP,
                    bytes: &bytes,
                    prefetch: PrefetchChoice::DEFAULT,
                };
                for &columns in columns {
                    let words = activations(coding, groups, columns, x, &mut random);
                    let what = format!("{layout:?}, {groups} groups of {weights:?} by {columns} x {x:?}");
                    check(band, &words, groups, columns, &what);
                }
            }
        }
    }
}

#[test]
fn matmuls_with_few_columns_are_equal_in_all_tables() {
    let all: Vec<usize> = (1..=NARROW).collect();
    each_case(&all, |band, x, _, columns, what| {
        let run = |table: &Table| {
            let mut sums = vec![[0.0; BAND]; columns];
            (table.matmul.narrow)(band, x, &mut sums);
            bits(&sums)
        };
        let expected = run(&portable());
        for table in tables() {
            assert!(run(table) == expected, "{}: {what}", table.name);
        }
    });
}

#[test]
fn panels_and_their_matmuls_are_equal_in_all_tables() {
    each_case(&[TILE / 3, 2 * TILE / 3, TILE], |band, x, groups, columns, what| {
        let coding = band.layout.coding().expect("an integer layout");
        let run = |table: &Table| {
            let mut sums = vec![[0.25; BAND]; columns];
            let each = coding.words() * columns;
            for first in (0..groups).step_by(DEPTH) {
                let count = DEPTH.min(groups - first);
                let panels = decoded(table, band, first, count);
                let x = &x[first * each..];
                let operands =
                    MatmulTileOperands { coding, panels: &panels, signed: None, groups: count, x, next: &[] };
                let before = sums.clone();
                (table.matmul.tile)(operands, &mut sums);
                let mut memory = None;
                if let Some(signed) = table.matmul.signed(coding, (&panels, count), &mut memory) {
                    let mut again = before;
                    (table.matmul.tile)(MatmulTileOperands { signed: Some(signed), ..operands }, &mut again);
                    assert!(bits(&again) == bits(&sums), "{}, signed codes: {what}", table.name);
                }
            }
            bits(&sums)
        };
        let expected = run(&portable());
        for table in tables() {
            assert!(run(table) == expected, "{}: {what}", table.name);
        }
    });
}

#[test]
fn any_range_of_groups_can_be_decoded() {
    let mut random = Random(22);
    for &layout in Layout::INTEGERS {
        let bytes = band(layout, 40, Fill::Random, &mut random);
        let band = Band { layout, columns: 40 * GROUP, bytes: &bytes, prefetch: PrefetchChoice::DEFAULT };
        for (first, count) in [(0, 16), (3, 1), (5, 16), (7, 2), (24, 16), (39, 1), (8, 0)] {
            let expected = decoded(&portable(), band, first, count);
            for table in tables() {
                let got = decoded(table, band, first, count);
                for (got, expected) in got.as_flattened().iter().zip(expected.as_flattened()) {
                    let coding = layout.coding().expect("an integer layout");
                    let mut equal = got.codes == expected.codes && got.scales[0] == expected.scales[0];
                    equal &= !coding.halves || got.scales[1] == expected.scales[1];
                    equal &= !coding.minimums || got.minimums[0] == expected.minimums[0];
                    equal &= !(coding.halves && coding.minimums) || got.minimums[1] == expected.minimums[1];
                    assert!(equal, "{} {layout:?}: {count} groups from {first}", table.name);
                }
            }
        }
    }
}

/// Returns the dot product of one column and a row of panels, and the size of its terms. A kernel has three
/// roundings for each scale, and one for each addition to the chain of sums.
fn exact(coding: Coding, panels: &[Panel], x: &[u32], row: usize) -> (f64, f64) {
    let (mut sum, mut size) = (0.0, 0.0);
    let panels = panels.iter().skip(row / LANES).step_by(2).flatten();
    for (panel, x) in panels.zip(x.chunks_exact(coding.words())) {
        let scale = f64::from(f32::from_bits(x[GROUP / 4 + coding.sums()]));
        for column in 0..GROUP {
            let part = column * coding.sums() / GROUP;
            let code = panel.codes[column / 4][row % LANES * 4 + column % 4];
            let value = scale * f64::from(x[column / 4].to_le_bytes()[column % 4] as i8);
            let weight =
                f64::from(panel.scales[part][row % LANES]) * (f64::from(code) - f64::from(coding.zero));
            let minimum = if coding.minimums { f64::from(panel.minimums[part][row % LANES]) } else { 0.0 };
            sum += (weight - minimum) * value;
            size += (weight.abs() + minimum.abs()) * value.abs();
        }
    }
    (sum, size)
}

#[test]
fn integer_matmuls_keep_their_bound() {
    each_case(&[1], |band, x, groups, _, what| {
        let coding = band.layout.coding().expect("an integer layout");
        let firsts = (0..groups).step_by(DEPTH);
        let panels: Vec<Panel> =
            firsts.flat_map(|first| decoded(&portable(), band, first, DEPTH.min(groups - first))).collect();
        let mut sums = [[0.0; BAND]];
        (portable().matmul.narrow)(band, x, &mut sums);
        for (row, got) in sums[0].iter().enumerate() {
            let (expected, size) = exact(coding, &panels, x, row);
            let bound = gamma(3 + 2 * coding.sums() * groups) * size;
            assert!((f64::from(*got) - expected).abs() <= bound, "{what}, row {row}: {got}, not {expected}");
        }
    });
}

/// The sum of two products reaches 255 · 127 · 2, which exceeds 16 bits, so that the tests above detect an
/// instruction that saturates.
#[test]
fn sums_of_two_products_exceed_16_bits() {
    let mut random = Random(23);
    for &layout in Layout::INTEGERS {
        let (fill, largest) = match layout {
            Layout::Q8_0 => (0xff, 255),
            Layout::Iq4Nl | Layout::Iq4Xs => (0xff, 241),
            Layout::Mxfp4 => (0x77, 24),
            other => (0xff, (1 << other.coding().expect("an integer layout").bits) - 1),
        };
        let bytes = band(layout, 8, Fill::Byte(fill), &mut random);
        let band = Band { layout, columns: 8 * GROUP, bytes: &bytes, prefetch: PrefetchChoice::DEFAULT };
        let panels = decoded(&portable(), band, 0, 8);
        let mut codes = panels.iter().flat_map(|panel| panel[0].codes.as_flattened());
        assert!(codes.all(|&code| code == largest), "{layout:?}");
    }
    let coding = Layout::Q8_0.coding().expect("an integer layout");
    assert!(activations(coding, 1, 1, Fill::Byte(0x7f), &mut random)[..8].iter().all(|&x| x == 0x7f7f_7f7f));
}

/// A band of floats of moderate size.
fn float_band(layout: Layout, columns: usize, random: &mut Random) -> Vec<u8> {
    let (unit, bytes) = layout.unit();
    let mut band = Vec::new();
    for _ in 0..columns.div_ceil(unit) * bytes / 4 {
        let number = random.number().to_bits();
        // Two numbers in half precision below two, two in bf16, or one float.
        let halves = (random.bits() as u32 & 0xbfff_bfff).to_le_bytes();
        let bf16 = (number & 0xffff_0000 | random.number().to_bits() >> 16).to_le_bytes();
        band.extend(match layout {
            Layout::F16 => halves,
            Layout::Bf16 => bf16,
            _ => number.to_le_bytes(),
        });
    }
    band
}

#[test]
fn float_matmuls_keep_their_bound() {
    let mut random = Random(24);
    for layout in [Layout::Bf16, Layout::F16, Layout::F32] {
        for (inputs, first) in [(2, 0), (6, 2), (64, 0), (300, 44)] {
            let bytes = float_band(layout, inputs, &mut random);
            let band = Band { layout, columns: inputs, bytes: &bytes, prefetch: PrefetchChoice::DEFAULT };
            let (unit, unit_bytes) = layout.unit();
            for columns in (1..=NARROW).chain([TILE]) {
                let x = random.numbers((inputs - first) * columns);
                let words: Vec<u32> = x.iter().map(|x| x.to_bits()).collect();
                let mut all = Vec::new();
                for table in tables() {
                    let mut sums = vec![[0.5; BAND]; columns];
                    (table.matmul.floats)(band, first, &words, &mut sums);
                    for (column, row) in (0..columns).flat_map(|c| (0..BAND).map(move |row| (c, row))) {
                        let (mut expected, mut size) = (0.5, 0.5);
                        for input in first..inputs {
                            let bytes = &bytes[input / unit * unit_bytes..];
                            let weight = f64::from(layout.float(bytes, input % unit, row));
                            let term = weight * f64::from(x[(input - first) * columns + column]);
                            expected += term;
                            size += term.abs();
                        }
                        let got = f64::from(sums[column][row]);
                        let right = (got - expected).abs() <= gamma(inputs - first + 1) * size;
                        assert!(
                            right,
                            "{} {layout:?}, {inputs} x {columns}: {got}, not {expected}",
                            table.name
                        );
                    }
                    all.push(bits(&sums));
                }
                // The portable table rounds each product; the others use fused multiply-adds.
                let fused = &all[..all.len() - 1];
                assert!(fused.windows(2).all(|pair| pair[0] == pair[1]), "{layout:?}, {inputs} x {columns}");
            }
        }
    }
}

/// If all numbers are normal, tables yield the bits that
/// [`MatmulKernels::bf16`](girih_cpu::kernels::packed::MatmulKernels) defines.
#[test]
fn bf16_products_are_added_in_one_order() {
    let mut random = Random(26);
    for (inputs, first) in [(2, 0), (6, 2), (64, 0), (300, 44), (1025, 0)] {
        let bytes = float_band(Layout::Bf16, inputs, &mut random);
        let band =
            Band { layout: Layout::Bf16, columns: inputs, bytes: &bytes, prefetch: PrefetchChoice::DEFAULT };
        for columns in (1..=NARROW).chain([TILE]) {
            let count = (inputs - first).div_ceil(2) * columns;
            let bf16 = |x: f32| u32::from(half::bf16::from_f32(x).to_bits());
            let x: Vec<u32> =
                (0..count).map(|_| bf16(random.number()) | bf16(random.number()) << 16).collect();
            let units: Vec<&[u8]> = bytes.chunks_exact(2 * LINE).skip(first / 2).collect();
            let products = |column: usize, row: usize| {
                let of_unit = |(unit, x): (&&[u8], &[u32])| {
                    let weight = |half| Layout::Bf16.float(unit, half, row);
                    let activation = [x[column] << 16, x[column] & 0xffff_0000].map(f32::from_bits);
                    [0, 1].map(|half| (weight(half), activation[half]))
                };
                units.iter().zip(x.chunks_exact(columns)).map(of_unit).collect::<Vec<_>>()
            };
            let in_turns = |column, row| {
                products(column, row).into_iter().fold(0.5, |sum, [first, second]: [(f32, f32); 2]| {
                    first.0.mul_add(first.1, second.0.mul_add(second.1, sum))
                })
            };
            // `tdpbf16ps` has a sum for the first products of 16 pairs and one for the second.
            let by_tiles = |column, row| {
                products(column, row).chunks(16).fold(0.5, |sum, pairs| {
                    let part = |half: usize| {
                        pairs.iter().fold(0.0, |sum: f32, pair| pair[half].0.mul_add(pair[half].1, sum))
                    };
                    sum + (part(0) + part(1))
                })
            };
            let all = |sum: &dyn Fn(usize, usize) -> f32| -> Vec<[f32; BAND]> {
                (0..columns).map(|column| std::array::from_fn(|row| sum(column, row))).collect()
            };
            let (in_turns, by_tiles) = (all(&in_turns), all(&by_tiles));
            for table in tables() {
                let expected = if table.name == "amx" { &by_tiles } else { &in_turns };
                let mut sums = vec![[0.5; BAND]; columns];
                (table.matmul.bf16)(band, first, &x, &mut sums);
                assert!(bits(&sums) == bits(expected), "{}, {inputs} x {columns}", table.name);
            }
        }
    }
}

/// Scales with the smallest and the largest exponents for which products are finite.
#[test]
fn power_of_two_scales_are_exact() {
    let mut random = Random(25);
    for exponent in [0, 1, 2, 3, 127, 128, 231] {
        let mut bytes = band(Layout::Mxfp4, 2, Fill::Random, &mut random);
        let at = bytes.len() - LINE;
        bytes[at..].fill(exponent);
        let band = Band {
            layout: Layout::Mxfp4,
            columns: 2 * GROUP,
            bytes: &bytes,
            prefetch: PrefetchChoice::DEFAULT,
        };
        let coding = band.layout.coding().expect("an integer layout");
        let x = activations(coding, 2, 1, Fill::Random, &mut random);
        let run = |table: &Table| {
            let mut sums = vec![[0.0; BAND]];
            (table.matmul.narrow)(band, &x, &mut sums);
            bits(&sums)
        };
        for table in tables() {
            let panels = decoded(table, band, 0, 2);
            let expected = 2.0_f64.powi(i32::from(exponent) - 128);
            let scales = panels.iter().flat_map(|panel| [panel[0].scales[0], panel[1].scales[0]]);
            assert!(scales.flatten().all(|scale| f64::from(scale) == expected), "{}: {exponent}", table.name);
            assert!(run(table) == run(&portable()), "{}: {exponent}", table.name);
        }
    }
}

/// An infinite or too large scale yields only infinity or NaN, and the same in every table.
#[test]
fn infinite_and_too_large_scales_yield_no_finite_sum() {
    let mut random = Random(26);
    // 0x7c00 is infinity in half precision.
    for (layout, scale) in [(Layout::Q4_0, [0, 0x7c]), (Layout::Mxfp4, [233; 2]), (Layout::Mxfp4, [255; 2])] {
        let mut bytes = band(layout, 2, Fill::Random, &mut random);
        let at = bytes.len() - LINE;
        bytes[at..].chunks_exact_mut(2).for_each(|two| two.copy_from_slice(&scale));
        let band = Band { layout, columns: 2 * GROUP, bytes: &bytes, prefetch: PrefetchChoice::DEFAULT };
        let coding = layout.coding().expect("an integer layout");
        let few = activations(coding, 2, 1, Fill::Random, &mut random);
        let many = activations(coding, 2, TILE, Fill::Random, &mut random);
        let run = |table: &Table| {
            let (mut narrow, mut tile) = ([[0.0; BAND]; 1], [[0.0; BAND]; TILE]);
            (table.matmul.narrow)(band, &few, &mut narrow);
            let panels = &decoded(table, band, 0, 2);
            (table.matmul.tile)(
                MatmulTileOperands { coding, panels, signed: None, groups: 2, x: &many, next: &[] },
                &mut tile,
            );
            // The bits of a NaN depend on the processor.
            let number = |sum: &f32| if sum.is_nan() { f32::NAN.to_bits() } else { sum.to_bits() };
            let sums: Vec<u32> = narrow.iter().chain(&tile).flatten().map(number).collect();
            sums
        };
        for table in tables() {
            let sums = run(table);
            let numbers = sums.iter().filter(|bits| f32::from_bits(**bits).is_finite()).count();
            assert!(numbers == 0, "{}: {layout:?}, {scale:?}: {numbers} numbers", table.name);
            assert!(sums == run(&portable()), "{}: {layout:?}, {scale:?}", table.name);
        }
    }
}
