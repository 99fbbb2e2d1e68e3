//! The order in which the threads of a pool take the pieces of a task.

use std::array;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::barrier::CachePadded;

/// The maximum number of thread groups with a range of pieces of their own. A thread that steals
/// checks each group, so there are few.
const MAX_GROUPS: usize = 8;

/// The pieces of a task that have not been taken, of `N` outputs. Each group of threads begins with its own
/// range of each output. So threads seldom contend for a counter, read contiguous memory, and get the
/// same part of a matrix in every step, whichever other matrices the task has. Idle threads then steal
/// from other groups.
pub(crate) struct PieceQueue<const N: usize> {
    /// The next piece of each group, counted over the ranges of all outputs.
    next: [CachePadded<AtomicUsize>; MAX_GROUPS],
    groups: usize,
    threads: usize,
    /// The number of pieces of each output.
    counts: [usize; N],
}

impl<const N: usize> PieceQueue<N> {
    pub fn new(counts: [usize; N], threads: usize) -> PieceQueue<N> {
        let groups = threads.min(MAX_GROUPS);
        PieceQueue { next: array::from_fn(|_| CachePadded::default()), groups, threads, counts }
    }

    /// The group of a thread; neighbours share one.
    pub fn group(&self, thread: usize) -> usize {
        thread * self.groups / self.threads
    }

    /// The pieces of each output with which `group` begins.
    fn ranges(&self, group: usize) -> impl Iterator<Item = Range<usize>> {
        self.counts.iter().map(move |count| group * count / self.groups..(group + 1) * count / self.groups)
    }

    /// The output and the number of piece `index` of those with which `group` begins.
    fn piece(&self, group: usize, mut index: usize) -> Option<(usize, usize)> {
        for (output, range) in self.ranges(group).enumerate() {
            if index < range.len() {
                return Some((output, range.start + index));
            }
            index -= range.len();
        }
        None
    }

    /// Takes a piece from the ranges of `group`, or, if none is left, from the next group that has one;
    /// `group` is then set to that group.
    pub fn next(&self, group: &mut usize) -> Option<(usize, usize)> {
        for _ in 0..self.groups {
            let (next, count) = (&self.next[*group].0, self.ranges(*group).map(|range| range.len()).sum());
            // Loaded first, so that a counter whose pieces are all taken is only read.
            if next.load(Ordering::Relaxed) < count
                && let Some(piece) = self.piece(*group, next.fetch_add(1, Ordering::Relaxed))
            {
                return Some(piece);
            }
            *group = (*group + 1) % self.groups;
        }
        None
    }
}

/// The first piece that a thread takes of `pieces` pieces, if threads arrive in order.
pub(crate) fn first_piece(pieces: usize, thread: usize, threads: usize) -> Option<usize> {
    let queue = PieceQueue::new([pieces], threads);
    let group = queue.group(thread);
    let before = (0..thread).rev().take_while(|&other| queue.group(other) == group).count();
    queue.ranges(group).next()?.nth(before)
}
