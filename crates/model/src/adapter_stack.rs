//! One of the two matrices of each adapter of a model, for one weight, as one weight of three dimensions.

use std::fmt;
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

    /// The bytes of one adapter's matrix.
    fn matrix(&self, pair: &AdapterPair<'_>, one: &Shape) -> Result<Vec<u8>> {
        let (rows, columns) = (one.rows(), one.columns());
        let mut numbers = match self.side {
            Side::A => pair.a()?,
            Side::B => pair.scaled_b()?,
        };
        match self.side {
            Side::A => numbers.resize(rows * columns, 0.0),
            Side::B if pair.rank() < columns => {
                let row = |row: &[f32]| {
                    row.iter().copied().chain(std::iter::repeat_n(0.0, columns - row.len())).collect()
                };
                let padded: Vec<Vec<f32>> = numbers.chunks_exact(pair.rank()).map(row).collect();
                numbers = padded.concat();
            }
            Side::B => {}
        }
        if numbers.iter().any(|number| !number.is_finite()) {
            return Err(Error::new(format!("what an adapter adds to '{}' has NaN or infinity", self.weight)));
        }
        self.dtype.pack_matrix(rows, columns, &numbers)
    }
}

impl MadeWeight for AdapterStack {
    fn info(&self) -> (DType, Shape) {
        (self.dtype, self.shape)
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let one = Shape::matrix(self.shape.extents()[1], self.shape.extents()[2]);
        let bytes = self.dtype.bytes(&one)?;
        let (mut at, mut rest) = (usize::try_from(offset).map_err(|_| past_end())?, into);
        while !rest.is_empty() {
            let (index, within) = (at / bytes, at % bytes);
            let adapter = self.adapters.get(index).ok_or_else(past_end)?;
            let length = (bytes - within).min(rest.len());
            let (now, later) = rest.split_at_mut(length);
            match adapter.pair(&self.weight, self.of)? {
                // Zero is zero bytes in each of the formats.
                None => now.fill(0),
                Some(pair) => now.copy_from_slice(&self.matrix(&pair, &one)?[within..within + length]),
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
        let identities: Vec<Option<[u8; 32]>> = self.adapters.iter().map(AdapterFiles::identity).collect();
        write!(f, "{:?} {:?} {:?} {} {:?}", self.side, self.weight, self.of, self.dtype, identities)
    }
}
