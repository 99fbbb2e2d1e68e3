//! Fills in the facts of the gated delta rule.

use girih_file::quote;
use girih_graph::{Act, HeadSharing};
use girih_tensor::{Error, Result};

use super::delta_facts::DeltaRuleFacts;
use super::delta_schema::{DeltaGateAct, DeltaRuleSchema};
use super::facts::{act, act_words};
use super::field::{DefaultValue, Field};
use super::fill::{Fill, MAX_TAPS};

/// The maximum number of values of all heads in a row: known models have 8192.
const MAX_VALUES: usize = 1 << 20;

impl Fill<'_> {
    /// The gated delta rule of a layer whose norms have this epsilon.
    pub(super) fn delta_rule(&self, schema: &DeltaRuleSchema, epsilon: f32) -> Result<DeltaRuleFacts> {
        let value_heads = self.size("mixer.value_heads", &schema.value_heads)?;
        let key_heads = self.size("mixer.key_heads", &schema.key_heads)?;
        let key_size =
            self.size_or_word("mixer.key_size", &schema.key_size, "3/4 width / key_heads", || {
                // As transformers computes it: `int(0.75 * width / heads)`.
                let width = self.size("sizes.width", &self.arch.sizes.width)?;
                Ok(width.saturating_mul(3) / 4usize.saturating_mul(key_heads))
            })?;
        let values = schema.values.as_ref().map_or(Ok(None), |field| self.config.size(field))?;
        let value_size = match values {
            Some(values) if values.is_multiple_of(value_heads) => values / value_heads,
            Some(values) => {
                return Err(Error::new(format!(
                    "{value_heads} heads cannot share {values} values; a multiple of the heads is needed"
                )));
            }
            None => self.size_or_word("mixer.value_size", &schema.value_size, "2 * key_size", || {
                Ok(key_size.saturating_mul(2))
            })?,
        };
        self.check_delta_heads([key_heads, value_heads], [key_size, value_size])?;
        let taps = self.size("mixer.taps", &schema.taps)?;
        if !(2..=MAX_TAPS).contains(&taps) {
            let key = self.config.key(&schema.taps);
            return Err(Error::new(format!("{key} is {taps}; a number from 2 to {MAX_TAPS} is needed")));
        }
        let word = self.config.word(&schema.act)?.ok_or_else(|| self.missing("mixer.act", &schema.act))?;
        let act = act(&word).ok_or_else(|| {
            let (key, word, known) = (self.config.key(&schema.act), quote(&word), act_words());
            Error::new(format!("{key} is {word}; the activations {known} are supported"))
        })?;
        let doubled = schema.doubled.as_ref().map_or(Ok(None), |field| self.config.flag(field))?;
        let norm_epsilon = match &schema.norm_epsilon {
            None => epsilon,
            Some(field) => self.required("mixer.norm_epsilon", field)?,
        };
        let doubled = doubled == Some(true);
        // With one head of values for each of keys, both are the same.
        let are_turned = schema.gguf_turns && self.config.is_gguf() && key_heads != value_heads;
        let sharing = match are_turned {
            true => HeadSharing::Turns,
            false => HeadSharing::Neighbours,
        };
        let rank = schema.rank.as_ref().map(|field| self.size("mixer.rank", field)).transpose()?;
        let cap = self.limits.head_size;
        if let (Some(rank), Some(field)) = (rank.filter(|rank| *rank > cap), &schema.rank) {
            let key = self.config.key(field);
            return Err(Error::new(format!("{key} is {rank}; the cap is {cap}")));
        }
        Ok(DeltaRuleFacts {
            key_heads,
            value_heads,
            sharing,
            key_size,
            value_size,
            taps,
            act,
            norm_epsilon,
            doubled,
            by_channel: schema.by_channel,
            rank,
            gate: match schema.gate {
                DeltaGateAct::Silu => Act::Silu,
                DeltaGateAct::Sigmoid => Act::Sigmoid,
            },
        })
    }

    /// Checks the numbers of heads of keys and of values, and their sizes.
    fn check_delta_heads(
        &self,
        [key_heads, value_heads]: [usize; 2],
        [key_size, value_size]: [usize; 2],
    ) -> Result<()> {
        if !value_heads.is_multiple_of(key_heads) {
            return Err(Error::new(format!(
                "{value_heads} value heads cannot share {key_heads} key heads; a multiple of the key heads is needed"
            )));
        }
        let cap = self.limits.head_size;
        if let Some(size) = [key_size, value_size].into_iter().find(|size| !(1..=cap).contains(size)) {
            return Err(Error::new(format!(
                "a head of the delta rule has the size {size}; one from 1 to {cap} is needed"
            )));
        }
        if value_heads > MAX_VALUES / key_size.max(value_size) {
            return Err(Error::new(format!(
                "{value_heads} heads of {value_size} exceed the cap of {MAX_VALUES} values in a row"
            )));
        }
        Ok(())
    }

    /// A size whose default may be another one, which `word` names.
    fn size_or_word(
        &self,
        name: &str,
        field: &Field,
        word: &str,
        other: impl FnOnce() -> Result<usize>,
    ) -> Result<usize> {
        if let Some(size) = self.config.size(field)? {
            return Ok(size);
        }
        match self.config.default(field) {
            Some(DefaultValue::Word(found)) if found == word => other(),
            _ => Err(self.missing(name, field)),
        }
    }
}
