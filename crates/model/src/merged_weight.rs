//! A weight with what an adapter adds to it.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use girih_graph::WeightSource as _;
use girih_tensor::{DType, Error, Result, Shape};

use crate::adapter::AdapterFiles;
use crate::made_weight::{MadeWeight, read_rows};
use crate::weight_bytes::{decode, past_end};
use crate::weights::ModelWeights;

/// A matrix in f32: that of the model, and what an adapter adds. Sums are in f64, over the rank in order, as
/// [`TensorChange`](crate::TensorChange) has them.
pub(crate) struct MergedWeight {
    /// The model's weight alone.
    base: ModelWeights,
    name: String,
    /// Its format and its shape.
    dtype: DType,
    shape: Shape,
    /// The one adapter.
    adapters: Arc<[AdapterFiles]>,
}

impl MergedWeight {
    /// The weight `name`, which is the only one of `base`, with the first adapter.
    ///
    /// # Errors
    /// When its rows are stored in blocks of several.
    pub fn of(base: ModelWeights, name: &str, adapters: &Arc<[AdapterFiles]>) -> Result<MergedWeight> {
        let (dtype, shape) = base.info(name).ok_or_else(past_end)?;
        if dtype.tile().0 != 1 {
            return Err(Error::new(format!("'{name}' is stored as {dtype}, whose blocks have several rows")));
        }
        Ok(MergedWeight { base, name: name.to_owned(), dtype, shape, adapters: Arc::clone(adapters) })
    }

    /// Some rows.
    fn rows(&self, rows: Range<usize>) -> Result<Vec<f32>> {
        let (columns, shape) = (self.shape.columns(), Shape::matrix(rows.len(), self.shape.columns()));
        let mut bytes = vec![0; self.dtype.bytes(&shape)?];
        self.base.read(&self.name, self.dtype.matrix_bytes(rows.start, columns)? as u64, &mut bytes)?;
        let mut values = decode(self.dtype, &shape, &bytes)?;
        if let Some(pair) = self.adapters[0].pair(&self.name, [self.shape.rows(), columns])? {
            let (a, b) = (pair.a(0..pair.rank())?, pair.b(rows)?);
            for (row, b) in values.chunks_exact_mut(columns).zip(b.chunks_exact(pair.rank())) {
                for (column, value) in row.iter_mut().enumerate() {
                    let terms = b.iter().zip(a[column..].iter().step_by(columns));
                    let sum: f64 = terms.map(|(b, a)| f64::from(*b) * f64::from(*a)).sum();
                    *value = (f64::from(*value) + f64::from(pair.scale()) * sum) as f32;
                }
            }
        }
        Ok(values)
    }
}

impl MadeWeight for MergedWeight {
    fn info(&self) -> (DType, Shape) {
        (DType::F32, self.shape)
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        read_rows((DType::F32, &self.shape), offset, into, |rows, _| {
            Ok(self.rows(rows)?.into_iter().flat_map(f32::to_le_bytes).collect())
        })
    }

    fn check_unchanged(&self) -> Result<()> {
        self.adapters.iter().try_for_each(AdapterFiles::check_unchanged)
    }
}

/// What identifies its bytes, in one line: a part of the identity of a model's weights.
impl fmt::Debug for MergedWeight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scale = self.adapters[0].scale(&self.name).map(f32::to_bits);
        let identity = (self.base.identity(), self.adapters[0].identity());
        write!(f, "merged {:?} {} {} {identity:?} {scale:?}", self.name, self.dtype, self.shape)
    }
}
