//! Calls to the operating system: huge pages, mapped files, CPUs of threads. Thin
//! wrappers; other modules decide when to use them.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::MetadataExt;
use std::ptr::{self, NonNull};
use std::slice;

use rustix::mm::{self, MapFlags, ProtFlags};

#[cfg(target_os = "linux")]
use crate::memory_policy::MAX_NODES;
use crate::memory_policy::PagePlacement;

/// Bytes of a huge page: what one entry of the second level of page tables covers on x86-64 and
/// on most ARM systems.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// Number types for which a page of zero bytes is an array of zeros.
///
/// # Safety
/// Zero bytes must be a valid value, and values must need neither dropping nor an alignment above
/// that of a huge page.
pub(crate) unsafe trait PlainNumber: Copy + Send + Sync {}

macro_rules! numbers {
    ($($number:ty)*) => {
        // SAFETY: zero bytes are the number zero, which needs no drop.
        $(unsafe impl PlainNumber for $number {})*
    };
}

numbers! { u8 i8 u16 i16 u32 i32 u64 i64 f32 f64 }

/// Zeros in pages of their own, at the start of a huge page. A page takes no memory until it is
/// touched, and is then allocated near the thread that touches it. Pages are huge if the system
/// allows it.
#[derive(Debug)]
pub(crate) struct ZeroPages<T> {
    start: NonNull<T>,
    len: usize,
}

// SAFETY: pages belong to their `ZeroPages` alone, as a vector's memory does.
unsafe impl<T: PlainNumber> Send for ZeroPages<T> {}
// SAFETY: as above.
unsafe impl<T: PlainNumber> Sync for ZeroPages<T> {}

/// Which part of a slice will be touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageUse {
    /// All of it.
    Whole,
    /// Its beginning, which is often short. The first numbers get no huge page, because most of
    /// that page would stay untouched.
    Start,
}

impl<T: PlainNumber> ZeroPages<T> {
    /// Allocates `len` zeros, at least one.
    ///
    /// # Errors
    /// If the system refuses the memory.
    pub fn zeroed(len: usize, used: PageUse) -> io::Result<ZeroPages<T>> {
        let too_large = || io::Error::from(io::ErrorKind::OutOfMemory);
        let bytes = len.checked_mul(size_of::<T>()).filter(|&bytes| bytes > 0).ok_or_else(too_large)?;
        let kept = bytes.checked_next_multiple_of(page_size()).ok_or_else(too_large)?;
        // Extra bytes so that the slice can begin at a huge page.
        let mapped = kept.checked_add(HUGE_PAGE).ok_or_else(too_large)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the system chooses, which replaces no other
        // mapping.
        let start = unsafe { mm::mmap_anonymous(ptr::null_mut(), mapped, protection, MapFlags::PRIVATE) }?;
        let before = start.cast::<u8>().align_offset(HUGE_PAGE);
        let kept_start = start.wrapping_byte_add(before);
        // Pages outside the kept part are unmapped; otherwise they could become part of a huge one.
        // SAFETY: the range lies in the new mapping, before the part that is kept.
        unsafe { unmap(start, before) };
        // SAFETY: the range lies in the new mapping, behind the part that is kept.
        unsafe { unmap(kept_start.wrapping_byte_add(kept), HUGE_PAGE - before) };
        let huge = kept / HUGE_PAGE * HUGE_PAGE;
        let small = if used == PageUse::Start { huge.min(HUGE_PAGE) } else { 0 };
        // SAFETY: the range lies in the part of the new mapping that is kept.
        unsafe { advise_small(kept_start, small) };
        // SAFETY: as above; the range follows the one before.
        unsafe { advise_huge(kept_start.wrapping_byte_add(small), huge - small) };
        let start = NonNull::new(kept_start.cast()).expect("the system maps nothing at address zero");
        Ok(ZeroPages { start, len })
    }
}

impl<T> ZeroPages<T> {
    /// The bytes that pages for `len` numbers take.
    pub fn bytes(len: usize) -> u64 {
        let bytes = (len as u64).saturating_mul(size_of::<T>() as u64);
        bytes.checked_next_multiple_of(page_size() as u64).unwrap_or(u64::MAX)
    }
}

impl<T> ZeroPages<T> {
    /// The bytes of the pages that are mapped.
    fn mapped(&self) -> usize {
        (self.len * size_of::<T>()).next_multiple_of(page_size())
    }

    /// Places pages that no thread has touched yet.
    ///
    /// # Errors
    /// If the system has no such call or refuses it.
    pub fn place(&self, placement: &PagePlacement) -> io::Result<()> {
        // SAFETY: this is the mapping that `zeroed` kept.
        unsafe { place_pages(self.start.as_ptr().cast(), self.mapped(), placement) }
    }

    /// Keeps the first `len` numbers, and gives back whole pages behind them.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn truncate(&mut self, len: usize) {
        assert!(len <= self.len, "{len} of {} numbers", self.len);
        let before = self.mapped();
        self.len = len;
        let kept = self.mapped();
        // SAFETY: the range lies in the mapping that `zeroed` kept, behind what `self.len` now says; the borrow of
        // `self` is the only one.
        unsafe {
            unmap(self.start.as_ptr().cast::<std::ffi::c_void>().wrapping_byte_add(kept), before - kept)
        };
    }
}

impl<T> Drop for ZeroPages<T> {
    fn drop(&mut self) {
        // SAFETY: this is what is left of the mapping that `zeroed` kept, and its owner is gone.
        unsafe { unmap(self.start.as_ptr().cast(), self.mapped()) };
    }
}

impl<T> Deref for ZeroPages<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the mapping holds `len` numbers, zeros at first, and is given
        // back only when `self` is dropped, after this borrow has ended.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for ZeroPages<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above; and the borrow is the only one.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

/// A file mapped for reading, without a copy.
///
/// If the file is truncated, or the disk cannot read it, the next access ends this process with a signal.
#[derive(Debug)]
pub(crate) struct MappedFile {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is only read, and no thread owns more of it than another.
unsafe impl Send for MappedFile {}
// SAFETY: as above.
unsafe impl Sync for MappedFile {}

impl MappedFile {
    /// Maps the first `bytes` bytes of a file, at least one.
    ///
    /// # Errors
    /// If the file is shorter, or the system refuses the mapping.
    ///
    /// # Safety
    /// As long as the result lives, nobody may change these bytes of the file, which would change a borrowed
    /// slice.
    pub unsafe fn of(file: &File, bytes: u64) -> io::Result<MappedFile> {
        let there = file.metadata()?.len();
        let len = usize::try_from(bytes).ok().filter(|&len| len > 0 && bytes <= there);
        let len = len.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("cannot map {bytes} bytes of a file of {there} bytes"),
            )
        })?;
        let flags = MapFlags::SHARED;
        // SAFETY: a new mapping at an address that the system chooses, which replaces no other
        // mapping.
        let start = unsafe { mm::mmap(ptr::null_mut(), len, ProtFlags::READ, flags, file, 0) }?;
        let start = NonNull::new(start.cast()).expect("the system maps nothing at address zero");
        Ok(MappedFile { start, len })
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping holds `len` bytes until `self` is dropped, and
        // the caller of `of` vouches that they stay as they are.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `of` made, and its owner is gone.
        unsafe { unmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Maps the first `bytes` bytes of a file that a store has written completely: of the user of this process,
/// and without permission for anybody to write.
///
/// # Errors
/// As [`MappedFile::of`], and if the file is another user's, or somebody may write it.
pub(crate) fn map_kept(file: &File, bytes: u64) -> io::Result<MappedFile> {
    let status = file.metadata()?;
    let (owner, own) = (status.uid(), rustix::process::geteuid().as_raw());
    if owner != own {
        return Err(io::Error::other(format!("it is the user {owner}'s; it must be the user {own}'s")));
    }
    if status.mode() & WRITABLE != 0 {
        let mode = status.mode() & 0o7777;
        return Err(io::Error::other(format!("its mode {mode:o} lets somebody write it; 400 does not")));
    }
    // SAFETY: nobody but this user can open the file for writing, and this user only by
    // changing its mode first, against the contract of `StoredItem::file`; that
    // contract also says that nobody who opened it earlier still writes.
    unsafe { MappedFile::of(file, bytes) }
}

/// The bits of a file's mode that let its owner, its group and others write it.
const WRITABLE: u32 = 0o222;

fn page_size() -> usize {
    rustix::param::page_size()
}

/// Unmaps a range of a mapping.
///
/// # Safety
/// The range must be whole pages that belong to the caller, without any reference to them.
unsafe fn unmap(start: *mut std::ffi::c_void, bytes: usize) {
    if bytes > 0 {
        // SAFETY: the caller vouches for the range.
        let outcome = unsafe { mm::munmap(start, bytes) };
        debug_assert!(outcome.is_ok(), "the range is of whole pages that were mapped");
    }
}

/// Requests huge pages; a system without them keeps small ones.
///
/// # Safety
/// The range must be whole pages of a mapping that belongs to the caller.
#[cfg(target_os = "linux")]
unsafe fn advise_huge(start: *mut std::ffi::c_void, bytes: usize) {
    if bytes > 0 {
        // SAFETY: the caller vouches for the range; the advice changes no contents.
        let _refused_where_the_kernel_lacks_them =
            unsafe { mm::madvise(start, bytes, mm::Advice::LinuxHugepage) };
    }
}

/// Requests pages of the usual size.
///
/// # Safety
/// The range must be whole pages of a mapping that belongs to the caller.
#[cfg(target_os = "linux")]
unsafe fn advise_small(start: *mut std::ffi::c_void, bytes: usize) {
    if bytes > 0 {
        // SAFETY: the caller vouches for the range; the advice changes no contents.
        let _refused_where_the_kernel_lacks_huge_pages =
            unsafe { mm::madvise(start, bytes, mm::Advice::LinuxNoHugepage) };
    }
}

/// Does nothing: systems other than Linux choose the size of pages themselves.
///
/// # Safety
/// None is needed.
#[cfg(not(target_os = "linux"))]
unsafe fn advise_small(_start: *mut std::ffi::c_void, _bytes: usize) {}

/// Does nothing: systems other than Linux choose the size of pages themselves.
///
/// # Safety
/// None is needed.
#[cfg(not(target_os = "linux"))]
unsafe fn advise_huge(_start: *mut std::ffi::c_void, _bytes: usize) {}

/// A new file in memory, for the fuzz target of packed weights.
///
/// # Errors
/// When the system refuses it.
#[cfg(target_os = "linux")]
pub(crate) fn memory_file() -> io::Result<File> {
    use rustix::fs::{MemfdFlags, memfd_create};
    Ok(memfd_create("packed", MemfdFlags::CLOEXEC)?.into())
}

/// Returns an error: this system has no files in memory.
///
/// # Errors
/// Always.
#[cfg(not(target_os = "linux"))]
pub(crate) fn memory_file() -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Places pages that are touched later (`mbind(2)`).
///
/// # Errors
/// If the system refuses.
///
/// # Safety
/// The range must be whole pages of a mapping that belongs to the caller.
#[cfg(target_os = "linux")]
unsafe fn place_pages(
    start: *mut std::ffi::c_void,
    bytes: usize,
    placement: &PagePlacement,
) -> io::Result<()> {
    const WORD_BITS: usize = std::ffi::c_ulong::BITS as usize;
    let mut mask: [std::ffi::c_ulong; MAX_NODES / WORD_BITS] = [0; _];
    let (mode, nodes) = match placement {
        PagePlacement::Local => (libc::MPOL_LOCAL, &[][..]),
        PagePlacement::Interleave(nodes) => (libc::MPOL_INTERLEAVE, &nodes[..]),
        PagePlacement::Preferred(node) => (libc::MPOL_PREFERRED, slice::from_ref(node)),
        PagePlacement::Bind(node) => (libc::MPOL_BIND, slice::from_ref(node)),
    };
    for node in nodes {
        mask[node / WORD_BITS] |= 1 << (node % WORD_BITS);
    }
    let (mask, bits) = if nodes.is_empty() { (ptr::null(), 0) } else { (mask.as_ptr(), MAX_NODES + 1) };
    // The call reads each argument as a word.
    let (mode, flags): (libc::c_long, libc::c_long) = (mode.into(), 0);
    // SAFETY: the caller vouches for the range, whose contents the call does not change; the mask lives during the
    // call and has the bits that it reads, which are one fewer than it is told.
    let outcome = unsafe { libc::syscall(libc::SYS_mbind, start, bytes, mode, mask, bits, flags) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns an error: this system has no such call.
///
/// # Errors
/// Always.
///
/// # Safety
/// None is needed.
#[cfg(not(target_os = "linux"))]
unsafe fn place_pages(
    _start: *mut std::ffi::c_void,
    _bytes: usize,
    _placement: &PagePlacement,
) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The CPUs that the calling thread may run on, in ascending order; `None` if the system does not
/// report them.
#[cfg(target_os = "linux")]
pub(crate) fn allowed_cpus() -> Option<Vec<usize>> {
    use rustix::thread::{CpuSet, sched_getaffinity};
    let set = sched_getaffinity(None).ok()?;
    Some((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// Returns `None`: this system does not report the CPUs of a thread.
#[cfg(not(target_os = "linux"))]
pub(crate) fn allowed_cpus() -> Option<Vec<usize>> {
    None
}

/// Pins the calling thread to `cpus`.
///
/// # Errors
/// If the system refuses.
#[cfg(target_os = "linux")]
pub(crate) fn pin_to(cpus: &[usize]) -> io::Result<()> {
    use rustix::thread::{CpuSet, sched_setaffinity};
    let mut set = CpuSet::new();
    for &cpu in cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU) {
        set.set(cpu);
    }
    Ok(sched_setaffinity(None, &set)?)
}

/// Returns an error: this system has no such call.
///
/// # Errors
/// Always.
#[cfg(not(target_os = "linux"))]
pub(crate) fn pin_to(_cpus: &[usize]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The time of all threads of this process on CPUs, for measurements beside other processes.
#[cfg(test)]
pub(crate) fn cpu_time() -> std::time::Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes the structure, which outlives it.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    assert_eq!(status, 0, "each process has this clock");
    std::time::Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    #[cfg(target_os = "linux")]
    use crate::memory_policy::MemoryPolicy;

    #[test]
    fn pages_are_zeros_that_begin_at_a_huge_page() {
        for len in [1, 1000, HUGE_PAGE / 4, HUGE_PAGE, HUGE_PAGE + 1] {
            let mut pages = ZeroPages::<u32>::zeroed(len, PageUse::Whole).unwrap();
            assert_eq!((pages.len(), pages.as_ptr().addr() % HUGE_PAGE), (len, 0));
            assert!(pages.iter().all(|&number| number == 0), "{len} numbers");
            pages[0] = 1;
            pages[len - 1] = 2;
            assert_eq!(pages.iter().filter(|&&number| number != 0).count(), 2.min(len));
        }
    }

    /// The list of mappings does not tell this: the kernel may join the slice's mapping with its neighbors.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_number_at_the_start_takes_few_pages() {
        let mut pages = ZeroPages::<u8>::zeroed(4 * HUGE_PAGE, PageUse::Start).unwrap();
        pages[0] = 1;
        let mut states = vec![0; pages.len() / page_size()];
        // SAFETY: the slice is mapped and consists of whole pages, and there is a byte for the state of each.
        let status = unsafe { libc::mincore(pages.as_mut_ptr().cast(), pages.len(), states.as_mut_ptr()) };
        assert_eq!(status, 0, "{}", io::Error::last_os_error());
        let resident = page_size() * states.iter().filter(|state| **state & 1 == 1).count();
        assert!((1..HUGE_PAGE / 4).contains(&resident), "{resident} bytes are resident");
    }

    #[test]
    fn pages_can_be_moved_to_another_thread() {
        for _ in 0..100 {
            let mut pages = ZeroPages::<u64>::zeroed(HUGE_PAGE, PageUse::Whole).unwrap();
            let pages = std::thread::spawn(move || {
                pages.fill(7);
                pages
            });
            assert_eq!(pages.join().unwrap().iter().sum::<u64>(), 7 * HUGE_PAGE as u64);
        }
    }

    #[test]
    fn too_many_pages_are_an_error() {
        for len in [0, usize::MAX, usize::MAX / 8, usize::MAX / 8 - 4096, 1 << 50] {
            assert!(ZeroPages::<u64>::zeroed(len, PageUse::Start).is_err(), "{len}");
        }
    }

    /// What the system says of the policy of a slice, in its line in the list of NUMA policies.
    #[cfg(target_os = "linux")]
    fn policy_of(pages: &ZeroPages<u8>) -> Option<String> {
        let start = format!("{:x} ", pages.as_ptr().addr());
        let maps = std::fs::read_to_string("/proc/self/numa_maps").ok()?;
        let own = maps.lines().find_map(|line| line.strip_prefix(&start))?;
        Some(own.split(' ').next()?.to_owned())
    }

    /// The nodes whose memory the system lets this process use.
    #[cfg(target_os = "linux")]
    fn allowed_nodes() -> Option<Vec<usize>> {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let list = status.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:"))?;
        crate::topology::numbers(list.trim())
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn pages_lie_where_they_are_placed() {
        let nodes = crate::topology::memory_nodes(std::path::Path::new("/"));
        let node = nodes[0];
        for (policy, named) in [
            (MemoryPolicy::Local, "local"),
            (MemoryPolicy::Interleave, "interleave:"),
            (MemoryPolicy::Node(node), "prefer"),
            (MemoryPolicy::Strict(node), "bind:"),
        ] {
            let mut pages = ZeroPages::<u8>::zeroed(5000, PageUse::Whole).unwrap();
            match pages.place(&policy.on(&nodes).unwrap()) {
                Ok(()) => pages.fill(1),
                // A container may forbid the call or the node, and a system may lack the call.
                Err(error) => {
                    let accepted = match (error.raw_os_error(), policy) {
                        (Some(libc::EPERM | libc::ENOSYS), _) => true,
                        (Some(libc::EINVAL), MemoryPolicy::Node(node) | MemoryPolicy::Strict(node)) => {
                            allowed_nodes().is_some_and(|allowed| !allowed.contains(&node))
                        }
                        _ => false,
                    };
                    assert!(accepted, "{policy:?}: {error}");
                    continue;
                }
            }
            if let Some(found) = policy_of(&pages) {
                assert!(found.starts_with(named), "{policy:?}: {found}");
            }
        }
        let nowhere = PagePlacement::Bind(MAX_NODES - 1);
        let pages = ZeroPages::<u8>::zeroed(5000, PageUse::Whole).unwrap();
        let error = nowhere.refused(&pages.place(&nowhere).unwrap_err()).to_string();
        assert!(
            error.starts_with("this system refuses memory-policy strict:1023 for the weights ("),
            "{error}"
        );
    }

    #[test]
    fn a_pinned_thread_stays_on_its_cpu() {
        let Some(allowed) = allowed_cpus() else { return };
        let last = *allowed.last().expect("a thread runs somewhere");
        std::thread::spawn(move || {
            pin_to(&[last]).unwrap();
            assert_eq!(allowed_cpus().unwrap(), [last]);
            assert!(pin_to(&[]).is_err(), "a thread must run somewhere");
        })
        .join()
        .unwrap();
        assert_eq!(allowed_cpus().unwrap(), allowed, "other threads are not pinned");
    }

    /// A file without a name, with these bytes.
    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn a_mapped_file_has_the_bytes_of_the_file() {
        for len in [1, 4095, 4096, 4097, 100_000] {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + i / 256) as u8).collect();
            // SAFETY: the file has no name, so only this test can write it.
            let mapping = unsafe { MappedFile::of(&file(&bytes), len as u64) }.unwrap();
            assert_eq!((&mapping[..], mapping.as_ptr().addr() % 4096), (&bytes[..], 0));
        }
    }

    #[test]
    fn more_bytes_than_the_file_has_are_refused() {
        let file = file(&[1, 2, 3]);
        for bytes in [0, 4, 4097, u64::MAX] {
            // SAFETY: the file has no name, so only this test can write it.
            assert!(unsafe { MappedFile::of(&file, bytes) }.is_err(), "{bytes}");
        }
        // SAFETY: as above.
        assert_eq!(&unsafe { MappedFile::of(&file, 2) }.unwrap()[..], [1, 2]);
    }

    #[test]
    fn a_file_that_somebody_may_write_is_not_mapped() {
        let file = file(&[1, 2, 3]);
        for mode in [0o600, 0o420, 0o402] {
            file.set_permissions(Permissions::from_mode(mode)).unwrap();
            let error = map_kept(&file, 3).unwrap_err().to_string();
            assert_eq!(error, format!("its mode {mode:o} lets somebody write it; 400 does not"));
        }
        file.set_permissions(Permissions::from_mode(0o400)).unwrap();
        assert_eq!(&map_kept(&file, 3).unwrap()[..], [1, 2, 3]);
    }
}
