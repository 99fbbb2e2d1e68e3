//! The order in which partial sums of attention are computed: rows of several sequences that read the same blocks
//! follow each other, so that these blocks are read from memory once.

use std::ops::Range;

/// A row and a chunk that have a partial sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SumUnit {
    pub row: usize,
    pub chunk: usize,
}

/// Units in the order of their partial sums. Those of a *group* have one chunk and the same blocks.
#[derive(Debug)]
pub(super) struct UnitOrder<'a> {
    /// The row, the chunk, the index in the order of sequences, and the group.
    units: &'a [[u32; 4]],
    /// The place of each unit, by its index in the order of sequences.
    places: &'a [u32],
    /// The ends of pieces, which have whole groups.
    ends: &'a [u32],
}

/// The words of a unit: four in the list, its place, and an end.
const UNIT_WORDS: usize = 6;

/// The words that `units` units take.
pub(super) fn list_len(units: usize) -> usize {
    UNIT_WORDS * units
}

/// The number of units that `words` words hold.
pub(super) fn list_units(words: usize) -> usize {
    words / UNIT_WORDS
}

impl<'a> UnitOrder<'a> {
    /// Lists the units of sequences, which have these rows and chunks: in the order of chunks, and within a chunk in
    /// that of the blocks that are read. `piece_groups` returns the groups in a piece, from the number of all.
    ///
    /// # Panics
    /// If there are fewer than [`list_len`] words.
    pub fn list<B: Ord>(
        sequences: impl Iterator<Item = (Range<usize>, Range<usize>)>,
        blocks: impl Fn(SumUnit) -> B,
        piece_groups: impl Fn(usize) -> usize,
        words: &'a mut [u32],
    ) -> UnitOrder<'a> {
        let most = list_units(words.len());
        let (lists, rest) = words.split_at_mut(4 * most);
        let (places, ends) = rest.split_at_mut(most);
        let units = lists.as_chunks_mut::<4>().0;
        let mut count = 0;
        for (rows, chunks) in sequences {
            for chunk in chunks {
                for row in rows.clone() {
                    units[count] = [row as u32, chunk as u32, count as u32, 0];
                    count += 1;
                }
            }
        }
        let (units, places) = (&mut units[..count], &mut places[..count]);
        units.sort_unstable_by(|a, b| {
            let by_blocks = || blocks(unit(a)).cmp(&blocks(unit(b)));
            a[1].cmp(&b[1]).then_with(by_blocks).then_with(|| a[0].cmp(&b[0]))
        });
        let mut groups = 0;
        for at in 0..count {
            let [_, chunk, index, group] = &mut units[at];
            (*group, places[*index as usize]) = (groups as u32, at as u32);
            let chunk = *chunk;
            let next = units.get(at + 1).filter(|next| next[1] == chunk);
            if next.is_none_or(|next| blocks(unit(next)) != blocks(unit(&units[at]))) {
                ends[groups] = at as u32 + 1;
                groups += 1;
            }
        }
        let each = piece_groups(groups).max(1);
        let pieces = groups.div_ceil(each);
        (0..pieces).for_each(|piece| ends[piece] = ends[groups.min((piece + 1) * each) - 1]);
        UnitOrder { units, places, ends: &ends[..pieces] }
    }

    /// The number of units.
    pub fn len(&self) -> usize {
        self.units.len()
    }

    /// Where pieces end.
    pub fn ends(&self) -> &'a [u32] {
        self.ends
    }

    /// The place of the unit that is at `index` in the order of sequences.
    pub fn place(&self, index: usize) -> usize {
        self.places[index] as usize
    }

    /// The first units at `places`, at most `most`, which are of one group.
    pub fn run(&self, places: Range<usize>, most: usize) -> impl ExactSizeIterator<Item = SumUnit> + 'a {
        let units = &self.units[places];
        let same = units.iter().take(most).take_while(|unit| unit[3] == units[0][3]).count();
        units[..same].iter().map(unit)
    }
}

fn unit(&[row, chunk, ..]: &[u32; 4]) -> SumUnit {
    SumUnit { row: row as usize, chunk: chunk as usize }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two rows of a first sequence and one of each other, over chunks 0 to 2. All share chunk 0, the first and the third also
    /// chunk 1.
    #[test]
    fn rows_that_read_the_same_blocks_follow_each_other() {
        let tables = [[7, 4, 2], [7, 4, 2], [7, 3, 1], [7, 4, 0]];
        let sequences = [0..2, 2..3, 3..4].map(|rows| (rows, 0..3));
        let mut words = vec![0; list_len(12)];
        let blocks = |unit: SumUnit| tables[unit.row][unit.chunk];
        let order = UnitOrder::list(sequences.into_iter(), blocks, |groups| groups / 2, &mut words);
        let runs: [(usize, &[usize]); 7] =
            [(0, &[0, 1]), (0, &[2, 3]), (1, &[2]), (1, &[0, 1]), (1, &[3]), (2, &[3]), (2, &[2])];
        let mut at = 0;
        for (chunk, rows) in runs {
            let run: Vec<SumUnit> = order.run(at..12, 2).collect();
            at += run.len();
            assert_eq!(run, rows.iter().map(|&row| SumUnit { row, chunk }).collect::<Vec<_>>());
        }
        assert_eq!(order.run(10..12, 5).len(), 2, "the last group");
        // Six groups in pieces of three.
        assert_eq!((order.len(), order.ends()), (12, &[8, 12][..]));
        // The second row of the first sequence in the last chunk, and the only one of the last sequence in the first.
        assert_eq!((order.place(5), order.place(9)), (11, 3));
    }

    #[test]
    fn one_sequence_keeps_its_order() {
        let mut words = vec![0; list_len(8)];
        let order = UnitOrder::list([(3..5, 2..5)].into_iter(), |_| 0, |_| 2, &mut words);
        assert_eq!((0..6).map(|index| order.place(index)).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
        assert_eq!(order.ends(), [4, 6]);
        let none = UnitOrder::list([].into_iter(), |_| 0, |_| 2, &mut []);
        assert_eq!((none.len(), none.ends()), (0, &[][..]));
    }
}
