//! The cycles of steps that wait for one another, where a source does not say how a compiler orders them: softmax,
//! merges and the ends of a GEMV's rows. They have published latencies, as in [`super::loop_schedule`].

use super::loop_schedule::{FUNCTION, LOAD, NARROW, PRODUCT, STORE, SUM, WIDEN};

/// The steps that a vector waits for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Chain {
    /// From memory to registers and back.
    pub trips: u32,
    /// Products, rounded to bf16.
    pub products: u32,
    /// Sums, differences and maxima, rounded to bf16 or with lanes that are moved.
    pub sums: u32,
    /// Hyperbolic tangents or powers of two.
    pub functions: u32,
}

/// The end of a row of a GEMV: 64 lanes are halved six times (`aie::reduce_add` in mv.cc).
pub(super) const ROW_OF_GEMV: Chain = Chain { trips: 1, products: 0, sums: 6, functions: 0 };

impl Chain {
    /// The instructions of all steps, two each.
    pub fn instructions(self) -> u32 {
        2 * (self.trips + self.products + self.sums + self.functions)
    }

    /// The cycles of all steps.
    pub fn cycles(self) -> f64 {
        let steps = [
            (self.trips, LOAD + STORE),
            (self.products, PRODUCT + NARROW),
            (self.sums, SUM + NARROW),
            (self.functions, WIDEN + FUNCTION),
        ];
        steps.into_iter().map(|(count, cycles)| f64::from(count * cycles)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_have_the_latencies_of_their_instructions() {
        let one_of_each = Chain { trips: 1, products: 1, sums: 1, functions: 1 };
        assert_eq!(one_of_each.cycles(), 8.0 + 8.0 + 8.0 + 4.0);
        assert_eq!(Chain { trips: 3, products: 2, ..one_of_each }.cycles(), 24.0 + 16.0 + 8.0 + 4.0);
    }
}
