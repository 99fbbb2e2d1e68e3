//! The tables for NEON.

use super::Neon;
use super::products::{DotProducts, MatrixProducts, Plain};
use super::tile::{TileProduct, tile};
use crate::kernels::packed::MatmulKernels;
use crate::kernels::table::{InstructionSet, Table};
use crate::kernels::vector::table::{table, token};

/// The tables that this processor can run, best first.
pub(in super::super) fn tables() -> Vec<Table> {
    let Some(neon) = Plain::detect() else { return Vec::new() };
    let set = InstructionSet::Neon(neon);
    let matrix_products = MatrixProducts::detect().map(|token| with_tiles(token, set));
    let dot_products = DotProducts::detect().map(|token| with_tiles(token, set));
    matrix_products.into_iter().chain(dot_products).chain([table(neon, set)]).collect()
}

/// The table of a token with its multiplication of tiles.
fn with_tiles<D: TileProduct>(isa: Neon<D>, set: InstructionSet) -> Table {
    let table = table(isa, set);
    let matmul = MatmulKernels {
        // SAFETY: `isa` is such a token.
        tile: |operands, sums| tile::<D>(unsafe { token() }, operands, sums),
        ..table.matmul
    };
    Table { matmul, ..table }
}
