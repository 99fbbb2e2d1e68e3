//! A matrix of single numbers that is quantized while it is read, and the error that this makes.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use girih_file::TensorInfo;
use girih_graph::backend::RowSource;
use girih_tensor::{DType, Error, Result, Shape, View};

use crate::made_weight::read_rows;
use crate::weight_bytes::past_end;

/// The approximate number of weights in memory at a time, for each thread that reads.
const RUN_WEIGHTS: usize = 1 << 20;

/// A matrix as the model's files have it.
pub(crate) trait StoredMatrix: Send + Sync {
    /// Its format and its shape.
    ///
    /// # Errors
    /// When there is no such weight.
    fn info(&self) -> Result<(DType, Shape)>;

    /// Its values within this range, counted row by row.
    ///
    /// # Errors
    /// When they are stored in blocks, or the file cannot be read.
    fn numbers(&self, range: Range<usize>) -> Result<Vec<f32>>;

    /// What identifies its bytes; `None` if nothing does.
    fn identity(&self) -> Option<[u8; 32]>;

    /// Its rows, if they may stay in their file.
    fn rows(&self) -> Option<Arc<dyn RowSource>>;

    /// The container's tensor behind it, if it is one.
    fn tensor(&self) -> Option<(&str, &TensorInfo)>;

    /// The name of the container's tensor that holds it, alone or among others.
    fn tensor_name(&self) -> Option<&str>;
}

/// A matrix in another format than the model's file has it in.
pub(crate) struct QuantizedWeight {
    pub stored: Box<dyn StoredMatrix>,
    name: String,
    pub dtype: DType,
    pub shape: Shape,
    /// Of each run of rows that was read, by its first row: the squares of the differences, and of the weights.
    squares: Mutex<BTreeMap<usize, (usize, [f64; 2])>>,
}

impl QuantizedWeight {
    /// The weight `name` in this format.
    ///
    /// # Errors
    /// When it is stored in blocks, or its rows are not whole blocks of `dtype`.
    pub fn of(stored: Box<dyn StoredMatrix>, name: &str, dtype: DType) -> Result<QuantizedWeight> {
        let (from, shape) = stored.info()?;
        if from.tile() != (1, 1) {
            return Err(Error::new(format!("'{name}' is stored as {from}, which has blocks already")));
        }
        if dtype.bytes(&shape)? == 0 {
            return Err(Error::new(format!("'{name}' is empty")));
        }
        Ok(QuantizedWeight { stored, name: name.to_owned(), dtype, shape, squares: Mutex::default() })
    }

    /// Fills `into` with its bytes from `offset` on.
    ///
    /// # Errors
    /// When the file cannot be read, or a weight is not finite or exceeds the format.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let row_bytes = self.dtype.matrix_bytes(1, self.shape.columns())?;
        let step = row_bytes * (RUN_WEIGHTS / self.shape.columns()).max(1);
        for (at, part) in (0..).map(|index| index * step as u64).zip(into.chunks_mut(step)) {
            let offset = offset.checked_add(at).ok_or_else(past_end)?;
            read_rows((self.dtype, &self.shape), offset, part, |rows, begun| {
                let (bytes, squares) = self.rows(rows, begun.len())?;
                self.note(begun, &squares);
                Ok(bytes)
            })?;
        }
        Ok(())
    }

    /// Notes the squares of a run of rows.
    fn note(&self, rows: Range<usize>, squares: &[[f64; 2]]) {
        if let Some(sum) = squares.iter().copied().reduce(added) {
            let mut runs = self.squares.lock().unwrap_or_else(PoisonError::into_inner);
            // Another load may read the same rows in runs of another length.
            let before = runs.range(..=rows.start).next_back();
            if before.is_none_or(|(_, (end, _))| *end < rows.end) {
                runs.retain(|first, _| !rows.contains(first));
                runs.insert(rows.start, (rows.end, sum));
            }
        }
    }

    /// Some rows, and of the last `counted` of them the squares of their differences and of their weights.
    fn rows(&self, rows: Range<usize>, counted: usize) -> Result<(Vec<u8>, Vec<[f64; 2]>)> {
        let columns = self.shape.columns();
        let values = self.stored.numbers(rows.start * columns..rows.end * columns)?;
        let bytes = self.dtype.pack_matrix(rows.len(), columns, &values)?;
        let mut back = vec![0.0; values.len()];
        View::new(self.dtype, rows.len(), columns, &bytes)?.unpack_rows(0..rows.len(), &mut back);
        let is_lost = |(value, back): &(&f32, &f32)| !value.is_finite() || !back.is_finite();
        if let Some((value, _)) = values.iter().zip(&back).find(is_lost) {
            return Err(Error::new(format!(
                "'{}' contains the weight {value}, which {} cannot hold; use --pack off",
                self.name, self.dtype
            )));
        }
        let pairs = values.chunks_exact(columns).zip(back.chunks_exact(columns));
        let squares = pairs.skip(rows.len() - counted).map(|(values, back)| squares_of(values, back));
        Ok((bytes, squares.collect()))
    }

    /// Its rows, if the stored ones may stay in their file.
    pub fn table(self: &Arc<Self>) -> Option<Arc<dyn RowSource>> {
        let (table, stored) = (Arc::clone(self), self.stored.rows()?);
        Some(Arc::new(QuantizedTable { table, stored }))
    }

    /// The squares of the differences and of the weights, of all rows that were read; `None` if none were.
    pub fn squares(&self) -> Option<[f64; 2]> {
        let squares = self.squares.lock().unwrap_or_else(PoisonError::into_inner);
        squares.values().map(|(_, sum)| *sum).reduce(added)
    }
}

/// The sums of two pairs.
fn added([a, b]: [f64; 2], [c, d]: [f64; 2]) -> [f64; 2] {
    [a + c, b + d]
}

/// The squares of the differences of two rows, and of the first row's values.
fn squares_of(values: &[f32], back: &[f32]) -> [f64; 2] {
    values.iter().zip(back).fold([0.0; 2], |[error, size], (value, back)| {
        let (value, back) = (f64::from(*value), f64::from(*back));
        [error + (value - back).powi(2), size + value.powi(2)]
    })
}

/// What identifies its bytes, in one line: a part of the identity of a model's weights.
impl fmt::Debug for QuantizedWeight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "quantized {:?} {} {} {:?}", self.name, self.dtype, self.shape, self.stored.identity())
    }
}

/// The rows of a table that stays in its file, quantized whenever one is read.
#[derive(Debug)]
struct QuantizedTable {
    table: Arc<QuantizedWeight>,
    stored: Arc<dyn RowSource>,
}

impl RowSource for QuantizedTable {
    fn read(&self, row: usize, offset: usize, into: &mut [u8]) -> Result<()> {
        if row >= self.table.shape.rows() {
            return Err(past_end());
        }
        let (bytes, _) = self.table.rows(row..row + 1, 0)?;
        let part = bytes.get(offset..offset.saturating_add(into.len())).ok_or_else(past_end)?;
        into.copy_from_slice(part);
        Ok(())
    }

    fn check_unchanged(&self) -> Result<()> {
        self.stored.check_unchanged()
    }
}

/// The error of the weights that were quantized while they were read.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantizationError {
    /// The format of the matrices.
    pub dtype: DType,
    /// The number of matrices that were read. It may be less than all: those in a cache of packed weights are not.
    pub matrices: usize,
    /// The root of the squares of all differences, divided by the squares of all weights.
    pub relative_rms: f64,
    /// The matrix with the largest error, by girih's name, and this error.
    pub worst: Option<(String, f64)>,
}

impl QuantizationError {
    /// The error of these matrices, each with its name and the squares of its differences and of its weights.
    pub(crate) fn of<'a>(
        dtype: DType,
        matrices: impl Iterator<Item = (&'a str, [f64; 2])>,
    ) -> QuantizationError {
        let relative = |[error, size]: [f64; 2]| if size > 0.0 { (error / size).sqrt() } else { 0.0 };
        let mut sum = QuantizationError { dtype, matrices: 0, relative_rms: 0.0, worst: None };
        let mut all = [0.0; 2];
        for (name, squares) in matrices {
            sum.matrices += 1;
            all = added(all, squares);
            if sum.worst.as_ref().is_none_or(|(_, worst)| *worst < relative(squares)) {
                sum.worst = Some((name.to_owned(), relative(squares)));
            }
        }
        QuantizationError { relative_rms: relative(all), ..sum }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_matrix_is_named() {
        let error = QuantizationError::of(DType::Q8_0, [("a", [1.0, 100.0]), ("b", [4.0, 25.0])].into_iter());
        assert_eq!((error.matrices, error.worst), (2, Some(("b".to_owned(), 0.4))));
        assert!((error.relative_rms - 0.2).abs() < 1e-15);
        let none = QuantizationError::of(DType::Q8_0, std::iter::empty());
        assert_eq!((none.matrices, none.relative_rms, none.worst), (0, 0.0, None));
        let zeros = QuantizationError::of(DType::Q8_0, [("a", [0.0, 0.0])].into_iter());
        assert_eq!(zeros.worst, Some(("a".to_owned(), 0.0)));
    }
}
