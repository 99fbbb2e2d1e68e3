//! Packed weights and arranged activations whose numbers are known: written by
//! the words of [`Layout`] and of [`MatmulKernels`](girih_cpu::kernels::packed::MatmulKernels),
//! not by the crate's own packing, with the edges of what a file may hold.

use girih_cpu::kernels::packed::{
    self, BAND, Band, Coding, DEPTH, GROUP, INTEGER_BIAS, LANES, LINE, Layout, PanelGroup, Panels, Sums,
};
use girih_tensor::DType;
use half::f16;

use crate::fixture::{Random, gamma, portable};

/// The layouts of integers that any format has, each once.
pub fn integer_layouts() -> Vec<Layout> {
    let mut layouts: Vec<Layout> = Vec::new();
    for layout in DType::ALL.iter().map(|&dtype| Layout::of(dtype)) {
        if layout.coding().is_some() && !layouts.contains(&layout) {
            layouts.push(layout);
        }
    }
    layouts
}

/// How the integers of a layout of integers become numbers.
pub fn coding(layout: Layout) -> Coding {
    layout.coding().expect("it is a layout of integers")
}

/// What codes of weights are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codes {
    Any,
    Least,
    Largest,
    /// What stands for zero, where the layout has such a code.
    Zero,
}

/// What scales and minimums are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scales {
    /// Of either sign, from 2⁻⁸ to 2.
    Moderate,
    Zero,
    Negative,
    /// Below the normal numbers of half precision.
    Subnormal,
    /// The largest number of half precision, of either sign.
    Largest,
    /// Each of the above, beside each other.
    Mixed,
}

/// What codes of activations are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inputs {
    Any,
    Largest,
    Smallest,
    Zero,
    /// 127 and −127 in turn.
    Alternating,
}

pub const CODES: [Codes; 4] = [Codes::Any, Codes::Least, Codes::Largest, Codes::Zero];
pub const SCALES: [Scales; 6] =
    [Scales::Moderate, Scales::Zero, Scales::Negative, Scales::Subnormal, Scales::Largest, Scales::Mixed];
pub const INPUTS: [Inputs; 5] =
    [Inputs::Any, Inputs::Largest, Inputs::Smallest, Inputs::Zero, Inputs::Alternating];

/// One of several; the first as often as all others.
pub fn mostly_first<T: Copy>(kinds: &[T], random: &mut Random) -> T {
    let index = random.bits() as usize % (2 * kinds.len() - 2);
    kinds[(index + 1).saturating_sub(kinds.len() - 1)]
}

/// A number below `count`.
pub fn below(count: usize, random: &mut Random) -> usize {
    (random.bits() >> 8) as usize % count
}

/// A band of integers, and what it says.
pub struct IntegerBand {
    pub layout: Layout,
    pub groups: usize,
    pub bytes: Vec<u8>,
    /// The code for each row and column, `[row][column]`.
    codes: Vec<u8>,
    /// The scale for each row and 16 columns, `[row][half group]`.
    scales: Vec<f64>,
    /// The minimum, likewise.
    minimums: Vec<f64>,
}

impl IntegerBand {
    /// A band of so many groups, which fill whole units.
    pub fn random(
        layout: Layout,
        groups: usize,
        codes: Codes,
        scales: Scales,
        random: &mut Random,
    ) -> IntegerBand {
        let mut band = IntegerBand {
            layout,
            groups,
            bytes: vec![0; layout.band_bytes(groups * GROUP).expect("a small band")],
            codes: vec![0; BAND * groups * GROUP],
            scales: vec![0.0; BAND * groups * 2],
            minimums: vec![0.0; BAND * groups * 2],
        };
        match largest_code(layout) {
            Some(largest) => band.fill(largest, codes, scales, random),
            None => band.fill_unknown(random),
        }
        band
    }

    pub fn band(&self) -> Band<'_> {
        Band { layout: self.layout, columns: self.groups * GROUP, bytes: &self.bytes }
    }

    fn fill(&mut self, largest: u8, codes: Codes, scales: Scales, random: &mut Random) {
        let (columns, bytes) = self.layout.unit();
        let each = columns / GROUP;
        for group in 0..self.groups {
            for row in 0..BAND {
                let unit = &mut self.bytes[group / each * bytes..][..bytes];
                for column in 0..GROUP {
                    let code = match codes {
                        Codes::Any => random.bits() as u8 & largest,
                        Codes::Least => 0,
                        Codes::Largest => largest,
                        Codes::Zero => coding(self.layout).zero,
                    };
                    put_code(self.layout, unit, [group % each, row, column], code);
                    self.codes[(row * self.groups + group) * GROUP + column] = code;
                }
                if group % each == 0 {
                    put_outer(self.layout, unit, row, [half(scales, random), half(scales, random)]);
                }
                for part in 0..2 {
                    let inner = [random.bits() as u8, random.bits() as u8];
                    let [scale, minimum] = put_inner(self.layout, unit, [group % each, row, part], inner);
                    let index = (row * self.groups + group) * 2 + part;
                    self.scales[index] = scale;
                    self.minimums[index] = minimum;
                }
            }
        }
    }

    /// Of a layout that this file does not know, bytes whose halves are below
    /// two, and powers of two near one; what they say is what the portable table decodes.
    fn fill_unknown(&mut self, random: &mut Random) {
        for (index, byte) in self.bytes.iter_mut().enumerate() {
            *byte = random.bits() as u8 & if index % 2 == 1 { 0xbf } else { 0xff };
        }
        if self.layout.parts().is_some_and(|(_, scales)| scales == packed::Scales::Powers) {
            for unit in self.bytes.chunks_exact_mut(self.layout.unit().1) {
                let exponents = unit.len() - LINE;
                unit[exponents..].iter_mut().for_each(|exponent| *exponent = 100 + *exponent % 56);
            }
        }
        let coding = coding(self.layout);
        for first in (0..self.groups).step_by(DEPTH) {
            let panels = decoded(self, first, DEPTH.min(self.groups - first));
            for (group, row) in
                (0..DEPTH.min(self.groups - first)).flat_map(|g| (0..BAND).map(move |r| (g, r)))
            {
                let panel = &panels[row / LANES][group];
                let at = row * self.groups + first + group;
                for column in 0..GROUP {
                    self.codes[at * GROUP + column] = panel.codes[column / 4][row % LANES * 4 + column % 4];
                }
                for part in 0..2 {
                    let from = if coding.halves { part } else { 0 };
                    self.scales[2 * at + part] = f64::from(panel.scales[from][row % LANES]);
                    if coding.minimums {
                        self.minimums[2 * at + part] = f64::from(panel.minimums[from][row % LANES]);
                    }
                }
            }
        }
    }

    /// The first fault of decoded groups from `first` on, if there is one.
    pub fn wrong_panels(&self, panels: &Panels, first: usize, count: usize) -> Option<String> {
        let coding = coding(self.layout);
        for (group, row) in (0..count).flat_map(|group| (0..BAND).map(move |row| (group, row))) {
            let (panel, lane) = (&panels[row / LANES][group], row % LANES);
            let at = row * self.groups + first + group;
            for column in 0..GROUP {
                let (got, want) =
                    (panel.codes[column / 4][4 * lane + column % 4], self.codes[at * GROUP + column]);
                if got != want {
                    return Some(format!("code {got}, not {want}, in row {row}, group {group}"));
                }
            }
            for part in 0..coding.sums() {
                let right = f64::from(panel.scales[part][lane]) == self.scales[2 * at + part]
                    && (!coding.minimums
                        || f64::from(panel.minimums[part][lane]) == self.minimums[2 * at + part]);
                if !right {
                    return Some(format!("scale or minimum of row {row}, group {group}"));
                }
            }
        }
        None
    }

    /// The product of a row with a column of some groups, and how far a kernel
    /// may lie from it that begins with `start`.
    ///
    /// `n`, the sum of integers, is exact. Its product with the scale is rounded,
    /// as is the float `s · Σx`; then each addition to the chain is, one for
    /// each scale and one for each minimum. Products below the normal numbers
    /// lose up to half the smallest one more.
    pub fn product(
        &self,
        row: usize,
        column: usize,
        first: usize,
        x: &IntegerInputs,
        start: f32,
    ) -> (f64, f64) {
        let coding = coding(self.layout);
        let (mut sum, mut size) = (f64::from(start), f64::from(start.abs()));
        for group in 0..x.groups {
            let at = row * self.groups + first + group;
            let s = f64::from(x.scales[group * x.columns + column]);
            let (codes, inputs) = (&self.codes[at * GROUP..][..GROUP], x.codes(group, column));
            for part in 0..2 {
                let columns = part * GROUP / 2..(part + 1) * GROUP / 2;
                let (mut n, mut total) = (0, 0);
                for (&code, &x) in codes[columns.clone()].iter().zip(&inputs[columns]) {
                    n += (i32::from(code) - i32::from(coding.zero)) * i32::from(x);
                    total += i32::from(x);
                }
                let scaled = s * self.scales[2 * at + part] * f64::from(n);
                let taken = s * self.minimums[2 * at + part] * f64::from(total);
                sum += scaled - taken;
                size += scaled.abs() + taken.abs();
            }
        }
        let steps = x.groups * (coding.sums() + usize::from(coding.minimums));
        (sum, gamma(1 + steps) * size + 2.0 * steps as f64 * 2f64.powi(-150))
    }
}

/// The largest code of a layout that this file can write.
fn largest_code(layout: Layout) -> Option<u8> {
    match layout {
        Layout::Q4_0 | Layout::Q4K => Some(15),
        Layout::Q8_0 => Some(255),
        Layout::Q6K => Some(63),
        _ => None,
    }
}

/// A scale of half precision.
fn half(kind: Scales, random: &mut Random) -> f16 {
    let bits = random.bits() as u16;
    match kind {
        Scales::Moderate => f16::from_bits(bits & 0x83ff | (7 + (bits >> 10) % 9) << 10),
        Scales::Zero => f16::from_bits(bits & 0x8000),
        Scales::Negative => f16::from_bits(0x8000 | bits & 0x3ff | (7 + (bits >> 10) % 9) << 10),
        Scales::Subnormal => f16::from_bits(bits & 0x83ff),
        Scales::Largest => f16::from_bits(bits & 0x8000 | 0x7bff),
        Scales::Mixed => half(SCALES[below(SCALES.len() - 1, random)], random),
    }
}

/// Writes the code of `[group, row, column]` of a unit of zeros.
fn put_code(layout: Layout, unit: &mut [u8], [group, row, column]: [usize; 3], code: u8) {
    let (upper, lane, line) = (row / LANES, row % LANES, column / 4);
    let at = |line: usize| line * LINE + 4 * lane + column % 4;
    match layout {
        Layout::Q8_0 => unit[at(8 * upper + line)] = code,
        Layout::Q6K => {
            unit[at(12 * group + line)] |= (code & 15) << (4 * upper);
            unit[at(12 * group + 8 + line / 2)] |= code >> 4 << (4 * (line % 2) + 2 * upper);
        }
        _ => unit[at(8 * group + line)] |= code << (4 * upper),
    }
}

/// Writes the scale of a row and its minimum, of half precision.
fn put_outer(layout: Layout, unit: &mut [u8], row: usize, [scale, minimum]: [f16; 2]) {
    let line = match layout {
        Layout::Q4_0 => 8,
        Layout::Q8_0 => 16,
        Layout::Q4K => 70,
        _ => 104,
    };
    unit[line * LINE + 2 * row..][..2].copy_from_slice(&scale.to_le_bytes());
    if layout == Layout::Q4K {
        unit[71 * LINE + 2 * row..][..2].copy_from_slice(&minimum.to_le_bytes());
    }
}

/// Writes the integers by which the scale and the minimum of a row are
/// multiplied for half a group, where there are such; yields both products.
fn put_inner(
    layout: Layout,
    unit: &mut [u8],
    [group, row, part]: [usize; 3],
    [scale, minimum]: [u8; 2],
) -> [f64; 2] {
    let outer = |unit: &[u8], line: usize| {
        let at = line * LINE + 2 * row;
        f16::from_le_bytes([unit[at], unit[at + 1]]).to_f64()
    };
    match layout {
        Layout::Q4_0 => [outer(unit, 8), 0.0],
        Layout::Q8_0 => [outer(unit, 16), 0.0],
        Layout::Q4K => {
            // One for the whole group: that of its first half stays.
            let six = |unit: &mut [u8], index: usize, number: u8| {
                let (lines, at) = (64 + row / LANES * 3, 4 * (row % LANES) + index % 4);
                let lower = (lines + index / 8) * LINE + at;
                let upper = (lines + 2) * LINE + at;
                let (lower_shift, upper_shift) = (4 * (index / 4 % 2), 2 * (index / 4));
                if part == 0 {
                    unit[lower] |= (number & 15) << lower_shift;
                    unit[upper] |= (number >> 4 & 3) << upper_shift;
                }
                f64::from(unit[lower] >> lower_shift & 15 | (unit[upper] >> upper_shift & 3) << 4)
            };
            let [scale, minimum] = [six(unit, group, scale), six(unit, 8 + group, minimum)];
            [outer(unit, 70) * scale, outer(unit, 71) * minimum]
        }
        _ => {
            unit[96 * LINE + (2 * group + part) * BAND + row] = scale;
            [outer(unit, 104) * f64::from(scale as i8), 0.0]
        }
    }
}

/// What the portable table decodes.
pub fn decoded(band: &IntegerBand, first: usize, count: usize) -> Panels {
    let mut panels = [[PanelGroup::ZERO; DEPTH]; 2];
    (portable().matmul.decode)(band.band(), first, count, &mut panels);
    panels
}

/// Columns of activations, rounded to integers.
pub struct IntegerInputs {
    pub groups: usize,
    pub columns: usize,
    /// As a kernel reads them.
    pub words: Vec<u32>,
    /// `[group][column][32]`.
    codes: Vec<i8>,
    /// `[group][column]`.
    scales: Vec<f32>,
}

impl IntegerInputs {
    pub fn random(
        coding: Coding,
        groups: usize,
        columns: usize,
        kind: Inputs,
        random: &mut Random,
    ) -> IntegerInputs {
        let mut x = IntegerInputs {
            groups,
            columns,
            words: vec![0; groups * columns * coding.words()],
            codes: Vec::new(),
            scales: Vec::new(),
        };
        for words in x.words.chunks_exact_mut(coding.words() * columns) {
            for column in 0..columns {
                let codes: Vec<i8> = (0..GROUP).map(|index| input(kind, index, random)).collect();
                let scale = match random.bits() % 16 {
                    0 => 0.0,
                    1 => f32::MIN_POSITIVE,
                    2 => 1e10,
                    _ => random.number().abs() / 16.0,
                };
                let sum = |codes: &[i8]| {
                    let sum: i32 = codes.iter().map(|&code| i32::from(code)).sum();
                    let begin = (INTEGER_BIAS - i32::from(coding.zero) * sum) as u32;
                    if coding.minimums { (scale * sum as f32).to_bits() } else { begin }
                };
                let bytes: Vec<u8> = codes.iter().map(|&code| code as u8).collect();
                let quads = bytes.as_chunks().0.iter().map(|&quad| u32::from_le_bytes(quad));
                let sums = codes.chunks_exact(GROUP / coding.sums()).map(sum);
                for (row, word) in quads.chain(sums).chain([scale.to_bits()]).enumerate() {
                    words[row * columns + column] = word;
                }
                x.codes.extend(codes);
                x.scales.push(scale);
            }
        }
        x
    }

    fn codes(&self, group: usize, column: usize) -> &[i8] {
        &self.codes[(group * self.columns + column) * GROUP..][..GROUP]
    }
}

/// The code of an activation.
fn input(kind: Inputs, index: usize, random: &mut Random) -> i8 {
    match kind {
        Inputs::Any => (random.bits() as i8).max(-127),
        Inputs::Largest => 127,
        Inputs::Smallest => -127,
        Inputs::Zero => 0,
        Inputs::Alternating => {
            if index.is_multiple_of(2) {
                127
            } else {
                -127
            }
        }
    }
}

/// A band of floats: of moderate size, with zeros, and with the smallest and
/// large numbers of its type.
pub fn float_band(layout: Layout, columns: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < layout.band_bytes(columns).expect("a small band") {
        let number = match random.bits() % 32 {
            0 => 0.0,
            1 => f32::from_bits(random.bits() as u32 & 0x807f_ffff),
            2 => random.number() * 60_000.0,
            _ => random.number(),
        };
        match layout {
            Layout::Bf16 => bytes.extend(half::bf16::from_f32(number).to_le_bytes()),
            Layout::F16 => bytes.extend(f16::from_f32(number).to_le_bytes()),
            _ => bytes.extend(number.to_le_bytes()),
        }
    }
    bytes
}

/// The product of a row of a band of floats with a column, and its bound: the
/// product and the addition of each term are rounded, or both at once.
pub fn float_product(
    band: Band<'_>,
    [row, column]: [usize; 2],
    first: usize,
    x: &[f32],
    start: &[Sums],
) -> (f64, f64) {
    let (unit, bytes) = band.layout.unit();
    let begin = start[column][row];
    let (mut sum, mut size) = (f64::from(begin), f64::from(begin.abs()));
    for (input, x) in (first..band.columns).zip(x.chunks_exact(start.len())) {
        let weight = band.layout.float(&band.bytes[input / unit * bytes..], input % unit, row);
        let term = f64::from(weight) * f64::from(x[column]);
        sum += term;
        size += term.abs();
    }
    let terms = band.columns - first;
    (sum, gamma(terms + 1) * size + terms as f64 * 2f64.powi(-149))
}

/// Columns of activations as brain floats, those of two inputs in a word, some
/// of them zeros and some below the normal numbers; an odd input has a zero
/// beside it.
pub fn brain_words(inputs: usize, columns: usize, random: &mut Random) -> Vec<u32> {
    let mut brain = || match random.bits() % 32 {
        0 => 0,
        1 => random.bits() as u32 & 0x807f,
        _ => u32::from(half::bf16::from_f32(random.number()).to_bits()),
    };
    let mut words = vec![0; inputs.div_ceil(2) * columns];
    for (index, word) in words.iter_mut().enumerate() {
        let odd = 2 * (index / columns) + 1 < inputs;
        *word = brain() | if odd { brain() << 16 } else { 0 };
    }
    words
}

/// The product of a row of a band of brain floats with a column of brain floats,
/// and its bound. Products are exact and each addition is rounded. An operand
/// below the normal numbers may count as zero, as may a sum: the one takes away
/// as much as the other operand is large, times the smallest normal number, the
/// other that number.
pub fn brain_product(
    band: Band<'_>,
    [row, column]: [usize; 2],
    first: usize,
    x: &[u32],
    start: &[Sums],
) -> (f64, f64) {
    let bytes = band.layout.unit().1;
    let begin = f64::from(start[column][row]);
    let (mut sum, mut size, mut lost) = (begin, begin.abs(), 1.0);
    let units = band.bytes.chunks_exact(bytes).skip(first / 2);
    for (unit, x) in units.zip(x.chunks_exact(start.len())) {
        for (half, bits) in [x[column] << 16, x[column] & 0xffff_0000].into_iter().enumerate() {
            let (weight, x) =
                (f64::from(band.layout.float(unit, half, row)), f64::from(f32::from_bits(bits)));
            sum += weight * x;
            size += (weight * x).abs();
            lost += 1.0 + weight.abs() + x.abs();
        }
    }
    let rounded = gamma(x.len() / start.len() * 2);
    (sum, rounded * size + (1.0 + rounded) * lost * f64::from(f32::MIN_POSITIVE))
}
