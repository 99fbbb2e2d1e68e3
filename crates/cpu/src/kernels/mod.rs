//! The inner loops, one table of them for each instruction set.
//!
//! A kernel takes plain slices, allocates nothing and contains no graphs. It adds
//! up each of its results in one fixed order, so a result depends on its
//! operands only and not on what else is computed beside it.
//!
//! The kernels for x86 are written once over the layer of `vector`; `avx2` and
//! `avx512` are the instructions of that layer. A table of vector instructions comes
//! only from [`tables`], which asks the processor first, so calling its functions
//! is safe.

pub mod attend;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod avx2;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod exponential;
pub(crate) mod layout;
pub mod packed;
pub mod peaks;
mod portable;
pub mod prefetch;
pub(crate) mod processor;
mod table;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod vector;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod x86;

use std::sync::LazyLock;

use girih_graph::Error;

pub use table::{LayerNormRow, QUANT_GROUP, QuantizeRow, Rotation, Table};

/// The names of all tables for this kind of machine, best first.
pub fn names() -> &'static [&'static str] {
    if cfg!(target_arch = "x86_64") { &["avx512bf16", "avx512", "avx2", "portable"] } else { &["portable"] }
}

/// The tables that this machine can run, best first; the last one runs anywhere.
pub fn tables() -> &'static [Table] {
    static TABLES: LazyLock<Vec<Table>> = LazyLock::new(|| {
        let mut tables = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            tables.extend(avx512::bf16::Avx512Bf16::detect().map(|token| token.table()));
            tables.extend(avx512::Avx512::detect().map(vector::table::table));
            tables.extend(avx2::Avx2::detect().map(vector::table::table));
        }
        tables.push(portable::TABLE);
        tables
    });
    &TABLES
}

/// Returns the table of that name.
///
/// # Errors
/// When this machine has none; the error names those it has.
pub fn by_name(name: &str) -> Result<Table, Error> {
    tables().iter().copied().find(|table| table.name == name).ok_or_else(|| {
        let have: Vec<_> = tables().iter().map(|table| table.name).collect();
        let have = have.join(", ");
        Error::new(format!("this machine cannot run kernels named '{name}'; it runs these: {have}"))
    })
}
