//! The native part of the Python package `girih`: handles whose methods take and return JSON. The modules in `girih/` make
//! Python's types of it. Every wait releases the interpreter's lock, and no thread of an engine ever takes it.
#![deny(unsafe_code)]

mod buffer;
mod errors;
mod model;
mod program;
mod reply;
mod text;
mod waiting;

use pyo3::prelude::*;

#[pymodule]
mod _girih {
    #[pymodule_export]
    use super::buffer::PyFloats;
    #[pymodule_export]
    use super::model::{PyModel, backends, plan, version};
    #[pymodule_export]
    use super::reply::PyReply;
    #[pymodule_export]
    use super::text::PyTokenizer;
}
