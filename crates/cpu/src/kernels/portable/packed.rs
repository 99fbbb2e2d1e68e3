//! Multiplication of packed weights in plain loops: the twin of every other table's.

use half::f16;

use super::fp16::fp16;
use super::quantize::quantize;
use crate::kernels::layout::{Codes, E2M1, IQ4, Scales};
use crate::kernels::packed::{
    BAND, Band, Coding, DEPTH, GROUP, INTEGER_BIAS, INTEGER_BIAS_FLOAT, LANES, LINE, MatmulKernels,
    MatmulTileOperands, Panel, PanelGroup,
};

pub(crate) const MATMUL: MatmulKernels = MatmulKernels {
    narrow,
    decode,
    tile,
    sign: None,
    floats,
    bf16,
    fp16: Some(fp16),
    quantize,
    has_bf16_dot: false,
};

/// Decodes as many groups as a panel has, and multiplies them.
pub(crate) fn narrow(band: Band<'_>, x: &[u32], sums: &mut [[f32; BAND]]) {
    let coding = band.layout.coding().expect("integers are multiplied in layouts that hold some");
    let mut panels = [[PanelGroup::ZERO; DEPTH]; 2];
    let words = coding.words() * sums.len();
    for (index, x) in x.chunks(DEPTH * words).enumerate() {
        let groups = x.len() / words;
        decode(band, index * DEPTH, groups, &mut panels);
        tile(MatmulTileOperands { coding, panels: &panels, signed: None, groups, x, next: &[] }, sums);
    }
}

/// Decodes groups of a band.
pub(crate) fn decode(band: Band<'_>, first: usize, count: usize, panels: &mut [Panel; 2]) {
    let (codes, scales) = band.layout.parts().expect("integers are decoded in layouts that hold some");
    let (columns, bytes) = band.layout.unit();
    let each = columns / GROUP;
    for at in 0..count {
        let unit = &band.bytes[(first + at) / each * bytes..][..bytes];
        let group = (first + at) % each;
        let lines = &unit[group * codes.lines() * LINE..][..codes.lines() * LINE];
        let tail = &unit[each * codes.lines() * LINE..];
        for (half, panel) in panels.iter_mut().enumerate() {
            decode_codes(codes, lines, half, &mut panel[at].codes);
            decode_scales(scales, tail, group, half, &mut panel[at]);
        }
    }
}

/// Decodes the codes of a group for the rows of one half of the band.
fn decode_codes(kind: Codes, lines: &[u8], half: usize, codes: &mut [[u8; LINE]; GROUP / 4]) {
    codes.as_flattened_mut().fill(0);
    let (eight, upper) = lines.split_at(lines.len().min(8 * LINE));
    match kind {
        Codes::Two => add_bits(2, lines, half, 0, codes),
        Codes::Three => {
            add_bits(2, &lines[..4 * LINE], half, 0, codes);
            add_bits(1, &lines[4 * LINE..], half, 2, codes);
        }
        Codes::Four => add_bits(4, eight, half, 0, codes),
        Codes::Five => {
            add_bits(4, eight, half, 0, codes);
            add_bits(1, upper, half, 4, codes);
        }
        Codes::Six => {
            add_bits(4, eight, half, 0, codes);
            add_bits(2, upper, half, 4, codes);
        }
        Codes::Eight => codes.as_flattened_mut().copy_from_slice(&lines[half * 8 * LINE..][..8 * LINE]),
        Codes::Iq4 | Codes::E2m1 => {
            let levels = if kind == Codes::Iq4 { IQ4 } else { E2M1 };
            add_bits(4, eight, half, 0, codes);
            codes.as_flattened_mut().iter_mut().for_each(|code| *code = levels[usize::from(*code)]);
        }
    }
}

/// Adds the bits of lines with `bits` bits for a code, from bit `to` of a code on.
fn add_bits(bits: usize, lines: &[u8], half: usize, to: usize, codes: &mut [[u8; LINE]; GROUP / 4]) {
    let each = 8 / (2 * bits);
    let mask = (1 << bits) - 1;
    for (together, line) in codes.chunks_exact_mut(each).zip(lines.chunks_exact(LINE)) {
        for (index, codes) in together.iter_mut().enumerate() {
            let shift = (2 * index + half) * bits;
            codes.iter_mut().zip(line).for_each(|(code, byte)| *code |= (byte >> shift & mask) << to);
        }
    }
}

/// Decodes the scales of group `group` of a unit for the rows of one half of the band.
fn decode_scales(kind: Scales, tail: &[u8], group: usize, half: usize, to: &mut PanelGroup) {
    // What has two bytes for each row has a line, what has one has half a line.
    let wide = |line: usize| &tail[line * LINE + half * 2 * LANES..];
    let bytes = |index: usize| &tail[index * BAND + half * LANES..][..LANES];
    match kind {
        Scales::Half => to.scales[0] = halves(wide(0)),
        Scales::HalfOffset => {
            to.scales[0] = halves(wide(0));
            to.minimums[0] = halves(wide(1)).map(|offset| -offset);
        }
        Scales::Bf16Offset => {
            to.scales[0] = bf16_line(wide(group));
            to.minimums[0] = bf16_line(wide(8 + group)).map(|offset| -offset);
        }
        Scales::Sixes => {
            let sixes = &tail[half * 3 * LINE..][..3 * LINE];
            to.scales[0] = scaled(&halves(wide(6)), |row| six(sixes, group, row));
            to.minimums[0] = scaled(&halves(wide(7)), |row| six(sixes, 8 + group, row));
        }
        Scales::Fours => {
            for part in 0..2 {
                let inner = bytes(2 * group + part);
                to.scales[part] = scaled(&halves(wide(8)), |row| (inner[row] & 15) as i8);
                to.minimums[part] = scaled(&halves(wide(9)), |row| (inner[row] >> 4) as i8);
            }
        }
        Scales::Bytes => to.scales[0] = scaled(&halves(wide(4)), |row| bytes(group)[row] as i8),
        Scales::HalvedBytes => {
            for part in 0..2 {
                to.scales[part] = scaled(&halves(wide(8)), |row| bytes(2 * group + part)[row] as i8);
            }
        }
        Scales::Powers => to.scales[0] = std::array::from_fn(|row| power(bytes(group)[row])),
    }
}

/// A number of half precision for each row of half a band.
fn halves(bytes: &[u8]) -> [f32; LANES] {
    std::array::from_fn(|row| f16::from_le_bytes([bytes[2 * row], bytes[2 * row + 1]]).to_f32())
}

/// A bf16 number for each row of half a band.
fn bf16_line(bytes: &[u8]) -> [f32; LANES] {
    std::array::from_fn(|row| half::bf16::from_le_bytes([bytes[2 * row], bytes[2 * row + 1]]).to_f32())
}

/// `2^(exponent − 128)`, of which the two smallest are subnormal.
fn power(exponent: u8) -> f32 {
    match exponent {
        0 | 1 => f32::from_bits(0x0020_0000 << exponent),
        _ => f32::from_bits(u32::from(exponent - 1) << 23),
    }
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
fn tile(operands: MatmulTileOperands<'_>, sums: &mut [[f32; BAND]]) {
    let MatmulTileOperands { coding, panels, groups, x, signed: _, next: _ } = operands;
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
        let begin = if coding.minimums { INTEGER_BIAS } else { word(lines + part) as i32 };
        let lines = part * lines / coding.sums()..(part + 1) * lines / coding.sums();
        for (row, sum) in sums.iter_mut().enumerate() {
            let mut n = begin - INTEGER_BIAS;
            for line in lines.clone() {
                let codes = &panel.codes[line][4 * row..4 * row + 4];
                let x = word(line).to_le_bytes();
                n += codes.iter().zip(x).map(|(&code, x)| i32::from(code) * i32::from(x as i8)).sum::<i32>();
            }
            *sum = counted(n, panel.scales[part][row]).mul_add(scale, *sum);
            if coding.minimums {
                let total = f32::from_bits(word(GROUP / 4 + part));
                *sum = (-panel.minimums[part][row]).mul_add(total, *sum);
            }
        }
    }
}

/// `n · scale`; where `INTEGER_BIAS_FLOAT · scale` is infinite, what the other tables make
/// of it, which count from there.
fn counted(n: i32, scale: f32) -> f32 {
    let magic = INTEGER_BIAS_FLOAT * scale;
    if magic.is_finite() { n as f32 * scale } else { scale.mul_add(INTEGER_BIAS_FLOAT + n as f32, -magic) }
}

/// Multiplies a band of floats. Each product is rounded before it is added, as
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

/// Multiplies a band of bf16 numbers by bf16 numbers. Their products are exact, so
/// rounding before the addition changes nothing.
fn bf16(band: Band<'_>, first: usize, x: &[u32], sums: &mut [[f32; BAND]]) {
    let (unit, bytes) = band.layout.unit();
    let lines = band.bytes[first / unit * bytes..].chunks_exact(bytes);
    for (line, x) in lines.zip(x.chunks_exact(sums.len())) {
        let weights = |column| std::array::from_fn(|row| band.layout.float(line, column, row));
        let (lower, upper): ([f32; BAND], [f32; BAND]) = (weights(0), weights(1));
        for (sums, x) in sums.iter_mut().zip(x) {
            let [low, high] = [f32::from_bits(x << 16), f32::from_bits(x & 0xffff_0000)];
            sums.iter_mut().zip(&upper).for_each(|(sum, weight)| *sum += weight * high);
            sums.iter_mut().zip(&lower).for_each(|(sum, weight)| *sum += weight * low);
        }
    }
}
