//! Sets blocks of a matrix to zeros: those of the smallest norm, so that what remains can be packed without them.

use girih_tensor::{Error, Result, Shape};

/// The blocks that a rule keeps, and their size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pruning {
    pub kept: KeptBlocks,
    /// The rows and columns of a block.
    pub block: [usize; 2],
}

/// The blocks of a row of blocks that keep their weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum KeptBlocks {
    /// This share of them, rounded up: those with the largest norms (Frobenius). Of equal norms the first is kept.
    Largest(f64),
    /// All: only blocks that are zeros already are counted.
    Nonzero,
}

/// The largest side of a block.
const MAX_SIDE: usize = 4096;

impl Pruning {
    /// The rows and columns of the default block: what the packed weights of the cpu backend leave out.
    pub const DEFAULT_BLOCK: [usize; 2] = [32, 32];

    /// Parses the size of a block, such as `32x32`.
    ///
    /// # Errors
    /// If it is none.
    pub fn parse_block(text: &str) -> Result<[usize; 2]> {
        let side = |text: &str| text.parse().ok().filter(|side| (1..=MAX_SIDE).contains(side));
        let sides = text.split_once('x').and_then(|(rows, columns)| Some([side(rows)?, side(columns)?]));
        sides.ok_or_else(|| {
            Error::new(format!(
                "has the block {text:?}; needed are rows x columns of 1 to {MAX_SIDE}, such as 32x32"
            ))
        })
    }

    /// Checks that blocks do not cross the matrices of a tensor.
    ///
    /// # Errors
    /// If they do.
    pub fn check(&self, shape: &Shape) -> Result<()> {
        let extents = shape.extents();
        let [rows, _] = self.block;
        if extents.len() > 2 && !extents[extents.len() - 2].is_multiple_of(rows) {
            let own = extents[extents.len() - 2];
            let sentence = format!(
                "has matrices of {own} rows, which blocks of {rows} rows do not fill; use another block"
            );
            return Err(Error::new(sentence));
        }
        Ok(())
    }

    /// Prunes whole rows of blocks, of `columns` columns, and counts into `sparsity`.
    pub fn apply(&self, values: &mut [f32], columns: usize, sparsity: &mut Sparsity) {
        let [rows, width] = self.block;
        let across = columns.div_ceil(width);
        for band in values.chunks_mut((rows * columns).max(1)) {
            let mut norms = vec![0.0; across];
            for row in band.chunks_exact(columns) {
                for (norm, values) in norms.iter_mut().zip(row.chunks(width)) {
                    *norm += values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>();
                }
            }
            let is_kept = self.kept(&norms);
            for row in band.chunks_exact_mut(columns) {
                let blocks = row.chunks_mut(width).zip(&is_kept).filter(|(_, is_kept)| !**is_kept);
                blocks.for_each(|(values, _)| values.fill(0.0));
            }
            sparsity.count(&norms, &is_kept);
        }
    }

    /// Which blocks of these squared norms keep their weights.
    fn kept(&self, norms: &[f64]) -> Vec<bool> {
        let mut is_kept: Vec<bool> = norms.iter().map(|norm| *norm > 0.0).collect();
        if let KeptBlocks::Largest(share) = self.kept {
            let mut order: Vec<usize> = (0..norms.len()).collect();
            order.sort_by(|a, b| norms[*b].total_cmp(&norms[*a]));
            let count = (share * norms.len() as f64).ceil() as usize;
            order.iter().skip(count).for_each(|index| is_kept[*index] = false);
        }
        is_kept
    }
}

/// What pruning has left of a matrix.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sparsity {
    blocks: u64,
    kept: u64,
    /// The sums of the squares of all weights, and of those that are zeros now.
    squares: f64,
    lost: f64,
}

impl Sparsity {
    fn count(&mut self, norms: &[f64], is_kept: &[bool]) {
        for (norm, is_kept) in norms.iter().zip(is_kept) {
            self.blocks += 1;
            self.kept += u64::from(*is_kept);
            self.squares += norm;
            self.lost += if *is_kept { 0.0 } else { *norm };
        }
    }

    /// The share of blocks that have weights other than zero.
    pub fn density(&self) -> f64 {
        if self.blocks == 0 { 1.0 } else { self.kept as f64 / self.blocks as f64 }
    }

    /// The norm of what became zeros, relative to that of the matrix; rounding to the format comes on top.
    pub fn relative_error(&self) -> f64 {
        if self.squares == 0.0 { 0.0 } else { (self.lost / self.squares).sqrt() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pruned(kept: KeptBlocks, values: &[f32], columns: usize) -> (Vec<f32>, Sparsity) {
        let (mut values, mut sparsity) = (values.to_vec(), Sparsity::default());
        Pruning { kept, block: [2, 2] }.apply(&mut values, columns, &mut sparsity);
        (values, sparsity)
    }

    #[test]
    fn blocks_of_the_largest_norm_are_kept() {
        let values = [1.0, 0.0, 3.0, 0.0, 0.0, 1.0, 0.0, 0.0, 2.0, 0.0, 0.0, 1.0];
        let (got, sparsity) = pruned(KeptBlocks::Largest(0.5), &values, 4);
        assert_eq!(got, [0.0, 0.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0]);
        assert_eq!(sparsity.density(), 0.5);
        assert!((sparsity.relative_error() - (3.0_f64 / 16.0).sqrt()).abs() < 1e-12);
    }

    #[test]
    fn a_share_is_rounded_up_and_of_equal_norms_the_first_is_kept() {
        assert_eq!(pruned(KeptBlocks::Largest(0.1), &[1.0; 6], 6).0, [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(pruned(KeptBlocks::Largest(1.0), &[1.0; 6], 6).1.density(), 1.0);
    }

    #[test]
    fn exact_zeros_are_counted_only() {
        let (got, sparsity) = pruned(KeptBlocks::Nonzero, &[0.0, -0.0, 1e-30, 0.0], 4);
        assert_eq!((got, sparsity.density()), (vec![0.0, -0.0, 1e-30, 0.0], 0.5));
        assert_eq!(sparsity.relative_error(), 0.0);
    }

    #[test]
    fn blocks_are_rows_and_columns() {
        assert_eq!(Pruning::parse_block("32x64").unwrap(), [32, 64]);
        for text in ["", "32", "0x32", "32x", "x32", "32x32x32", "-1x4", "4097x1", "32 x 32"] {
            assert!(Pruning::parse_block(text).is_err(), "{text}");
        }
        let pruning = Pruning { kept: KeptBlocks::Nonzero, block: [32, 32] };
        assert!(pruning.check(&Shape::new(&[2, 48, 32]).unwrap()).is_err());
        assert!(pruning.check(&Shape::matrix(48, 32)).is_ok());
    }
}
