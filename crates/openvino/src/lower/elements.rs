//! Ops of single numbers.

use girih_graph::{Act, GateLimit, GateRule, Temperature, ValueId};
use girih_tensor::Result;

use super::lowering::{DIVIDE, GraphLowering, ParameterSource};
use crate::ir::{Port, Precision, layer};
use crate::step_shape::StepAxis;

/// The factor in the sigmoid form of GELU (Hendrycks & Gimpel 2016, arXiv 1606.08415).
const QUICK_GELU: f32 = 1.702;

/// The polynomial `P` of the upper tail of the normal distribution (Schonfelder 1978, *Math. Comp.* 32, 1232), with
/// `u = (t − 4) / (t + 4)`: of degree 9, off by 7.4e-9 of itself for 0 ≤ t ≤ 13.2, found by Remez' exchange.
const TAIL: [f32; 10] = [
    0.755_285_14,
    -0.607_896_6,
    0.387_136_88,
    -0.186_522_8,
    0.060_404_548,
    -0.007_529_506,
    -0.003_518_978,
    0.001_576_076_5,
    0.000_194_499_31,
    -0.000_125_097_87,
];

impl GraphLowering<'_> {
    pub(super) fn add(&mut self, a: ValueId, b: ValueId, y: ValueId) -> Result<()> {
        let (a, b) = (self.rows(a)?, self.rows(b)?);
        let port = self.binary("Add", a, b);
        self.set_rows(y, port);
        Ok(())
    }

    pub(super) fn scale(&mut self, factor: f32, x: ValueId, y: ValueId) -> Result<()> {
        let x = self.rows(x)?;
        let port = self.scaled(x, factor);
        self.set_rows(y, port);
        Ok(())
    }

    pub(super) fn softcap(&mut self, cap: f32, x: ValueId, y: ValueId) -> Result<()> {
        let x = self.rows(x)?;
        let port = self.capped(x, cap);
        self.set_rows(y, port);
        Ok(())
    }

    pub(super) fn clamp(&mut self, low: f32, high: f32, x: ValueId, y: ValueId) -> Result<()> {
        let x = self.rows(x)?;
        let port = self.clamped(x, low, high);
        self.set_rows(y, port);
        Ok(())
    }

    pub(super) fn activate(&mut self, act: Act, x: ValueId, y: ValueId) -> Result<()> {
        let x = self.rows(x)?;
        let port = self.activated(act, x);
        self.set_rows(y, port);
        Ok(())
    }

    pub(super) fn gate(&mut self, rule: GateRule, [gate, up]: [ValueId; 2], y: ValueId) -> Result<()> {
        let (gate, up) = (self.rows(gate)?, self.rows(up)?);
        let port = self.gated(rule, gate, up);
        self.set_rows(y, port);
        Ok(())
    }

    /// What a gate and the value that it gates become.
    pub(super) fn gated(&mut self, rule: GateRule, gate: Port, mut up: Port) -> Port {
        let GateRule { act, limit, offset } = rule;
        let gate = match limit {
            None => self.activated(act, gate),
            Some(GateLimit::Gate(bound)) => {
                let gate = self.at_most(gate, bound);
                self.activated(act, gate)
            }
            Some(GateLimit::Activated(bound)) => {
                let gate = self.activated(act, gate);
                self.at_most(gate, bound)
            }
        };
        if let Some(limit) = limit {
            up = self.clamped(up, -limit.bound(), limit.bound());
        }
        if let Some(offset) = offset {
            let offset = self.model.float(offset);
            up = self.binary("Add", up, offset);
        }
        self.binary("Multiply", gate, up)
    }

    /// Rows and a number for each of their columns.
    pub(super) fn by_column(
        &mut self,
        name: &'static str,
        x: ValueId,
        weight: ValueId,
        y: ValueId,
    ) -> Result<()> {
        let inner = self.inner(x);
        let (x, weight) = (self.rows(x)?, self.vector(weight, &inner)?);
        let port = self.binary(name, x, weight);
        self.set_rows(y, port);
        Ok(())
    }

    /// `1 + beta · ln(1 + …)` comes from the host.
    pub(super) fn temper(&mut self, temperature: Temperature, x: ValueId, y: ValueId) -> Result<()> {
        let ones = vec![StepAxis::Of(1); self.inner(x).len()];
        let shape: Vec<StepAxis> = [StepAxis::Lanes, StepAxis::Rows].into_iter().chain(ones).collect();
        let factors = self.parameter(
            ParameterSource::Factors(temperature, self.inner(x).len()),
            Precision::F32,
            &shape,
        );
        let x = self.rows(x)?;
        let port = self.binary("Multiply", x, factors);
        self.set_rows(y, port);
        Ok(())
    }

    /// `max(x, 0) − t · Q(t)` with `t = |x|` and the upper tail `Q(t) = exp(−t²/2) · P(u) / (t + 4)`, where nothing cancels.
    /// OpenVINO's own function is a sum with 1 that does.
    fn gelu(&mut self, x: Port) -> Port {
        let magnitude = self.layer(layer("Abs", 1), "", &[x]);
        // Q(14) is zero. An infinite `t` would make `u` NaN.
        let t = self.at_most(magnitude, 14.0);
        let four = self.model.float(4.0);
        let [above, below] = ["Add", "Subtract"].map(|name| self.binary(name, t, four));
        let u = self.layer(layer("Divide", 1), DIVIDE, &[below, above]);
        let sum = self.polynomial(u, &TAIL);
        let square = self.binary("Multiply", t, t);
        let exponent = self.scaled(square, -0.5);
        let power = self.layer(layer("Exp", 1), "", &[exponent]);
        let product = self.binary("Multiply", power, sum);
        let tail = self.layer(layer("Divide", 1), DIVIDE, &[product, above]);
        let lacking = self.binary("Multiply", t, tail);
        let positive = self.layer(layer("ReLU", 1), "", &[x]);
        self.binary("Subtract", positive, lacking)
    }

    pub(super) fn activated(&mut self, act: Act, x: Port) -> Port {
        match act {
            Act::Silu => self.layer(layer("Swish", 4), "", &[x]),
            Act::GeluTanh => self.layer(layer("Gelu", 7), "approximation_mode=\"TANH\"", &[x]),
            Act::Gelu => self.gelu(x),
            Act::QuickGelu => {
                let factor = self.model.float(QUICK_GELU);
                self.layer(layer("Swish", 4), "", &[x, factor])
            }
            Act::Sigmoid => self.layer(layer("Sigmoid", 1), "", &[x]),
            Act::Softplus => self.softplus(x),
            Act::Relu => self.layer(layer("ReLU", 1), "", &[x]),
            Act::Relu2 => {
                let x = self.layer(layer("ReLU", 1), "", &[x]);
                self.binary("Multiply", x, x)
            }
            Act::Identity => x,
        }
    }

    /// Numbers times a constant.
    pub(super) fn scaled(&mut self, x: Port, factor: f32) -> Port {
        let factor = self.model.float(factor);
        self.binary("Multiply", x, factor)
    }

    /// `cap · tanh(x / cap)`.
    pub(super) fn capped(&mut self, x: Port, cap: f32) -> Port {
        let divisor = self.model.float(cap);
        let share = self.layer(layer("Divide", 1), DIVIDE, &[x, divisor]);
        let bent = self.layer(layer("Tanh", 1), "", &[share]);
        self.scaled(bent, cap)
    }

    fn clamped(&mut self, x: Port, low: f32, high: f32) -> Port {
        self.layer(layer("Clamp", 1), &format!("min=\"{low:?}\" max=\"{high:?}\""), &[x])
    }

    pub(super) fn at_most(&mut self, x: Port, bound: f32) -> Port {
        let bound = self.model.float(bound);
        self.binary("Minimum", x, bound)
    }
}
