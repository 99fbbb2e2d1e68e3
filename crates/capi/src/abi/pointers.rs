//! Arguments from C: pointers to texts and buffers, checked for null as far as a pointer can be checked.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char};
use std::slice;

use crate::status::{Fault, Result};

/// A text that may be absent.
///
/// # Errors
/// When it is not UTF-8.
///
/// # Safety
/// `pointer` is null, or points to bytes with a zero at their end, which do not change for as long as the result is used.
pub unsafe fn optional_text<'a>(what: &str, pointer: *const c_char) -> Result<Option<&'a str>> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the pointer is not null, and the caller promises a text with a zero at its end.
    let text = unsafe { CStr::from_ptr(pointer) };
    let invalid = |error: std::str::Utf8Error| {
        Fault::argument(format!("{what} is not UTF-8 at byte {}: pass UTF-8", error.valid_up_to()))
    };
    text.to_str().map(Some).map_err(invalid)
}

/// A text.
///
/// # Errors
/// When it is null or not UTF-8.
///
/// # Safety
/// As [`optional_text`].
pub unsafe fn text<'a>(what: &str, pointer: *const c_char) -> Result<&'a str> {
    // SAFETY: the caller promises what that function needs.
    let text = unsafe { optional_text(what, pointer) }?;
    text.ok_or_else(|| null(what))
}

/// The place of a result.
///
/// # Errors
/// When it is null or not aligned.
///
/// # Safety
/// `pointer` is null, or points to a `T` that nobody else uses for as long as the result is used.
pub unsafe fn place<'a, T>(what: &str, pointer: *mut T) -> Result<&'a mut T> {
    check_aligned(what, pointer)?;
    // SAFETY: the pointer is aligned, and the caller promises a value that nobody else uses.
    let place = unsafe { pointer.as_mut() };
    place.ok_or_else(|| null(what))
}

/// A value that is read.
///
/// # Errors
/// When it is null or not aligned.
///
/// # Safety
/// `pointer` is null, or points to a `T` that does not change for as long as the result is used.
pub unsafe fn value<'a, T>(what: &str, pointer: *const T) -> Result<&'a T> {
    check_aligned(what, pointer)?;
    // SAFETY: the pointer is aligned, and the caller promises a value that does not change.
    let value = unsafe { pointer.as_ref() };
    value.ok_or_else(|| null(what))
}

/// A buffer of `count` elements that are read; one without elements may be null.
///
/// # Errors
/// When it is null and has elements, is not aligned, or is longer than memory.
///
/// # Safety
/// `pointer` is null, or points to `count` elements that do not change for as long as the result is used.
pub unsafe fn elements<'a, T>(what: &str, pointer: *const T, count: usize) -> Result<&'a [T]> {
    check_buffer(what, pointer, count)?;
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: the buffer is not null, aligned and no longer than memory; the caller promises its elements.
    Ok(unsafe { slice::from_raw_parts(pointer, count) })
}

/// A buffer of `count` elements that are written; one without elements may be null.
///
/// # Errors
/// As [`elements`].
///
/// # Safety
/// `pointer` is null, or points to `count` elements that nobody else uses for as long as the result is used.
pub unsafe fn elements_mut<'a, T>(what: &str, pointer: *mut T, count: usize) -> Result<&'a mut [T]> {
    check_buffer(what, pointer, count)?;
    if count == 0 {
        return Ok(&mut []);
    }
    // SAFETY: the buffer is not null, aligned and no longer than memory; the caller promises its elements.
    Ok(unsafe { slice::from_raw_parts_mut(pointer, count) })
}

/// A buffer is not null, unless it has no elements, and no longer than a slice may be.
fn check_buffer<T>(what: &str, pointer: *const T, count: usize) -> Result<()> {
    let bytes = count.checked_mul(size_of::<T>()).filter(|bytes| isize::try_from(*bytes).is_ok());
    match bytes {
        None => Err(Fault::argument(format!("{what} has {count} elements, more than memory holds"))),
        Some(0) => Ok(()),
        Some(_) if pointer.is_null() => Err(null(what)),
        Some(_) => check_aligned(what, pointer),
    }
}

fn check_aligned<T>(what: &str, pointer: *const T) -> Result<()> {
    if pointer.is_aligned() {
        return Ok(());
    }
    let bytes = align_of::<T>();
    Err(Fault::argument(format!("{what} is not aligned: its address must be a multiple of {bytes}")))
}

fn null(what: &str) -> Fault {
    Fault::argument(format!("{what} is null: pass a pointer"))
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    #[test]
    fn pointers_are_checked_before_they_are_followed() {
        let numbers = [1_u32, 2];
        let odd = ptr::without_provenance::<u32>(7);
        // SAFETY: null, misaligned and oversized pointers are refused before they are followed.
        let refused = unsafe { [elements::<u32>("a", ptr::null(), 1)] };
        assert!(refused[0].is_err());
        // SAFETY: as above.
        assert!(unsafe { elements("a", odd, 1) }.is_err());
        // SAFETY: as above.
        assert!(unsafe { elements("a", numbers.as_ptr(), usize::MAX) }.is_err());
        // SAFETY: as above.
        assert!(unsafe { value("a", odd) }.is_err());
        // SAFETY: as above.
        assert!(unsafe { place::<u32>("a", ptr::null_mut()) }.is_err());
        // SAFETY: an empty buffer is not followed.
        assert_eq!(unsafe { elements::<u32>("a", ptr::null(), 0) }, Ok(&[][..]));
        // SAFETY: both elements are there.
        assert_eq!(unsafe { elements("a", numbers.as_ptr(), 2) }, Ok(&numbers[..]));
    }

    #[test]
    fn a_text_that_is_not_utf_8_is_refused() {
        // SAFETY: the bytes end with a zero.
        let fault = unsafe { text("the name", c"a\xff".as_ptr()) }.unwrap_err();
        assert!(fault.sentence.starts_with("the name is not UTF-8 at byte 1"), "{fault:?}");
        // SAFETY: null is refused.
        assert!(unsafe { text("the name", ptr::null()) }.is_err());
        // SAFETY: null is an absent text.
        assert_eq!(unsafe { optional_text("the name", ptr::null()) }, Ok(None));
    }
}
