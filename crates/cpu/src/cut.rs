//! How outputs are cut into the pieces of a task, and the part of each that a piece writes.
//!
//! This file upholds a guarantee on which the crate's shared borrows rest: pieces write disjoint parts of an
//! output ([`DisjointSlice`]). Its caller hands out each piece once.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::Range;
use std::slice;

/// How a matrix of output is cut into pieces.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    /// Values in a row.
    pub width: usize,
    /// Rows in a piece; the last pieces may have fewer.
    pub row_step: usize,
    /// Columns in a piece; the rightmost pieces may have fewer.
    pub column_step: usize,
}

/// The part of an output that one piece of a task writes.
#[derive(Debug)]
pub struct OutputTile<'a, T> {
    output: &'a DisjointSlice<'a, T>,
    width: usize,
    rows: Range<usize>,
    columns: Range<usize>,
}

/// Rows of an output that belong to groups, each to one: the blocks that the sequences of a step replace.
#[derive(Debug, Default)]
pub struct GroupedRows {
    rows: Vec<usize>,
    /// The end of each group among the rows.
    ends: Vec<usize>,
    /// The rows in ascending order.
    sorted: Vec<usize>,
}

impl GroupedRows {
    /// Lists no rows.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.ends.clear();
    }

    /// Adds a group with these rows.
    pub fn push(&mut self, rows: impl Iterator<Item = usize>) {
        self.rows.extend(rows);
        self.ends.push(self.rows.len());
    }

    /// The rows of a group, in the order in which they were listed.
    fn of(&self, group: usize) -> &[usize] {
        let start = group.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.rows[start..self.ends[group]]
    }

    /// Checks that each row was listed once and is one of `rows`.
    fn check(&mut self, rows: usize) {
        self.sorted.clear();
        self.sorted.extend_from_slice(&self.rows);
        self.sorted.sort_unstable();
        let once = self.sorted.windows(2).all(|pair| pair[0] < pair[1]);
        let within = self.sorted.last().is_none_or(|&last| last < rows);
        assert!(once && within, "groups have {:?} of {rows} rows", self.rows);
    }
}

/// An output in groups of rows. A piece writes the same columns of all rows of its group.
#[derive(Debug)]
pub struct GroupedOutput<'a, T> {
    /// The whole output.
    pub values: &'a mut [T],
    /// Values in a row.
    pub width: usize,
    /// Columns in a piece.
    pub column_step: usize,
    /// The rows that groups have; the others stay as they are.
    pub rows: &'a mut GroupedRows,
}

/// The columns of a group's rows that one piece of a task writes.
#[derive(Debug)]
pub struct GroupTile<'a, T> {
    output: &'a DisjointSlice<'a, T>,
    width: usize,
    rows: &'a [usize],
    columns: Range<usize>,
}

/// An output in groups of rows. A piece writes some columns of the rows of one group.
pub(crate) struct CutGroups<'a, T> {
    output: DisjointSlice<'a, T>,
    width: usize,
    column_step: usize,
    rows: &'a GroupedRows,
}

impl<'a, T> CutGroups<'a, T> {
    pub fn new(output: GroupedOutput<'a, T>) -> CutGroups<'a, T> {
        let GroupedOutput { values, width, column_step, rows } = output;
        rows.check(values.len() / width);
        CutGroups { output: DisjointSlice::new(values), width, column_step, rows }
    }

    /// The number of groups.
    pub fn groups(&self) -> usize {
        self.rows.ends.len()
    }

    /// Pieces side by side.
    pub fn across(&self) -> usize {
        self.width.div_ceil(self.column_step)
    }

    /// The part of a group and of one of the pieces side by side.
    ///
    /// # Safety
    /// No such part may have two tiles that live at the same time.
    pub unsafe fn tile(&self, group: usize, piece: usize) -> GroupTile<'_, T> {
        let left = piece * self.column_step;
        let columns = left..self.width.min(left + self.column_step);
        GroupTile { output: &self.output, width: self.width, rows: self.rows.of(group), columns }
    }
}

/// An output and how it is cut.
pub(crate) struct CutOutput<'a, T> {
    output: DisjointSlice<'a, T>,
    grid: Grid,
    rows: usize,
    cuts: RowCuts<'a>,
    /// Pieces side by side.
    across: usize,
}

/// The rows of each piece.
#[derive(Clone, Copy)]
pub(crate) enum RowCuts<'a> {
    /// As many as the grid says, of all rows.
    Steps,
    /// One of these, which ascend.
    Listed(&'a [usize]),
    /// Those before one of these ends, which ascend, and from the end before it on.
    Groups(&'a [u32]),
}

impl<'a, T> CutOutput<'a, T> {
    pub fn new(output: &'a mut [T], grid: Grid, cuts: RowCuts<'a>) -> CutOutput<'a, T> {
        assert_eq!(output.len() % grid.width, 0, "the output consists of whole rows");
        let (rows, across) = (output.len() / grid.width, grid.width.div_ceil(grid.column_step));
        match cuts {
            RowCuts::Steps => {}
            RowCuts::Listed(listed) => {
                let ascending = listed.windows(2).all(|pair| pair[0] < pair[1]);
                assert!(
                    ascending && listed.last().is_none_or(|&last| last < rows),
                    "{listed:?} of {rows} rows"
                );
            }
            RowCuts::Groups(ends) => {
                let ascending = ends.windows(2).all(|pair| pair[0] < pair[1]);
                let within = ends.last().is_none_or(|&last| last as usize <= rows);
                assert!(ascending && within, "groups end at {ends:?} of {rows} rows");
            }
        }
        CutOutput { output: DisjointSlice::new(output), grid, rows, cuts, across }
    }

    /// The number of pieces.
    pub fn count(&self) -> usize {
        let down = match self.cuts {
            RowCuts::Steps => self.rows.div_ceil(self.grid.row_step),
            RowCuts::Listed(rows) => rows.len(),
            RowCuts::Groups(ends) => ends.len(),
        };
        down * self.across
    }

    /// The part of a piece.
    ///
    /// # Safety
    /// No piece may have two tiles that live at the same time.
    pub unsafe fn tile(&self, piece: usize) -> OutputTile<'_, T> {
        let Grid { width, row_step, column_step } = self.grid;
        let (down, left) = (piece / self.across, piece % self.across * column_step);
        let rows = match self.cuts {
            RowCuts::Steps => down * row_step..self.rows.min((down * row_step).saturating_add(row_step)),
            RowCuts::Listed(listed) => listed[down]..listed[down] + 1,
            RowCuts::Groups(ends) => {
                let first = if down == 0 { 0 } else { ends[down - 1] };
                first as usize..ends[down] as usize
            }
        };
        OutputTile { output: &self.output, width, rows, columns: left..width.min(left + column_step) }
    }
}

impl<T> OutputTile<'_, T> {
    /// The rows of the output that the tile covers.
    pub fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// The columns of the output that the tile covers.
    pub fn columns(&self) -> Range<usize> {
        self.columns.clone()
    }

    /// The tile's part of `row`, an index in the whole output.
    ///
    /// # Panics
    /// If the row is not one of the tile's.
    pub fn row(&mut self, row: usize) -> &mut [T] {
        assert!(self.rows.contains(&row), "row {row} of a tile of the rows {:?}", self.rows);
        let start = row * self.width;
        // SAFETY: tiles do not overlap, because the caller of `CutOutput::tile` makes one for each
        // piece of the grid, of the listed rows, no two of which are equal, or of the
        // groups, whose ends ascend; and of this tile only one row is lent at a
        // time, as the result borrows it mutably.
        unsafe { self.output.part(start + self.columns.start..start + self.columns.end) }
    }
}

impl<T> OutputTile<'_, T> {
    /// All rows of the tile, one after another.
    ///
    /// # Panics
    /// If the tile does not cover whole rows.
    pub fn whole(&mut self) -> &mut [T] {
        assert_eq!(self.columns, 0..self.width, "a tile of whole rows");
        // SAFETY: as in `row`; whole rows one after another are one range, which
        // no other tile covers.
        unsafe { self.output.part(self.rows.start * self.width..self.rows.end * self.width) }
    }
}

impl<T: Copy> GroupTile<'_, T> {
    /// The number of rows of the group.
    pub fn count(&self) -> usize {
        self.rows.len()
    }

    /// The tile's part of the group's row of this index.
    ///
    /// # Panics
    /// If the group has fewer rows.
    pub fn row(&mut self, index: usize) -> &mut [T] {
        let start = self.rows[index] * self.width;
        // SAFETY: the caller of `CutGroups::tile` makes one such tile for each group and
        // range of columns; `CutGroups::new` has checked that no row is in two groups; and of this tile
        // only one row is lent at a time, as the result borrows it mutably.
        unsafe { self.output.part(start + self.columns.start..start + self.columns.end) }
    }

    /// Copies the tile's part of a row of the group to the next one.
    ///
    /// # Panics
    /// If the group has no next row.
    pub fn copy_to_next(&mut self, index: usize) {
        let [from, to] = [index, index + 1].map(|index| self.rows[index] * self.width);
        let part = |start: usize| start + self.columns.start..start + self.columns.end;
        // SAFETY: as in `row`, and it is lent within this call only.
        let from = unsafe { self.output.part(part(from)) };
        // SAFETY: as above; it is not `from`, as no row is listed twice in a group.
        let to = unsafe { self.output.part(part(to)) };
        to.copy_from_slice(from);
    }
}

/// A slice that several threads write, in parts that do not overlap.
#[derive(Debug)]
pub(crate) struct DisjointSlice<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: threads get only `&mut T` from a shared slice, which `T: Send` allows;
// the callers of `part` guarantee that no two overlap.
unsafe impl<T: Send> Sync for DisjointSlice<'_, T> {}

impl<'a, T> DisjointSlice<'a, T> {
    pub fn new(slice: &'a mut [T]) -> DisjointSlice<'a, T> {
        DisjointSlice { start: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }

    /// The elements of `range`.
    ///
    /// # Panics
    /// If the range exceeds the slice.
    ///
    /// # Safety
    /// No element may be in two results that live at the same time.
    #[allow(clippy::mut_from_ref)] // The purpose of the type.
    pub unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} elements", self.len);
        // SAFETY: the range lies in the slice that `new` borrowed for longer
        // than this result lives, and the caller ensures that no other result has it.
        unsafe { slice::from_raw_parts_mut(self.start.wrapping_add(range.start), range.len()) }
    }
}
