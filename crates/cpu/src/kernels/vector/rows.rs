//! Kernels of rows whose plain code becomes vectors when it is compiled for an
//! instruction set.

use girih_graph::{Act, Pairing};

use super::VectorKernel;
use crate::kernels::exponential;
use crate::kernels::portable::{elementwise, norm, rope};
use crate::kernels::table::Rotation;

/// Kernels out of operands and a function.
macro_rules! plain {
    ($($name:ident { $($operand:ident: $type:ty),* } $function:path;)*) => {$(
        #[doc = concat!("The operands of `", stringify!($function), "`.")]
        pub(super) struct $name<'a> {
            $(pub $operand: $type),*
        }

        impl<I> VectorKernel<I> for $name<'_> {
            #[inline(always)]
            fn run(self, _: I) {
                $function($(self.$operand),*);
            }
        }
    )*};
}

plain! {
    Norm { x: &'a [f32], weight: &'a [f32], epsilon: f32, y: &'a mut [f32] } norm::norm;
    LayerNorm {
        x: &'a [f32], weight: &'a [f32], bias: Option<&'a [f32]>, epsilon: f32, y: &'a mut [f32]
    } norm::layer_norm;
    Rotate { x: &'a [f32], rotation: Rotation<'a>, pairing: Pairing, y: &'a mut [f32] } rope::rotate;
    Gate { act: Act, gate: &'a [f32], up: &'a [f32], y: &'a mut [f32] } exponential::gate;
    Activate { act: Act, x: &'a [f32], y: &'a mut [f32] } exponential::activate;
    Add { a: &'a [f32], b: &'a [f32], y: &'a mut [f32] } elementwise::add;
    Scale { x: &'a [f32], factor: f32, y: &'a mut [f32] } elementwise::scale;
    Softcap { values: &'a mut [f32], cap: f32 } exponential::softcap;
}
