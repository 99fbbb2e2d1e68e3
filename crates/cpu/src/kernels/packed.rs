//! What packed weights are to a kernel: layouts, decoded panels, and columns of
//! activations. How they come about is the matter of `pack` and `arrange`.
//!
//! ```text
//! matrix = band 0 | band 1 | …         32 rows each, the last filled up with zeros
//! band   = group 0 | group 1 | …       32 columns each
//! line   = 64 bytes                    16 rows side by side, one in each lane
//! ```
//! Rows lie in the lanes of a vector, so that no sum runs across lanes: a
//! result is one chain over its groups in order, whoever computes it and
//! however many columns of activations are computed beside it.
//!
//! With integer activations a group adds `s · (scale · n − minimum · Σx)` to a
//! result, where `n = Σ (code − zero) · x` is exact: the scale is applied
//! first, each of the products and sums is rounded once, and the minimum comes
//! last. All tables do so, and their results are equal bit for bit.

use girih_tensor::DType;
use half::{bf16, f16};

/// The version of the layouts: it is raised with every change of what a layout's
/// bytes mean, as packed weights are kept on disk. A new layout changes nothing.
pub const VERSION: u32 = 1;

/// Rows of a band.
pub const BAND: usize = 32;

/// Columns of a group: as many as share a scale in the common formats.
pub const GROUP: usize = 32;

/// Rows in a line, one in each lane of a vector.
pub const LANES: usize = 16;

/// Bytes of a line.
pub const LINE: usize = 64;

/// The most columns of activations for which weights are decoded in registers
/// as they come.
pub const NARROW: usize = 8;

/// Columns of activations that meet a panel at once, at the most.
pub const TILE: usize = 12;

/// Groups of a panel: with a tile of activations it stays in the first cache.
pub const DEPTH: usize = 16;

/// Columns of weights that floats are multiplied by before the next ones: with
/// a tile of activations they stay in the first cache.
pub const FLOAT_DEPTH: usize = 256;

/// The bits of `1.5 · 2²³`. A sum of integers that begins with it is, read as a
/// float, that number plus the sum, as long as the sum is below `2²²`: so
/// integers become floats without an instruction.
pub const MAGIC: i32 = 0x4b40_0000;

/// [`MAGIC`] as a float.
pub const MAGIC_FLOAT: f32 = 12_582_912.0;

/// How the rows of a band lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// As Q4_0. A group is 9 lines: lines `j` in 0..8 hold the codes of the
    /// columns `4j..4j+4`, in each lane four bytes, row `r` in the lower four
    /// bits and row `16 + r` in the upper ones; then 32 scales of half precision.
    Q4_0,
    /// As Q8_0. A group is 17 lines: 8 of codes (value + 128) of rows 0..16, 8
    /// of rows 16..32, then 32 scales of half precision.
    Q8_0,
    /// As Q4_K. Eight groups are 72 lines: 64 of codes as in Q4_0; for each half
    /// band three lines of six-bit numbers (four bits of numbers 0..8, four bits of
    /// numbers 8..16, upper bits), whose lane `r` and byte `b` hold of row `r`
    /// the numbers `4i + b` (scales 0..8, minimums 8..16); then 32 scales and 32
    /// minimums of half precision.
    Q4K,
    /// As Q6_K. Eight groups are 105 lines: for each group 8 of the lower four
    /// bits as in Q4_0 and 4 of the upper two (line `i` for the columns of lines
    /// `2i` and `2i + 1`: in each byte from bit 0 upward row `r` and row
    /// `16 + r` of the one, then of the other); then for each 16 columns 32
    /// scales of one signed byte; then 32 scales of half precision.
    Q6K,
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
    /// What is taken from each code.
    pub zero: u8,
    /// Whether groups have minimums.
    pub minimums: bool,
    /// Whether a scale is shared by 16 columns, not by 32.
    pub halves: bool,
}

impl Coding {
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
            DType::Q4_0 => Layout::Q4_0,
            DType::Q8_0 => Layout::Q8_0,
            DType::Q4_K => Layout::Q4K,
            DType::Q6_K => Layout::Q6K,
            DType::BF16 => Layout::Bf16,
            DType::F16 => Layout::F16,
            DType::F32 => Layout::F32,
            other => Layout::Stored(other),
        }
    }

    /// The name of the format that it is for.
    pub fn name(self) -> &'static str {
        match self {
            Layout::Q4_0 => DType::Q4_0.name(),
            Layout::Q8_0 => DType::Q8_0.name(),
            Layout::Q4K => DType::Q4_K.name(),
            Layout::Q6K => DType::Q6_K.name(),
            Layout::Bf16 => DType::BF16.name(),
            Layout::F16 => DType::F16.name(),
            Layout::F32 => DType::F32.name(),
            Layout::Stored(dtype) => dtype.name(),
        }
    }

    /// How its integers become numbers, if integers are multiplied.
    pub fn coding(self) -> Option<Coding> {
        let coding = |zero, minimums, halves| Some(Coding { zero, minimums, halves });
        match self {
            Layout::Q4_0 => coding(8, false, false),
            Layout::Q8_0 => coding(128, false, false),
            Layout::Q4K => coding(0, true, false),
            Layout::Q6K => coding(32, false, true),
            Layout::Bf16 | Layout::F16 | Layout::F32 | Layout::Stored(_) => None,
        }
    }

    /// Columns that a unit of the layout covers, and its bytes for a band.
    pub fn unit(self) -> (usize, usize) {
        match self {
            Layout::Q4_0 => (GROUP, 9 * LINE),
            Layout::Q8_0 => (GROUP, 17 * LINE),
            Layout::Q4K => (8 * GROUP, 72 * LINE),
            Layout::Q6K => (8 * GROUP, 105 * LINE),
            Layout::Bf16 => (2, 2 * LINE),
            Layout::F16 => (1, LINE),
            Layout::F32 => (1, 2 * LINE),
            Layout::Stored(dtype) => {
                let (rows, columns) = dtype.tile();
                (columns, BAND / rows * dtype.block_bytes())
            }
        }
    }

    /// The number of a row in a unit of floats.
    ///
    /// # Panics
    /// When the layout is none of floats, or the unit is too short.
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

    /// Bytes of a band of so many columns, if they can be counted.
    pub fn band_bytes(self, columns: usize) -> Option<usize> {
        let (unit, bytes) = self.unit();
        columns.div_ceil(unit).checked_mul(bytes)
    }
}

/// One band of a matrix.
#[derive(Clone, Copy, Debug)]
pub struct Band<'a> {
    /// How its bytes lie.
    pub layout: Layout,
    /// The columns of the matrix.
    pub columns: usize,
    /// All of its units.
    pub bytes: &'a [u8],
}

/// Decoded groups of half a band, one after another.
pub type Panel = [PanelGroup; DEPTH];

/// One decoded group of half a band.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct PanelGroup {
    /// Line `j`: the codes of columns `4j..4j+4`, four in each lane.
    pub codes: [[u8; LINE]; GROUP / 4],
    /// The scales of the columns 0..16 and 16..32; the first counts for all
    /// where a scale is shared by 32.
    pub scales: [[f32; LANES]; 2],
    /// The minimums, likewise.
    pub minimums: [[f32; LANES]; 2],
}

impl PanelGroup {
    /// A group of zeros.
    pub const ZERO: PanelGroup =
        PanelGroup { codes: [[0; LINE]; GROUP / 4], scales: [[0.0; LANES]; 2], minimums: [[0.0; LANES]; 2] };
}

/// Decoded groups of the lower and of the upper half of a band.
pub type Panels = [Panel; 2];

/// What a band of rows and one column of activations yield.
pub type Sums = [f32; BAND];

/// The kernels that multiply packed weights.
///
/// Activations of integer products come as words, for each group `words` rows
/// ([`Coding::words`]) of one word a column: eight of codes, four signed bytes
/// each; then, for each sum, the starting value `MAGIC − zero · Σ codes`, or
/// the float `scale · Σ codes` where there are minimums; then the scale.
/// Activations of float products are one row of floats for each column of the
/// weights; an odd number of them is filled up with a row of zeros.
#[derive(Clone, Copy, Debug)]
pub struct Products {
    /// Sets `sums` to the products of a band with `sums.len()` columns, at most
    /// [`NARROW`], of integers.
    pub narrow: fn(band: Band<'_>, x: &[u32], sums: &mut [Sums]),
    /// Decodes some groups of a band, its lower and its upper half.
    pub decode: fn(band: Band<'_>, first: usize, count: usize, panels: &mut Panels),
    /// Adds to `sums` the products of `groups` groups of panels with
    /// `sums.len()` columns, which is a third, two thirds or all of [`TILE`].
    pub tile: fn(coding: Coding, panels: &Panels, groups: usize, x: &[u32], sums: &mut [Sums]),
    /// Adds to `sums` the products of floats of a band, from the column `first`
    /// on, with `sums.len()` columns, at most [`TILE`], of floats; as many as
    /// `x` has rows for.
    pub floats: fn(band: Band<'_>, first: usize, x: &[u32], sums: &mut [Sums]),
}
