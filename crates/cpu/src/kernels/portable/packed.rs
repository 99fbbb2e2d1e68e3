//! Products of packed weights, in plain loops: the twin of every other table's.

use half::f16;

use crate::kernels::packed::{
    BAND, Band, Coding, DEPTH, GROUP, LANES, LINE, Layout, MAGIC, Panel, PanelGroup, Products,
};

pub(crate) const PRODUCTS: Products = Products { narrow, decode, tile, floats };

/// Decodes as many groups as a panel has, and multiplies them.
pub(crate) fn narrow(band: Band<'_>, x: &[u32], sums: &mut [[f32; BAND]]) {
    let coding = band.layout.coding().expect("integers are multiplied in layouts that hold some");
    sums.fill([0.0; BAND]);
    let mut panels = [[PanelGroup::ZERO; DEPTH]; 2];
    let words = coding.words() * sums.len();
    for (index, x) in x.chunks(DEPTH * words).enumerate() {
        let groups = x.len() / words;
        decode(band, index * DEPTH, groups, &mut panels);
        tile(coding, &panels, groups, x, sums);
    }
}

/// Decodes groups of a band.
pub(crate) fn decode(band: Band<'_>, first: usize, count: usize, panels: &mut [Panel; 2]) {
    let (columns, bytes) = band.layout.unit();
    let each = columns / GROUP;
    for group in 0..count {
        let unit = &band.bytes[(first + group) / each * bytes..][..bytes];
        for (half, panel) in panels.iter_mut().enumerate() {
            decode_group(band.layout, unit, (first + group) % each, half, &mut panel[group]);
        }
    }
}

/// Decodes group `group` of a unit for the rows of one half of the band.
fn decode_group(layout: Layout, unit: &[u8], group: usize, half: usize, to: &mut PanelGroup) {
    let shift = 4 * half;
    match layout {
        Layout::Q4_0 => {
            nibbles(unit, shift, &mut to.codes);
            to.scales[0] = halves(&unit[8 * LINE + half * 2 * LANES..]);
        }
        Layout::Q8_0 => {
            let lines = unit[half * 8 * LINE..].chunks_exact(LINE);
            to.codes.iter_mut().zip(lines).for_each(|(codes, line)| codes.copy_from_slice(line));
            to.scales[0] = halves(&unit[16 * LINE + half * 2 * LANES..]);
        }
        Layout::Q4K => {
            nibbles(&unit[group * 8 * LINE..], shift, &mut to.codes);
            let tail = &unit[64 * LINE..];
            let sixes = &tail[half * 3 * LINE..][..3 * LINE];
            let outer = &tail[6 * LINE + half * 2 * LANES..];
            to.scales[0] = scaled(&halves(outer), |row| six(sixes, group, row));
            to.minimums[0] = scaled(&halves(&outer[LINE..]), |row| six(sixes, 8 + group, row));
        }
        Layout::Q6K => {
            let lines = &unit[group * 12 * LINE..];
            nibbles(lines, shift, &mut to.codes);
            let uppers = lines[8 * LINE..12 * LINE].chunks_exact(LINE);
            for (pair, uppers) in to.codes.chunks_exact_mut(2).zip(uppers) {
                for (index, codes) in pair.iter_mut().enumerate() {
                    let shift = 4 * index + 2 * half;
                    codes.iter_mut().zip(uppers).for_each(|(code, upper)| *code |= (upper >> shift & 3) << 4);
                }
            }
            let (scales, outer) = unit[96 * LINE..].split_at(8 * LINE);
            let outer = halves(&outer[half * 2 * LANES..]);
            for (index, to) in to.scales.iter_mut().enumerate() {
                let inner = &scales[(2 * group + index) * BAND + half * LANES..];
                *to = scaled(&outer, |row| inner[row] as i8);
            }
        }
        Layout::Bf16 | Layout::F16 | Layout::F32 | Layout::Stored(_) => {
            unreachable!("only layouts of integers are decoded")
        }
    }
}

/// The four bits from bit `shift` on of each byte of eight lines.
fn nibbles(lines: &[u8], shift: usize, codes: &mut [[u8; LINE]; GROUP / 4]) {
    for (codes, line) in codes.iter_mut().zip(lines.chunks_exact(LINE)) {
        codes.iter_mut().zip(line).for_each(|(code, byte)| *code = byte >> shift & 15);
    }
}

/// A number of half precision for each row of half a band.
fn halves(bytes: &[u8]) -> [f32; LANES] {
    std::array::from_fn(|row| f16::from_le_bytes([bytes[2 * row], bytes[2 * row + 1]]).to_f32())
}

/// The six-bit number `index` of a row, out of its three lines.
fn six(lines: &[u8], index: usize, row: usize) -> i8 {
    let (part, at) = (index / 4, 4 * row + index % 4);
    let lower = lines[part / 2 * LINE + at] >> (4 * (part % 2)) & 15;
    let upper = lines[2 * LINE + at] >> (2 * part) & 3;
    (lower | upper << 4) as i8
}

/// Each row's number times the row's integer.
fn scaled(outer: &[f32; LANES], inner: impl Fn(usize) -> i8) -> [f32; LANES] {
    std::array::from_fn(|row| outer[row] * f32::from(inner(row)))
}

/// Multiplies panels by columns of integers.
fn tile(coding: Coding, panels: &[Panel; 2], groups: usize, x: &[u32], sums: &mut [[f32; BAND]]) {
    let columns = sums.len();
    for (group, x) in x.chunks_exact(coding.words() * columns).take(groups).enumerate() {
        for (column, sums) in sums.iter_mut().enumerate() {
            let word = |row: usize| x[row * columns + column];
            for (panel, sums) in panels.iter().zip(sums.chunks_exact_mut(LANES)) {
                add_group(coding, &panel[group], word, sums);
            }
        }
    }
}

/// Adds what one group yields for one column of activations.
fn add_group(coding: Coding, panel: &PanelGroup, word: impl Fn(usize) -> u32, sums: &mut [f32]) {
    let lines = GROUP / 4;
    let scale = f32::from_bits(word(lines + coding.sums()));
    for part in 0..coding.sums() {
        let begin = if coding.minimums { MAGIC } else { word(lines + part) as i32 };
        let lines = part * lines / coding.sums()..(part + 1) * lines / coding.sums();
        for (row, sum) in sums.iter_mut().enumerate() {
            let mut n = begin - MAGIC;
            for line in lines.clone() {
                let codes = &panel.codes[line][4 * row..4 * row + 4];
                let x = word(line).to_le_bytes();
                n += codes.iter().zip(x).map(|(&code, x)| i32::from(code) * i32::from(x as i8)).sum::<i32>();
            }
            *sum = (n as f32 * panel.scales[part][row]).mul_add(scale, *sum);
            if coding.minimums {
                let total = f32::from_bits(word(GROUP / 4 + part));
                *sum = (-panel.minimums[part][row]).mul_add(total, *sum);
            }
        }
    }
}

/// Multiplies a band of floats. Products are rounded before they are added, as
/// a fused multiply-add would be a call where the processor has none: the one
/// way in which this table's results differ from the others'.
fn floats(band: Band<'_>, first: usize, x: &[u32], sums: &mut [[f32; BAND]]) {
    let (unit, bytes) = band.layout.unit();
    let columns = sums.len();
    for (index, x) in x.chunks_exact(columns).enumerate() {
        if first + index >= band.columns {
            break; // the row of zeros that makes the number even
        }
        let line = &band.bytes[(first + index) / unit * bytes..][..bytes];
        let weights: [f32; BAND] = std::array::from_fn(|row| band.layout.float(line, index % unit, row));
        for (sums, x) in sums.iter_mut().zip(x) {
            let x = f32::from_bits(*x);
            sums.iter_mut().zip(&weights).for_each(|(sum, weight)| *sum += weight * x);
        }
    }
}
