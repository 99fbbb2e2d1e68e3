//! The list of storage formats, and the properties of each.

use std::fmt;
use std::str::FromStr;

use crate::format::{self, BlockFormat, Levels, pack_blocks, unpack_blocks};
use crate::{Error, Shape};

/// Generates the enum, its names and its dispatch from one line per format.
macro_rules! formats {
    ($(#[doc = $doc:literal] $variant:ident = $name:literal, $block:ty, $writes:ident;)*) => {
        /// The storage format of a tensor's values.
        ///
        /// Floats and integers are formats with one value per block, so that code
        /// for weights needs no special case.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(non_camel_case_types)] // the formats' own spelling: Q4_K
        pub enum DType { $(#[doc = $doc] $variant,)* }

        impl DType {
            /// Every format, floats first.
            pub const ALL: &'static [DType] = &[$(DType::$variant,)*];

            /// The name in logs, flags and printed graphs: `q4_k`.
            pub fn name(self) -> &'static str {
                match self { $(DType::$variant => $name,)* }
            }

            /// The rows and columns of a matrix that one block covers.
            pub fn tile(self) -> (usize, usize) {
                match self { $(DType::$variant => (<$block>::ROWS, <$block>::COLUMNS),)* }
            }

            /// The size of one block in bytes.
            pub fn block_bytes(self) -> usize {
                match self { $(DType::$variant => <$block>::BYTES,)* }
            }

            /// Whether girih can write the format as well as read it.
            pub fn writes(self) -> bool {
                match self { $(DType::$variant => formats!(@can $writes),)* }
            }

            /// Decodes whole blocks in the order of their bytes.
            ///
            /// # Panics
            /// When the lengths are not whole blocks, or differ in their number.
            pub fn unpack(self, bytes: &[u8], values: &mut [f32]) {
                self.check_blocks(bytes.len(), values.len());
                match self { $(DType::$variant => unpack_blocks::<$block>(bytes, values),)* }
            }

            /// Calls `each` with the levels of each group of values of a block that share a scale,
            /// in order. Plain floats and integers have none.
            ///
            /// # Panics
            /// When the length is not that of a block.
            pub fn levels(self, block: &[u8], each: &mut dyn FnMut(Levels)) {
                assert_eq!(block.len(), self.block_bytes(), "one block of {self}");
                match self { $(DType::$variant => <$block>::levels(block, each),)* }
            }

            /// Encodes whole blocks.
            ///
            /// # Panics
            /// When the lengths are not whole blocks or differ in their number,
            /// or when girih does not [write](DType::writes) the format.
            pub fn pack(self, values: &[f32], bytes: &mut [u8]) {
                self.check_blocks(bytes.len(), values.len());
                match self { $(DType::$variant => formats!(@pack $writes $block, values, bytes),)* }
            }
        }
    };
    (@can read_write) => { true };
    (@can read) => { false };
    (@pack read_write $block:ty, $values:ident, $bytes:ident) => { pack_blocks::<$block>($values, $bytes) };
    (@pack read $block:ty, $values:ident, $bytes:ident) => { panic!("girih does not write this format") };
}

formats! {
    /// Single precision.
    F32 = "f32", format::F32, read_write;
    /// Half precision.
    F16 = "f16", format::F16, read_write;
    /// bf16: the upper 16 bits of an f32.
    BF16 = "bf16", format::Bf16, read_write;
    /// Signed bytes.
    I8 = "i8", format::I8, read_write;
    /// Unsigned bytes: blocks of other formats in a container that cannot name them.
    U8 = "u8", format::U8, read_write;
    /// Signed 32-bit integers: token ids.
    I32 = "i32", format::I32, read_write;
    /// Signed 64-bit integers: buffers such as BERT's list of positions.
    I64 = "i64", format::I64, read_write;
    /// 32 values of 4 bits, one scale.
    Q4_0 = "q4_0", format::Q4_0, read_write;
    /// 32 values of 4 bits, one scale and one minimum.
    Q4_1 = "q4_1", format::Q4_1, read_write;
    /// 32 values of 5 bits, one scale.
    Q5_0 = "q5_0", format::Q5_0, read_write;
    /// 32 values of 5 bits, one scale and one minimum.
    Q5_1 = "q5_1", format::Q5_1, read;
    /// 32 values of 8 bits, one scale.
    Q8_0 = "q8_0", format::Q8_0, read_write;
    /// 16 groups of 16 values of 2 bits, 4-bit scales and minimums.
    Q2_K = "q2_k", format::Q2K, read;
    /// 16 groups of 16 values of 3 bits, 6-bit scales.
    Q3_K = "q3_k", format::Q3K, read;
    /// 8 groups of 32 values of 4 bits, 6-bit scales and minimums.
    Q4_K = "q4_k", format::Q4K, read_write;
    /// 8 groups of 32 values of 5 bits, 6-bit scales and minimums.
    Q5_K = "q5_k", format::Q5K, read_write;
    /// 16 groups of 16 values of 6 bits, 8-bit scales.
    Q6_K = "q6_k", format::Q6K, read_write;
    /// 32 values from a table of 16, one scale.
    IQ4_NL = "iq4_nl", format::Iq4Nl, read;
    /// 8 groups of 32 values from a table of 16, 6-bit scales.
    IQ4_XS = "iq4_xs", format::Iq4Xs, read;
    /// 32 four-bit floats (E2M1) under one power of two.
    MXFP4 = "mxfp4", format::Mxfp4, read_write;
    /// Tiles of 32 rows by 256 columns, 4 bits, a scale and a minimum per 32.
    Q4NX = "q4nx", format::Q4nx, read_write;
}

impl DType {
    /// The size in bytes of a tensor of `shape`. Formats with two-dimensional
    /// blocks pad rows and columns to whole tiles.
    ///
    /// # Errors
    /// When a row is not a whole number of blocks (for formats whose block lies in
    /// one row), or when the size overflows.
    pub fn bytes(self, shape: &Shape) -> Result<usize, Error> {
        self.matrix_bytes(shape.rows(), shape.columns())
    }

    /// The size in bytes of `rows` × `columns` values; see [`DType::bytes`].
    ///
    /// # Errors
    /// As [`DType::bytes`].
    pub fn matrix_bytes(self, rows: usize, columns: usize) -> Result<usize, Error> {
        let (tile_rows, tile_columns) = self.tile();
        if tile_rows == 1 && !columns.is_multiple_of(tile_columns) {
            return Err(Error::new(format!(
                "rows of {columns} values cannot be stored as {self}, whose blocks hold {tile_columns}"
            )));
        }
        let blocks = rows.div_ceil(tile_rows).checked_mul(columns.div_ceil(tile_columns));
        blocks.and_then(|n| n.checked_mul(self.block_bytes())).ok_or_else(|| {
            Error::new(format!("{rows} x {columns} values of {self} exceed the address space"))
        })
    }

    /// Encodes a matrix; pads blocks that extend over its edge with zeros.
    ///
    /// # Errors
    /// When girih does not write the format, or as [`DType::bytes`].
    ///
    /// # Panics
    /// When `values` does not hold `rows` × `columns` values.
    pub fn pack_matrix(self, rows: usize, columns: usize, values: &[f32]) -> Result<Vec<u8>, Error> {
        assert_eq!(values.len(), rows * columns, "one value per cell of the matrix");
        if !self.writes() {
            return Err(Error::new(format!("girih reads {self} but does not write it")));
        }
        let mut bytes = vec![0; self.matrix_bytes(rows, columns)?];
        let (tile_rows, tile_columns) = self.tile();
        if tile_rows == 1 {
            self.pack(values, &mut bytes);
            return Ok(bytes);
        }
        let across = columns.div_ceil(tile_columns);
        for (index, block) in bytes.chunks_exact_mut(self.block_bytes()).enumerate() {
            let (top, left) = (index / across * tile_rows, index % across * tile_columns);
            let width = tile_columns.min(columns - left);
            let mut tile = vec![0.0; tile_rows * tile_columns];
            for (row, cells) in (top..rows).zip(tile.chunks_exact_mut(tile_columns)) {
                let start = row * columns + left;
                cells[..width].copy_from_slice(&values[start..start + width]);
            }
            self.pack(&tile, block);
        }
        Ok(bytes)
    }

    fn check_blocks(self, bytes: usize, values: usize) {
        let (rows, columns) = self.tile();
        assert!(
            bytes.is_multiple_of(self.block_bytes()) && values == bytes / self.block_bytes() * rows * columns,
            "{values} values do not fill {bytes} bytes of {self}",
        );
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DType {
    type Err = Error;

    /// Parses a name as [`DType::name`] writes it, ignoring case.
    fn from_str(text: &str) -> Result<DType, Error> {
        DType::ALL.iter().copied().find(|dtype| dtype.name().eq_ignore_ascii_case(text)).ok_or_else(|| {
            let known: Vec<_> = DType::ALL.iter().map(|dtype| dtype.name()).collect();
            // The text may come from a file, so only the length of a name is repeated.
            let text: String = text.chars().take(80).collect();
            Error::new(format!("'{text}' is not a storage format; known formats: {}", known.join(", ")))
        })
    }
}
