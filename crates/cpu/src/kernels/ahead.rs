//! How far ahead of its use a kernel asks for memory that it reads once.
//!
//! Some processors see that lines are read one after another and fetch the next
//! ones by themselves; to ask as well only gets in their way. Others wait for
//! each line that nobody has asked for. A measurement says which is which
//! ([`read_ahead`](crate::read_ahead)); no result depends on it.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::packed::NARROW;

/// Bytes ahead of the present line from which memory is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// For the second cache; with zero nothing is asked for at all.
    pub far: usize,
    /// For the first cache.
    pub near: usize,
}

impl Ahead {
    /// Those that are tried. The first is used until one is chosen.
    pub const ALL: [Ahead; 3] =
        [Ahead { far: 8192, near: 1024 }, Ahead { far: 4096, near: 2048 }, Ahead { far: 0, near: 0 }];

    /// What is always asked for of layouts whose units hold several groups: their
    /// scales lie behind all codes, and no processor sees that they come next. The
    /// distances were measured (`docs/kernels.md`).
    pub const OF_UNITS: Ahead = Ahead { far: 16384, near: 2048 };

    /// Whether anything is asked for.
    pub fn asks(self) -> bool {
        self.far > 0
    }

    /// In words.
    pub fn name(self) -> String {
        if self.asks() { format!("{} and {} bytes", self.far, self.near) } else { "none".to_owned() }
    }
}

/// Columns of activations up to which a kernel computes less than it waits for
/// memory; with more it computes so long that a processor does not see far enough.
pub const FEW: usize = 1;

/// What was chosen: indexes into [`Ahead::ALL`], for up to [`FEW`] columns and for more.
struct Chosen([AtomicUsize; 2]);

static CHOSEN: Chosen = Chosen::usual();

impl Chosen {
    const fn usual() -> Chosen {
        Chosen([const { AtomicUsize::new(0) }; 2])
    }

    fn place(&self, columns: usize) -> &AtomicUsize {
        &self.0[usize::from(columns > FEW)]
    }

    #[inline(always)]
    fn get(&self, columns: usize) -> Ahead {
        Ahead::ALL[self.place(columns).load(Ordering::Relaxed) % Ahead::ALL.len()]
    }

    fn set(&self, columns: usize, ahead: Ahead) {
        let index = Ahead::ALL.iter().position(|&known| known == ahead);
        let index = index.expect("a choice is one of those that are tried");
        self.place(columns).store(index, Ordering::Relaxed);
    }
}

/// What kernels for so many columns ask for where lines are read in their order:
/// nothing with whole tiles, which come back to the same lines in the first cache.
#[inline(always)]
pub fn chosen(columns: usize) -> Ahead {
    if columns > NARROW { Ahead { far: 0, near: 0 } } else { CHOSEN.get(columns) }
}

/// Lets kernels for as many columns ask for `ahead`, one of [`Ahead::ALL`].
///
/// # Panics
/// When it is none of these.
pub fn choose(columns: usize, ahead: Ahead) {
    CHOSEN.set(columns, ahead);
}

/// Asks for the line at an address, for the second cache, where the processor can
/// be asked. Nothing need lie there.
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn ask(address: usize) {
    super::x86::prefetch_at(address);
}

/// Asks for nothing: there are no vector kernels for this processor either.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub fn ask(_address: usize) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_address_may_be_asked_for() {
        let memory = vec![0u8; 64];
        let gone = memory.as_ptr().addr();
        drop(memory);
        for address in [gone, 0, 1, usize::MAX, 1 << 63, usize::MAX / 2] {
            ask(address);
        }
    }

    #[test]
    fn few_and_many_columns_are_chosen_for_apart() {
        let chosen = Chosen::usual();
        for (few, many) in [(0, 1), (2, 0), (0, 0)] {
            chosen.set(1, Ahead::ALL[few]);
            chosen.set(8, Ahead::ALL[many]);
            assert_eq!((chosen.get(FEW), chosen.get(FEW + 1)), (Ahead::ALL[few], Ahead::ALL[many]));
        }
    }

    #[test]
    #[should_panic(expected = "one of those that are tried")]
    fn a_distance_that_was_never_tried_is_no_choice() {
        Chosen::usual().set(1, Ahead { far: 1, near: 1 });
    }
}
