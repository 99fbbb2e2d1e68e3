//! What a thread reads first in the next task. It asks memory for that while it
//! waits: between tasks that stream through weights one thread alone rounds or
//! writes a row, and memory would have nothing to do meanwhile.
//!
//! Here are addresses, which are asked for and never read: that memory may be
//! gone by then does no harm, and no result depends on any of it.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::kernels::ahead;
use crate::kernels::packed::LINE;

/// Bytes that are asked for, at the most: what fits into the second cache beside
/// the activations of a step of few rows. Twice as many were no better.
const MOST: usize = 128 << 10;

/// Lines that are asked for between two looks at what is waited for.
const LINES: usize = 8;

/// Where what a thread reads first lies. The caller of a pool writes it, the
/// thread reads it.
#[derive(Debug, Default)]
pub(crate) struct Coming {
    start: AtomicUsize,
    length: AtomicUsize,
}

impl Coming {
    /// Puts the first of `bytes` in the place of what was here.
    pub fn set(&self, bytes: &[u8]) {
        self.start.store(bytes.as_ptr().addr(), Ordering::Relaxed);
        self.length.store(bytes.len().min(MOST), Ordering::Relaxed);
    }
}

/// How much of it the thread has asked for.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    start: usize,
    length: usize,
}

impl Asked {
    /// Asks for some lines more, if there are any.
    pub fn go_on(&mut self, coming: &Coming) {
        let start = coming.start.load(Ordering::Relaxed);
        if start != self.start {
            *self = Asked { start, length: 0 };
        }
        let end = coming.length.load(Ordering::Relaxed).min(self.length + LINES * LINE);
        while self.length < end {
            ahead::ask(start.wrapping_add(self.length));
            self.length += LINE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All of it once, a few lines at a time; then what comes instead.
    #[test]
    fn what_is_coming_is_asked_for_once() {
        let (coming, mut asked) = (Coming::default(), Asked::default());
        let bytes = vec![0; 3 * MOST];
        let mut lengths = |bytes: &[u8], looks: usize| {
            coming.set(bytes);
            let mut look = || {
                asked.go_on(&coming);
                asked.length
            };
            (0..looks).map(|_| look()).collect::<Vec<_>>()
        };
        let few = LINES * LINE;
        assert_eq!(lengths(&bytes[..few + 1], 3), [few, few + LINE, few + LINE]);
        assert_eq!(lengths(&bytes[few..], 2), [few, 2 * few]);
        assert_eq!(lengths(&bytes[few..], MOST / few).last(), Some(&MOST));
        assert_eq!(lengths(&[], 2), [0, 0]);
    }
}
