//! Shapes: one to five dimensions, outermost first, never zero-dimensional.

use std::fmt;

use crate::Error;

/// The extents of a tensor, outermost (slowest) dimension first.
///
/// A matrix of weights is `[outputs, inputs]`; activations are `[rows, …]`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    extents: [usize; Shape::MAX_RANK],
    rank: u8,
}

impl Shape {
    /// The maximum number of dimensions.
    pub const MAX_RANK: usize = 5;

    /// Returns a shape of one to five dimensions.
    ///
    /// # Errors
    /// When `extents` is empty or has more than [`Shape::MAX_RANK`] entries, or when
    /// their product overflows `usize`.
    pub fn new(extents: &[usize]) -> Result<Shape, Error> {
        if extents.is_empty() || extents.len() > Shape::MAX_RANK {
            let rank = extents.len();
            return Err(Error::new(format!("a shape has {rank} dimensions; 1 to 5 are supported")));
        }
        if extents.iter().try_fold(1usize, |product, &n| product.checked_mul(n)).is_none() {
            return Err(Error::new(format!("the shape {extents:?} exceeds the address space")));
        }
        let mut shape = Shape { extents: [1; Shape::MAX_RANK], rank: extents.len() as u8 };
        shape.extents[..extents.len()].copy_from_slice(extents);
        Ok(shape)
    }

    /// The shape of a vector.
    pub fn vector(len: usize) -> Shape {
        Shape { extents: [len, 1, 1, 1, 1], rank: 1 }
    }

    /// The shape of a matrix of `rows` × `columns`.
    ///
    /// # Panics
    /// When the product overflows; use [`Shape::new`] for sizes from outside.
    pub fn matrix(rows: usize, columns: usize) -> Shape {
        Shape::new(&[rows, columns]).expect("callers pass sizes that were checked")
    }

    /// The extents, outermost first.
    pub fn extents(&self) -> &[usize] {
        &self.extents[..usize::from(self.rank)]
    }

    /// The number of elements.
    pub fn elements(&self) -> usize {
        self.extents().iter().product()
    }

    /// The innermost extent: the length of a row.
    pub fn columns(&self) -> usize {
        self.extents()[self.extents().len() - 1]
    }

    /// The product of all extents but the innermost: the number of rows.
    pub fn rows(&self) -> usize {
        self.extents()[..self.extents().len() - 1].iter().product()
    }

    /// Returns the shape with another outermost extent.
    ///
    /// # Panics
    /// When the number of elements overflows.
    pub fn with_outermost(&self, extent: usize) -> Shape {
        let mut extents = self.extents;
        extents[0] = extent;
        Shape::new(&extents[..usize::from(self.rank)]).expect("callers shrink the outermost extent")
    }

    /// The number of elements of one slice along the outermost dimension.
    pub fn stride(&self) -> usize {
        self.extents()[1..].iter().product()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, extent) in self.extents().iter().enumerate() {
            write!(f, "{}{extent}", if i == 0 { "" } else { ", " })?;
        }
        f.write_str("]")
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_checked() {
        assert!(Shape::new(&[]).is_err());
        assert!(Shape::new(&[1; Shape::MAX_RANK]).is_ok());
        assert!(Shape::new(&[1; Shape::MAX_RANK + 1]).is_err());
        assert!(Shape::new(&[usize::MAX, 2]).is_err());
        let shape = Shape::new(&[2, 3, 4]).unwrap();
        assert_eq!((shape.elements(), shape.rows(), shape.columns(), shape.stride()), (24, 6, 4, 12));
        assert_eq!(shape.to_string(), "[2, 3, 4]");
    }
}
