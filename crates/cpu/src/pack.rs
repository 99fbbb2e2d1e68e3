//! From the rows of a file to bands: the same numbers in another order, so
//! that nothing is lost. How a layout is read is said where it is defined.
//!
//! Rows are taken in pairs, `r` and `16 + r`, which share the bytes of four-bit
//! layouts; four columns at a time, which share a lane.

use girih_tensor::DType;

use crate::kernels::packed::{BAND, GROUP, LANES, LINE, Layout};

/// Packs up to [`BAND`] rows of `dtype`, one after another in `rows`, into a
/// band of zeros. Rows that are missing stay zeros.
///
/// # Panics
/// When the slices do not have the sizes of such rows and such a band.
pub(crate) fn pack_band(dtype: DType, columns: usize, rows: &[u8], band: &mut [u8]) {
    let layout = Layout::of(dtype);
    assert_eq!(Some(band.len()), layout.band_bytes(columns), "a band of {columns} columns");
    if let Layout::Stored(_) = layout {
        band[..rows.len()].copy_from_slice(rows);
        return;
    }
    let row_bytes = columns / dtype.tile().1 * dtype.block_bytes();
    assert!(rows.len().is_multiple_of(row_bytes) && rows.len() <= BAND * row_bytes, "whole rows of a band");
    let row = |row: usize| rows.get(row * row_bytes..(row + 1) * row_bytes);
    match layout {
        Layout::Bf16 => (0..BAND).filter_map(|r| Some((r, row(r)?))).for_each(|(r, row)| pairs(row, r, band)),
        Layout::F16 => (0..BAND).filter_map(|r| Some((r, row(r)?))).for_each(|(r, row)| halves(row, r, band)),
        Layout::F32 => {
            (0..BAND).filter_map(|r| Some((r, row(r)?))).for_each(|(r, row)| singles(row, r, band))
        }
        _ => {
            let nothing = vec![0; row_bytes];
            for lane in 0..LANES {
                let Some(low) = row(lane) else { break };
                let pair = Pair { lane, low, high: row(LANES + lane).unwrap_or(&nothing) };
                match layout {
                    Layout::Q4_0 => pair.q4_0(band),
                    Layout::Q8_0 => pair.q8_0(band),
                    Layout::Q4K => pair.q4_k(band),
                    _ => pair.q6_k(band),
                }
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
type Codes = [Word; GROUP / 4];

/// Two rows that share bytes.
struct Pair<'a> {
    lane: usize,
    low: &'a [u8],
    high: &'a [u8],
}

impl Pair<'_> {
    /// The blocks of both rows, side by side, with the unit of the band that
    /// they go into.
    fn each<const BYTES: usize>(
        &self,
        unit: usize,
        band: &mut [u8],
        mut pack: impl FnMut([&[u8; BYTES]; 2], &mut [u8]),
    ) {
        let blocks = self.low.as_chunks::<BYTES>().0.iter().zip(self.high.as_chunks::<BYTES>().0);
        for ((low, high), unit) in blocks.zip(band.chunks_exact_mut(unit)) {
            pack([low, high], unit);
        }
    }

    /// Puts four-bit codes of both rows into eight lines.
    fn nibbles(&self, codes: [Codes; 2], lines: &mut [u8]) {
        for ((low, high), line) in codes[0].iter().zip(codes[1]).zip(lines.chunks_exact_mut(LINE)) {
            put(line, self.lane, low | high << 4);
        }
    }

    fn q4_0(&self, band: &mut [u8]) {
        self.each::<18>(9 * LINE, band, |blocks, unit| {
            self.nibbles(blocks.map(|block| nibble_codes(&block[2..])), unit);
            for (half, block) in blocks.iter().enumerate() {
                let at = 8 * LINE + 2 * (half * LANES + self.lane);
                unit[at..at + 2].copy_from_slice(&block[..2]);
            }
        });
    }

    fn q8_0(&self, band: &mut [u8]) {
        self.each::<34>(17 * LINE, band, |blocks, unit| {
            for (half, block) in blocks.iter().enumerate() {
                let lines = unit[half * 8 * LINE..].chunks_exact_mut(LINE);
                for (line, word) in lines.zip(words(&block[2..])) {
                    put(line, self.lane, word ^ 0x8080_8080);
                }
                let at = 16 * LINE + 2 * (half * LANES + self.lane);
                unit[at..at + 2].copy_from_slice(&block[..2]);
            }
        });
    }

    fn q4_k(&self, band: &mut [u8]) {
        self.each::<144>(72 * LINE, band, |blocks, unit| {
            for (group, lines) in unit.chunks_exact_mut(8 * LINE).take(8).enumerate() {
                let shift = 4 * (group % 2);
                let codes = blocks.map(|block| {
                    let mut codes = [0; GROUP / 4];
                    let bytes = words(&block[16 + group / 2 * 32..]);
                    codes.iter_mut().zip(bytes).for_each(|(code, word)| *code = word >> shift & NIBBLES);
                    codes
                });
                self.nibbles(codes, lines);
            }
            for (half, block) in blocks.iter().enumerate() {
                self.sixes(&six_bits(&block[4..16]), &mut unit[(64 + 3 * half) * LINE..]);
                let at = 2 * (half * LANES + self.lane);
                unit[70 * LINE + at..][..2].copy_from_slice(&block[..2]);
                unit[71 * LINE + at..][..2].copy_from_slice(&block[2..4]);
            }
        });
    }

    /// Puts a row's eight scales and eight minimums into three lines.
    fn sixes(&self, numbers: &[u8; 16], lines: &mut [u8]) {
        for (index, number) in numbers.iter().enumerate() {
            let (part, at) = (index / 4, 4 * self.lane + index % 4);
            lines[part / 2 * LINE + at] |= (number & 15) << (4 * (part % 2));
            lines[2 * LINE + at] |= number >> 4 << (2 * part);
        }
    }

    fn q6_k(&self, band: &mut [u8]) {
        self.each::<210>(105 * LINE, band, |blocks, unit| {
            for (group, lines) in unit.chunks_exact_mut(12 * LINE).take(8).enumerate() {
                let (half, part) = (group / 4, group % 4);
                let lower = blocks.map(|block| {
                    let bytes = words(&block[64 * half + 32 * (part % 2)..]);
                    select(bytes, 4 * (part / 2), NIBBLES)
                });
                let upper = blocks.map(|block| select(words(&block[128 + 32 * half..]), 2 * part, TWOS));
                let (lower_lines, upper_lines) = lines.split_at_mut(8 * LINE);
                self.nibbles(lower, lower_lines);
                for (index, line) in upper_lines.chunks_exact_mut(LINE).enumerate() {
                    let [low, high] = upper.each_ref().map(|upper| [upper[2 * index], upper[2 * index + 1]]);
                    put(line, self.lane, low[0] | high[0] << 2 | low[1] << 4 | high[1] << 6);
                }
            }
            for (half, block) in blocks.iter().enumerate() {
                let row = half * LANES + self.lane;
                for (index, scale) in block[192..208].iter().enumerate() {
                    unit[96 * LINE + index * BAND + row] = *scale;
                }
                unit[104 * LINE + 2 * row..][..2].copy_from_slice(&block[208..]);
            }
        });
    }
}

/// The lower four bits of each byte of a word.
const NIBBLES: Word = 0x0f0f_0f0f;

/// The lower two bits of each byte of a word.
const TWOS: Word = 0x0303_0303;

/// Stores a word in a lane of a line.
fn put(line: &mut [u8], lane: usize, word: Word) {
    line[4 * lane..4 * lane + 4].copy_from_slice(&word.to_le_bytes());
}

/// Bytes as words.
fn words(bytes: &[u8]) -> impl Iterator<Item = Word> {
    bytes.as_chunks().0.iter().map(|bytes| Word::from_le_bytes(*bytes))
}

/// Bits of the first eight words.
fn select(words: impl Iterator<Item = Word>, shift: usize, mask: Word) -> Codes {
    let mut codes = [0; GROUP / 4];
    codes.iter_mut().zip(words).for_each(|(code, word)| *code = word >> shift & mask);
    codes
}

/// The codes of a group whose first half lies in the lower four bits of 16 bytes.
fn nibble_codes(bytes: &[u8]) -> Codes {
    let mut codes = [0; GROUP / 4];
    for (index, word) in words(bytes).take(4).enumerate() {
        codes[index] = word & NIBBLES;
        codes[4 + index] = word >> 4 & NIBBLES;
    }
    codes
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
