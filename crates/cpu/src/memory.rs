//! Memory aligned to cache lines, with fallible allocation. Large slices have pages of their own,
//! huge ones if the system has them: each TLB entry then covers 512 times as much, so that streaming
//! through weights waits for fewer page tables. On a virtual machine that saved a fifth to a third
//! of the time (`docs/kernels.md`).

use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use girih_graph::{Error, ErrorKind};

use crate::memory_policy::PagePlacement;
use crate::os::{HUGE_PAGE, MappedFile, PageUse, PlainNumber, ZeroPages};

/// Bytes of a cache line, and of the widest vector of any kernel.
const CACHE_LINE: usize = 64;

/// A slice of fixed length whose first element is at the start of a cache line.
#[derive(Debug)]
pub(crate) struct Aligned<T> {
    memory: AlignedMemory<T>,
}

#[derive(Debug)]
enum AlignedMemory<T> {
    /// A slice smaller than a huge page.
    Part {
        /// The slice with padding for its alignment.
        data: Vec<T>,
        start: usize,
        len: usize,
    },
    Pages(ZeroPages<T>),
}

impl<T: PlainNumber + Default> Aligned<T> {
    /// Allocates zeros. Pages take no memory until they are touched.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn zeroed(len: usize, purpose: &str) -> Result<Aligned<T>, Error> {
        Aligned::zeroed_for(len, purpose, PageUse::Whole)
    }

    /// As [`Aligned::zeroed`], with a hint about how much of the slice will be touched.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn zeroed_for(len: usize, purpose: &str, used: PageUse) -> Result<Aligned<T>, Error> {
        let refused = || Self::refused(len, purpose);
        if Self::is_large(len) {
            let pages = ZeroPages::zeroed(len, used).map_err(|_| refused())?;
            return Ok(Aligned { memory: AlignedMemory::Pages(pages) });
        }
        let padded = len.checked_add(Self::PADDING).ok_or_else(refused)?;
        // `vec!` gets zeroed pages from the system without touching them, but aborts if there is not
        // enough memory. So the same size is reserved and freed before.
        Vec::<T>::new().try_reserve_exact(padded).map_err(|_| refused())?;
        let data = vec![T::default(); padded];
        let start = data.as_ptr().align_offset(CACHE_LINE);
        Ok(Aligned { memory: AlignedMemory::Part { data, start, len } })
    }

    /// As [`Aligned::zeroed`], in pages of their own that lie where `placement` says, if there is one.
    ///
    /// # Errors
    /// If there is not enough memory, or the system refuses the placement.
    pub fn zeroed_on(
        len: usize,
        purpose: &str,
        placement: Option<&PagePlacement>,
    ) -> Result<Aligned<T>, Error> {
        let Some(placement) = placement.filter(|_| len > 0) else { return Aligned::zeroed(len, purpose) };
        // A slice smaller than a huge page would share its pages with others.
        let pages = ZeroPages::zeroed(len, PageUse::Whole).map_err(|_| Self::refused(len, purpose))?;
        pages.place(placement).map_err(|error| placement.refused(&error))?;
        Ok(Aligned { memory: AlignedMemory::Pages(pages) })
    }
}

impl<T> Aligned<T> {
    /// Elements of padding for the alignment.
    const PADDING: usize = CACHE_LINE / size_of::<T>() - 1;

    /// Whether a slice of `len` elements has pages of its own.
    fn is_large(len: usize) -> bool {
        len >= HUGE_PAGE / size_of::<T>()
    }

    fn refused(len: usize, purpose: &str) -> Error {
        let bytes = len.saturating_mul(size_of::<T>());
        Error::with_kind(ErrorKind::OutOfMemory, format!("cannot allocate {bytes} bytes for {purpose}"))
    }

    /// The bytes that a slice of `len` elements takes.
    pub fn bytes(len: usize) -> u64 {
        if Self::is_large(len) {
            return ZeroPages::<T>::bytes(len);
        }
        (len as u64).saturating_add(Self::PADDING as u64).saturating_mul(size_of::<T>() as u64)
    }
}

impl<T> Aligned<T> {
    /// Shortens the slice and gives back the pages behind it.
    ///
    /// # Panics
    /// If `len` exceeds its length.
    pub fn truncate(&mut self, len: usize) {
        assert!(len <= self.deref().len(), "{len} elements are not a part");
        match &mut self.memory {
            AlignedMemory::Part { len: own, .. } => *own = len,
            AlignedMemory::Pages(pages) => pages.truncate(len),
        }
    }
}

impl<T> Deref for Aligned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.memory {
            AlignedMemory::Part { data, start, len } => &data[*start..*start + *len],
            AlignedMemory::Pages(pages) => pages,
        }
    }
}

impl<T> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.memory {
            AlignedMemory::Part { data, start, len } => &mut data[*start..*start + *len],
            AlignedMemory::Pages(pages) => pages,
        }
    }
}

/// Read-only bytes: a part of memory or of a mapped file, which is shared by all its parts.
#[derive(Clone, Debug)]
pub(crate) struct SharedBytes {
    whole: BytesOwner,
    range: Range<usize>,
}

#[derive(Clone, Debug)]
pub(crate) enum BytesOwner {
    Memory(Arc<Aligned<u8>>),
    File(Arc<MappedFile>),
}

impl SharedBytes {
    /// A range of `whole`.
    ///
    /// # Panics
    /// If the range exceeds `whole`.
    pub fn part(whole: BytesOwner, range: Range<usize>) -> SharedBytes {
        assert!(whole.get(range.clone()).is_some(), "{range:?} is not in {} bytes", whole.len());
        SharedBytes { whole, range }
    }

    /// A range of these bytes.
    ///
    /// # Panics
    /// If the range exceeds them.
    pub fn sub_part(&self, range: Range<usize>) -> SharedBytes {
        assert!(range.end <= self.range.len(), "{range:?} is not in {} bytes", self.range.len());
        let start = self.range.start;
        SharedBytes::part(self.whole.clone(), start + range.start..start + range.end)
    }
}

impl Deref for SharedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.whole[self.range.clone()]
    }
}

impl Deref for BytesOwner {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            BytesOwner::Memory(memory) => memory,
            BytesOwner::File(file) => file,
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
            assert_eq!((bytes.as_ptr().addr() % CACHE_LINE, floats.as_ptr().addr() % CACHE_LINE), (0, 0));
            assert!(floats.iter().all(|&x| x == 0.0));
        }
    }

    #[test]
    fn large_slices_have_pages_of_their_own() {
        let of = |len| Aligned::<u8>::zeroed(len, "a test").unwrap();
        let (small, large) = (of(HUGE_PAGE - 1), of(HUGE_PAGE));
        assert!(matches!(small.memory, AlignedMemory::Part { .. }));
        assert!(matches!(large.memory, AlignedMemory::Pages(_)));
        assert_eq!(Aligned::<u8>::bytes(HUGE_PAGE), HUGE_PAGE as u64);
        assert_eq!(
            Aligned::<f32>::bytes(HUGE_PAGE + 1),
            4 * HUGE_PAGE as u64 + rustix::param::page_size() as u64
        );
    }

    #[test]
    fn a_shortened_slice_keeps_its_beginning() {
        for len in [1000, 2 * HUGE_PAGE + 5] {
            for kept in [len, len / 2, 7, 0] {
                let mut bytes = Aligned::<u8>::zeroed(len, "a test").unwrap();
                bytes.fill(3);
                bytes.truncate(kept);
                assert!(bytes.len() == kept && bytes.iter().all(|&byte| byte == 3), "{kept} of {len}");
            }
        }
    }

    #[test]
    fn too_much_memory_is_an_error() {
        for len in [usize::MAX, usize::MAX / 4, usize::MAX / 16] {
            let error = Aligned::<f32>::zeroed(len, "a test").unwrap_err();
            assert!(error.to_string().ends_with(" bytes for a test"), "{error}");
        }
    }
}
