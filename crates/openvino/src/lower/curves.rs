//! Functions whose layers in OpenVINO have no digits for small results, as polynomials that have them.

use girih_graph::{ValueId, Xielu};
use girih_tensor::Result;

use super::lowering::{DIVIDE, GraphLowering};
use crate::ir::{Port, layer};

/// The series of `artanh(s) / s` in `s²`: for `s` up to 1/3, the next term is below 2e-9 of the sum.
const ARTANH: [f32; 8] =
    [1.0, 1.0 / 3.0, 1.0 / 5.0, 1.0 / 7.0, 1.0 / 9.0, 1.0 / 11.0, 1.0 / 13.0, 1.0 / 15.0];

/// The series of `(eʸ − 1) / y`, of which the next term is below 2e-9 of the sum for [`SMALL`] and less.
const EXPONENTIAL_LESS_1: [f32; 9] = [
    1.0,
    1.0 / 2.0,
    1.0 / 6.0,
    1.0 / 24.0,
    1.0 / 120.0,
    1.0 / 720.0,
    1.0 / 5040.0,
    1.0 / 40320.0,
    1.0 / 362_880.0,
];

/// The largest magnitude for which the series is used; the difference loses less than two bits beyond it.
const SMALL: f32 = 0.5;

impl GraphLowering<'_> {
    /// The sum of powers times coefficients, the constant one first.
    pub(super) fn polynomial(&mut self, x: Port, coefficients: &[f32]) -> Port {
        let (highest, lower) = coefficients.split_last().expect("there are coefficients");
        let mut sum = self.scaled(x, *highest);
        for (index, coefficient) in lower.iter().enumerate().rev() {
            let constant = self.model.float(*coefficient);
            sum = self.binary("Add", sum, constant);
            if index > 0 {
                sum = self.binary("Multiply", sum, x);
            }
        }
        sum
    }

    /// `max(x, 0) + ln(1 + u)` with `u = exp(−|x|)` and `ln(1 + u) = 2 artanh(u / (u + 2))`.
    pub(super) fn softplus(&mut self, x: Port) -> Port {
        let magnitude = self.layer(layer("Abs", 1), "", &[x]);
        let exponent = self.scaled(magnitude, -1.0);
        let u = self.layer(layer("Exp", 1), "", &[exponent]);
        let two = self.model.float(2.0);
        let above = self.binary("Add", u, two);
        let s = self.layer(layer("Divide", 1), DIVIDE, &[u, above]);
        let square = self.binary("Multiply", s, s);
        let series = self.polynomial(square, &ARTANH);
        let half = self.binary("Multiply", s, series);
        let logarithm = self.scaled(half, 2.0);
        let positive = self.layer(layer("ReLU", 1), "", &[x]);
        self.binary("Add", positive, logarithm)
    }

    pub(super) fn xielu(&mut self, xielu: Xielu, x: ValueId, y: ValueId) -> Result<()> {
        let Xielu { positive, negative, beta, epsilon } = xielu;
        let x = self.rows(x)?;
        let square = self.binary("Multiply", x, x);
        let above = self.scaled(square, positive);
        let least = self.at_most(x, epsilon);
        let power = self.exponential_less_1(least);
        let difference = self.binary("Subtract", power, x);
        let below = self.scaled(difference, negative);
        let zero = self.model.float(0.0);
        let curve = self.chosen([x, zero], [above, below]);
        let line = self.scaled(x, beta);
        let port = self.binary("Add", curve, line);
        self.set_rows(y, port);
        Ok(())
    }

    /// `eˣ − 1` of numbers that are not positive.
    fn exponential_less_1(&mut self, x: Port) -> Port {
        let series = self.polynomial(x, &EXPONENTIAL_LESS_1);
        let small = self.binary("Multiply", x, series);
        let power = self.layer(layer("Exp", 1), "", &[x]);
        let one = self.model.float(1.0);
        let large = self.binary("Subtract", power, one);
        let bound = self.model.float(-SMALL);
        self.chosen([x, bound], [small, large])
    }

    /// The first of two results where `a` is greater than `b`, else the other.
    pub(super) fn chosen(&mut self, [a, b]: [Port; 2], [greater, other]: [Port; 2]) -> Port {
        let is_greater = self.compared("Greater", a, b);
        self.chosen_where(is_greater, greater, other)
    }
}
