//! Packs the rows of a file into bands. Packing only reorders the stored numbers, so it is lossless.
//! The layouts are defined in `kernels::layout`.
//!
//! Some columns of all 32 rows of a band are packed before the next columns, so that lines are written
//! in order and each line is visited once. Bytes moved: each byte of the file once in and once out.
//! Loops over the lanes of a line are plain code that is vectorized.

use std::array::from_fn;

use girih_tensor::DType;
use half::bf16;

use crate::kernels::layout::{IntegerLayout, integers};
use crate::kernels::packed::{BAND, Codes, GROUP, LANES, LINE, Layout, Scales};

/// Packs up to [`BAND`] rows of `dtype`, one after another in `rows`, into a band of zeros. Missing rows
/// stay zeros.
///
/// # Panics
/// If the slices do not have the sizes of such rows and such a band.
pub(crate) fn pack_band(dtype: DType, columns: usize, rows: &[u8], band: &mut [u8]) {
    let layout = Layout::of(dtype);
    assert_eq!(Some(band.len()), layout.band_bytes(columns), "a band of {columns} columns");
    match layout {
        Layout::Stored(_) => return band[..rows.len()].copy_from_slice(rows),
        Layout::Q4nx => return tiles(rows, band),
        _ => {}
    }
    let row_bytes = columns / dtype.tile().1 * dtype.block_bytes();
    assert!(rows.len().is_multiple_of(row_bytes) && rows.len() <= BAND * row_bytes, "whole rows of a band");
    match layout {
        Layout::Bf16 | Layout::F32 => words::<4, { 4 * BAND }>(rows, row_bytes, band),
        Layout::F16 => words::<2, { 2 * BAND }>(rows, row_bytes, band),
        _ => pack_blocks(dtype, rows, row_bytes, band),
    }
}

/// Packs rows of words: the first words of all rows, in `ALL` bytes, then the second words, and so on. A
/// word has two columns of BF16 (the last one may have only one) or one column of another format.
fn words<const BYTES: usize, const ALL: usize>(rows: &[u8], row_bytes: usize, band: &mut [u8]) {
    for (part, lines) in band.chunks_mut(LINE / BYTES * ALL).enumerate() {
        for (row, bytes) in rows.chunks_exact(row_bytes.max(1)).enumerate() {
            let bytes = &bytes[part * LINE..row_bytes.min((part + 1) * LINE)];
            let (words, rest) = bytes.as_chunks::<BYTES>();
            let lines = lines.as_chunks_mut::<ALL>().0;
            for (word, line) in words.iter().zip(&mut *lines) {
                line.as_chunks_mut().0[row] = *word;
            }
            if let [.., last] = lines {
                last[row * BYTES..][..rest.len()].copy_from_slice(rest);
            }
        }
    }
}

/// Bytes of a tile of Q4NX, and of a unit of its layout.
const TILE: usize = 5120;
/// The scales of a tile, as many bytes as its minimums.
const TILE_SCALES: usize = 512;
/// The codes of a tile.
const TILE_CODES: usize = TILE - 2 * TILE_SCALES;

/// Packs tiles of Q4NX: the codes of two neighbouring rows share a byte there, here those of rows `r` and `16 + r`.
fn tiles(rows: &[u8], band: &mut [u8]) {
    for (tile, unit) in rows.as_chunks::<TILE>().0.iter().zip(band.as_chunks_mut::<TILE>().0) {
        let (factors, codes) = tile.split_at(2 * TILE_SCALES);
        let (scales, minimums) = factors.split_at(TILE_SCALES);
        let (low, high) = codes.split_at(TILE_CODES / 2);
        let (lines, to) = unit.split_at_mut(TILE_CODES);
        // Without minimums, codes are signed: they become unsigned, with the minimum -8 times the scale, which is exact unless that is infinite.
        let is_signed = minimums.iter().all(|&byte| byte == 0);
        let flip = if is_signed { 0x88 } else { 0 };
        let columns = low.as_chunks::<32>().0.iter().zip(high.as_chunks::<32>().0);
        for (line, (low, high)) in lines.as_chunks_mut::<LINE>().0.iter_mut().zip(columns) {
            tile_line(low, high, flip, line);
        }
        to[..TILE_SCALES].copy_from_slice(scales);
        to[TILE_SCALES..].copy_from_slice(minimums);
        if is_signed {
            for (minimum, scale) in to[TILE_SCALES..].as_chunks_mut().0.iter_mut().zip(scales.as_chunks().0) {
                *minimum = bf16::from_f32(-8.0 * bf16::from_le_bytes(*scale).to_f32()).to_le_bytes();
            }
        }
    }
}

/// The codes of four columns, which are of eight bytes each in both halves of a tile.
#[inline(always)]
fn tile_line(low: &[u8; 32], high: &[u8; 32], flip: u8, line: &mut UnitLine) {
    for (pair, words) in line.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        for column in 0..4 {
            let (low, high) = (low[8 * column + pair], high[8 * column + pair]);
            words[column] = (low & 15 | high << 4) ^ flip;
            words[4 + column] = (low >> 4 | high & 0xf0) ^ flip;
        }
    }
}

/// Four codes, of four columns of one row.
type Word = u32;

/// One word of each row in half a band.
type Lanes = [Word; LANES];

/// The codes of a group for half a band's rows, four columns in a word.
type Half = [Lanes; GROUP / 4];

/// Returns a word of a block by its index.
type BlockWords<'a> = dyn Fn(usize) -> Word + 'a;

/// One block of each row in half a band.
type Blocks<'a, const BYTES: usize> = [&'a [u8; BYTES]; LANES];

/// A line of a unit.
type UnitLine = [u8; LINE];

/// The factors of a block's codes.
struct Factors {
    /// A scale and a minimum or offset, two bytes each, as stored.
    outer: [[u8; 2]; 2],
    /// Small integers, one for each group or half group, scales before minimums.
    inner: [u8; 16],
}

/// Factors of these bytes, padded with zeros.
#[inline(always)]
fn factors(outer: &[u8], inner: &[u8]) -> Factors {
    let mut factors = Factors { outer: [[0; 2]; 2], inner: [0; 16] };
    factors.outer.as_flattened_mut()[..outer.len()].copy_from_slice(outer);
    factors.inner[..inner.len()].copy_from_slice(inner);
    factors
}

/// Packs rows of blocks of integers. For each format: the offset of the words with its codes and their
/// number, the bits of them that are word `i` of the codes of group `g`, and its factors. The offsets
/// are documented in the format's own file.
fn pack_blocks(dtype: DType, rows: &[u8], row_bytes: usize, band: &mut [u8]) {
    let mut rows = BlockRows { rows, row_bytes, band };
    match dtype {
        DType::Q2_K => rows.pack::<integers::Q2K, 84, 16>(
            16,
            |w, g, i| w(g / 4 * 8 + i) >> (2 * (g % 4)) & TWOS,
            |b| factors(&b[80..], &b[..16]),
        ),
        DType::Q3_K => rows.pack::<integers::Q3K, 110, 24>(
            0,
            |w, g, i| w(8 + g / 4 * 8 + i) >> (2 * (g % 4)) & TWOS | (w(i) >> g & ONES) << 2,
            |b| factors(&b[108..], &q3_k_scales(&b[96..108])),
        ),
        DType::Q4_0 => rows.pack::<integers::Q4_0, 18, 4>(2, nibbles, |b| factors(&b[..2], &[])),
        DType::Q4_1 => rows.pack::<integers::Q4_1, 20, 4>(4, nibbles, |b| factors(&b[..4], &[])),
        DType::Q4_K => rows.pack::<integers::Q4K, 144, 32>(
            16,
            |w, g, i| w(g / 2 * 8 + i) >> (4 * (g % 2)) & NIBBLES,
            |b| factors(&b[..4], &six_bits(&b[4..16])),
        ),
        DType::Q5_0 => rows.pack::<integers::Q5_0, 22, 5>(2, fives, |b| factors(&b[..2], &[])),
        DType::Q5_1 => rows.pack::<integers::Q5_1, 24, 5>(4, fives, |b| factors(&b[..4], &[])),
        DType::Q5_K => rows.pack::<integers::Q5K, 176, 40>(
            16,
            |w, g, i| w(8 + g / 2 * 8 + i) >> (4 * (g % 2)) & NIBBLES | (w(i) >> g & ONES) << 4,
            |b| factors(&b[..4], &six_bits(&b[4..16])),
        ),
        DType::Q6_K => {
            rows.pack::<integers::Q6K, 210, 48>(0, sixes_of_q6_k, |b| factors(&b[208..], &b[192..208]))
        }
        DType::Q8_0 => {
            rows.pack::<integers::Q8_0, 34, 8>(2, |w, _, i| w(i) ^ 0x8080_8080, |b| factors(&b[..2], &[]));
        }
        DType::IQ4_NL => rows.pack::<integers::Iq4Nl, 18, 4>(2, nibbles, |b| factors(&b[..2], &[])),
        DType::IQ4_XS => {
            rows.pack::<integers::Iq4Xs, 136, 32>(8, nibbles, |b| factors(&b[..2], &iq4_xs_scales(&b[2..8])));
        }
        DType::MXFP4 => rows.pack::<integers::Mxfp4, 17, 4>(1, nibbles, |b| factors(&[], &b[..1])),
        _ => unreachable!("{dtype} has no layout of integers for rows"),
    }
}

/// The codes of groups whose first half is in the lower four bits of 16 bytes.
#[inline(always)]
fn nibbles(word: &BlockWords<'_>, group: usize, index: usize) -> Word {
    word(4 * group + index % 4) >> (index / 4 * 4) & NIBBLES
}

/// The same with a word of fifth bits in front.
#[inline(always)]
fn fives(word: &BlockWords<'_>, _: usize, index: usize) -> Word {
    // Moves four bits to the lowest bits of four bytes, which are 7 bits further apart.
    let four = word(0) >> (4 * index) & 15;
    let fifths = ONES & (four | four << 7 | four << 14 | four << 21);
    word(1 + index % 4) >> (index / 4 * 4) & NIBBLES | fifths << 4
}

#[inline(always)]
fn sixes_of_q6_k(word: &BlockWords<'_>, group: usize, index: usize) -> Word {
    let (half, part) = (group / 4, group % 4);
    let lower = word(16 * half + 8 * (part % 2) + index) >> (4 * (part / 2)) & NIBBLES;
    lower | (word(32 + 8 * half + index) >> (2 * part) & TWOS) << 4
}

/// Rows of blocks, and the band into which they are packed.
struct BlockRows<'a> {
    rows: &'a [u8],
    row_bytes: usize,
    band: &'a mut [u8],
}

impl<'a> BlockRows<'a> {
    /// Packs the blocks of all rows. Rows `r` and `16 + r` share a lane; if only the first exists, the other
    /// has blocks of zeros.
    #[inline(always)]
    fn pack<P: IntegerLayout, const BYTES: usize, const WORDS: usize>(
        &mut self,
        from: usize,
        code: impl Fn(&BlockWords<'_>, usize, usize) -> Word,
        factors: impl Fn(&[u8; BYTES]) -> Factors,
    ) {
        let (rows, lanes) = self.blocks::<BYTES>();
        let units = self.band.as_chunks_mut::<LINE>().0;
        let (mut words, mut codes) = ([[[0; LANES]; WORDS]; 2], [[[0; LANES]; GROUP / 4]; 2]);
        // A block is one group, or as many as a unit has.
        let (in_unit, of_group) = (P::SCALES.groups(), P::CODES.lines());
        let groups = if in_unit == 8 { 8 } else { 1 };
        let unit_lines = in_unit * of_group + P::SCALES.lines();
        for index in 0..self.row_bytes / BYTES {
            let (unit, first) = (index * groups / in_unit, index * groups % in_unit);
            let (lines, tail) = units[unit * unit_lines..][..unit_lines].split_at_mut(in_unit * of_group);
            let block = |row: usize| rows[row].get(index).unwrap_or(&[0; BYTES]);
            let halves: [Blocks<'_, BYTES>; 2] = [from_fn(block), from_fn(|row| block(LANES + row))];
            for (words, blocks) in words.iter_mut().zip(&halves) {
                transpose(blocks, from, words);
            }
            let lines = lines[first * of_group..].chunks_exact_mut(of_group);
            for (group, lines) in lines.take(groups).enumerate() {
                for (codes, words) in codes.iter_mut().zip(&words) {
                    extract_codes(
                        lanes,
                        |word, lane, index| code(&|at| word[at][lane], group, index),
                        words,
                        codes,
                    );
                }
                put_codes(P::CODES, &codes, lines);
            }
            for (half, blocks) in halves.iter().enumerate() {
                for (lane, block) in blocks[..lanes].iter().enumerate() {
                    put_factors(P::SCALES, &factors(block), half * LANES + lane, first, tail);
                }
            }
        }
    }

    /// The blocks of each row, none for a missing row, and the number of lanes with a row.
    fn blocks<const BYTES: usize>(&self) -> ([&'a [[u8; BYTES]]; BAND], usize) {
        let mut blocks = [&[][..]; BAND];
        let rows = self.rows.chunks_exact(self.row_bytes.max(1));
        let lanes = rows.len().min(LANES);
        blocks.iter_mut().zip(rows).for_each(|(blocks, row)| *blocks = row.as_chunks().0);
        (blocks, lanes)
    }
}

/// Extracts codes from words in the first `lanes` lanes; the others become zeros.
#[inline(always)]
fn extract_codes<const WORDS: usize>(
    lanes: usize,
    code: impl Fn(&[Lanes; WORDS], usize, usize) -> Word,
    words: &[Lanes; WORDS],
    codes: &mut Half,
) {
    for (index, codes) in codes.iter_mut().enumerate() {
        for (lane, to) in codes.iter_mut().enumerate() {
            *to = code(words, lane, index);
        }
        if lanes < LANES {
            codes[lanes..].fill(0);
        }
    }
}

/// Transposes the words of sixteen rows, from byte `from` of each block on: each row's into its lane.
#[inline(always)]
fn transpose<const BYTES: usize, const WORDS: usize>(
    blocks: &Blocks<'_, BYTES>,
    from: usize,
    words: &mut [Lanes; WORDS],
) {
    // Four rows at a time, as vectors of four words are transposed in registers.
    for (four, blocks) in blocks.as_chunks::<4>().0.iter().enumerate() {
        let [a, b, c, d] = blocks.map(|block| block[from..from + 4 * WORDS].as_chunks::<4>().0);
        for ((((words, a), b), c), d) in words.iter_mut().zip(a).zip(b).zip(c).zip(d) {
            let column = [a, b, c, d].map(|bytes| Word::from_le_bytes(*bytes));
            words[4 * four..][..4].copy_from_slice(&column);
        }
    }
}

/// Writes the codes of both halves of a band to the lines of a group.
#[inline(always)]
fn put_codes(kind: Codes, halves: &[Half; 2], lines: &mut [UnitLine]) {
    match kind {
        Codes::Two => put_bits::<2>(halves, 0, lines),
        Codes::Three => {
            put_bits::<2>(halves, 0, &mut lines[..4]);
            put_bits::<1>(halves, 2, &mut lines[4..]);
        }
        Codes::Four | Codes::Iq4 | Codes::E2m1 => put_bits::<4>(halves, 0, lines),
        Codes::Five => {
            put_bits::<4>(halves, 0, &mut lines[..8]);
            put_bits::<1>(halves, 4, &mut lines[8..]);
        }
        Codes::Six => {
            put_bits::<4>(halves, 0, &mut lines[..8]);
            put_bits::<2>(halves, 4, &mut lines[8..]);
        }
        Codes::Eight => halves.as_flattened().iter().zip(lines).for_each(|(words, line)| put(words, line)),
    }
}

/// Writes `BITS` bits, from bit `from` on, of the codes of both halves to lines.
#[inline(always)]
fn put_bits<const BITS: usize>([low, high]: &[Half; 2], from: usize, lines: &mut [UnitLine]) {
    let each = 8 / (2 * BITS);
    let mask = Word::from_le_bytes([(1 << BITS) - 1; 4]);
    for (line, (low, high)) in lines.iter_mut().zip(low.chunks_exact(each).zip(high.chunks_exact(each))) {
        let mut words = [0; LANES];
        for (index, (low, high)) in low.iter().zip(high).enumerate() {
            for (word, (low, high)) in words.iter_mut().zip(low.iter().zip(high)) {
                let both = low >> from & mask | (high >> from & mask) << BITS;
                *word |= both << (2 * BITS * index);
            }
        }
        put(&words, line);
    }
}

/// Stores a word in each lane of a line.
#[inline(always)]
fn put(words: &Lanes, line: &mut UnitLine) {
    for (bytes, word) in line.as_chunks_mut().0.iter_mut().zip(words) {
        *bytes = word.to_le_bytes();
    }
}

/// Writes the factors of a block of one row, whose first group is `first` in its unit, to the scales of
/// that unit.
#[inline(always)]
fn put_factors(kind: Scales, factors: &Factors, row: usize, first: usize, tail: &mut [UnitLine]) {
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
        Scales::Bf16Offset => unreachable!("tiles are not packed"),
    };
    let bytes = tail.as_flattened_mut();
    for (index, byte) in factors.inner[..inner].iter().enumerate() {
        bytes[(first + index) * BAND + row] = *byte;
    }
    for (line, value) in tail[kind.lines() - outer..].iter_mut().zip(&factors.outer) {
        line.as_chunks_mut().0[row] = *value;
    }
}

/// Writes sixteen six-bit numbers of one row to the three lines of its half.
#[inline(always)]
fn sixes(numbers: &[u8; 16], row: usize, tail: &mut [UnitLine]) {
    let lane = row % LANES;
    let mut parts = [0; 4];
    for (part, bytes) in parts.iter_mut().zip(numbers.as_chunks().0) {
        *part = Word::from_le_bytes(*bytes);
    }
    let uppers =
        parts.iter().enumerate().fold(0, |all, (index, part)| all | (part >> 4 & TWOS) << (2 * index));
    let [a, b, c, d] = parts.map(|part| part & NIBBLES);
    for (line, word) in tail[row / LANES * 3..].iter_mut().zip([a | b << 4, c | d << 4, uppers]) {
        line.as_chunks_mut().0[lane] = word.to_le_bytes();
    }
}

/// The lower four bits of each byte of a word.
const NIBBLES: Word = 0x0f0f_0f0f;

/// The lower two bits of each byte of a word.
const TWOS: Word = 0x0303_0303;

/// The lowest bit of each byte of a word.
const ONES: Word = 0x0101_0101;

/// The sixteen scales of a block of Q3_K, less 32.
#[inline(always)]
fn q3_k_scales(packed: &[u8]) -> [u8; 16] {
    from_fn(|index| {
        let lower = packed[index % 8] >> (index / 8 * 4) & 15;
        let upper = packed[8 + index % 4] >> (index / 4 * 2) & 3;
        (lower | upper << 4).wrapping_sub(32)
    })
}

/// The eight scales of a block of IQ4_XS, less 32.
#[inline(always)]
fn iq4_xs_scales(packed: &[u8]) -> [u8; 8] {
    from_fn(|group| {
        let lower = packed[2 + group / 2] >> (4 * (group % 2)) & 15;
        let upper = packed[group / 4] >> (2 * (group % 4)) & 3;
        (lower | upper << 4).wrapping_sub(32)
    })
}

/// The eight scales and the eight minimums of a block of Q4_K, as documented in the format's own file.
#[inline(always)]
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Every number of a tile, from the definition of the layout; of a tile without minimums, too.
    #[test]
    fn tiles_become_units_with_the_same_numbers() {
        for has_minimums in [true, false] {
            let mut tile: Vec<u8> = (0..TILE).map(|i| (i * 7 + i / 256 * 13) as u8).collect();
            // Scales and minimums of ordinary size.
            tile[..1024].iter_mut().skip(1).step_by(2).for_each(|byte| *byte = 0x3c | *byte & 0x80);
            if !has_minimums {
                tile[512..1024].fill(0);
            }
            let mut values = vec![0.0; 32 * 256];
            DType::Q4NX.unpack(&tile, &mut values);
            let mut unit = vec![0; TILE];
            pack_band(DType::Q4NX, 256, &tile, &mut unit);
            for (index, value) in values.into_iter().enumerate() {
                let (row, column) = (index / 256, index % 256);
                let code = unit[column / 4 * LINE + row % LANES * 4 + column % 4] >> (row / LANES * 4) & 15;
                let [scale, minimum] = [4096, 4608].map(|table| {
                    let at = table + 2 * (column / GROUP * BAND + row);
                    bf16::from_le_bytes([unit[at], unit[at + 1]]).to_f32()
                });
                assert_eq!(scale * f32::from(code) + minimum, value, "row {row}, column {column}");
            }
        }
    }

    /// Missing rows that share lanes with existing ones are zeros; so are lanes without rows.
    #[test]
    fn missing_rows_are_zeros() {
        for &dtype in DType::ALL.iter().filter(|dtype| dtype.tile().0 == 1) {
            let columns = 3 * dtype.tile().1;
            let row_bytes = 3 * dtype.block_bytes();
            let rows: Vec<u8> = (0..BAND * row_bytes).map(|i| (i * 7 + i / 256 * 13) as u8 | 1).collect();
            let pack = |rows: &[u8]| {
                let mut band = vec![0; Layout::of(dtype).band_bytes(columns).unwrap()];
                pack_band(dtype, columns, rows, &mut band);
                band
            };
            // The first `count` rows, with `other` in all lanes without a row.
            let filled = |count: usize, other: &dyn Fn(usize) -> u8| {
                let mut rows = rows.clone();
                rows[count * row_bytes..].fill(0);
                for (row, bytes) in rows.chunks_exact_mut(row_bytes).enumerate() {
                    if row % LANES >= count {
                        bytes.iter_mut().enumerate().for_each(|(i, byte)| *byte = other(row * row_bytes + i));
                    }
                }
                pack(&rows)
            };
            for count in [1, LANES - 1, LANES, LANES + 1, BAND - 1] {
                let (got, padded) = (pack(&rows[..count * row_bytes]), filled(count, &|_| 0));
                let others: Vec<_> = (1..16).map(|by| filled(count, &|i| (i * 29 + by * 17) as u8)).collect();
                // The bytes that depend on `other` are the lanes without rows.
                let mut empty = 0;
                for (at, &byte) in got.iter().enumerate() {
                    let other = others.iter().any(|other| other[at] != others[0][at]);
                    let want = if other { 0 } else { padded[at] };
                    assert_eq!(byte, want, "{dtype}: byte {at} of {count} rows");
                    empty += usize::from(other);
                }
                assert_eq!(empty > 0, count < LANES, "{dtype}: {count} rows leave lanes empty");
            }
            assert!(pack(&[]).iter().all(|&byte| byte == 0), "{dtype} without rows");
        }
    }
}
