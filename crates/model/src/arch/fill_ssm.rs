//! Facts of the mixer of Mamba-2: its sizes, which must agree, and its limits and factors.

use girih_file::quote;
use girih_tensor::{Error, Result};

use super::facts::{act, act_words};
use super::fill::Fill;
use super::schema::{DefaultValue, Field, StatedValue};
use super::ssm_facts::{SsmFacts, SsmNormFacts};
use super::ssm_schema::SsmSchema;

/// The maximum number of values in the state of a layer: known models have up to 4 million.
const MAX_STATE: usize = 1 << 28;

impl Fill<'_> {
    pub(super) fn ssm(&self, schema: &SsmSchema, layer: usize, epsilon: f32) -> Result<SsmFacts> {
        let heads = self.size("mixer.heads", &schema.heads)?;
        let head_size = self.ssm_head_size(schema, heads)?;
        let groups = self.size("mixer.groups", &schema.groups)?;
        if !heads.is_multiple_of(groups) {
            let key = self.config.key(&schema.groups);
            return Err(Error::new(format!(
                "{key} is {groups}, which does not divide {heads} heads; a divisor is needed"
            )));
        }
        let (state, taps) = (self.size("mixer.state", &schema.state)?, self.taps(&schema.taps)?);
        let values = [head_size, state].iter().try_fold(heads, |all, extent| all.checked_mul(*extent));
        if values.is_none_or(|values| values > MAX_STATE) {
            return Err(Error::new(format!(
                "{heads} heads of {head_size} values with a state of {state} columns exceed the cap of {MAX_STATE} \
                 values"
            )));
        }
        let word = self.config.word(&schema.act)?.ok_or_else(|| self.missing("mixer.act", &schema.act))?;
        let act = act(&word).ok_or_else(|| {
            let (key, word, known) = (self.config.key(&schema.act), quote(&word), act_words());
            Error::new(format!("{key} is {word}; the activations {known} are supported"))
        })?;
        let epsilon = schema.norm_epsilon.as_ref().map_or(Ok(epsilon), |field| self.epsilon(field))?;
        let has = |part: &str| self.stored.has(&format!("layers.{layer}.mixer.{part}"));
        let (least, most) = self.step_limits(schema)?;
        Ok(SsmFacts {
            heads,
            head_size,
            groups,
            state,
            taps,
            act,
            least,
            most,
            norm: self.ssm_norm(schema, has("norm.weight"), epsilon)?,
            biases: has("x.bias"),
            output_bias: has("out.bias"),
            tap_biases: has("x.taps.bias"),
            input_scale: self.factor(schema.input_scale.as_ref())?,
            output_scale: self.factor(schema.output_scale.as_ref())?,
            scales: self.ssm_scales(&schema.scales)?,
        })
    }

    /// The size of a head, which several parameters may state.
    fn ssm_head_size(&self, schema: &SsmSchema, heads: usize) -> Result<usize> {
        let width = self.size("sizes.width", &self.arch.sizes.width)?;
        let size = |field: &Option<Field>| field.as_ref().map_or(Ok(None), |field| self.config.size(field));
        let own = match &schema.head_size {
            Some(field) if self.config.stated(field)? == Some(StatedValue::Word("auto".to_owned())) => None,
            field => size(field)?,
        };
        let expanded = size(&schema.expand)?.map(|times| times.saturating_mul(width));
        let inner = size(&schema.inner)?.or(expanded);
        match (own, inner) {
            (Some(size), None) => Ok(size),
            (None, Some(inner)) if inner.is_multiple_of(heads) => Ok(inner / heads),
            (Some(size), Some(inner)) if size.checked_mul(heads) == Some(inner) => Ok(size),
            (Some(size), Some(inner)) => Err(Error::new(format!(
                "{heads} heads of {size} values are not the {inner} values of the mixer; equal numbers are needed"
            ))),
            (None, Some(inner)) => Err(Error::new(format!(
                "the {inner} values of the mixer are no multiple of its {heads} heads, which is needed"
            ))),
            (None, None) => Err(self.missing("mixer.inner", schema.inner.as_ref().unwrap_or(&schema.heads))),
        }
    }

    /// The smallest step, and the largest one unless it is infinite.
    fn step_limits(&self, schema: &SsmSchema) -> Result<(f32, Option<f32>)> {
        let limit = |field: &Option<Field>| -> Result<Option<f32>> {
            let Some(field) = field else { return Ok(None) };
            let limit = match (self.config.stated(field)?, self.config.default(field)) {
                (Some(StatedValue::Number(limit)), _) => Some(limit),
                (None, Some(DefaultValue::Number(limit))) => Some(*limit),
                (None, _) => None,
                (Some(_), _) => self.config.number(field)?,
            };
            if let Some(limit) = limit.filter(|limit| limit.is_nan() || *limit < 0.0) {
                let key = self.config.key(field);
                return Err(Error::new(format!("{key} is {limit}; a number of at least 0 is needed")));
            }
            Ok(limit.map(|limit| limit as f32))
        };
        let (least, most) = (limit(&schema.least)?.unwrap_or(0.0), limit(&schema.most)?);
        if !least.is_finite() {
            return Err(Error::new(format!("the smallest step is {least}; a finite number is needed")));
        }
        Ok((least, most.filter(|most| most.is_finite())))
    }

    fn ssm_norm(&self, schema: &SsmSchema, stored: bool, epsilon: f32) -> Result<Option<SsmNormFacts>> {
        let flag = |field: &Option<Field>| field.as_ref().map_or(Ok(None), |field| self.config.flag(field));
        let stated = flag(&schema.norm_if)?.unwrap_or(if self.config.is_gguf() { stored } else { true });
        if stated != stored {
            let (is, has) = if stated { ("states", "no weight") } else { ("states no", "a weight") };
            let part = self.config.part();
            return Err(Error::new(format!(
                "{part} {is} norm of the mixer's results, but the model has {has} for it; both must agree"
            )));
        }
        let first = flag(&schema.norm_first)?.unwrap_or(false);
        Ok(stated.then_some(SsmNormFacts { epsilon, first }))
    }

    fn ssm_scales(&self, fields: &[Field]) -> Result<Option<[f32; 5]>> {
        let scales = fields.iter().map(|field| Ok(self.optional(Some(field))?.unwrap_or(1.0)));
        let scales = scales.collect::<Result<Vec<f32>>>()?;
        match <[f32; 5]>::try_from(scales) {
            Ok(scales) => Ok((scales != [1.0; 5]).then_some(scales)),
            Err(none) if none.is_empty() => Ok(None),
            Err(_) => {
                let name = &self.arch.name;
                Err(Error::new(format!("architecture {name}: mixer.scales needs five fields")))
            }
        }
    }

    /// A factor; 1 is none.
    pub(super) fn factor(&self, field: Option<&Field>) -> Result<Option<f32>> {
        Ok(self.optional(field)?.filter(|factor| *factor != 1.0))
    }
}
