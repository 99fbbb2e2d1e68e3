//! The cycles of loops over vectors that compilers do not pipeline: what a vector waits for, one step
//! after another. The steps are counted in the public sources of kernels, and what a step costs is
//! solved from the kernels whose cycles are known.

/// The steps that a vector waits for, in the order of [`ChainCosts`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Chain {
    /// From memory to registers and back, with the loop around them.
    pub trips: u32,
    /// Products, rounded to bf16 or summed.
    pub products: u32,
    /// Sums, differences and maxima.
    pub sums: u32,
    /// Hyperbolic tangents or powers of two.
    pub functions: u32,
}

/// The loops of mlir-air's kernels on rows and elements, with the figure that has their cycles.
pub(super) const CHAINS: &[(&str, Chain)] = &[
    // programming_examples/eltwise_add/eltwise_add.py
    ("add.vector", Chain { trips: 1, products: 0, sums: 1, functions: 0 }),
    // rope_halfsplit/rope_halfsplit.cc; the products of a pair are independent
    ("rope_halves.head", Chain { trips: 1, products: 1, sums: 1, functions: 0 }),
    // silu_and_mul/silu_and_mul.cc
    ("silu_mul.vector", Chain { trips: 1, products: 4, sums: 1, functions: 1 }),
    // gelu/gelu.py; half of x is computed beside the chain
    ("gelu.vector", Chain { trips: 1, products: 5, sums: 2, functions: 1 }),
    // weighted_rms_norm/weighted_rms_norm.py: squares and sums pass through memory
    ("rms_norm.vector", Chain { trips: 3, products: 3, sums: 1, functions: 0 }),
    // layer_norm/layer_norm.py: a sum, squares of differences, the result
    ("layer_norm.vector", Chain { trips: 4, products: 3, sums: 4, functions: 0 }),
    // matrix_vector_multiplication/bf16/mv.cc: a product that is summed
    ("gemv_bf16.step", Chain { trips: 1, products: 1, sums: 1, functions: 0 }),
];

/// Rounds of the solver; each multiplies the distance by less than 1, and 4 unknowns need a few thousand.
const ROUNDS: usize = 20_000;

/// Cycles of each step of a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ChainCosts([f64; 4]);

impl Chain {
    fn counts(self) -> [f64; 4] {
        [self.trips, self.products, self.sums, self.functions].map(f64::from)
    }
}

impl ChainCosts {
    /// The costs, none negative, with the least squares of relative errors for loops of known cycles.
    pub fn solve(known: &[(Chain, f64)]) -> ChainCosts {
        let (mut square, mut right) = ([[0.0; 4]; 4], [0.0; 4]);
        for (chain, cycles) in known {
            let row = chain.counts().map(|count| count / cycles);
            for (at, one) in row.into_iter().enumerate() {
                right[at] += one;
                for (sum, other) in square[at].iter_mut().zip(row) {
                    *sum += one * other;
                }
            }
        }
        let mut costs = [0.0; 4];
        for _ in 0..ROUNDS {
            for (at, row) in square.iter().enumerate().filter(|(at, row)| row[*at] > 0.0) {
                let all: f64 = row.iter().zip(costs).map(|(factor, cost)| factor * cost).sum();
                costs[at] = (costs[at] + (right[at] - all) / row[at]).max(0.0);
            }
        }
        ChainCosts(costs)
    }

    /// The cycles of a chain.
    pub fn cycles(&self, chain: Chain) -> f64 {
        chain.counts().iter().zip(self.0).map(|(count, cost)| count * cost).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_cycles_give_the_costs_of_steps() {
        let costs = ChainCosts([10.0, 3.0, 7.0, 25.0]);
        let known: Vec<(Chain, f64)> =
            CHAINS.iter().map(|(_, chain)| (*chain, costs.cycles(*chain))).collect();
        let solved = ChainCosts::solve(&known);
        for (_, chain) in CHAINS {
            let error = solved.cycles(*chain) / costs.cycles(*chain) - 1.0;
            assert!(error.abs() < 1e-3, "{chain:?}: {error}");
        }
        assert_eq!(ChainCosts::solve(&[]), ChainCosts::default(), "nothing is known");
    }
}
