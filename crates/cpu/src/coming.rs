//! What threads read first in the next task. They ask memory for it while they
//! wait: between tasks that stream through weights one thread alone rounds or
//! writes a row, and memory would have nothing to do meanwhile.
//!
//! Here are addresses, which are asked for and never read: that memory may be
//! gone by then does no harm, and no result depends on any of it.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::kernels::packed::LINE;
use crate::kernels::prefetch;

/// Bytes that a thread asks for, at the most: what fits into the second cache
/// beside the activations of a step of few rows. Twice as many were no better.
const MOST: usize = 128 << 10;

/// Lines that are asked for between two looks at what is waited for.
const LINES: usize = 8;

/// What the first pieces of a task to come read, piece after piece. The caller of a
/// pool writes it; all threads read it, so that it is one line for all of them.
#[derive(Debug, Default)]
pub(crate) struct Coming {
    start: AtomicUsize,
    length: AtomicUsize,
    piece: AtomicUsize,
}

impl Coming {
    /// Puts `bytes`, of which each piece reads `piece`, in the place of what was here.
    pub fn set(&self, bytes: &[u8], piece: usize) {
        self.length.store(bytes.len(), Ordering::Relaxed);
        self.piece.store(piece, Ordering::Relaxed);
        self.start.store(bytes.as_ptr().addr(), Ordering::Release);
    }

    /// The addresses of what a thread asks for that begins with the piece that
    /// `first` yields, of so many.
    fn part(&self, start: usize, first: impl Fn(usize) -> Option<usize>) -> Option<(usize, usize)> {
        let (length, piece) = (self.length.load(Ordering::Relaxed), self.piece.load(Ordering::Relaxed));
        let before = first(length.div_ceil(piece.max(1)))?.checked_mul(piece)?;
        let (begin, own) = (start.checked_add(before)?, length.checked_sub(before)?.min(MOST));
        Some((begin, begin.checked_add(own)?))
    }
}

/// What of it a thread has not asked for yet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asking {
    /// That of the present [`Coming`].
    start: usize,
    next: usize,
    end: usize,
}

impl Asking {
    /// Asks for some lines more, if there are any; `first` as the pool hands out
    /// pieces to this thread.
    pub fn go_on(&mut self, coming: &Coming, first: impl Fn(usize) -> Option<usize>) {
        let start = coming.start.load(Ordering::Acquire);
        if start != self.start {
            let (next, end) = coming.part(start, first).unwrap_or_default();
            *self = Asking { start, next, end };
        }
        for _ in 0..LINES {
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

    /// The beginning of the thread's first piece, a few lines at a time; then what
    /// comes instead.
    #[test]
    fn what_is_coming_is_asked_for_once() {
        let (coming, mut asking) = (Coming::default(), Asking::default());
        let bytes = vec![0; 3 * MOST];
        let mut distances = |from: usize, piece: usize, first: Option<usize>, looks: usize| {
            coming.set(&bytes[from..], piece);
            let mut look = || {
                asking.go_on(&coming, |pieces| {
                    assert_eq!(pieces, (bytes.len() - from).div_ceil(piece));
                    first
                });
                asking.next.wrapping_sub(bytes.as_ptr().addr())
            };
            (0..looks).map(|_| look()).collect::<Vec<_>>()
        };
        let few = LINES * LINE;
        assert_eq!(distances(0, MOST, Some(1), 2), [MOST + few, MOST + 2 * few]);
        assert_eq!(distances(LINE, MOST, Some(0), MOST / few + 1).last(), Some(&(LINE + MOST)));
        let last = bytes.len() - few - 1;
        assert_eq!(distances(last, few, Some(1), 3), [bytes.len() - 1 + LINE; 3]);
        assert_eq!(distances(0, MOST, None, 1), [0usize.wrapping_sub(bytes.as_ptr().addr())]);
    }

    /// Written while it is read, it can say anything.
    #[test]
    fn any_numbers_do_no_harm() {
        for (start, length, piece) in [(1, usize::MAX, 0), (usize::MAX, 7, 7), (9, 0, 1), (2, 64, usize::MAX)]
        {
            let numbers = [start, length, piece].map(AtomicUsize::new);
            let [start, length, piece] = numbers;
            let (coming, mut asking) = (Coming { start, length, piece }, Asking::default());
            for first in [0, 1, usize::MAX] {
                asking.start = 0;
                asking.go_on(&coming, |_| Some(first));
                assert!(asking.end.saturating_sub(asking.next) <= MOST, "{coming:?}, piece {first}");
            }
        }
    }
}
