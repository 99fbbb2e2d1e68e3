//! What is asked of the operating system itself: large pages, mapped files,
//! processors and priorities for threads. Thin wrappers; what to ask for is decided elsewhere.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::slice;

use rustix::mm::{self, MapFlags, ProtFlags};

/// Bytes of a huge page: what one entry of x86-64's and most ARM systems'
/// second level of page tables covers.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// Numbers for which a page of zero bytes is an array of zeros.
///
/// # Safety
/// Any bytes that are all zero must be a valid value, and values must need
/// neither dropping nor an alignment above that of a huge page.
pub(crate) unsafe trait Number: Copy + Send + Sync {}

macro_rules! numbers {
    ($($number:ty)*) => {
        // SAFETY: zero bytes are the number zero, which is dropped by doing nothing.
        $(unsafe impl Number for $number {})*
    };
}

numbers! { u8 i8 u16 i16 u32 i32 u64 i64 f32 f64 }

/// Zeros in pages of their own, at the start of a huge page. No page takes
/// memory until it is touched; the thread that touches it first decides near
/// which processor it lies. The pages are huge where the system allows it.
#[derive(Debug)]
pub(crate) struct Pages<T> {
    start: NonNull<T>,
    len: usize,
}

// SAFETY: pages belong to their `Pages` alone, as a vector's memory does.
unsafe impl<T: Number> Send for Pages<T> {}
// SAFETY: as above.
unsafe impl<T: Number> Sync for Pages<T> {}

/// How a slice is going to be touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// All of it.
    Whole,
    /// From the start on, and often not far: no huge page is taken for the
    /// first numbers, most of which would stay untouched.
    Start,
}

impl<T: Number> Pages<T> {
    /// So many zeros, at least one.
    ///
    /// # Errors
    /// When the system does not give the memory.
    pub fn zeroed(len: usize, used: Use) -> io::Result<Pages<T>> {
        let too_large = || io::Error::from(io::ErrorKind::OutOfMemory);
        let bytes = len.checked_mul(size_of::<T>()).filter(|&bytes| bytes > 0).ok_or_else(too_large)?;
        let kept = bytes.checked_next_multiple_of(page_size()).ok_or_else(too_large)?;
        // As much again as it may take to begin at a huge page.
        let mapped = kept.checked_add(HUGE_PAGE).ok_or_else(too_large)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at a place of the system's choice, over nothing.
        let start = unsafe { mm::mmap_anonymous(ptr::null_mut(), mapped, protection, MapFlags::PRIVATE) }?;
        let before = start.cast::<u8>().align_offset(HUGE_PAGE);
        let kept_start = start.wrapping_byte_add(before);
        // Untouched pages are given back, or they could become part of a huge one.
        // SAFETY: the range lies in the new mapping, before what is kept of it.
        unsafe { unmap(start, before) };
        // SAFETY: the range lies in the new mapping, behind what is kept of it.
        unsafe { unmap(kept_start.wrapping_byte_add(kept), HUGE_PAGE - before) };
        let huge = kept / HUGE_PAGE * HUGE_PAGE;
        let small = if used == Use::Start { huge.min(HUGE_PAGE) } else { 0 };
        // SAFETY: the range lies in what is kept of the new mapping.
        unsafe { wish_small(kept_start, small) };
        // SAFETY: as above; it is what follows the range before.
        unsafe { wish_huge(kept_start.wrapping_byte_add(small), huge - small) };
        let start = NonNull::new(kept_start.cast()).expect("the system maps nothing at address zero");
        Ok(Pages { start, len })
    }
}

impl<T> Pages<T> {
    /// The bytes that pages for `len` numbers take.
    pub fn bytes(len: usize) -> u64 {
        let bytes = (len as u64).saturating_mul(size_of::<T>() as u64);
        bytes.checked_next_multiple_of(page_size() as u64).unwrap_or(u64::MAX)
    }
}

impl<T> Drop for Pages<T> {
    fn drop(&mut self) {
        let bytes = (self.len * size_of::<T>()).next_multiple_of(page_size());
        // SAFETY: this is the mapping that `zeroed` kept, and its owner is gone.
        unsafe { unmap(self.start.as_ptr().cast(), bytes) };
    }
}

impl<T> Deref for Pages<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the mapping holds `len` numbers, zeros at first, and is given
        // back only when `self` is dropped, after this borrow has ended.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Pages<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above; and the borrow is the only one.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

/// A file that is read where the system keeps it, without a copy.
///
/// The bytes must stay as they are: another process that shortens the file ends
/// this one with a signal at the next access, and one that changes its bytes
/// changes a slice that is borrowed. Who maps a file vouches that nobody does
/// either; `SECURITY.md` says for which files that is so.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is only read, and no thread owns more of it than another.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// The first `bytes` bytes of a file that has so many, at least one.
    ///
    /// # Errors
    /// When the file is shorter, or the system does not map it.
    pub fn of(file: &File, bytes: u64) -> io::Result<Mapping> {
        let there = file.metadata()?.len();
        let len = usize::try_from(bytes).ok().filter(|&len| len > 0 && bytes <= there);
        let len = len.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("{bytes} bytes of a file of {there} were asked for"),
            )
        })?;
        let flags = MapFlags::SHARED;
        // SAFETY: a new mapping at a place of the system's choice, over nothing.
        let start = unsafe { mm::mmap(ptr::null_mut(), len, ProtFlags::READ, flags, file, 0) }?;
        let start = NonNull::new(start.cast()).expect("the system maps nothing at address zero");
        Ok(Mapping { start, len })
    }
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping holds `len` bytes, which stay as they are as the
        // type's documentation demands, until `self` is dropped.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `of` made, and its owner is gone.
        unsafe { unmap(self.start.as_ptr().cast(), self.len) };
    }
}

fn page_size() -> usize {
    rustix::param::page_size()
}

/// Gives a range of a mapping back.
///
/// # Safety
/// The range must be whole pages of the caller's own that nothing refers to.
unsafe fn unmap(start: *mut std::ffi::c_void, bytes: usize) {
    if bytes > 0 {
        // SAFETY: the caller vouches for the range.
        let outcome = unsafe { mm::munmap(start, bytes) };
        debug_assert!(outcome.is_ok(), "the range is of whole pages that were mapped");
    }
}

/// Asks for huge pages; a system that has none goes on with small ones.
///
/// # Safety
/// The range must be whole pages of a mapping of the caller's own.
#[cfg(target_os = "linux")]
unsafe fn wish_huge(start: *mut std::ffi::c_void, bytes: usize) {
    if bytes > 0 {
        // SAFETY: the caller vouches for the range; the advice changes no contents.
        let _refused_where_the_kernel_lacks_them =
            unsafe { mm::madvise(start, bytes, mm::Advice::LinuxHugepage) };
    }
}

/// Asks for pages of the usual size.
///
/// # Safety
/// The range must be whole pages of a mapping of the caller's own.
#[cfg(target_os = "linux")]
unsafe fn wish_small(start: *mut std::ffi::c_void, bytes: usize) {
    if bytes > 0 {
        // SAFETY: the caller vouches for the range; the advice changes no contents.
        let _refused_where_the_kernel_lacks_huge_pages =
            unsafe { mm::madvise(start, bytes, mm::Advice::LinuxNoHugepage) };
    }
}

/// Systems other than Linux choose the size of pages themselves.
///
/// # Safety
/// None is needed.
#[cfg(not(target_os = "linux"))]
unsafe fn wish_small(_start: *mut std::ffi::c_void, _bytes: usize) {}

/// Systems other than Linux choose the size of pages themselves.
///
/// # Safety
/// None is needed.
#[cfg(not(target_os = "linux"))]
unsafe fn wish_huge(_start: *mut std::ffi::c_void, _bytes: usize) {}

/// The processors that the calling thread may run on, in ascending order;
/// nothing where the system does not say.
#[cfg(target_os = "linux")]
pub(crate) fn allowed_cpus() -> Option<Vec<usize>> {
    use rustix::thread::{CpuSet, sched_getaffinity};
    let set = sched_getaffinity(None).ok()?;
    Some((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// The processors that the calling thread may run on: this system does not say.
#[cfg(not(target_os = "linux"))]
pub(crate) fn allowed_cpus() -> Option<Vec<usize>> {
    None
}

/// Keeps the calling thread on `cpus`.
///
/// # Errors
/// When the system refuses.
#[cfg(target_os = "linux")]
pub(crate) fn stay_on(cpus: &[usize]) -> io::Result<()> {
    use rustix::thread::{CpuSet, sched_setaffinity};
    let mut set = CpuSet::new();
    for &cpu in cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU) {
        set.set(cpu);
    }
    Ok(sched_setaffinity(None, &set)?)
}

/// Keeps the calling thread on some processors.
///
/// # Errors
/// Always: this system has no such call.
#[cfg(not(target_os = "linux"))]
pub(crate) fn stay_on(_cpus: &[usize]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Lets the calling thread run only while hardly anybody else wants its processor.
#[cfg(target_os = "linux")]
pub fn run_last() {
    // Linux counts threads as processes here; it refuses nobody who asks for less.
    let _ = rustix::process::setpriority_process(None, LAST);
}

/// Lets the calling thread run only while hardly anybody else wants its
/// processor: elsewhere this would be said of the whole process, so it is not.
#[cfg(not(target_os = "linux"))]
pub fn run_last() {}

/// The lowest priority that the system has for ordinary threads (`nice` 19).
#[cfg(target_os = "linux")]
const LAST: i32 = 19;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_zeros_that_begin_at_a_huge_page() {
        for len in [1, 1000, HUGE_PAGE / 4, HUGE_PAGE, HUGE_PAGE + 1] {
            let mut pages = Pages::<u32>::zeroed(len, Use::Whole).unwrap();
            assert_eq!((pages.len(), pages.as_ptr().addr() % HUGE_PAGE), (len, 0));
            assert!(pages.iter().all(|&number| number == 0), "{len} numbers");
            pages[0] = 1;
            pages[len - 1] = 2;
            assert_eq!(pages.iter().filter(|&&number| number != 0).count(), 2.min(len));
        }
    }

    /// What is resident of a slice, by its line in the list of mappings.
    #[cfg(target_os = "linux")]
    #[test]
    fn few_numbers_at_the_start_take_few_pages() {
        let mut pages = Pages::<u8>::zeroed(4 * HUGE_PAGE, Use::Start).unwrap();
        pages[0] = 1;
        let start = format!("{:x}-", pages.as_ptr().addr());
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let own = maps.split_once(&start).expect("the slice begins a mapping").1;
        let resident = own.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap();
        let kib: usize = resident.trim_end_matches("kB").trim().parse().unwrap();
        assert!(kib * 1024 < HUGE_PAGE / 4, "{kib} KiB are resident");
    }

    #[test]
    fn pages_come_and_go_in_any_thread() {
        for _ in 0..100 {
            let mut pages = Pages::<u64>::zeroed(HUGE_PAGE, Use::Whole).unwrap();
            let pages = std::thread::spawn(move || {
                pages.fill(7);
                pages
            });
            assert_eq!(pages.join().unwrap().iter().sum::<u64>(), 7 * HUGE_PAGE as u64);
        }
    }

    #[test]
    fn more_than_there_is_is_an_error() {
        for len in [0, usize::MAX, usize::MAX / 8, usize::MAX / 8 - 4096, 1 << 50] {
            assert!(Pages::<u64>::zeroed(len, Use::Start).is_err(), "{len}");
        }
    }

    #[test]
    fn a_thread_stays_where_it_is_told_to() {
        let Some(allowed) = allowed_cpus() else { return };
        let last = *allowed.last().expect("a thread runs somewhere");
        std::thread::spawn(move || {
            stay_on(&[last]).unwrap();
            assert_eq!(allowed_cpus().unwrap(), [last]);
            assert!(stay_on(&[]).is_err(), "a thread must run somewhere");
        })
        .join()
        .unwrap();
        assert_eq!(allowed_cpus().unwrap(), allowed, "other threads stay as they were");
    }

    /// A file of so many bytes, removed already.
    fn file(name: &str, bytes: &[u8]) -> File {
        let path = std::env::temp_dir().join(format!("girih-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        let file = File::open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file
    }

    #[test]
    fn a_mapped_file_is_its_bytes() {
        for len in [1, 4095, 4096, 4097, 100_000] {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + i / 256) as u8).collect();
            let mapping = Mapping::of(&file("mapped", &bytes), len as u64).unwrap();
            assert_eq!((&mapping[..], mapping.as_ptr().addr() % 4096), (&bytes[..], 0));
        }
    }

    #[test]
    fn more_than_the_file_has_is_not_mapped() {
        let file = file("short", &[1, 2, 3]);
        for bytes in [0, 4, 4097, u64::MAX] {
            assert!(Mapping::of(&file, bytes).is_err(), "{bytes}");
        }
        assert_eq!(&Mapping::of(&file, 2).unwrap()[..], [1, 2]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn only_the_thread_that_asks_runs_last() {
        let own = || rustix::process::getpriority_process(None).unwrap();
        let before = own();
        std::thread::spawn(move || {
            run_last();
            assert_eq!(own(), LAST);
        })
        .join()
        .unwrap();
        assert_eq!(own(), before);
    }
}
