//! The order in which a tower reads the cells of an image: row by row, or window after window.

use std::borrow::Cow;

use girih_graph::backend::Range32;

use crate::arch::{ImageGrid, TowerFacts};

/// The order in which a tower reads the cells of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageOrder {
    /// Of each cell as it is read: its index among the cells row by row. Empty if that is the order.
    cells: Vec<usize>,
    /// The patches of each window as they are read, which attend to each other; empty without windows.
    pub windows: Vec<Range32>,
}

impl ImageOrder {
    /// The order in which this tower reads an image with these patches.
    pub fn of(tower: &TowerFacts, grid: ImageGrid) -> ImageOrder {
        tower
            .window
            .map_or_else(ImageOrder::default, |side| ImageOrder::in_windows(side, tower.projector.cell, grid))
    }

    /// With windows of `side` cells a side, of `cell` patches a side. Windows come row by row from the top left, and the cells
    /// of a window in the same way; those at the right and lower edge have the cells that remain.
    fn in_windows(side: usize, cell: usize, grid: ImageGrid) -> ImageOrder {
        let (down, across) = (grid.down / cell, grid.across / cell);
        let mut order = ImageOrder { cells: Vec::with_capacity(down * across), windows: Vec::new() };
        for top in (0..down).step_by(side) {
            for left in (0..across).step_by(side) {
                let first = order.cells.len();
                let lines = top..down.min(top.saturating_add(side));
                let columns = left..across.min(left.saturating_add(side));
                order.cells.extend(lines.flat_map(|y| columns.clone().map(move |x| y * across + x)));
                let [start, end] = [first, order.cells.len()].map(|cells| (cells * cell * cell) as u32);
                order.windows.push(Range32 { start, end });
            }
        }
        order
    }

    /// Values in the order in which the tower reads cells. Each cell has as many of them.
    pub fn as_read<'a, T: Copy>(&self, values: &'a [T]) -> Cow<'a, [T]> {
        if self.cells.is_empty() || values.is_empty() {
            return values.into();
        }
        let of_cell = values.len() / self.cells.len();
        self.cells.iter().flat_map(|at| &values[at * of_cell..(at + 1) * of_cell]).copied().collect()
    }

    /// Values that come in the order in which the tower reads cells, row by row.
    pub fn in_place(&self, values: Vec<f32>) -> Vec<f32> {
        if self.cells.is_empty() || values.is_empty() {
            return values;
        }
        let of_cell = values.len() / self.cells.len();
        let mut placed = vec![0.0; values.len()];
        for (at, values) in self.cells.iter().zip(values.chunks_exact(of_cell)) {
            placed[at * of_cell..(at + 1) * of_cell].copy_from_slice(values);
        }
        placed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order of transformers' `get_vision_window_index` for windows of 2 x 2 cells in an image of 3 x 5 cells.
    #[test]
    fn windows_come_row_by_row_and_are_smaller_at_the_edges() {
        let order = ImageOrder::in_windows(2, 2, ImageGrid { down: 6, across: 10 });
        assert_eq!(order.cells, [0, 1, 5, 6, 2, 3, 7, 8, 4, 9, 10, 11, 12, 13, 14]);
        let ends = order.windows.iter().map(|window| [window.start, window.end]).collect::<Vec<_>>();
        assert_eq!(ends, [[0, 16], [16, 32], [32, 40], [40, 48], [48, 56], [56, 60]]);
        let rows: Vec<f32> = (0..30).map(|row| row as f32).collect();
        assert_eq!(order.as_read(&rows)[..6], [0.0, 1.0, 2.0, 3.0, 10.0, 11.0]);
        assert_eq!(order.in_place(order.as_read(&rows).into_owned()), rows);
        let whole = ImageOrder::in_windows(9, 2, ImageGrid { down: 6, across: 10 });
        assert_eq!(whole.windows, [Range32 { start: 0, end: 60 }]);
        assert_eq!(ImageOrder::default().in_place(rows.clone()), rows);
    }
}
