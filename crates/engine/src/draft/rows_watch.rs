//! Keeps the rows of values of a step, such as hidden states.

use girih_graph::Watch;
use girih_tensor::Shape;

/// Keeps the rows of values of a step.
pub(crate) struct RowsWatch {
    names: Vec<String>,
    /// Of each value the number of rows, and the numbers, row after row.
    values: Vec<(usize, Vec<f32>)>,
}

impl RowsWatch {
    /// Watches the values of these names.
    pub fn new(names: Vec<String>) -> RowsWatch {
        let values = vec![(0, Vec::new()); names.len()];
        RowsWatch { names, values }
    }

    /// The rows: one of each value, one after the other. Empty if the step did not have all values, of as many rows.
    pub fn into_rows(mut self) -> Vec<f32> {
        let count = self.values.first().map_or(0, |(rows, _)| *rows);
        if count == 0 || self.values.iter().any(|(rows, _)| *rows != count) {
            return Vec::new();
        }
        if self.values.len() == 1 {
            return self.values.swap_remove(0).1;
        }
        let row = |at: usize| {
            self.values.iter().flat_map(move |(_, numbers)| {
                let width = numbers.len() / count;
                &numbers[at * width..(at + 1) * width]
            })
        };
        (0..count).flat_map(row).copied().collect()
    }
}

impl Watch for RowsWatch {
    fn wants(&self, name: &str) -> bool {
        self.names.iter().any(|known| known == name)
    }

    fn value(&mut self, name: &str, shape: &Shape, data: &[f32]) {
        for (_, value) in self.names.iter().zip(&mut self.values).filter(|(known, _)| *known == name) {
            *value = (shape.extents().first().copied().unwrap_or(0), data.to_vec());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_several_values_follow_each_other() {
        let mut watch = RowsWatch::new(vec!["b".to_owned(), "a".to_owned()]);
        assert!(watch.wants("a") && !watch.wants("c"));
        watch.value("a", &Shape::new(&[2, 1, 2]).unwrap(), &[1.0, 2.0, 3.0, 4.0]);
        watch.value("b", &Shape::matrix(2, 1), &[5.0, 6.0]);
        assert_eq!(watch.into_rows(), [5.0, 1.0, 2.0, 6.0, 3.0, 4.0]);
    }

    #[test]
    fn a_value_that_is_missing_or_shorter_leaves_no_rows() {
        let names = || vec!["a".to_owned(), "b".to_owned()];
        let mut watch = RowsWatch::new(names());
        watch.value("a", &Shape::matrix(2, 1), &[5.0, 6.0]);
        assert!(watch.into_rows().is_empty());
        let mut watch = RowsWatch::new(names());
        watch.value("a", &Shape::matrix(2, 1), &[5.0, 6.0]);
        watch.value("b", &Shape::matrix(1, 1), &[7.0]);
        assert!(watch.into_rows().is_empty());
    }
}
