//! Packed weights and activations with known values. They are written as the documentation of [`Layout`]
//! and [`MatmulKernels`](girih_cpu::kernels::packed::MatmulKernels) defines, not by the crate's own
//! packing, and include the extreme values that a file may hold.

use girih_cpu::kernels::packed::{
    self, BAND, Band, Coding, DEPTH, GROUP, INTEGER_BIAS, LANES, LINE, Layout, PanelGroup, Panels, Sums,
};
use girih_cpu::kernels::prefetch::PrefetchChoice;
use girih_tensor::DType;
use half::f16;

use crate::fixture::{Random, gamma, portable};

/// The integer layouts of all formats, each once.
pub fn integer_layouts() -> Vec<Layout> {
    let mut layouts: Vec<Layout> = Vec::new();
    for layout in DType::ALL.iter().map(|&dtype| Layout::of(dtype)) {
        if layout.coding().is_some() && !layouts.contains(&layout) {
            layouts.push(layout);
        }
    }
    layouts
}

/// How the integers of an integer layout become numbers.
pub fn coding(layout: Layout) -> Coding {
    layout.coding().expect("an integer layout")
}

/// The kinds of codes that weights have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightCodes {
    Any,
    Least,
    Largest,
    /// The code of zero, if the layout has one.
    Zero,
}

/// The kinds of scales and minimums that weights have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightScales {
    /// Of either sign, from 2⁻⁸ to 2.
    Moderate,
    Zero,
    Negative,
    /// Subnormal in half precision.
    Subnormal,
    /// The largest number of half precision, of either sign.
    Largest,
    /// All of the above, mixed.
    Mixed,
}

/// The kinds of codes that activations have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputCodes {
    Any,
    Largest,
    Smallest,
    Zero,
    /// Alternately 127 and −127.
    Alternating,
}

pub const CODES: [WeightCodes; 4] =
    [WeightCodes::Any, WeightCodes::Least, WeightCodes::Largest, WeightCodes::Zero];
pub const SCALES: [WeightScales; 6] = [
    WeightScales::Moderate,
    WeightScales::Zero,
    WeightScales::Negative,
    WeightScales::Subnormal,
    WeightScales::Largest,
    WeightScales::Mixed,
];
pub const INPUTS: [InputCodes; 5] =
    [InputCodes::Any, InputCodes::Largest, InputCodes::Smallest, InputCodes::Zero, InputCodes::Alternating];

/// One of `kinds`; the first is as frequent as all others together.
pub fn mostly_first<T: Copy>(kinds: &[T], random: &mut Random) -> T {
    let index = random.bits() as usize % (2 * kinds.len() - 2);
    kinds[(index + 1).saturating_sub(kinds.len() - 1)]
}

/// A random number below `count`.
pub fn below(count: usize, random: &mut Random) -> usize {
    (random.bits() >> 8) as usize % count
}

/// A band of integers, and its decoded values.
pub struct IntegerBand {
    pub layout: Layout,
    pub groups: usize,
    pub bytes: Vec<u8>,
    /// The codes, `[row][column]`.
    codes: Vec<u8>,
    /// The scales, one per row and 16 columns, `[row][half group]`.
    scales: Vec<f64>,
    /// The minimums, in the same order.
    minimums: Vec<f64>,
}

impl IntegerBand {
    /// A random band of `groups` groups, which fill whole units.
    pub fn random(
        layout: Layout,
        groups: usize,
        codes: WeightCodes,
        scales: WeightScales,
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
        Band {
            layout: self.layout,
            columns: self.groups * GROUP,
            bytes: &self.bytes,
            prefetch: PrefetchChoice::DEFAULT,
        }
    }

    fn fill(&mut self, largest: u8, codes: WeightCodes, scales: WeightScales, random: &mut Random) {
        let (columns, bytes) = self.layout.unit();
        let each = columns / GROUP;
        for group in 0..self.groups {
            for row in 0..BAND {
                let unit = &mut self.bytes[group / each * bytes..][..bytes];
                for column in 0..GROUP {
                    let code = match codes {
                        WeightCodes::Any => random.bits() as u8 & largest,
                        WeightCodes::Least => 0,
                        WeightCodes::Largest => largest,
                        WeightCodes::Zero => coding(self.layout).zero,
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

    /// Fills a band of a layout that this file cannot write: scales in half precision are below two, powers
    /// of two are near one, and the portable table decodes the values.
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

    /// Returns the first fault in the groups that a kernel decoded from group `first` on.
    pub fn wrong_panels(&self, panels: &Panels, first: usize, count: usize) -> Option<String> {
        let coding = coding(self.layout);
        for (group, row) in (0..count).flat_map(|group| (0..BAND).map(move |row| (group, row))) {
            let (panel, lane) = (&panels[row / LANES][group], row % LANES);
            let at = row * self.groups + first + group;
            for column in 0..GROUP {
                let (got, expected) =
                    (panel.codes[column / 4][4 * lane + column % 4], self.codes[at * GROUP + column]);
                if got != expected {
                    return Some(format!("code {got}, not {expected}, in row {row}, group {group}"));
                }
            }
            for part in 0..coding.sums() {
                let right = f64::from(panel.scales[part][lane]) == self.scales[2 * at + part]
                    && (!coding.minimums
                        || f64::from(panel.minimums[part][lane]) == self.minimums[2 * at + part]);
                if !right {
                    return Some(format!("wrong scale or minimum in row {row}, group {group}"));
                }
            }
        }
        None
    }

    /// Returns the dot product of a row and a column, added to `start`, and the bound of a kernel's error.
    ///
    /// `n`, the sum of integers, is exact. Its product with the scale is rounded, and so is the float
    /// `s · Σx`. Each addition to the chain is rounded, one per scale and one per minimum. Subnormal products
    /// lose up to half of the smallest subnormal number more.
    pub fn dot_product(
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

/// The largest code of a layout, if this file can write the layout.
fn largest_code(layout: Layout) -> Option<u8> {
    match layout {
        Layout::Q4_0 | Layout::Q4K => Some(15),
        Layout::Q8_0 => Some(255),
        Layout::Q6K => Some(63),
        _ => None,
    }
}

/// A scale in half precision.
fn half(kind: WeightScales, random: &mut Random) -> f16 {
    let bits = random.bits() as u16;
    match kind {
        WeightScales::Moderate => f16::from_bits(bits & 0x83ff | (7 + (bits >> 10) % 9) << 10),
        WeightScales::Zero => f16::from_bits(bits & 0x8000),
        WeightScales::Negative => f16::from_bits(0x8000 | bits & 0x3ff | (7 + (bits >> 10) % 9) << 10),
        WeightScales::Subnormal => f16::from_bits(bits & 0x83ff),
        WeightScales::Largest => f16::from_bits(bits & 0x8000 | 0x7bff),
        WeightScales::Mixed => half(SCALES[below(SCALES.len() - 1, random)], random),
    }
}

/// Writes the code at `[group, row, column]` of a unit that was zero.
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

/// Writes the scale and the minimum of a row, in half precision.
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

/// Writes the integer factors of a row's scale and minimum for half a group, if the layout has them.
/// Returns the scale and the minimum of the half group.
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
            // A group has one number: the second half must not overwrite the first half's.
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

/// Groups `first..first + count` of a band, decoded by the portable table.
pub fn decoded(band: &IntegerBand, first: usize, count: usize) -> Panels {
    let mut panels = [[PanelGroup::ZERO; DEPTH]; 2];
    (portable().matmul.decode)(band.band(), first, count, &mut panels);
    panels
}

/// Columns of activations, quantized to integers.
pub struct IntegerInputs {
    pub groups: usize,
    pub columns: usize,
    /// The words that a kernel reads.
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
        kind: InputCodes,
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
fn input(kind: InputCodes, index: usize, random: &mut Random) -> i8 {
    match kind {
        InputCodes::Any => (random.bits() as i8).max(-127),
        InputCodes::Largest => 127,
        InputCodes::Smallest => -127,
        InputCodes::Zero => 0,
        InputCodes::Alternating => {
            if index.is_multiple_of(2) {
                127
            } else {
                -127
            }
        }
    }
}

/// A band of floats of moderate size, with zeros and with the smallest and large numbers of its type.
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

/// Returns the dot product of a row of a band of floats and a column, and its bound: each term has the
/// rounding of a product and of an addition, or one for both.
pub fn float_dot_product(
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

/// A band of half-precision numbers as [`float_band`] makes it, without those that are too large for sums in half precision.
pub fn fp16_band(columns: usize, random: &mut Random) -> Vec<u8> {
    let bytes = float_band(Layout::F16, columns, random);
    let limited = |bytes: &[u8; 2]| f16::from_f32(f16::from_le_bytes(*bytes).to_f32().clamp(-500.0, 500.0));
    bytes.as_chunks().0.iter().flat_map(|bytes| limited(bytes).to_le_bytes()).collect()
}

/// Columns of half-precision activations below 4, each twice in a word; behind each group a row of scales. The last group is filled
/// up with zeros.
pub fn fp16_words(inputs: usize, columns: usize, random: &mut Random) -> Vec<u32> {
    let mut words = Vec::new();
    for group in 0..inputs.div_ceil(GROUP) {
        for input in group * GROUP..(group + 1) * GROUP {
            words.extend((0..columns).map(|_| {
                let x = match random.bits() % 32 {
                    0 => f16::ZERO,
                    1 => f16::from_bits(random.bits() as u16 & 0x83ff),
                    _ => f16::from_f32(2.0 * random.number()),
                };
                if input < inputs { u32::from(x.to_bits()) * 0x1_0001 } else { 0 }
            }));
        }
        words.extend((0..columns).map(|_| 2f32.powi((random.bits() % 16) as i32 - 8).to_bits()));
    }
    words
}

/// As [`float_dot_product`], of such words. Each of the roundings of a group's sum is at most half a unit of half precision, 2^-11 of
/// the sum or 2^-25; single precision has two for each group.
pub fn fp16_dot_product(
    band: Band<'_>,
    [row, column]: [usize; 2],
    first: usize,
    words: &[u32],
    start: &[Sums],
) -> (f64, f64) {
    let columns = start.len();
    let begin = f64::from(start[column][row]);
    let (mut sum, mut size, mut bound, mut input) = (begin, begin.abs(), 0.0, first);
    for words in words.chunks_exact((GROUP + 1) * columns) {
        let scale = f64::from(f32::from_bits(words[GROUP * columns + column]));
        let (mut of_group, mut terms) = (0.0f64, 0.0);
        for word in words.iter().skip(column).step_by(columns).take(GROUP.min(band.columns - input)) {
            let weight = f64::from(Layout::F16.float(&band.bytes[input * LINE..], 0, row));
            let term = scale * weight * f64::from(f16::from_bits(*word as u16));
            (sum, of_group, terms, input) = (sum + term, of_group + term.abs(), terms + 1.0, input + 1);
        }
        let unit = terms * 2f64.powi(-11);
        bound += unit / (1.0 - unit) * of_group + terms * 2f64.powi(-25) * scale;
        size += of_group;
    }
    let groups = words.len() / ((GROUP + 1) * columns);
    (sum, bound + gamma(2 * groups + 1) * (size + bound))
}

/// Columns of bf16 activations, two inputs in a word. Some are zero and some subnormal; an odd last input is
/// paired with zero.
pub fn bf16_words(inputs: usize, columns: usize, random: &mut Random) -> Vec<u32> {
    let mut bf16 = || match random.bits() % 32 {
        0 => 0,
        1 => random.bits() as u32 & 0x807f,
        _ => u32::from(half::bf16::from_f32(random.number()).to_bits()),
    };
    let mut words = vec![0; inputs.div_ceil(2) * columns];
    for (index, word) in words.iter_mut().enumerate() {
        let odd = 2 * (index / columns) + 1 < inputs;
        *word = bf16() | if odd { bf16() << 16 } else { 0 };
    }
    words
}

/// Returns the dot product of a row of a bf16 band and a bf16 column, and its bound. Products are exact and
/// each addition is rounded. A subnormal operand or sum may be flushed to zero: an operand then loses the
/// size of the other operand times the smallest normal number, a sum that number.
pub fn bf16_dot_product(
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
