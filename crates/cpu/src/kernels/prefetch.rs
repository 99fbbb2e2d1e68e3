//! The prefetch distance: how far ahead of its current line a kernel prefetches
//! memory that it reads once.
//!
//! Some processors see that lines are read one after another and fetch the next
//! ones by themselves; prefetching as well only gets in their way. Others wait for
//! each line that was not prefetched. A measurement decides
//! ([`prefetch_distance`](crate::prefetch_distance)); no result depends on it.

use super::layout::NARROW;

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

    /// Those that are tried. The first is the default.
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

/// The distances for weights whose lines are read in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefetchChoice {
    /// For up to [`FEW_COLUMNS`] columns of activations.
    pub few: PrefetchDistance,
    /// For more, up to [`NARROW`].
    pub many: PrefetchDistance,
    /// For a tile of more columns.
    pub tile: PrefetchDistance,
}

impl PrefetchChoice {
    /// The default.
    pub const DEFAULT: PrefetchChoice = PrefetchChoice::narrow(PrefetchDistance::ALL[0]);

    /// No prefetching.
    pub const NONE: PrefetchChoice = PrefetchChoice::all(PrefetchDistance::NONE);

    /// The same distance for any number of columns up to [`NARROW`], and none for tiles: most read the same
    /// lines again from L1.
    pub const fn narrow(distance: PrefetchDistance) -> PrefetchChoice {
        PrefetchChoice { few: distance, many: distance, tile: PrefetchDistance::NONE }
    }

    /// The same distance for any number of columns.
    pub const fn all(distance: PrefetchDistance) -> PrefetchChoice {
        PrefetchChoice { few: distance, many: distance, tile: distance }
    }

    /// The distance of a kernel for this number of columns.
    #[inline(always)]
    pub fn distance(self, columns: usize) -> PrefetchDistance {
        match columns {
            0..=FEW_COLUMNS => self.few,
            _ if columns <= NARROW => self.many,
            _ => self.tile,
        }
    }
}

/// Prefetches the line at an address into L2, where the processor has an instruction for
/// it. Any address is allowed.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline]
pub fn prefetch_line(address: usize) {
    super::machine::prefetch_address_l2(std::ptr::without_provenance(address));
}

/// Does nothing: there are no vector kernels for this processor either.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
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
        let [few, many, none] = PrefetchDistance::ALL;
        let choice = PrefetchChoice { few, many, tile: none };
        let found = [1, FEW_COLUMNS + 1, NARROW, NARROW + 1].map(|columns| choice.distance(columns));
        assert_eq!(found, [few, many, many, none]);
    }
}
