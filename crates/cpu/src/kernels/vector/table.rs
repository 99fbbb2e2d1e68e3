//! The table of an instruction set.

use std::ptr::NonNull;

use super::quantize::quantize;
use super::{Packed, attend, floats, packed};
use crate::kernels::attend::AttendKernels;
use crate::kernels::packed::MatmulKernels;
use crate::kernels::table::{InstructionSet, Table};

/// Another value of a type whose values have no size.
///
/// # Safety
/// The program must have had a value of the type.
#[inline(always)]
pub(in super::super) unsafe fn token<T: Copy>() -> T {
    const { assert!(size_of::<T>() == 0, "a token has no size") };
    // SAFETY: nothing is read, and the caller says that such a value may exist.
    unsafe { NonNull::<T>::dangling().read() }
}

/// A kernel as an ordinary function.
macro_rules! function {
    (|$($operand:ident),*| $kernel:path) => {
        // SAFETY: what makes the table was given a token, and the table is the only way to this function.
        |$($operand),*| $kernel(unsafe { token::<I>() }, $($operand),*)
    };
}

/// The kernels compiled for an instruction set.
pub(in super::super) fn table<I: Packed>(_: I, set: InstructionSet) -> Table {
    Table {
        name: I::NAME,
        matmul: MatmulKernels {
            narrow: function!(|band, x, sums| packed::narrow),
            decode: function!(|band, first, count, panels| packed::decode),
            tile: function!(|operands, sums| packed::tile),
            sign: None,
            floats: function!(|band, first, x, sums| floats::floats),
            bf16: function!(|band, first, x, sums| floats::bf16),
            fp16: None,
            quantize: function!(|x, codes, scales, sums| quantize),
            has_bf16_dot: false,
        },
        attend: AttendKernels {
            score: function!(|queries, keys, next, scores, at| attend::score),
            weigh: function!(|scores, seen, cap, ends| attend::weigh),
            blend: function!(|weights, at, block, sums| attend::blend),
            join: function!(|running, result, partial, sums| attend::join),
            widen_keys: function!(|format, tile, next, into| attend::widen_keys),
            widen_values: function!(|block, into| attend::widen_values),
            halve: function!(|values, bytes| attend::halve),
        },
        set,
    }
}

/// The table with the products of packed codes compiled for another instruction set; for the same panels.
#[cfg(target_arch = "x86_64")]
pub(in super::super) fn with_products_of<I: Packed>(_: I, table: Table) -> Table {
    let matmul = MatmulKernels {
        narrow: function!(|band, x, sums| packed::narrow),
        tile: function!(|operands, sums| packed::tile),
        ..table.matmul
    };
    Table { name: I::NAME, matmul, ..table }
}
