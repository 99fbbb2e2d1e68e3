//! Attention, and the rows that it attends to.

use girih_graph::{Role, Span, ValueId};
use girih_tensor::{DType, Error, Result};

use super::lowering::{DIVIDE, GraphLowering, MaskRule, ParameterSource};
use crate::ir::{Port, Precision, layer};

/// The constants of attention.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttendRule {
    pub scale: f32,
    pub span: Span,
    pub softcap: Option<f32>,
    pub sinks: Option<ValueId>,
}

/// How numbers are rounded to a type of state.
struct Mantissa {
    /// 1.5 times the power of two that a number of magnitude 1 is added to: its last place is that of the type.
    carry: f32,
    /// The least power of two that has all places of the type.
    least: f32,
}

impl Mantissa {
    /// That of f16 (11 bits, exponents from −14) or bf16 (8 bits, those of f32). `None` for f32.
    fn of(dtype: DType) -> Option<Mantissa> {
        match dtype {
            DType::F16 => Some(Mantissa { carry: 1.5 * 8192.0, least: 2.0_f32.powi(-14) }),
            DType::BF16 => Some(Mantissa { carry: 1.5 * 65536.0, least: f32::MIN_POSITIVE }),
            _ => None,
        }
    }
}

/// Rounds a number up to a power of two or down to one, exactly: `(x · 2²³ + x) − x · 2²³`.
const TO_POWER: f32 = 8_388_608.0;

impl GraphLowering<'_> {
    /// New rows of state, rounded to its type as the host stores them.
    pub(super) fn write(&mut self, x: ValueId, state: ValueId) -> Result<()> {
        let heads = self.heads(x)?;
        let rounded = match Mantissa::of(self.graph.value(state).dtype) {
            None => heads,
            Some(mantissa) => self.rounded(heads, &mantissa),
        };
        self.written.insert(state, rounded);
        self.held.remove(&state);
        Ok(())
    }

    /// Rounds to nearest, ties to even, by adding a number whose last place is that of the type, and taking it away. (The CPU
    /// device drops a conversion to f16 and back.)
    fn rounded(&mut self, x: Port, mantissa: &Mantissa) -> Port {
        let large = self.scaled(x, TO_POWER);
        let sum = self.binary("Add", large, x);
        let power = self.binary("Subtract", sum, large);
        let [power, magnitude] = [power, x].map(|x| self.layer(layer("Abs", 1), "", &[x]));
        let half = self.scaled(power, 0.5);
        let is_above = self.model.layer(
            layer("Greater", 1),
            "auto_broadcast=\"numpy\"",
            &[power, magnitude],
            Precision::Boolean,
        );
        let power = self.layer(layer("Select", 1), "auto_broadcast=\"numpy\"", &[is_above, half, power]);
        let least = self.model.float(mantissa.least);
        let power = self.binary("Maximum", power, least);
        let carry = self.scaled(power, mantissa.carry);
        let sum = self.binary("Add", x, carry);
        self.binary("Subtract", sum, carry)
    }

    /// Keys or values, `[n, heads, positions, size]`: those of earlier steps, then the rows of this one; or the rows only.
    fn seen(&mut self, id: ValueId) -> Result<Port> {
        if !matches!(self.graph.value(id).role, Role::State(_)) {
            return self.heads(id);
        }
        if let Some(port) = self.held.get(&id) {
            return Ok(*port);
        }
        let new = self.written.get(&id).copied().ok_or_else(|| {
            let name = &self.graph.value(id).name;
            Error::new(format!("'{name}' is read before the step's rows are written; this is a bug in girih"))
        })?;
        let inner = self.inner(id);
        let window = self.parameter(
            ParameterSource::Window(id),
            Precision::F32,
            &[None, Some(inner[0]), None, Some(inner[1])],
        );
        let all = self.layer(layer("Concat", 1), "axis=\"2\"", &[window, new]);
        self.held.insert(id, all);
        Ok(all)
    }

    /// The mask of a rule, `[n, 1, r, positions]`, once for each of `times` heads that share keys.
    fn mask(&mut self, rule: MaskRule, times: usize) -> Port {
        let known = self.masks.iter().position(|known| *known == rule);
        let index = known.unwrap_or_else(|| {
            self.masks.push(rule);
            self.masks.len() - 1
        });
        let mask = self.parameter(ParameterSource::Mask(index), Precision::F32, &[None, Some(1), None, None]);
        if times == 1 {
            return mask;
        }
        self.layer(layer("Concat", 1), "axis=\"2\"", &vec![mask; times])
    }

    pub(super) fn attend(
        &mut self,
        rule: AttendRule,
        [q, keys, values]: [ValueId; 3],
        y: ValueId,
    ) -> Result<()> {
        let (heads, groups) = (self.inner(q)[0], self.inner(keys)[0]);
        let shared = heads / groups;
        let group = match self.graph.value(keys).role {
            Role::State(group) => Some(group),
            Role::Input | Role::Weight | Role::Scratch | Role::Output => None,
        };
        let [keys, values] = [self.seen(keys)?, self.seen(values)?];
        let mut rows = self.heads(q)?;
        // The heads that share keys are further rows, so keys are not repeated.
        if shared > 1 {
            let size = self.inner(q)[1] as i64;
            rows = self.shaped(rows, &[0, groups as i64, -1, size]);
        }
        let mask = match rule.span {
            Span::All => None,
            span => Some(self.mask(MaskRule { group, span }, shared)),
        };
        let mut result = if rule.softcap.is_none() && rule.sinks.is_none() {
            self.fused([rows, keys, values], mask, rule.scale)
        } else {
            self.unfused([rows, keys, values], mask, rule, [heads, groups])?
        };
        if shared > 1 {
            let size = self.inner(y)[1] as i64;
            result = self.shaped(result, &[0, heads as i64, -1, size]);
        }
        self.set_heads(y, result);
        Ok(())
    }

    fn fused(&mut self, [rows, keys, values]: [Port; 3], mask: Option<Port>, scale: f32) -> Port {
        let (zero, scale) = (self.model.float(0.0), self.model.float(scale));
        let inputs = [rows, keys, values, mask.unwrap_or(zero), scale];
        self.layer(layer("ScaledDotProductAttention", 13), "causal=\"false\"", &inputs)
    }

    /// Scores, softmax and sum as layers of their own.
    fn unfused(
        &mut self,
        [rows, keys, values]: [Port; 3],
        mask: Option<Port>,
        rule: AttendRule,
        [heads, groups]: [usize; 2],
    ) -> Result<Port> {
        let scores =
            self.layer(layer("MatMul", 1), "transpose_a=\"false\" transpose_b=\"true\"", &[rows, keys]);
        let mut scores = self.scaled(scores, rule.scale);
        if let Some(cap) = rule.softcap {
            scores = self.capped(scores, cap);
        }
        if let Some(mask) = mask {
            scores = self.binary("Add", scores, mask);
        }
        let weights = match rule.sinks {
            None => self.layer(layer("SoftMax", 8), "axis=\"-1\"", &[scores]),
            Some(sinks) => {
                let scores = self.shaped(scores, &[0, heads as i64, -1, 0]);
                let weights = self.softmax_with(scores, sinks, heads)?;
                self.shaped(weights, &[0, groups as i64, -1, 0])
            }
        };
        Ok(self.layer(layer("MatMul", 1), "transpose_a=\"false\" transpose_b=\"false\"", &[weights, values]))
    }

    /// The softmax of scores, `[n, heads, r, positions]`, and of one more score for each head, which has no weight.
    fn softmax_with(&mut self, scores: Port, sinks: ValueId, heads: usize) -> Result<Port> {
        let sinks = self.vector(sinks, &[heads])?;
        let sinks = self.shaped(sinks, &[1, heads as i64, 1, 1]);
        let last = self.model.integers(&[-1]);
        let most = self.layer(layer("ReduceMax", 1), "keep_dims=\"true\"", &[scores, last]);
        let most = self.binary("Maximum", most, sinks);
        let [powers, of_sinks] = [scores, sinks].map(|scores| {
            let below = self.binary("Subtract", scores, most);
            self.layer(layer("Exp", 1), "", &[below])
        });
        let sum = self.layer(layer("ReduceSum", 1), "keep_dims=\"true\"", &[powers, last]);
        let sum = self.binary("Add", sum, of_sinks);
        Ok(self.layer(layer("Divide", 1), DIVIDE, &[powers, sum]))
    }
}
