//! The codes of a line and the scales of a group as vectors, one function for each
//! kind. A piece of a line belongs to rows of the lower half of a band and to
//! those 16 rows behind them: results are for both halves.

use super::Packed;
use crate::kernels::layout::{Codes, E2M1, IQ4, IntegerLayout, Line, Scales};

/// The codes of one piece of line `line` in 0..8 of a group.
#[inline(always)]
pub(super) fn codes<I: Packed, P: IntegerLayout>(
    isa: I,
    lines: &[Line],
    line: usize,
    piece: usize,
) -> [I::Integers; 2] {
    match P::CODES {
        Codes::Two => bits::<I, 2>(isa, lines, line, piece, 0),
        Codes::Three => {
            let upper = bits::<I, 1>(isa, &lines[4..], line, piece, 2);
            join(isa, bits::<I, 2>(isa, lines, line, piece, 0), upper)
        }
        Codes::Four => bits::<I, 4>(isa, lines, line, piece, 0),
        Codes::Five => {
            let upper = bits::<I, 1>(isa, &lines[8..], line, piece, 4);
            join(isa, bits::<I, 4>(isa, lines, line, piece, 0), upper)
        }
        Codes::Six => {
            let upper = bits::<I, 2>(isa, &lines[8..], line, piece, 4);
            join(isa, bits::<I, 4>(isa, lines, line, piece, 0), upper)
        }
        Codes::Eight => [isa.load_piece(&lines[line], piece), isa.load_piece(&lines[8 + line], piece)],
        Codes::Iq4 => look_up(isa, &IQ4, bits::<I, 4>(isa, lines, line, piece, 0)),
        Codes::E2m1 => look_up(isa, &E2M1, bits::<I, 4>(isa, lines, line, piece, 0)),
    }
}

/// The bits of codes out of lines of `BITS` bits for a code, from bit `to` of a
/// code on.
#[inline(always)]
fn bits<I: Packed, const BITS: usize>(
    isa: I,
    lines: &[Line],
    line: usize,
    piece: usize,
    to: usize,
) -> [I::Integers; 2] {
    let each = 8 / (2 * BITS);
    let vector = isa.load_piece(&lines[line / each], piece);
    let mask = isa.splat_byte((((1 << BITS) - 1) << to) as u8);
    let from = 2 * BITS * (line % each);
    [
        isa.and_integers(moved(isa, vector, from, to), mask),
        isa.and_integers(moved(isa, vector, from + BITS, to), mask),
    ]
}

/// Words of 16 bits, moved so that bit `from` becomes bit `to`.
#[inline(always)]
fn moved<I: Packed>(isa: I, vector: I::Integers, from: usize, to: usize) -> I::Integers {
    if from < to { isa.shift_words_left(vector, to - from) } else { isa.shift_words_right(vector, from - to) }
}

#[inline(always)]
fn join<I: Packed>(isa: I, lower: [I::Integers; 2], upper: [I::Integers; 2]) -> [I::Integers; 2] {
    [isa.or_integers(lower[0], upper[0]), isa.or_integers(lower[1], upper[1])]
}

/// The levels that codes of four bits stand for.
#[inline(always)]
fn look_up<I: Packed>(isa: I, levels: &[u8; 16], codes: [I::Integers; 2]) -> [I::Integers; 2] {
    [isa.look_up(levels, codes[0]), isa.look_up(levels, codes[1])]
}

/// What belongs to the scale of a group: for each half of its columns and each
/// half of the band.
#[derive(Clone, Copy)]
pub(super) struct GroupScales<F> {
    pub scales: [[F; 2]; 2],
    pub minimums: [[F; 2]; 2],
}

/// The scales of group `group` of a unit for one piece of its lines.
#[inline(always)]
pub(super) fn scales<I: Packed, P: IntegerLayout>(
    isa: I,
    tail: &[Line],
    group: usize,
    piece: usize,
) -> GroupScales<I::Floats> {
    match P::SCALES {
        Scales::Half => plain(isa, f16(isa, &tail[0], piece)),
        Scales::HalfOffset => offset(isa, f16(isa, &tail[0], piece), f16(isa, &tail[1], piece)),
        Scales::Bf16Offset => offset(isa, bf16(isa, &tail[group], piece), bf16(isa, &tail[8 + group], piece)),
        Scales::Sixes => sixes(isa, tail, group, piece),
        Scales::Fours => fours(isa, tail, group, piece),
        Scales::Bytes => plain(isa, scaled(isa, signed(isa, tail, group, piece), f16(isa, &tail[4], piece))),
        Scales::HalvedBytes => {
            let outer = f16(isa, &tail[8], piece);
            let first = scaled(isa, signed(isa, tail, 2 * group, piece), outer);
            let second = scaled(isa, signed(isa, tail, 2 * group + 1, piece), outer);
            GroupScales { scales: [first, second], ..plain(isa, outer) }
        }
        Scales::Powers => {
            let [lower, upper] = unsigned(isa, tail, group, piece);
            plain(isa, [power(isa, lower), power(isa, upper)])
        }
    }
}

/// Scales for a whole group, without minimums.
#[inline(always)]
fn plain<I: Packed>(isa: I, scales: [I::Floats; 2]) -> GroupScales<I::Floats> {
    GroupScales { scales: [scales; 2], minimums: [[isa.splat(0.0); 2]; 2] }
}

/// Scales for a whole group, with minimums of the other sign.
#[inline(always)]
fn offset<I: Packed>(isa: I, scales: [I::Floats; 2], offsets: [I::Floats; 2]) -> GroupScales<I::Floats> {
    let minimums = [isa.negate(offsets[0]), isa.negate(offsets[1])];
    GroupScales { scales: [scales; 2], minimums: [minimums; 2] }
}

/// The bytes of a line that has two bytes for each row, for both halves of the band.
#[inline(always)]
fn sides<I: Packed>(_: I, line: &Line, piece: usize) -> [&[u8]; 2] {
    let (lower, upper) = line.split_at(line.len() / 2);
    [&lower[2 * I::LANES * piece..], &upper[2 * I::LANES * piece..]]
}

/// The half-precision numbers of a line.
#[inline(always)]
fn f16<I: Packed>(isa: I, line: &Line, piece: usize) -> [I::Floats; 2] {
    let [lower, upper] = sides(isa, line, piece);
    [isa.read_f16(lower), isa.read_f16(upper)]
}

/// The bf16 numbers of a line.
#[inline(always)]
fn bf16<I: Packed>(isa: I, line: &Line, piece: usize) -> [I::Floats; 2] {
    let [lower, upper] = sides(isa, line, piece);
    [isa.read_bf16(lower), isa.read_bf16(upper)]
}

/// Integers as floats, times others.
#[inline(always)]
fn scaled<I: Packed>(isa: I, inner: [I::Integers; 2], outer: [I::Floats; 2]) -> [I::Floats; 2] {
    [isa.mul(isa.to_floats(inner[0]), outer[0]), isa.mul(isa.to_floats(inner[1]), outer[1])]
}

/// The bytes of half line `index`, which has one for each row, for both halves of the band.
#[inline(always)]
fn bytes<I: Packed>(_: I, tail: &[Line], index: usize, piece: usize) -> [&[u8]; 2] {
    let rows: &[[u8; 16]; 4] =
        tail[index / 2].as_chunks().0.as_array().expect("a line is four times 16 bytes");
    [&rows[index % 2 * 2][I::LANES * piece..], &rows[index % 2 * 2 + 1][I::LANES * piece..]]
}

/// The signed bytes of half line `index`.
#[inline(always)]
fn signed<I: Packed>(isa: I, tail: &[Line], index: usize, piece: usize) -> [I::Integers; 2] {
    let [lower, upper] = bytes(isa, tail, index, piece);
    [isa.read_i8(lower), isa.read_i8(upper)]
}

/// The bytes of half line `index`, without a sign.
#[inline(always)]
fn unsigned<I: Packed>(isa: I, tail: &[Line], index: usize, piece: usize) -> [I::Integers; 2] {
    let [lower, upper] = bytes(isa, tail, index, piece);
    [isa.read_u8(lower), isa.read_u8(upper)]
}

/// [`Scales::Fours`].
#[inline(always)]
fn fours<I: Packed>(isa: I, tail: &[Line], group: usize, piece: usize) -> GroupScales<I::Floats> {
    let (outer, outer_minimums) = (f16(isa, &tail[8], piece), f16(isa, &tail[9], piece));
    let mask = isa.splat_integer(15);
    let mut scales = [outer; 2];
    let mut minimums = [outer; 2];
    for part in 0..2 {
        let [lower, upper] = unsigned(isa, tail, 2 * group + part, piece);
        let inner = [isa.and_integers(lower, mask), isa.and_integers(upper, mask)];
        scales[part] = scaled(isa, inner, outer);
        let inner = [isa.shift_right(lower, 4), isa.shift_right(upper, 4)];
        minimums[part] = scaled(isa, inner, outer_minimums);
    }
    GroupScales { scales, minimums }
}

/// [`Scales::Sixes`].
#[inline(always)]
fn sixes<I: Packed>(isa: I, tail: &[Line], group: usize, piece: usize) -> GroupScales<I::Floats> {
    let scales = [six(isa, tail, group, piece, 0, 0), six(isa, tail, group, piece, 1, 0)];
    let minimums = [six(isa, tail, group, piece, 0, 1), six(isa, tail, group, piece, 1, 1)];
    GroupScales {
        scales: [scaled(isa, scales, f16(isa, &tail[6], piece)); 2],
        minimums: [scaled(isa, minimums, f16(isa, &tail[7], piece)); 2],
    }
}

/// Six-bit numbers of group `group` for half `side` of a band: scales with `which`
/// zero, minimums with one.
#[inline(always)]
fn six<I: Packed>(
    isa: I,
    tail: &[Line],
    group: usize,
    piece: usize,
    side: usize,
    which: usize,
) -> I::Integers {
    let (part, byte) = (group / 4, 8 * (group % 4));
    let lower = isa.load_piece(&tail[3 * side + which], piece);
    let lower = isa.and_integers(isa.shift_right(lower, byte + 4 * part), isa.splat_integer(15));
    let upper = isa.load_piece(&tail[3 * side + 2], piece);
    let upper = isa.and_integers(isa.shift_right(upper, byte + 4 * which + 2 * part), isa.splat_integer(3));
    isa.or_integers(lower, isa.shift_left(upper, 4))
}

/// `2^(exponent − 128)`; the two smallest are subnormal.
#[inline(always)]
fn power<I: Packed>(isa: I, exponents: I::Integers) -> I::Floats {
    let normal = isa.shift_left(isa.sub_integers(exponents, isa.splat_integer(1)), 23);
    let subnormal = isa.shift_each_left(isa.splat_integer(0x0020_0000), exponents);
    isa.as_floats(isa.select_below(exponents, 2, subnormal, normal))
}
