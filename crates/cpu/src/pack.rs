//! From the rows of a file to bands: the same numbers in another order, so
//! that nothing is lost. How a layout is read is said where it is defined.
//!
//! Rows are taken in pairs, `r` and `16 + r`, which share the bytes of four-bit
//! layouts; four columns at a time, which share a lane.

use girih_tensor::DType;

use crate::kernels::packed::{BAND, Codes, GROUP, LANES, LINE, Layout, Scales};

/// Packs up to [`BAND`] rows of `dtype`, one after another in `rows`, into a
/// band of zeros. Rows that are missing stay zeros.
///
/// # Panics
/// When the slices do not have the sizes of such rows and such a band.
pub(crate) fn pack_band(dtype: DType, columns: usize, rows: &[u8], band: &mut [u8]) {
    let layout = Layout::of(dtype);
    assert_eq!(Some(band.len()), layout.band_bytes(columns), "a band of {columns} columns");
    // Tiles of Q4NX are bands already.
    if matches!(layout, Layout::Stored(_) | Layout::Q4nx) {
        band[..rows.len()].copy_from_slice(rows);
        return;
    }
    let row_bytes = columns / dtype.tile().1 * dtype.block_bytes();
    assert!(rows.len().is_multiple_of(row_bytes) && rows.len() <= BAND * row_bytes, "whole rows of a band");
    let row = |row: usize| rows.get(row * row_bytes..(row + 1) * row_bytes);
    let each = (0..BAND).filter_map(|r| Some((r, row(r)?)));
    match layout {
        Layout::Bf16 => each.for_each(|(r, row)| pairs(row, r, band)),
        Layout::F16 => each.for_each(|(r, row)| halves(row, r, band)),
        Layout::F32 => each.for_each(|(r, row)| singles(row, r, band)),
        _ => {
            let nothing = vec![0; row_bytes];
            for lane in 0..LANES {
                let Some(low) = row(lane) else { break };
                let high = row(LANES + lane).unwrap_or(&nothing);
                Pair { layout, lane, low, high }.pack(dtype, band);
            }
        }
    }
}

/// A row of BF16: two columns in a lane.
fn pairs(row: &[u8], at: usize, band: &mut [u8]) {
    let lane = at / LANES * LINE + 4 * (at % LANES);
    for (unit, pair) in band.chunks_exact_mut(2 * LINE).zip(row.chunks(4)) {
        unit[lane..lane + pair.len()].copy_from_slice(pair);
    }
}

/// A row of F16: a column in a line.
fn halves(row: &[u8], at: usize, band: &mut [u8]) {
    for (line, value) in band.chunks_exact_mut(LINE).zip(row.chunks_exact(2)) {
        line[2 * at..2 * at + 2].copy_from_slice(value);
    }
}

/// A row of F32: a column in two lines.
fn singles(row: &[u8], at: usize, band: &mut [u8]) {
    for (lines, value) in band.chunks_exact_mut(2 * LINE).zip(row.chunks_exact(4)) {
        lines[4 * at..4 * at + 4].copy_from_slice(value);
    }
}

/// Four codes, of four columns of one row.
type Word = u32;

/// The codes of a group, four in a word.
type Group = [Word; GROUP / 4];

/// What a block multiplies its codes by.
struct Factors {
    /// A scale and a minimum or offset, two bytes each as they are stored.
    outer: [[u8; 2]; 2],
    /// Small integers, one for each group or half of one, scales before minimums.
    inner: [u8; 16],
}

/// Factors of so many bytes; what is missing is not packed.
fn factors(outer: &[u8], inner: &[u8]) -> Factors {
    let mut factors = Factors { outer: [[0; 2]; 2], inner: [0; 16] };
    factors.outer.as_flattened_mut()[..outer.len()].copy_from_slice(outer);
    factors.inner[..inner.len()].copy_from_slice(inner);
    factors
}

/// Two rows that share bytes.
struct Pair<'a> {
    layout: Layout,
    lane: usize,
    low: &'a [u8],
    high: &'a [u8],
}

impl Pair<'_> {
    /// Packs both rows. Where a format has what is said in its own file.
    fn pack(&self, dtype: DType, band: &mut [u8]) {
        match dtype {
            DType::Q2_K => self.each::<84>(8, band, q2_k, |b| factors(&b[80..], &b[..16])),
            DType::Q3_K => self.each::<110>(8, band, q3_k, |b| factors(&b[108..], &q3_k_scales(&b[96..108]))),
            DType::Q4_0 => self.each::<18>(1, band, |b, _| nibbles(&b[2..]), |b| factors(&b[..2], &[])),
            DType::Q4_1 => self.each::<20>(1, band, |b, _| nibbles(&b[4..]), |b| factors(&b[..4], &[])),
            DType::Q4_K => self.each::<144>(
                8,
                band,
                |b, group| wide_nibbles(&b[16..], group),
                |b| factors(&b[..4], &six_bits(&b[4..16])),
            ),
            DType::Q5_0 => self.each::<22>(1, band, |b, _| fives(&b[2..]), |b| factors(&b[..2], &[])),
            DType::Q5_1 => self.each::<24>(1, band, |b, _| fives(&b[4..]), |b| factors(&b[..4], &[])),
            DType::Q5_K => self.each::<176>(
                8,
                band,
                |b, group| {
                    let fifths = select(&b[16..48], group, ONES);
                    with(wide_nibbles(&b[48..], group), fifths, 4)
                },
                |b| factors(&b[..4], &six_bits(&b[4..16])),
            ),
            DType::Q6_K => self.each::<210>(8, band, q6_k, |b| factors(&b[208..], &b[192..208])),
            DType::Q8_0 => self.each::<34>(
                1,
                band,
                |b, _| select(&b[2..], 0, !0).map(|word| word ^ 0x8080_8080),
                |b| factors(&b[..2], &[]),
            ),
            DType::IQ4_NL => self.each::<18>(1, band, |b, _| nibbles(&b[2..]), |b| factors(&b[..2], &[])),
            DType::IQ4_XS => self.each::<136>(
                8,
                band,
                |b, group| nibbles(&b[8 + 16 * group..]),
                |b| factors(&b[..2], &iq4_xs_scales(&b[2..8])),
            ),
            DType::MXFP4 => self.each::<17>(1, band, |b, _| nibbles(&b[1..]), |b| factors(&[], &b[..1])),
            _ => unreachable!("{dtype} has no layout of integers for rows"),
        }
    }

    /// Packs the blocks of both rows, given what to read of one: the codes of
    /// each of its `groups` groups, and its factors.
    fn each<const BYTES: usize>(
        &self,
        groups: usize,
        band: &mut [u8],
        codes: impl Fn(&[u8; BYTES], usize) -> Group,
        factors: impl Fn(&[u8; BYTES]) -> Factors,
    ) {
        let (kind, scales) = self.layout.parts().expect("blocks of integers go into a layout of integers");
        let (bytes, of_group) = (self.layout.unit().1, kind.lines() * LINE);
        let blocks = self.low.as_chunks::<BYTES>().0.iter().zip(self.high.as_chunks::<BYTES>().0);
        for (index, (low, high)) in blocks.enumerate() {
            let (unit, first) = (index * groups / scales.groups(), index * groups % scales.groups());
            let (lines, tail) = band[unit * bytes..][..bytes].split_at_mut(scales.groups() * of_group);
            let lines = lines[first * of_group..].chunks_exact_mut(of_group);
            for (group, lines) in lines.take(groups).enumerate() {
                self.put_codes(kind, [codes(low, group), codes(high, group)], lines);
            }
            put_factors(scales, factors(low), self.lane, first, tail);
            put_factors(scales, factors(high), LANES + self.lane, first, tail);
        }
    }

    /// Puts codes of both rows into the lines of a group.
    fn put_codes(&self, kind: Codes, codes: [Group; 2], lines: &mut [u8]) {
        match kind {
            Codes::Two => self.put_bits::<2>(codes, 0, lines),
            Codes::Three => {
                self.put_bits::<2>(codes, 0, &mut lines[..4 * LINE]);
                self.put_bits::<1>(codes, 2, &mut lines[4 * LINE..]);
            }
            Codes::Four | Codes::Iq4 | Codes::E2m1 => self.put_bits::<4>(codes, 0, lines),
            Codes::Five => {
                self.put_bits::<4>(codes, 0, &mut lines[..8 * LINE]);
                self.put_bits::<1>(codes, 4, &mut lines[8 * LINE..]);
            }
            Codes::Six => {
                self.put_bits::<4>(codes, 0, &mut lines[..8 * LINE]);
                self.put_bits::<2>(codes, 4, &mut lines[8 * LINE..]);
            }
            Codes::Eight => {
                for (word, line) in codes.as_flattened().iter().zip(lines.chunks_exact_mut(LINE)) {
                    put(line, self.lane, *word);
                }
            }
        }
    }

    /// Puts the `BITS` bits from bit `from` on of codes of both rows into lines.
    fn put_bits<const BITS: usize>(&self, [low, high]: [Group; 2], from: usize, lines: &mut [u8]) {
        let each = 8 / (2 * BITS);
        let mask = Word::from_le_bytes([(1 << BITS) - 1; 4]);
        let together = low.chunks_exact(each).zip(high.chunks_exact(each));
        for ((low, high), line) in together.zip(lines.chunks_exact_mut(LINE)) {
            let pairs = low.iter().zip(high).enumerate();
            let word = pairs.fold(0, |word, (index, (low, high))| {
                let both = low >> from & mask | (high >> from & mask) << BITS;
                word | both << (2 * BITS * index)
            });
            put(line, self.lane, word);
        }
    }
}

/// Puts the factors of a block of one row, which begins with group `first` of a
/// unit, among the scales of that unit.
fn put_factors(kind: Scales, factors: Factors, row: usize, first: usize, tail: &mut [u8]) {
    let (inner, outer) = match kind {
        Scales::Half => (0, 1),
        Scales::HalfOffset => (0, 2),
        Scales::Fours => (16, 2),
        Scales::Bytes => (8, 1),
        Scales::HalvedBytes => (16, 1),
        Scales::Powers => (1, 0),
        Scales::Sixes => {
            sixes(&factors.inner, row, tail);
            (0, 2)
        }
        Scales::BrainOffset => unreachable!("tiles are not packed"),
    };
    for (index, byte) in factors.inner[..inner].iter().enumerate() {
        tail[(first + index) * BAND + row] = *byte;
    }
    for (index, bytes) in factors.outer[..outer].iter().enumerate() {
        let line = kind.lines() - outer + index;
        tail[line * LINE + 2 * row..][..2].copy_from_slice(bytes);
    }
}

/// Puts sixteen six-bit numbers of one row into the three lines of its half.
fn sixes(numbers: &[u8; 16], row: usize, tail: &mut [u8]) {
    let lines = &mut tail[row / LANES * 3 * LINE..][..3 * LINE];
    for (index, number) in numbers.iter().enumerate() {
        let (part, at) = (index / 4, 4 * (row % LANES) + index % 4);
        lines[part / 2 * LINE + at] |= (number & 15) << (4 * (part % 2));
        lines[2 * LINE + at] |= number >> 4 << (2 * part);
    }
}

/// The lower four bits of each byte of a word.
const NIBBLES: Word = 0x0f0f_0f0f;

/// The lower two bits of each byte of a word.
const TWOS: Word = 0x0303_0303;

/// The lowest bit of each byte of a word.
const ONES: Word = 0x0101_0101;

/// Stores a word in a lane of a line.
fn put(line: &mut [u8], lane: usize, word: Word) {
    line[4 * lane..4 * lane + 4].copy_from_slice(&word.to_le_bytes());
}

/// Bits of the first eight words of bytes.
fn select(bytes: &[u8], shift: usize, mask: Word) -> Group {
    let mut codes = [0; GROUP / 4];
    for (code, bytes) in codes.iter_mut().zip(bytes.as_chunks().0) {
        *code = Word::from_le_bytes(*bytes) >> shift & mask;
    }
    codes
}

/// Codes with further bits from bit `to` on.
fn with(mut codes: Group, bits: Group, to: usize) -> Group {
    codes.iter_mut().zip(bits).for_each(|(code, bits)| *code |= bits << to);
    codes
}

/// The codes of a group whose first half lies in the lower four bits of 16 bytes.
fn nibbles(bytes: &[u8]) -> Group {
    let words = select(&bytes[..16], 0, !0);
    std::array::from_fn(|index| words[index % 4] >> (index / 4 * 4) & NIBBLES)
}

/// The codes of a group that shares its 32 bytes with a neighbour.
fn wide_nibbles(bytes: &[u8], group: usize) -> Group {
    select(&bytes[group / 2 * 32..], 4 * (group % 2), NIBBLES)
}

/// The codes of a group with four bytes of fifth bits before the others.
fn fives(bytes: &[u8]) -> Group {
    let fifths = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    // Four bits become the lowest ones of four bytes: their places are 7 apart from each other's.
    let spread = |index: usize| {
        let four = fifths >> (4 * index) & 15;
        ONES & (four * 0x0020_4081)
    };
    with(nibbles(&bytes[4..]), std::array::from_fn(spread), 4)
}

fn q2_k(block: &[u8; 84], group: usize) -> Group {
    select(&block[16 + group / 4 * 32..], 2 * (group % 4), TWOS)
}

fn q3_k(block: &[u8; 110], group: usize) -> Group {
    let lower = select(&block[32 + group / 4 * 32..], 2 * (group % 4), TWOS);
    with(lower, select(&block[..32], group, ONES), 2)
}

fn q6_k(block: &[u8; 210], group: usize) -> Group {
    let (half, part) = (group / 4, group % 4);
    let lower = select(&block[64 * half + 32 * (part % 2)..], 4 * (part / 2), NIBBLES);
    with(lower, select(&block[128 + 32 * half..], 2 * part, TWOS), 4)
}

/// The sixteen scales of a block of Q3_K, less 32.
fn q3_k_scales(packed: &[u8]) -> [u8; 16] {
    std::array::from_fn(|index| {
        let lower = packed[index % 8] >> (index / 8 * 4) & 15;
        let upper = packed[8 + index % 4] >> (index / 4 * 2) & 3;
        (lower | upper << 4).wrapping_sub(32)
    })
}

/// The eight scales of a block of IQ4_XS, less 32.
fn iq4_xs_scales(packed: &[u8]) -> [u8; 8] {
    std::array::from_fn(|group| {
        let lower = packed[2 + group / 2] >> (4 * (group % 2)) & 15;
        let upper = packed[group / 4] >> (2 * (group % 4)) & 3;
        (lower | upper << 4).wrapping_sub(32)
    })
}

/// The eight scales and the eight minimums of a block of Q4_K, as the format's
/// own file draws them.
fn six_bits(packed: &[u8]) -> [u8; 16] {
    let mut numbers = [0; 16];
    for i in 0..4 {
        let (a, b, c) = (packed[i], packed[4 + i], packed[8 + i]);
        numbers[i] = a & 63;
        numbers[4 + i] = a >> 6 << 4 | c & 15;
        numbers[8 + i] = b & 63;
        numbers[12 + i] = b >> 6 << 4 | c >> 4;
    }
    numbers
}
