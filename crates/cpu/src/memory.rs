//! Memory that begins at a cache line, asked for in a way that can fail. Large
//! slices get pages of their own, which are huge where the system has such:
//! each entry of the processor's address cache then covers 512 times as much,
//! so that streaming through weights waits for fewer page tables. On a virtual
//! machine that took a fifth to a third off the time (`docs/scaling.md`).

use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use girih_graph::Error;

use crate::os::{HUGE_PAGE, Mapping, Number, Pages, Use};

/// Bytes of a cache line, which is also the widest vector of any kernel.
const LINE: usize = 64;

/// A slice of fixed length whose first element lies at the start of a cache line.
#[derive(Debug)]
pub(crate) struct Aligned<T> {
    memory: Memory<T>,
}

#[derive(Debug)]
enum Memory<T> {
    /// A slice of less than a huge page.
    Part {
        /// Longer than the slice by what alignment may cost.
        data: Vec<T>,
        start: usize,
        len: usize,
    },
    Pages(Pages<T>),
}

impl<T: Number + Default> Aligned<T> {
    /// A slice of zeros. Pages take no memory until they are touched.
    ///
    /// # Errors
    /// When memory is short.
    pub fn zeroed(len: usize, purpose: &str) -> Result<Aligned<T>, Error> {
        Aligned::zeroed_for(len, purpose, Use::Whole)
    }

    /// The same for a slice that will be used in this way.
    ///
    /// # Errors
    /// When memory is short.
    pub fn zeroed_for(len: usize, purpose: &str, used: Use) -> Result<Aligned<T>, Error> {
        let short = || {
            let bytes = len.saturating_mul(size_of::<T>());
            Error::new(format!("{purpose} needs {bytes} bytes of memory, which the system does not give"))
        };
        if Self::is_large(len) {
            let pages = Pages::zeroed(len, used).map_err(|_| short())?;
            return Ok(Aligned { memory: Memory::Pages(pages) });
        }
        let padded = len.checked_add(Self::PADDING).ok_or_else(short)?;
        // `vec!` gets its zeros from the system without touching a page, but
        // aborts where memory is short; so it is asked for only what was just
        // given and handed back.
        Vec::<T>::new().try_reserve_exact(padded).map_err(|_| short())?;
        let data = vec![T::default(); padded];
        let start = data.as_ptr().align_offset(LINE);
        Ok(Aligned { memory: Memory::Part { data, start, len } })
    }
}

impl<T> Aligned<T> {
    /// Elements that alignment may cost.
    const PADDING: usize = LINE / size_of::<T>() - 1;

    /// Whether a slice of `len` elements has pages of its own.
    fn is_large(len: usize) -> bool {
        len >= HUGE_PAGE / size_of::<T>()
    }

    /// The bytes that a slice of `len` elements takes.
    pub fn bytes(len: usize) -> u64 {
        if Self::is_large(len) {
            return Pages::<T>::bytes(len);
        }
        (len as u64).saturating_add(Self::PADDING as u64).saturating_mul(size_of::<T>() as u64)
    }
}

impl<T> Deref for Aligned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.memory {
            Memory::Part { data, start, len } => &data[*start..*start + *len],
            Memory::Pages(pages) => pages,
        }
    }
}

impl<T> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.memory {
            Memory::Part { data, start, len } => &mut data[*start..*start + *len],
            Memory::Pages(pages) => pages,
        }
    }
}

/// Bytes that are only read from now on, a part of a memory or of a mapped file;
/// those who hold parts of it share it.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    whole: Whole,
    range: Range<usize>,
}

#[derive(Clone, Debug)]
pub(crate) enum Whole {
    Memory(Arc<Aligned<u8>>),
    File(Arc<Mapping>),
}

impl Shared {
    /// A part of `whole`.
    ///
    /// # Panics
    /// When it is not in there.
    pub fn part(whole: Whole, range: Range<usize>) -> Shared {
        assert!(whole.get(range.clone()).is_some(), "{range:?} is not in {} bytes", whole.len());
        Shared { whole, range }
    }
}

impl Deref for Shared {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.whole[self.range.clone()]
    }
}

impl Deref for Whole {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Whole::Memory(memory) => memory,
            Whole::File(file) => file,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_begin_at_a_cache_line() {
        for len in [0, 1, 63, 64, 1000, HUGE_PAGE - 1, HUGE_PAGE, HUGE_PAGE + 1] {
            let bytes = Aligned::<u8>::zeroed(len, "a test").unwrap();
            let floats = Aligned::<f32>::zeroed(len, "a test").unwrap();
            assert_eq!((bytes.len(), floats.len()), (len, len));
            assert_eq!((bytes.as_ptr().addr() % LINE, floats.as_ptr().addr() % LINE), (0, 0));
            assert!(floats.iter().all(|&x| x == 0.0));
        }
    }

    #[test]
    fn large_slices_have_pages_of_their_own() {
        let of = |len| Aligned::<u8>::zeroed(len, "a test").unwrap();
        let (small, large) = (of(HUGE_PAGE - 1), of(HUGE_PAGE));
        assert!(matches!(small.memory, Memory::Part { .. }));
        assert!(matches!(large.memory, Memory::Pages(_)));
        assert_eq!(Aligned::<u8>::bytes(HUGE_PAGE), HUGE_PAGE as u64);
        assert_eq!(Aligned::<f32>::bytes(HUGE_PAGE + 1), 4 * HUGE_PAGE as u64 + 4096);
    }

    #[test]
    fn too_much_is_an_error() {
        for len in [usize::MAX, usize::MAX / 4, usize::MAX / 16] {
            let error = Aligned::<f32>::zeroed(len, "a test").unwrap_err();
            assert!(error.to_string().starts_with("a test needs "), "{error}");
        }
    }
}
