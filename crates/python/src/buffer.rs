//! Numbers of the model as a buffer of Python, which numpy reads without a copy.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

/// Numbers in `f32`, which never change. Its buffer is their bytes, in the order of this machine.
#[pyclass(name = "Floats", frozen, module = "girih._girih")]
pub struct PyFloats {
    numbers: Vec<f32>,
}

impl PyFloats {
    /// A buffer of these numbers.
    pub fn new(numbers: Vec<f32>) -> PyFloats {
        PyFloats { numbers }
    }
}

#[pymethods]
impl PyFloats {
    fn __len__(&self) -> usize {
        self.numbers.len()
    }

    /// Fills a view of the bytes, read-only. The interpreter passes a view that may be written, or null.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view was given"));
        }
        let numbers = &slf.get().numbers;
        let bytes = size_of_val(&numbers[..]) as ffi::Py_ssize_t;
        let start = numbers.as_ptr().cast::<c_void>().cast_mut();
        // SAFETY: `view` is not null, and the interpreter owns it. `start` is valid for `bytes` bytes as long as the object
        // lives, to which the view holds a reference: a frozen class never changes its vector. The flag for read-only makes
        // the interpreter refuse writers.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, bytes, 1, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}
