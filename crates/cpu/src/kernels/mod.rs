//! The inner loops, one table of them for each instruction set.
//!
//! A kernel takes plain slices, allocates nothing and contains no graphs. It adds
//! up each of its results in one fixed order, so a result depends on its
//! operands only and not on what else is computed beside it.
//!
//! The kernels of matmuls and of attention with vectors are written once over the layer of
//! `vector`; `avx2`, `avx512` and `neon` are the instructions of that layer. All others are plain
//! code beside their ops, which hand them to a table ([`Table::run`]). A table of vector
//! instructions comes only from [`tables`], which asks the processor first, so using it
//! is safe.

pub mod attend;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod avx2;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod avx512;
pub(crate) mod exponential;
pub(crate) mod layout;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[allow(unsafe_code)]
mod machine;
#[cfg(target_arch = "aarch64")]
#[allow(unsafe_code)]
mod neon;
pub mod packed;
pub mod peaks;
mod portable;
pub mod prefetch;
pub(crate) mod processor;
mod table;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[allow(unsafe_code)]
mod vector;

use std::sync::LazyLock;

use girih_graph::Error;

pub use packed::QUANT_GROUP;
#[cfg(target_arch = "x86_64")]
use table::InstructionSet;
pub use table::{CpuKernel, Table};

/// The names of all tables for this kind of machine, best first.
pub fn names() -> &'static [&'static str] {
    if cfg!(target_arch = "x86_64") {
        &["amx", "avx512bf16", "avx512", "avxvnni", "avx2", "portable"]
    } else if cfg!(target_arch = "aarch64") {
        &["i8mm", "dotprod", "neon", "portable"]
    } else {
        &["portable"]
    }
}

/// The tables that this machine can run, best first; the last one runs anywhere.
pub fn tables() -> &'static [Table] {
    static TABLES: LazyLock<Vec<Table>> = LazyLock::new(|| {
        let mut tables = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            tables.extend(avx512::amx::Amx::detect().map(|token| token.table()));
            tables.extend(avx512::bf16::Avx512Bf16::detect().map(|token| token.table()));
            let avx512 = avx512::Avx512::detect();
            tables.extend(avx512.map(|token| vector::table::table(token, InstructionSet::Avx512(token))));
            tables.extend(avx2::Avx2::<avx2::vnni::Vnni>::detect().map(|token| token.table()));
            tables.extend(avx2::Avx2::<avx2::Pairs>::detect().map(|token| token.table()));
        }
        #[cfg(target_arch = "aarch64")]
        tables.extend(neon::tables::tables());
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
