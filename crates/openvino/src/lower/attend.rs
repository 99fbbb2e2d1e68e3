//! Attention, and the rows that it attends to.

use girih_graph::{GroupId, Role, Span, StateKind, ValueId};
use girih_tensor::{DType, Error, Result};

use super::lowering::{DIVIDE, GraphLowering, MaskRule, MaskedKeys, ParameterSource};
use crate::ir::{Port, Precision, layer};
use crate::kv_form::KvForm;
use crate::step_shape::StepAxis;

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
        let held = match self.form {
            KvForm::Windows => rounded,
            KvForm::Hidden => self.hide(heads, rounded, state),
        };
        self.written.insert(state, held);
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
        let power = self.chosen([power, magnitude], [half, power]);
        let least = self.model.float(mantissa.least);
        let power = self.binary("Maximum", power, least);
        let carry = self.scaled(power, mantissa.carry);
        let sum = self.binary("Add", x, carry);
        self.binary("Subtract", sum, carry)
    }

    /// Keys or values, `[n, heads, positions, size]`: those of earlier steps, if they are state, then those of the step.
    pub(super) fn seen(&mut self, id: ValueId) -> Result<Vec<Port>> {
        let Role::State(group) = self.graph.value(id).role else {
            return Ok(vec![self.heads(id)?]);
        };
        let new = self.written.get(&id).copied().ok_or_else(|| {
            let name = &self.graph.value(id).name;
            Error::new(format!("'{name}' is read before the step's rows are written; this is a bug in girih"))
        })?;
        if self.form == KvForm::Hidden {
            return Ok(vec![new]);
        }
        let inner = self.inner(id);
        let kind = self.window_kind(group);
        let shape = [StepAxis::Lanes, StepAxis::Of(inner[0]), StepAxis::Window(kind), StepAxis::Of(inner[1])];
        let window = self.parameter(ParameterSource::Window(id), Precision::F32, &shape);
        Ok(self.one_or_both([window, new], "2"))
    }

    /// The kind of a group of state.
    fn window_kind(&self, group: GroupId) -> StateKind {
        self.graph.groups[group.0 as usize].kind
    }

    /// What belongs to earlier steps and to the step. Models of fixed extents join it, as those that NPUs are made for.
    fn one_or_both(&mut self, both: [Port; 2], axis: &str) -> Vec<Port> {
        if !self.shape.is_fixed() {
            return both.to_vec();
        }
        vec![self.layer(layer("Concat", 1), &format!("axis=\"{axis}\""), &both)]
    }

    /// The mask of positions, `[n, 1, r, positions]`, once for each of `times` heads that share keys.
    fn mask(&mut self, source: ParameterSource, times: usize) -> Port {
        let width = match source {
            ParameterSource::Mask(MaskRule { of: MaskedKeys::Window(group), .. }) => {
                StepAxis::Window(self.window_kind(group))
            }
            ParameterSource::SlotMask(_) => StepAxis::Slots,
            _ => StepAxis::Rows,
        };
        let shape = [StepAxis::Lanes, StepAxis::Of(1), StepAxis::Rows, width];
        let mask = self.parameter(source, Precision::F32, &shape);
        if times == 1 {
            return mask;
        }
        self.layer(layer("Concat", 1), "axis=\"2\"", &vec![mask; times])
    }

    /// The masks of keys of earlier steps, if there are any, and of those of the step, unless all are seen.
    pub(super) fn masks(&mut self, keys: ValueId, span: Span, times: usize) -> Vec<Option<Port>> {
        let own = MaskRule { of: MaskedKeys::Step, span };
        match self.graph.value(keys).role {
            Role::State(_) if self.form == KvForm::Hidden => {
                vec![Some(self.mask(ParameterSource::SlotMask(span), times))]
            }
            Role::State(group) => {
                let masks = [MaskRule { of: MaskedKeys::Window(group), span }, own]
                    .map(|rule| self.mask(ParameterSource::Mask(rule), times));
                self.one_or_both(masks, "3").into_iter().map(Some).collect()
            }
            Role::Input | Role::Weight | Role::Scratch | Role::Output => {
                // Rows that fill up a step are not seen.
                let is_masked = span != Span::All || self.shape.is_fixed();
                vec![is_masked.then(|| self.mask(ParameterSource::Mask(own), times))]
            }
        }
    }

    pub(super) fn attend(
        &mut self,
        rule: AttendRule,
        [q, keys, values]: [ValueId; 3],
        y: ValueId,
    ) -> Result<()> {
        let (heads, groups) = (self.inner(q)[0], self.inner(keys)[0]);
        let shared = heads / groups;
        let is_fused = rule.softcap.is_none() && rule.sinks.is_none();
        if is_fused && self.form == KvForm::Hidden && matches!(self.graph.value(keys).role, Role::State(_)) {
            return self.attend_hidden(rule, [q, keys, values], y);
        }
        let masks = self.masks(keys, rule.span, shared);
        let (keys, values) = (self.seen(keys)?, self.seen(values)?);
        let mut rows = self.heads(q)?;
        // The heads that share keys are further rows, so keys are not repeated.
        if shared > 1 {
            let size = self.inner(q)[1] as i64;
            rows = self.shaped(rows, &[0, groups as i64, -1, size]);
        }
        let mut result = match (&keys[..], &values[..], rule) {
            (&[keys], &[values], AttendRule { scale, span: _, softcap: None, sinks: None }) => {
                self.fused([rows, keys, values], masks[0], scale)
            }
            _ => self.joined(rows, (&keys, &values, &masks), rule, [heads, groups])?,
        };
        if shared > 1 {
            let size = self.inner(y)[1] as i64;
            result = self.shaped(result, &[0, heads as i64, -1, size]);
        }
        self.set_heads(y, result);
        Ok(())
    }

    pub(super) fn fused(&mut self, [rows, keys, values]: [Port; 3], mask: Option<Port>, scale: f32) -> Port {
        let (zero, scale) = (self.model.float(0.0), self.model.float(scale));
        let inputs = [rows, keys, values, mask.unwrap_or(zero), scale];
        self.layer(layer("ScaledDotProductAttention", 13), "causal=\"false\"", &inputs)
    }

    /// One softmax over keys in several tensors, which are not copied to one: the weights of each part are powers of what
    /// its scores lack of the largest of all, and their products with values are added.
    fn joined(
        &mut self,
        rows: Port,
        (keys, values, masks): (&[Port], &[Port], &[Option<Port>]),
        rule: AttendRule,
        [heads, groups]: [usize; 2],
    ) -> Result<Port> {
        let rows = self.scaled(rows, rule.scale);
        let scores: Vec<Port> = keys
            .iter()
            .zip(masks)
            .map(|(keys, mask)| self.scores(rows, *keys, *mask, rule.softcap))
            .collect();
        let sinks = rule.sinks.map(|sinks| self.sinks(sinks, [heads, groups])).transpose()?;
        let last = self.model.integers(&[-1]);
        let keep = "keep_dims=\"true\"";
        let mut most = self.layer(layer("ReduceMax", 1), keep, &[scores[0], last]);
        for scores in &scores[1..] {
            let own = self.layer(layer("ReduceMax", 1), keep, &[*scores, last]);
            most = self.binary("Maximum", most, own);
        }
        if let Some(sinks) = sinks {
            most = self
                .with_heads(most, [heads, groups], |lowering, most| lowering.binary("Maximum", most, sinks));
        }
        let (mut sum, mut result) = (None, None);
        for (scores, values) in scores.iter().zip(values) {
            let below = self.binary("Subtract", *scores, most);
            let powers = self.layer(layer("Exp", 1), "", &[below]);
            let own = self.layer(layer("ReduceSum", 1), keep, &[powers, last]);
            let products = self.layer(
                layer("MatMul", 1),
                "transpose_a=\"false\" transpose_b=\"false\"",
                &[powers, *values],
            );
            sum = Some(sum.map_or(own, |sum| self.binary("Add", sum, own)));
            result = Some(result.map_or(products, |result| self.binary("Add", result, products)));
        }
        let (mut sum, result) = (sum.expect("there are keys"), result.expect("there are keys"));
        if let Some(sinks) = sinks {
            let most = self.shaped(most, &[0, heads as i64, -1, 1]);
            let below = self.binary("Subtract", sinks, most);
            let power = self.layer(layer("Exp", 1), "", &[below]);
            sum = self.with_heads(sum, [heads, groups], |lowering, sum| lowering.binary("Add", sum, power));
        }
        Ok(self.layer(layer("Divide", 1), DIVIDE, &[result, sum]))
    }

    /// Scores of some keys, capped and masked.
    fn scores(&mut self, rows: Port, keys: Port, mask: Option<Port>, softcap: Option<f32>) -> Port {
        let mut scores =
            self.layer(layer("MatMul", 1), "transpose_a=\"false\" transpose_b=\"true\"", &[rows, keys]);
        if let Some(cap) = softcap {
            scores = self.capped(scores, cap);
        }
        mask.map_or(scores, |mask| self.binary("Add", scores, mask))
    }

    /// The sinks of heads, `[1, heads, 1, 1]`.
    fn sinks(&mut self, sinks: ValueId, [heads, _]: [usize; 2]) -> Result<Port> {
        let sinks = self.vector(sinks, &[heads])?;
        Ok(self.shaped(sinks, &[1, heads as i64, 1, 1]))
    }

    /// A number for each row of each head, changed as `[n, heads, r, 1]`.
    fn with_heads(
        &mut self,
        x: Port,
        [heads, groups]: [usize; 2],
        change: impl FnOnce(&mut Self, Port) -> Port,
    ) -> Port {
        let x = self.shaped(x, &[0, heads as i64, -1, 1]);
        let x = change(self, x);
        self.shaped(x, &[0, groups as i64, -1, 1])
    }
}
