//! The prefetch distance: how far ahead of its current line a kernel prefetches
//! memory that it reads once.
//!
//! Some processors see that lines are read one after another and fetch the next
//! ones by themselves; prefetching as well only gets in their way. Others wait for
//! each line that was not prefetched. A measurement decides
//! ([`prefetch_distance`](crate::prefetch_distance)); no result depends on it.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::packed::NARROW;

/// Bytes from the current line to the lines that are prefetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefetchDistance {
    /// Into L2; with zero nothing is prefetched at all.
    pub far: usize,
    /// Into L1.
    pub near: usize,
}

impl PrefetchDistance {
    /// No prefetching.
    pub const NONE: PrefetchDistance = PrefetchDistance { far: 0, near: 0 };

    /// Those that are tried. The first is used until one is chosen.
    pub const ALL: [PrefetchDistance; 3] = [
        PrefetchDistance { far: 8192, near: 1024 },
        PrefetchDistance { far: 4096, near: 2048 },
        PrefetchDistance::NONE,
    ];

    /// The distance for layouts whose units hold several groups: their scales lie behind
    /// all codes, which no processor predicts. Measured (`docs/kernels.md`).
    pub const OF_UNITS: PrefetchDistance = PrefetchDistance { far: 16384, near: 2048 };

    /// Whether anything is prefetched.
    pub fn is_set(self) -> bool {
        self.far > 0
    }

    /// In words.
    pub fn name(self) -> String {
        if self.is_set() { format!("{} and {} bytes", self.far, self.near) } else { "none".to_owned() }
    }
}

/// Columns of activations up to which a kernel computes less than it waits for
/// memory. With more it is compute-bound, and the out-of-order window does not reach
/// the next lines.
pub const FEW_COLUMNS: usize = 1;

/// Indexes into [`PrefetchDistance::ALL`], for up to [`FEW_COLUMNS`] columns and for more.
struct Chosen([AtomicUsize; 2]);

static CHOSEN: Chosen = Chosen::usual();

impl Chosen {
    const fn usual() -> Chosen {
        Chosen([const { AtomicUsize::new(0) }; 2])
    }

    fn index(&self, columns: usize) -> &AtomicUsize {
        &self.0[usize::from(columns > FEW_COLUMNS)]
    }

    #[inline(always)]
    fn get(&self, columns: usize) -> PrefetchDistance {
        PrefetchDistance::ALL[self.index(columns).load(Ordering::Relaxed) % PrefetchDistance::ALL.len()]
    }

    fn set(&self, columns: usize, distance: PrefetchDistance) {
        let index = PrefetchDistance::ALL.iter().position(|&known| known == distance);
        let index = index.expect("a choice is one of those that are tried");
        self.index(columns).store(index, Ordering::Relaxed);
    }
}

/// The distance of kernels for a number of columns where lines are read in their order:
/// none with whole tiles, which read the same lines again from L1.
#[inline(always)]
pub fn distance(columns: usize) -> PrefetchDistance {
    if columns > NARROW { PrefetchDistance::NONE } else { CHOSEN.get(columns) }
}

/// Sets the distance of kernels for a number of columns, one of [`PrefetchDistance::ALL`].
///
/// # Panics
/// When it is none of these.
pub fn set_distance(columns: usize, distance: PrefetchDistance) {
    CHOSEN.set(columns, distance);
}

/// Prefetches the line at an address into L2, where the processor has an instruction for
/// it. Any address is allowed.
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn prefetch_line(address: usize) {
    super::x86::prefetch_address_l2(std::ptr::without_provenance(address));
}

/// Does nothing: there are no vector kernels for this processor either.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub fn prefetch_line(_address: usize) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_address_may_be_prefetched() {
        let memory = vec![0u8; 64];
        let gone = memory.as_ptr().addr();
        drop(memory);
        for address in [gone, 0, 1, usize::MAX, 1 << 63, usize::MAX / 2] {
            prefetch_line(address);
        }
    }

    #[test]
    fn few_and_many_columns_have_distances_of_their_own() {
        let chosen = Chosen::usual();
        for (few, many) in [(0, 1), (2, 0), (0, 0)] {
            chosen.set(1, PrefetchDistance::ALL[few]);
            chosen.set(8, PrefetchDistance::ALL[many]);
            let found = (chosen.get(FEW_COLUMNS), chosen.get(FEW_COLUMNS + 1));
            assert_eq!(found, (PrefetchDistance::ALL[few], PrefetchDistance::ALL[many]));
        }
    }

    #[test]
    #[should_panic(expected = "one of those that are tried")]
    fn a_distance_that_was_never_tried_is_refused() {
        Chosen::usual().set(1, PrefetchDistance { far: 1, near: 1 });
    }
}
