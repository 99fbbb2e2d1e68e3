//! The layouts of a matrix of weights in DRAM.

use girih_tensor::DType;

/// Rows of a Q4NX tile, and of a group of unpacked weights.
pub const TILE_ROWS: u32 = 32;

/// Columns of a Q4NX tile.
pub const TILE_COLUMNS: u32 = 256;

/// Bytes of a Q4NX tile.
pub const TILE_BYTES: u32 = 5120;

/// Columns of a group of weights that share a scale.
pub const GROUP_COLUMNS: u32 = 32;

/// The layout in which a kernel reads a matrix of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightLayout {
    /// bf16, row by row.
    Rows,
    /// Q4NX: tiles of 32 rows and 256 columns, tile row by tile row.
    Q4nx,
    /// bf16, unpacked from Q4NX: groups of 32 rows and 32 columns, each row by row.
    /// The groups of the same 32 rows follow one another. Reads of whole groups are
    /// long runs, whatever part of a row they need.
    Groups,
}

impl WeightLayout {
    /// The layout of a tensor of this format.
    pub fn of(dtype: DType) -> WeightLayout {
        if dtype == DType::Q4NX { WeightLayout::Q4nx } else { WeightLayout::Rows }
    }

    /// Bytes of a matrix; its sides are whole tiles.
    pub fn bytes(self, rows: u32, columns: u32) -> u64 {
        match self {
            WeightLayout::Q4nx => {
                u64::from(rows / TILE_ROWS) * u64::from(columns / TILE_COLUMNS) * u64::from(TILE_BYTES)
            }
            WeightLayout::Rows | WeightLayout::Groups => u64::from(rows) * u64::from(columns) * 2,
        }
    }

    /// Whether a matrix can have this layout.
    pub fn divides(self, rows: u32, columns: u32) -> bool {
        match self {
            WeightLayout::Rows => true,
            WeightLayout::Q4nx => rows.is_multiple_of(TILE_ROWS) && columns.is_multiple_of(TILE_COLUMNS),
            WeightLayout::Groups => rows.is_multiple_of(TILE_ROWS) && columns.is_multiple_of(GROUP_COLUMNS),
        }
    }

    /// The end of the name of a kernel that reads it.
    pub(super) fn suffix(self) -> &'static str {
        match self {
            WeightLayout::Rows => "",
            WeightLayout::Q4nx => "_q4nx",
            WeightLayout::Groups => "_groups",
        }
    }

    /// Splits the name of a kernel into the kernel and its layout.
    pub(super) fn split(name: &str) -> (&str, WeightLayout) {
        let of = |layout: WeightLayout| Some((name.strip_suffix(layout.suffix())?, layout));
        of(WeightLayout::Q4nx).or_else(|| of(WeightLayout::Groups)).unwrap_or((name, WeightLayout::Rows))
    }
}
