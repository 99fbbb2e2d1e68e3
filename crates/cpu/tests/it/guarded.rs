//! Slices that end, or begin, at a page which nobody may touch: what reads or
//! writes beyond them faults. Asking for memory ahead does not.

#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::{ptr, slice};

use rustix::mm::{self, MapFlags, MprotectFlags, ProtFlags};
use rustix::param::page_size;

/// Where a slice touches the page that nobody may touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Begin,
    End,
}

/// A copy of a slice beside a page that nobody may touch.
pub struct Guarded<'a, T> {
    mapping: *mut u8,
    mapped: usize,
    start: *mut T,
    len: usize,
    /// What was copied lives as long: values may hold references.
    copied: PhantomData<&'a T>,
}

impl<'a, T: Copy> Guarded<'a, T> {
    pub fn new(values: &'a [T], side: Side) -> Guarded<'a, T> {
        assert!(align_of::<T>() <= page_size(), "pages are aligned enough");
        let bytes = size_of_val(values);
        let kept = bytes.next_multiple_of(page_size());
        let mapped = kept + page_size();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at a place of the system's choice, over nothing.
        let mapping = unsafe { mm::mmap_anonymous(ptr::null_mut(), mapped, protection, MapFlags::PRIVATE) }
            .expect("a few pages can be had");
        let mapping = mapping.cast::<u8>();
        let (guard, offset) = match side {
            Side::Begin => (0, page_size()),
            Side::End => (kept, kept - bytes),
        };
        // SAFETY: the page is one of the new mapping, and nothing lies there.
        unsafe { mm::mprotect(mapping.wrapping_add(guard).cast(), page_size(), MprotectFlags::empty()) }
            .expect("a page of a new mapping can be protected");
        let start = mapping.wrapping_add(offset).cast::<T>();
        // SAFETY: `bytes` bytes from `start` on lie in the mapping and beside its
        // guarded page, aligned, as they begin at a page or end there and a
        // type's size is a multiple of its alignment.
        unsafe { ptr::copy_nonoverlapping(values.as_ptr(), start, values.len()) };
        Guarded { mapping, mapped, start, len: values.len(), copied: PhantomData }
    }

    /// Reads the value that would stand beyond the end.
    pub fn read_beyond(&self) -> T {
        // SAFETY: not safe at all: it is meant to fault, in a process that is
        // started for that, since the page behind the end may not be read.
        unsafe { self.start.wrapping_add(self.len).read_volatile() }
    }
}

impl<T> Deref for Guarded<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `new` wrote `len` values there, which this value owns.
        unsafe { slice::from_raw_parts(self.start, self.len) }
    }
}

impl<T> DerefMut for Guarded<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: `new` wrote `len` values there, which this value owns.
        unsafe { slice::from_raw_parts_mut(self.start, self.len) }
    }
}

impl<T> Drop for Guarded<'_, T> {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own and whole, and no slice of it
        // outlives the value.
        unsafe { mm::munmap(self.mapping.cast(), self.mapped) }.expect("what was mapped can be unmapped");
    }
}
