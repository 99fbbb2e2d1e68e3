//! Two vectors as one of twice the width: how sets with vectors of 8 numbers
//! run kernels that are written for 16.

use super::{IntegerQuad, Quad, Vectors, WIDE};

/// Vectors of two vectors.
#[derive(Clone, Copy)]
pub(in super::super) struct Twice<V>(pub V);

/// Methods that do in each half what the narrower vectors do.
macro_rules! in_halves {
    ($($name:ident($($operand:ident: $type:ident),*) -> $result:ident;)*) => {$(
        #[inline(always)]
        fn $name(self, $($operand: Self::$type),*) -> Self::$result {
            [self.0.$name($($operand[0]),*), self.0.$name($($operand[1]),*)]
        }
    )*};
}

/// Methods that read half of the bytes for each half.
macro_rules! read_halves {
    ($($name:ident($bytes:literal) -> $result:ident;)*) => {$(
        #[inline(always)]
        fn $name(self, bytes: &[u8]) -> Self::$result {
            [self.0.$name(bytes), self.0.$name(&bytes[$bytes * WIDE / 2..])]
        }
    )*};
}

// SAFETY: the value holds a token of the narrower vectors, whose instructions it uses.
unsafe impl<V: Vectors<Lanes = [f32; WIDE / 2]>> Vectors for Twice<V> {
    type Floats = [V::Floats; 2];
    type Integers = [V::Integers; 2];
    type Lanes = [f32; WIDE];

    #[inline(always)]
    fn split(values: &[f32]) -> &[[f32; WIDE]] {
        values.as_chunks().0
    }

    #[inline(always)]
    fn split_mut(values: &mut [f32]) -> &mut [[f32; WIDE]] {
        values.as_chunks_mut().0
    }

    #[inline(always)]
    fn load(self, values: &[f32; WIDE]) -> Self::Floats {
        let halves = V::split(values);
        [self.0.load(&halves[0]), self.0.load(&halves[1])]
    }

    #[inline(always)]
    fn store(self, vector: Self::Floats, values: &mut [f32; WIDE]) {
        let halves = V::split_mut(values);
        self.0.store(vector[0], &mut halves[0]);
        self.0.store(vector[1], &mut halves[1]);
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Self::Floats {
        [self.0.splat(value); 2]
    }

    #[inline(always)]
    fn splat_integer(self, value: i32) -> Self::Integers {
        [self.0.splat_integer(value); 2]
    }

    #[inline(always)]
    fn splat_f16(self, bytes: [u8; 2]) -> Self::Floats {
        [self.0.splat_f16(bytes); 2]
    }

    #[inline(always)]
    fn broadcast(self, first: Quad) -> Self::Floats {
        [self.0.broadcast(first); 2]
    }

    in_halves! {
        add(a: Floats, b: Floats) -> Floats;
        sub(a: Floats, b: Floats) -> Floats;
        mul(a: Floats, b: Floats) -> Floats;
        div(a: Floats, b: Floats) -> Floats;
        fmadd(a: Floats, b: Floats, c: Floats) -> Floats;
        max(a: Floats, b: Floats) -> Floats;
        or(a: Floats, b: Floats) -> Floats;
        and(a: Floats, b: Floats) -> Floats;
        round(x: Floats) -> Floats;
        rounding(x: Floats) -> Floats;
        to_floats(integers: Integers) -> Floats;
        to_integers(floats: Floats) -> Integers;
        magnitude(floats: Floats) -> Integers;
        add_integers(a: Integers, b: Integers) -> Integers;
        max_integers(a: Integers, b: Integers) -> Integers;
    }

    read_halves! {
        read_f32(4) -> Floats;
        read_f16(2) -> Floats;
        read_bf16(2) -> Floats;
        read_i8(1) -> Integers;
        read_lower_codes(1) -> Floats;
        read_upper_codes(1) -> Floats;
    }

    #[inline(always)]
    fn scale_by_power(
        self,
        x: Self::Floats,
        power: Self::Floats,
        bound: Self::Floats,
        least: f32,
    ) -> Self::Floats {
        [
            self.0.scale_by_power(x[0], power[0], bound[0], least),
            self.0.scale_by_power(x[1], power[1], bound[1], least),
        ]
    }

    #[inline(always)]
    fn write_f16(self, x: Self::Floats, bytes: &mut [u8]) {
        let (lower, upper) = bytes.split_at_mut(WIDE);
        self.0.write_f16(x[0], lower);
        self.0.write_f16(x[1], upper);
    }

    #[inline(always)]
    fn first(self, x: Self::Floats) -> f32 {
        self.0.first(x[0])
    }

    #[inline(always)]
    fn largest(self, x: Self::Floats) -> f32 {
        self.0.largest(self.0.max(x[0], x[1]))
    }

    #[inline(always)]
    fn fold(self, x: Self::Floats) -> Quad {
        self.0.fold(self.0.add(x[0], x[1]))
    }

    #[inline(always)]
    fn fold_integers(self, x: Self::Integers) -> IntegerQuad {
        self.0.fold_integers(self.0.add_integers(x[0], x[1]))
    }

    #[inline(always)]
    fn fold_max(self, x: Self::Integers) -> IntegerQuad {
        self.0.fold_max(self.0.max_integers(x[0], x[1]))
    }
}
