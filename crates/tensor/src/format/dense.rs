//! Formats of one value per block: plain floats and integers.

use super::block::{BlockFormat, Pack};
use super::levels::Levels;

macro_rules! dense {
    ($(#[doc = $doc:literal] $name:ident $bytes:literal |$b:ident| $read:expr, |$v:ident| $write:expr;)*) => {$(
        #[doc = $doc]
        #[derive(Clone, Copy, Debug)]
        pub struct $name;
        impl BlockFormat for $name {
            const COLUMNS: usize = 1;
            const BYTES: usize = $bytes;
            #[inline]
            fn unpack(block: &[u8], values: &mut [f32]) {
                let $b: [u8; $bytes] = block.try_into().expect("a block has BYTES bytes");
                values[0] = $read;
            }
            fn levels(_: &[u8], _: &mut dyn FnMut(Levels)) {}
        }
        impl Pack for $name {
            #[inline]
            fn pack(values: &[f32], block: &mut [u8]) {
                let $v = values[0];
                block.copy_from_slice(&$write);
            }
        }
    )*};
}

dense! {
    /// IEEE 754 single precision.
    F32 4 |b| f32::from_le_bytes(b), |v| v.to_le_bytes();
    /// IEEE 754 half precision; writing rounds to nearest even.
    F16 2 |b| half::f16::from_le_bytes(b).to_f32(), |v| half::f16::from_f32(v).to_le_bytes();
    /// The upper 16 bits of an f32; writing rounds to nearest even.
    Bf16 2 |b| half::bf16::from_le_bytes(b).to_f32(), |v| half::bf16::from_f32(v).to_le_bytes();
    /// Signed bytes; writing rounds half away from zero and saturates.
    I8 1 |b| f32::from(i8::from_le_bytes(b)), |v| (v.round() as i8).to_le_bytes();
    /// Unsigned bytes; writing rounds half away from zero and saturates.
    U8 1 |b| f32::from(u8::from_le_bytes(b)), |v| (v.round() as u8).to_le_bytes();
    /// Signed 32-bit integers; writing rounds half away from zero and saturates.
    I32 4 |b| i32::from_le_bytes(b) as f32, |v| (v.round() as i32).to_le_bytes();
    /// Signed 64-bit integers, which f32 rounds; writing rounds half away from zero and saturates.
    I64 8 |b| i64::from_le_bytes(b) as f32, |v| (v.round() as i64).to_le_bytes();
}
