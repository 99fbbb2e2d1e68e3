//! One of the two matrices of each adapter of a model, for one weight, as one weight of three dimensions.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use girih_tensor::{DType, Error, Result, Shape};

use crate::adapter::{AdapterFiles, AdapterPair};
use crate::made_weight::MadeWeight;
use crate::weight_bytes::past_end;

/// The name of the stack of A (`a`) or B (`b`) for a weight.
pub(crate) fn lora_name(weight: &str, side: &str) -> String {
    format!("{}.lora_{side}", weight.strip_suffix(".weight").unwrap_or(weight))
}

/// Which of the two matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// A, of the shape `[rank, inputs]`.
    A,
    /// B, of the shape `[outputs, rank]`, multiplied by the adapter's scale.
    B,
}

/// The matrices of all adapters for one weight. Those of a lower rank than the highest one are filled up with zeros, which
/// change no sum; adapters that do not change the weight have zeros only.
pub(crate) struct AdapterStack {
    adapters: Arc<[AdapterFiles]>,
    side: Side,
    /// The weight that they change, and its shape.
    weight: String,
    of: [usize; 2],
    /// The format and the shape, `[adapters, rank, inputs]` or `[adapters, outputs, rank]`.
    dtype: DType,
    shape: Shape,
}

impl AdapterStack {
    /// A and B of all adapters for a weight of the shape `[outputs, inputs]`.
    ///
    /// # Errors
    /// When matrices of an adapter have another shape.
    pub fn both(adapters: &Arc<[AdapterFiles]>, weight: &str, of: [usize; 2]) -> Result<[AdapterStack; 2]> {
        let [outputs, inputs] = of;
        let (mut rank, mut dtypes) = (1, Vec::new());
        for adapter in adapters.iter() {
            if let Some(pair) = adapter.pair(weight, of)? {
                rank = rank.max(pair.rank());
                dtypes.push(pair.dtype());
            }
        }
        let first = dtypes.first().copied().unwrap_or(DType::F32);
        let dtype = if dtypes.iter().all(|dtype| *dtype == first) { first } else { DType::F32 };
        let stack = |side, shape: [usize; 3]| -> Result<AdapterStack> {
            let shape = Shape::new(&shape)?;
            dtype.bytes(&shape)?;
            Ok(AdapterStack {
                adapters: Arc::clone(adapters),
                side,
                weight: weight.to_owned(),
                of,
                dtype,
                shape,
            })
        };
        let count = adapters.len();
        Ok([stack(Side::A, [count, rank, inputs])?, stack(Side::B, [count, outputs, rank])?])
    }

    /// The bytes of these rows of one adapter's matrix, of `columns` columns.
    fn rows(&self, pair: &AdapterPair<'_>, rows: Range<usize>, columns: usize) -> Result<Vec<u8>> {
        let rank = pair.rank();
        let numbers = match self.side {
            Side::A => {
                let stored = rows.start.min(rank)..rows.end.min(rank);
                let mut numbers = if stored.is_empty() { Vec::new() } else { pair.a(stored)? };
                numbers.resize(rows.len() * columns, 0.0);
                numbers
            }
            Side::B => {
                let stored = pair.scaled_b(rows.clone())?;
                let padded = |row: &[f32]| {
                    let zeros = std::iter::repeat_n(0.0, columns - row.len());
                    row.iter().copied().chain(zeros).collect::<Vec<f32>>()
                };
                stored.chunks_exact(rank).flat_map(padded).collect()
            }
        };
        if numbers.iter().any(|number| !number.is_finite()) {
            return Err(Error::new(format!("what an adapter adds to '{}' has NaN or infinity", self.weight)));
        }
        self.dtype.pack_matrix(rows.len(), columns, &numbers)
    }
}

impl MadeWeight for AdapterStack {
    fn info(&self) -> (DType, Shape) {
        (self.dtype, self.shape)
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let &[count, rows, columns] = self.shape.extents() else { return Err(past_end()) };
        let row_bytes = self.dtype.matrix_bytes(1, columns)?;
        let (mut at, mut rest) = (usize::try_from(offset).map_err(|_| past_end())?, into);
        while !rest.is_empty() {
            let (index, first, within) = (at / row_bytes / rows, at / row_bytes % rows, at % row_bytes);
            if index >= count {
                return Err(past_end());
            }
            // Up to the end of this adapter's matrix.
            let left = (rows - first) * row_bytes - within;
            let length = left.min(rest.len());
            let (now, later) = rest.split_at_mut(length);
            let last = first + (within + length).div_ceil(row_bytes);
            match self.adapters[index].pair(&self.weight, self.of)? {
                // Zero is zero bytes in each of the formats.
                None => now.fill(0),
                Some(pair) => {
                    let bytes = self.rows(&pair, first..last, columns)?;
                    now.copy_from_slice(&bytes[within..within + length]);
                }
            }
            (at, rest) = (at + length, later);
        }
        Ok(())
    }

    fn check_unchanged(&self) -> Result<()> {
        self.adapters.iter().try_for_each(AdapterFiles::check_unchanged)
    }
}

/// What identifies its bytes, in one line: a part of the identity of a model's weights.
impl fmt::Debug for AdapterStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |adapter: &AdapterFiles| (adapter.identity(), adapter.scale(&self.weight).map(f32::to_bits));
        let of: Vec<(Option<[u8; 32]>, Option<u32>)> = self.adapters.iter().map(of).collect();
        write!(f, "{:?} {:?} {:?} {} {} {of:?}", self.side, self.weight, self.of, self.dtype, self.shape)
    }
}
