//! Slices next to a page without access: a read or write outside them faults. A prefetch does not.

#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut};
use std::{ptr, slice};

use rustix::mm::{self, MapFlags, MprotectFlags, ProtFlags};
use rustix::param::page_size;

/// The side of a slice on which the guarded page lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Start,
    End,
}

/// A copy of a slice next to a page without access.
pub struct Guarded<T> {
    mapping: *mut u8,
    mapped: usize,
    start: *mut T,
    len: usize,
}

impl<T: Copy + 'static> Guarded<T> {
    pub fn new(values: &[T], side: Side) -> Guarded<T> {
        assert!(align_of::<T>() <= page_size(), "a page is aligned for every type");
        let bytes = size_of_val(values);
        let kept = bytes.next_multiple_of(page_size());
        let mapped = kept + page_size();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the system chooses the address of the new mapping, which overlaps no other.
        let mapping = unsafe { mm::mmap_anonymous(ptr::null_mut(), mapped, protection, MapFlags::PRIVATE) }
            .expect("the system can map a few pages");
        let mapping = mapping.cast::<u8>();
        let (guard, offset) = match side {
            Side::Start => (0, page_size()),
            Side::End => (kept, kept - bytes),
        };
        // SAFETY: the page belongs to the new mapping and holds no value yet.
        unsafe { mm::mprotect(mapping.wrapping_add(guard).cast(), page_size(), MprotectFlags::empty()) }
            .expect("the page belongs to the new mapping");
        let start = mapping.wrapping_add(offset).cast::<T>();
        // SAFETY: the `bytes` bytes from `start` on lie in the mapping, next to its guarded page. They are
        // aligned, because they start or end at a page and a type's size is a multiple of its alignment.
        unsafe { ptr::copy_nonoverlapping(values.as_ptr(), start, values.len()) };
        Guarded { mapping, mapped, start, len: values.len() }
    }

    /// Reads the value directly after the end.
    pub fn read_after(&self) -> T {
        // SAFETY: none: the read must fault, because the page after the end has no access. Only a process
        // that is started for this calls the function.
        unsafe { self.start.wrapping_add(self.len).read_volatile() }
    }
}

impl<T> Deref for Guarded<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `new` wrote `len` values there, which this value owns.
        unsafe { slice::from_raw_parts(self.start, self.len) }
    }
}

impl<T> DerefMut for Guarded<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: `new` wrote `len` values there, which this value owns.
        unsafe { slice::from_raw_parts_mut(self.start, self.len) }
    }
}

impl<T> Drop for Guarded<T> {
    fn drop(&mut self) {
        // SAFETY: this value owns the whole mapping, and no slice of it outlives the value.
        unsafe { mm::munmap(self.mapping.cast(), self.mapped) }.expect("the mapping is still there");
    }
}
