//! Prefetches the next matmul's weights on idle threads: between tasks that stream through weights,
//! one thread alone rounds or writes a row, and memory would be idle.
//!
//! Only addresses are kept here; they are prefetched and never dereferenced. So the memory may be freed
//! earlier, and no result depends on it.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::kernels::packed::LINE;
use crate::kernels::prefetch;

/// The maximum number of bytes that a thread prefetches: what fits into L2 beside the activations of a
/// step of few rows. Twice as many bytes were not faster.
const MAX_BYTES: usize = 128 << 10;

/// Cache lines that are prefetched between two checks of the awaited condition.
const LINES_PER_LOOK: usize = 8;

/// The weights that the first pieces of the next task read, one piece after another. The caller of
/// a pool writes it and all threads read it, in one cache line.
#[derive(Debug, Default)]
pub(crate) struct PrefetchTarget {
    start: AtomicUsize,
    length: AtomicUsize,
    piece: AtomicUsize,
}

impl PrefetchTarget {
    /// Sets the target to `bytes`; each piece reads `piece` bytes of them.
    pub fn set(&self, bytes: &[u8], piece: usize) {
        self.length.store(bytes.len(), Ordering::Relaxed);
        self.piece.store(piece, Ordering::Relaxed);
        self.start.store(bytes.as_ptr().addr(), Ordering::Release);
    }

    /// The range of addresses that a thread prefetches. `first` returns the thread's first piece, given
    /// the number of pieces.
    fn part(&self, start: usize, first: impl Fn(usize) -> Option<usize>) -> Option<(usize, usize)> {
        let (length, piece) = (self.length.load(Ordering::Relaxed), self.piece.load(Ordering::Relaxed));
        let before = first(length.div_ceil(piece.max(1)))?.checked_mul(piece)?;
        let (begin, own) = (start.checked_add(before)?, length.checked_sub(before)?.min(MAX_BYTES));
        Some((begin, begin.checked_add(own)?))
    }
}

/// The addresses that a thread has not prefetched yet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PrefetchCursor {
    /// The start of the [`PrefetchTarget`] to which they belong.
    start: usize,
    next: usize,
    end: usize,
}

impl PrefetchCursor {
    /// Prefetches some more lines, if any are left; `first` returns the thread's first piece, given the
    /// number of pieces.
    pub fn advance(&mut self, target: &PrefetchTarget, first: impl Fn(usize) -> Option<usize>) {
        let start = target.start.load(Ordering::Acquire);
        if start != self.start {
            let (next, end) = target.part(start, first).unwrap_or_default();
            *self = PrefetchCursor { start, next, end };
        }
        for _ in 0..LINES_PER_LOOK {
            if self.next >= self.end {
                break;
            }
            prefetch::prefetch_line(self.next);
            self.next = self.next.saturating_add(LINE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread prefetches the beginning of its first piece, a few lines at a time, then the next target.
    #[test]
    fn each_target_is_prefetched_once() {
        let (target, mut cursor) = (PrefetchTarget::default(), PrefetchCursor::default());
        let bytes = vec![0; 3 * MAX_BYTES];
        let mut distances = |from: usize, piece: usize, first: Option<usize>, looks: usize| {
            target.set(&bytes[from..], piece);
            let mut look = || {
                cursor.advance(&target, |pieces| {
                    assert_eq!(pieces, (bytes.len() - from).div_ceil(piece));
                    first
                });
                cursor.next.wrapping_sub(bytes.as_ptr().addr())
            };
            (0..looks).map(|_| look()).collect::<Vec<_>>()
        };
        let few = LINES_PER_LOOK * LINE;
        assert_eq!(distances(0, MAX_BYTES, Some(1), 2), [MAX_BYTES + few, MAX_BYTES + 2 * few]);
        assert_eq!(
            distances(LINE, MAX_BYTES, Some(0), MAX_BYTES / few + 1).last(),
            Some(&(LINE + MAX_BYTES))
        );
        let last = bytes.len() - few - 1;
        assert_eq!(distances(last, few, Some(1), 3), [bytes.len() - 1 + LINE; 3]);
        assert_eq!(distances(0, MAX_BYTES, None, 1), [0usize.wrapping_sub(bytes.as_ptr().addr())]);
    }

    /// A thread that reads the target while it is written can get any numbers.
    #[test]
    fn any_target_stays_within_the_maximum() {
        for (start, length, piece) in [(1, usize::MAX, 0), (usize::MAX, 7, 7), (9, 0, 1), (2, 64, usize::MAX)]
        {
            let numbers = [start, length, piece].map(AtomicUsize::new);
            let [start, length, piece] = numbers;
            let (target, mut cursor) = (PrefetchTarget { start, length, piece }, PrefetchCursor::default());
            for first in [0, 1, usize::MAX] {
                cursor.start = 0;
                cursor.advance(&target, |_| Some(first));
                assert!(cursor.end.saturating_sub(cursor.next) <= MAX_BYTES, "{target:?}, piece {first}");
            }
        }
    }
}
