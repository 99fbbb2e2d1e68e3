//! The layouts of weights in the bands that kernels read: the parts of a layout, and
//! the layout of each format.
//!
//! A layout of integers is a kind of codes and a kind of scales. A kernel is
//! compiled for each pair of kinds. A new format adds one row to the list below
//! and at most one kind.
//!
//! ```text
//! unit  = codes of group 0 | codes of group 1 | … | scales of all its groups
//! ```
//!
//! Kernels multiply a scale by `1.5 · 2²³ + n` and take `1.5 · 2²³` times the
//! scale away (see [`INTEGER_BIAS`](super::packed::INTEGER_BIAS)). That rounds once, like
//! `scale · n`, where `|n| < 2²²`, which `255 · 127 · 32` is far below, and where
//! the scale has at most 22 bits. Half precision has 11; times six bits or a
//! signed byte 17 and 18; bf16 numbers have 8, powers of two one. The result is
//! no number where `1.5 · 2²³` times the scale is none, above `2¹⁰⁴`: only bf16
//! numbers and powers of two reach that, and no model's do.

use girih_tensor::DType;
use half::{bf16, f16};

/// Rows of a band.
pub const BAND: usize = 32;

/// The number of columns in a group, which share a scale in the common formats.
pub const GROUP: usize = 32;

/// Up to this number of columns of activations, weights are decoded in registers.
pub const NARROW: usize = 8;

/// Bytes of a line.
pub const LINE: usize = 64;

/// A line of packed weights.
pub type Line = [u8; LINE];

/// The codes of a layout, those of 32 rows and 32 columns.
///
/// Line `j` in 0..8 of four bits holds the columns `4j..4j+4`, in each lane four
/// bytes, row `r` in the lower four bits and row `16 + r` in the upper ones. A
/// line of two bits holds what belongs to two of these, one of one bit what
/// belongs to four: in each byte from bit 0 upward row `r` and row `16 + r` of
/// the first, then of the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codes {
    /// Four lines of two bits.
    Two,
    /// Four lines of the lower two bits, two of the third.
    Three,
    /// Eight lines of four bits.
    Four,
    /// Eight lines of the lower four bits, two of the fifth.
    Five,
    /// Eight lines of the lower four bits, four of the upper two.
    Six,
    /// Eight lines of bytes of rows 0..16, eight of rows 16..32.
    Eight,
    /// As [`Codes::Four`], each standing for one of the levels of IQ4_NL.
    Iq4,
    /// As [`Codes::Four`], each a float of four bits, which counts twice here.
    E2m1,
}

/// The levels of IQ4_NL (ggml's `kvalues_iq4nl`) from 128 on.
pub(crate) const IQ4: [u8; 16] = [1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241];

/// The numbers of E2M1 (OCP Microscaling Formats specification 1.0), doubled, from 12 on.
pub(crate) const E2M1: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

impl Codes {
    /// Lines of a group.
    pub const fn lines(self) -> usize {
        match self {
            Codes::Two => 4,
            Codes::Three => 6,
            Codes::Four | Codes::Iq4 | Codes::E2m1 => 8,
            Codes::Five => 10,
            Codes::Six => 12,
            Codes::Eight => 16,
        }
    }

    /// Bits of a code as it is multiplied.
    pub const fn bits(self) -> u8 {
        match self {
            Codes::Two => 2,
            Codes::Three => 3,
            Codes::Four => 4,
            Codes::Five | Codes::E2m1 => 5,
            Codes::Six => 6,
            Codes::Eight | Codes::Iq4 => 8,
        }
    }

    /// The code that stands for zero where there are no minimums.
    pub const fn zero(self) -> u8 {
        match self {
            Codes::E2m1 => 12,
            _ => 1 << (self.bits() - 1),
        }
    }
}

/// The scales of a layout, and its minimums; each kind of number has a line, or
/// half a line, with those of rows 0..32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scales {
    /// For one group: scales of half precision.
    Half,
    /// As [`Scales::Half`], then offsets, which are minimums of the other sign.
    HalfOffset,
    /// For eight groups: scales of each as bf16 numbers, then offsets of each.
    Bf16Offset,
    /// For eight groups, as Q4_K: for each half band three lines of six-bit
    /// numbers (four bits of numbers 0..8, four bits of numbers 8..16, upper
    /// bits), whose lane `r` and byte `b` hold of row `r` the numbers `4i + b`
    /// (scales 0..8, minimums 8..16); then scales and minimums of half
    /// precision, by which these are multiplied.
    Sixes,
    /// For eight groups: for each 16 columns four bits of a scale and, above
    /// them, of a minimum; then scales and minimums of half precision, by which
    /// these are multiplied.
    Fours,
    /// For eight groups: for each group a signed byte; then scales of half
    /// precision, by which these are multiplied.
    Bytes,
    /// As [`Scales::Bytes`], for each 16 columns.
    HalvedBytes,
    /// For two groups: of each the exponents `e` of scales `2^(e − 128)`, one
    /// byte each; the exponents 0 and 1 are decoded as subnormal `f32` numbers.
    Powers,
}

impl Scales {
    /// Groups of a unit.
    pub const fn groups(self) -> usize {
        match self {
            Scales::Half | Scales::HalfOffset => 1,
            Scales::Powers => 2,
            _ => 8,
        }
    }

    /// Lines of a unit.
    pub const fn lines(self) -> usize {
        match self {
            Scales::Half | Scales::Powers => 1,
            Scales::HalfOffset => 2,
            Scales::Bytes => 5,
            Scales::Sixes => 8,
            Scales::HalvedBytes => 9,
            Scales::Fours => 10,
            Scales::Bf16Offset => 16,
        }
    }

    /// Whether there are minimums.
    pub const fn minimums(self) -> bool {
        matches!(self, Scales::HalfOffset | Scales::Bf16Offset | Scales::Sixes | Scales::Fours)
    }

    /// Whether a scale is shared by 16 columns, not by 32.
    pub const fn halves(self) -> bool {
        matches!(self, Scales::Fours | Scales::HalvedBytes)
    }
}

/// A layout of integers as a type, for which kernels are compiled.
pub(crate) trait IntegerLayout {
    /// The codes.
    const CODES: Codes;
    /// The scales.
    const SCALES: Scales;
    /// How they become numbers.
    const CODING: Coding = Coding::of(Self::CODES, Self::SCALES);
}

/// The layouts of integers, each with its codes and scales.
macro_rules! integers {
    ($($layout:ident: $codes:ident, $scales:ident;)*) => {
        impl Layout {
            /// Every layout of integers.
            pub const INTEGERS: &[Layout] = &[$(Layout::$layout),*];

            /// Its codes and scales, if integers are multiplied.
            pub const fn parts(self) -> Option<(Codes, Scales)> {
                match self {
                    $(Layout::$layout => Some((Codes::$codes, Scales::$scales)),)*
                    _ => None,
                }
            }
        }

        /// The layouts of integers, as types.
        pub(crate) mod integers {
            use super::{Codes, IntegerLayout, Scales};

            $(
                pub(crate) struct $layout;

                impl IntegerLayout for $layout {
                    const CODES: Codes = Codes::$codes;
                    const SCALES: Scales = Scales::$scales;
                }
            )*
        }

        /// Calls a kernel for a layout as a type.
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        macro_rules! for_integers {
            ($which:expr, |$parts:ident| $call:expr) => {
                match $which {
                    $(
                        $crate::kernels::layout::Layout::$layout => {
                            type $parts = $crate::kernels::layout::integers::$layout;
                            $call
                        }
                    )*
                    other => unreachable!("{other:?} holds no integers"),
                }
            };
        }
    };
}

integers! {
    Q2K: Two, Fours;
    Q3K: Three, HalvedBytes;
    Q4_0: Four, Half;
    Q4_1: Four, HalfOffset;
    Q4K: Four, Sixes;
    Q4nx: Four, Bf16Offset;
    Q5_0: Five, Half;
    Q5_1: Five, HalfOffset;
    Q5K: Five, Sixes;
    Q6K: Six, HalvedBytes;
    Q8_0: Eight, Half;
    Iq4Nl: Iq4, Half;
    Iq4Xs: Iq4, Bytes;
    Mxfp4: E2m1, Powers;
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use for_integers;

/// How the rows of a band lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// As Q2_K.
    Q2K,
    /// As Q3_K, its scales as bytes.
    Q3K,
    /// As Q4_0.
    Q4_0,
    /// As Q4_1.
    Q4_1,
    /// As Q4_K.
    Q4K,
    /// As Q4NX; a tile is a unit.
    Q4nx,
    /// As Q5_0.
    Q5_0,
    /// As Q5_1.
    Q5_1,
    /// As Q5_K.
    Q5K,
    /// As Q6_K.
    Q6K,
    /// As Q8_0; a code is a value from 128 on.
    Q8_0,
    /// As IQ4_NL.
    Iq4Nl,
    /// As IQ4_XS, its scales as bytes.
    Iq4Xs,
    /// As MXFP4.
    Mxfp4,
    /// BF16, two columns in two lines: of rows 0..16 and of rows 16..32, the
    /// first column in the lower half of each lane.
    Bf16,
    /// F16, one column in a line: rows 0..32.
    F16,
    /// F32, one column in two lines: rows 0..16 and rows 16..32.
    F32,
    /// The rows as their file holds them, which are decoded to floats each time.
    Stored(DType),
}

/// How the integers of a layout become numbers: `scale · (code − zero) − minimum`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Coding {
    /// Bits of a code.
    pub bits: u8,
    /// What is taken from each code.
    pub zero: u8,
    /// Whether groups have minimums.
    pub minimums: bool,
    /// Whether a scale is shared by 16 columns, not by 32.
    pub halves: bool,
}

impl Coding {
    /// How codes and scales become numbers. Minimums take the place of a zero point.
    pub const fn of(codes: Codes, scales: Scales) -> Coding {
        let minimums = scales.minimums();
        let zero = if minimums { 0 } else { codes.zero() };
        Coding { bits: codes.bits(), zero, minimums, halves: scales.halves() }
    }

    /// The number that a code stands for.
    pub fn value(self, code: u8, scale: f32, minimum: f32) -> f32 {
        let value = scale * (f32::from(code) - f32::from(self.zero));
        if self.minimums { value - minimum } else { value }
    }

    /// Words for each group of a column of activations: codes, starting values
    /// or sums, and a scale.
    pub const fn words(self) -> usize {
        GROUP / 4 + self.sums() + 1
    }

    /// Sums of codes in a group.
    pub const fn sums(self) -> usize {
        if self.halves { 2 } else { 1 }
    }
}

impl Layout {
    /// The layout for a format.
    pub fn of(dtype: DType) -> Layout {
        match dtype {
            DType::Q2_K => Layout::Q2K,
            DType::Q3_K => Layout::Q3K,
            DType::Q4_0 => Layout::Q4_0,
            DType::Q4_1 => Layout::Q4_1,
            DType::Q4_K => Layout::Q4K,
            DType::Q4NX => Layout::Q4nx,
            DType::Q5_0 => Layout::Q5_0,
            DType::Q5_1 => Layout::Q5_1,
            DType::Q5_K => Layout::Q5K,
            DType::Q6_K => Layout::Q6K,
            DType::Q8_0 => Layout::Q8_0,
            DType::IQ4_NL => Layout::Iq4Nl,
            DType::IQ4_XS => Layout::Iq4Xs,
            DType::MXFP4 => Layout::Mxfp4,
            DType::BF16 => Layout::Bf16,
            DType::F16 => Layout::F16,
            DType::F32 => Layout::F32,
            DType::I8 | DType::U8 | DType::I32 | DType::I64 => Layout::Stored(dtype),
        }
    }

    /// The name of the format that it is for.
    pub fn name(self) -> &'static str {
        let format = DType::ALL.iter().find(|&&dtype| Layout::of(dtype) == self);
        format.expect("each layout is for a format").name()
    }

    /// How its integers become numbers, if integers are multiplied.
    pub fn coding(self) -> Option<Coding> {
        self.parts().map(|(codes, scales)| Coding::of(codes, scales))
    }

    /// Columns that a unit of the layout covers, and its bytes for a band.
    pub fn unit(self) -> (usize, usize) {
        if let Some((codes, scales)) = self.parts() {
            let groups = scales.groups();
            return (groups * GROUP, (groups * codes.lines() + scales.lines()) * LINE);
        }
        match self {
            Layout::Bf16 => (2, 2 * LINE),
            Layout::F16 => (1, LINE),
            Layout::Stored(dtype) => {
                let (rows, columns) = dtype.tile();
                (columns, BAND / rows * dtype.block_bytes())
            }
            _ => (1, 2 * LINE),
        }
    }

    /// The number of a row in a unit of floats.
    ///
    /// # Panics
    /// When the layout has no floats, or the unit is too short.
    pub fn float(self, unit: &[u8], column: usize, row: usize) -> f32 {
        let two = |at: usize| [unit[at], unit[at + 1]];
        match self {
            Layout::Bf16 => bf16::from_le_bytes(two(4 * row + 2 * column)).to_f32(),
            Layout::F16 => f16::from_le_bytes(two(2 * row)).to_f32(),
            Layout::F32 => {
                let [a, b, c, d] = [0, 1, 2, 3].map(|byte| unit[4 * row + byte]);
                f32::from_le_bytes([a, b, c, d])
            }
            _ => panic!("{self:?} holds no floats"),
        }
    }

    /// Bytes of a band of `columns` columns, unless they overflow.
    pub fn band_bytes(self, columns: usize) -> Option<usize> {
        let (unit, bytes) = self.unit();
        columns.div_ceil(unit).checked_mul(bytes)
    }
}
