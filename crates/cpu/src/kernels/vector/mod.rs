//! The layer over which the kernels with vector instructions are written once.
//!
//! An instruction set is a token: a value of no size that exists only where the
//! processor has reported the set. Its methods are the instructions that
//! kernels need, so calling them is safe. [`Isa::enter`] compiles a kernel with
//! the instructions of the set; all that the kernel calls is
//! `#[inline(always)]` and therefore becomes part of that one function.
//!
//! ```text
//! Vectors   arithmetic of one vector: 8 numbers of AVX2 and NEON, 16 of AVX-512, 16 of `Twice`
//! Wide      what attention and quantizing add: vectors of 16 numbers in every set
//! Isa       an instruction set: its vectors, its wide vectors, and the way in
//! Packed    what decoding and multiplying packed weights add, in the set's own width
//! ```
//! Closures and `map` are avoided around instructions: a closure is not inlined by
//! force, and outside `enter` its instructions would be calls.

pub(super) mod attend;
pub(super) mod floats;
pub(super) mod packed;
pub(super) mod parts;
pub(super) mod quads;
pub(super) mod quantize;
pub(super) mod table;
pub(super) mod twice;

#[cfg(target_arch = "aarch64")]
use std::arch::aarch64::{float32x4_t as Quad, int32x4_t as IntegerQuad};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m128 as Quad, __m128i as IntegerQuad};

use super::layout::Line;

/// Lanes of a wide vector.
pub(super) const WIDE: usize = 16;

/// Lanes of a quad: numbers of four groups, whose results are made together.
pub(super) const QUAD: usize = 4;

/// Arithmetic of vectors of one width.
///
/// # Safety
/// A value of the type may exist only where the processor has every instruction of the
/// type's methods and of [`quads`].
pub(super) unsafe trait Vectors: Copy {
    /// A vector of single-precision numbers.
    type Floats: Copy;
    /// A vector of as many 32-bit integers.
    type Integers: Copy;
    /// The numbers of a vector in memory.
    type Lanes;

    /// The whole vectors of a slice.
    fn split(values: &[f32]) -> &[Self::Lanes];
    /// The whole vectors of a slice.
    fn split_mut(values: &mut [f32]) -> &mut [Self::Lanes];

    /// Reads a vector.
    fn load(self, values: &Self::Lanes) -> Self::Floats;
    /// Writes a vector.
    fn store(self, vector: Self::Floats, values: &mut Self::Lanes);
    /// A number in all lanes.
    fn splat(self, value: f32) -> Self::Floats;
    /// An integer in all lanes.
    fn splat_integer(self, value: i32) -> Self::Integers;
    /// A half-precision number in all lanes.
    fn splat_f16(self, bytes: [u8; 2]) -> Self::Floats;
    /// The first of four numbers in all lanes.
    fn broadcast(self, first: Quad) -> Self::Floats;

    /// `a + b`.
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a − b`.
    fn sub(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a · b`.
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a / b`.
    fn div(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a · b + c`, rounded once.
    fn fmadd(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// The larger number of each lane; `b` where one is NaN.
    fn max(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// The bits of `a` and of `b`.
    fn or(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// The bits that `a` and `b` share.
    fn and(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// The nearest integers, to even where two are as near.
    fn round(self, x: Self::Floats) -> Self::Floats;
    /// `x − round(x)`.
    fn rounding(self, x: Self::Floats) -> Self::Floats;
    /// `x · 2^power` for whole `power`, and zero in lanes where `bound` is below `least`.
    fn scale_by_power(
        self,
        x: Self::Floats,
        power: Self::Floats,
        bound: Self::Floats,
        least: f32,
    ) -> Self::Floats;

    /// Converts integers to floats.
    fn to_floats(self, integers: Self::Integers) -> Self::Floats;
    /// Rounds floats to integers, to even where two are as near.
    fn to_integers(self, floats: Self::Floats) -> Self::Integers;
    /// The bits of numbers without their signs.
    fn magnitude(self, floats: Self::Floats) -> Self::Integers;
    /// `a + b`.
    fn add_integers(self, a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// The larger integer of each lane.
    fn max_integers(self, a: Self::Integers, b: Self::Integers) -> Self::Integers;

    /// The numbers that begin `bytes`.
    fn read_f32(self, bytes: &[u8]) -> Self::Floats;
    /// The half-precision numbers that begin `bytes`.
    fn read_f16(self, bytes: &[u8]) -> Self::Floats;
    /// The bf16 numbers that begin `bytes`.
    fn read_bf16(self, bytes: &[u8]) -> Self::Floats;
    /// The signed bytes that begin `bytes`.
    fn read_i8(self, bytes: &[u8]) -> Self::Integers;
    /// The lower halves of the bytes that begin `bytes`, less 8: the numbers of codes of Q4_0.
    fn read_lower_codes(self, bytes: &[u8]) -> Self::Floats;
    /// As [`Vectors::read_lower_codes`], the upper halves.
    fn read_upper_codes(self, bytes: &[u8]) -> Self::Floats;
    /// Rounds numbers to half precision and writes them to the beginning of `bytes`.
    fn write_f16(self, x: Self::Floats, bytes: &mut [u8]);

    /// The first lane.
    fn first(self, x: Self::Floats) -> f32;
    /// The largest lane.
    fn largest(self, x: Self::Floats) -> f32;
    /// Adds halves of the vector until four lanes are left.
    fn fold(self, x: Self::Floats) -> Quad;
    /// As [`Vectors::fold`], of integers.
    fn fold_integers(self, x: Self::Integers) -> IntegerQuad;
    /// As [`Vectors::fold_integers`], with the larger integer in place of the sum.
    fn fold_max(self, x: Self::Integers) -> IntegerQuad;
}

/// Vectors of 16 numbers.
pub(super) trait Wide: Vectors<Lanes = [f32; WIDE]> {
    /// Integers that were made narrower.
    type Narrowed: Copy;

    /// Begins to make bytes of the integers of a group, which fit into them.
    fn narrow(self, a: Self::Integers, b: Self::Integers) -> Self::Narrowed;
    /// Writes the bytes of two groups.
    fn write_bytes(self, groups: [Self::Narrowed; 2], bytes: &mut [i8; 4 * WIDE]);
}

/// An instruction set.
pub(super) trait Isa: Vectors {
    /// The name of its table.
    const NAME: &'static str;
    /// Vector registers.
    const REGISTERS: usize;
    /// Its vectors of 16 numbers.
    type Wide: Wide;

    /// The token of its vectors of 16 numbers.
    fn wide(self) -> Self::Wide;
    /// Runs a kernel in a function of its own that is compiled for this set.
    fn enter<R, K: VectorKernel<Self, R>>(self, kernel: K) -> R;
}

/// A loop with its operands.
pub(super) trait VectorKernel<I, R = ()> {
    /// Runs the loop. Implementations are `#[inline(always)]`.
    fn run(self, isa: I) -> R;
}

/// What packed weights ask of an instruction set. A line holds 16 rows and is
/// read in [`Packed::PIECES`] vectors.
pub(super) trait Packed: Isa {
    /// Numbers in a vector.
    const LANES: usize;
    /// Vectors of a line.
    const PIECES: usize = WIDE / Self::LANES;
    /// Whether one column of codes of eight bits is multiplied one half of the band
    /// after the other, in the order of memory.
    const BYTES_IN_ORDER: bool;
    /// Whether the words of a column are loaded after the columns before are multiplied, as
    /// registers are few.
    const BY_COLUMN: bool;

    /// The integers of a piece of a line.
    fn load_piece(self, line: &Line, piece: usize) -> Self::Integers;
    /// Writes a piece of a line.
    fn store_piece(self, vector: Self::Integers, line: &mut Line, piece: usize);
    /// The bytes that begin `bytes`, without a sign.
    fn read_u8(self, bytes: &[u8]) -> Self::Integers;

    /// `a · b − c`, rounded once.
    fn fmsub(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// `c − a · b`, rounded once.
    fn fnmadd(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// `−x`.
    fn negate(self, x: Self::Floats) -> Self::Floats;
    /// The same bits as floats.
    fn as_floats(self, integers: Self::Integers) -> Self::Floats;

    /// A byte in all bytes.
    fn splat_byte(self, byte: u8) -> Self::Integers;
    /// The bits that `a` and `b` share.
    fn and_integers(self, a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// The bits of `a` and of `b`.
    fn or_integers(self, a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// `a − b`.
    fn sub_integers(self, a: Self::Integers, b: Self::Integers) -> Self::Integers;
    /// Shifts lanes to the left.
    fn shift_left(self, x: Self::Integers, bits: usize) -> Self::Integers;
    /// Shifts lanes to the right; zeros follow.
    fn shift_right(self, x: Self::Integers, bits: usize) -> Self::Integers;
    /// Shifts words of 16 bits to the left.
    fn shift_words_left(self, x: Self::Integers, bits: usize) -> Self::Integers;
    /// Shifts words of 16 bits to the right; zeros follow.
    fn shift_words_right(self, x: Self::Integers, bits: usize) -> Self::Integers;
    /// `x · 2^bits`, with a number of bits for each lane.
    fn shift_each_left(self, x: Self::Integers, bits: Self::Integers) -> Self::Integers;
    /// `yes` where `x < bound`, else `no`.
    fn select_below(
        self,
        x: Self::Integers,
        bound: i32,
        yes: Self::Integers,
        no: Self::Integers,
    ) -> Self::Integers;
    /// The levels that codes of four bits stand for, one in each byte.
    fn look_up(self, levels: &[u8; 16], codes: Self::Integers) -> Self::Integers;

    /// Adds multiply-accumulates of codes of `bits` bits with signed bytes, four in each
    /// lane, to `n` or to `pairs`, from where [`Packed::flush`] brings them to `n`.
    fn dot(
        self,
        bits: u8,
        n: &mut Self::Integers,
        pairs: &mut Self::Integers,
        codes: Self::Integers,
        x: Self::Integers,
    );
    /// Adds to `n` what [`Packed::dot`] has left in `pairs`; nothing where it adds to `n`.
    #[inline(always)]
    fn flush(self, _n: &mut Self::Integers, _pairs: Self::Integers) {}
    /// Lines of codes of `bits` bits before a [`Packed::flush`]; 1 where [`Packed::dot`] adds to `n`.
    #[inline(always)]
    fn run_lines(_bits: u8) -> usize {
        1
    }
    /// Whether the zero point of codes of `bits` bits is part of [`Packed::dot`].
    fn has_zero(bits: u8) -> bool;
    /// The bits of the codes that are multiplied as codes of `bits` bits are.
    fn dot_bits(bits: u8) -> u8;
    /// Columns of a whole tile that two vectors of codes of `bits` bits are multiplied by at once: 4 or 6.
    #[inline(always)]
    fn tile_columns(_bits: u8) -> usize {
        6
    }
    /// Vectors of a band of floats that are multiplied at once by `columns` columns: 1, 2 or 4.
    fn vectors_at_once(columns: usize) -> usize;
}

/// Methods that are instructions.
macro_rules! instructions {
    ($($name:ident($($operand:ident: $type:ty),*) $(-> $result:ty)? { $($body:tt)* })*) => {$(
        #[inline(always)]
        fn $name(self, $($operand: $type),*) $(-> $result)? {
            // SAFETY: `self` exists only where the processor has the instructions.
            // What is read or written are arrays of the length of the access,
            // which need no alignment.
            unsafe { $($body)* }
        }
    )*};
}

/// Calls a kernel for the count that there is, as a constant.
macro_rules! by_count {
    ($count:expr, [$($c:literal)*], |$n:ident| $call:expr) => {
        match $count {
            $($c => { const $n: usize = $c; $call })*
            other => unreachable!("no kernel is made for a count of {other}"),
        }
    };
}

pub(super) use {by_count, instructions};
