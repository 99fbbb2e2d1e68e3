//! Facts of a feed-forward part of experts: their number, the router, and the shared expert.

use girih_file::quote;
use girih_graph::{ExpertGroups, GateLimit, GateRule, Router, RouterScore};
use girih_tensor::{Error, Result};
use serde_json::Value as Json;

use super::config::shown;
use super::facts::{ExpertsFacts, Ffn};
use super::fill::Fill;
use super::schema::{
    DefaultValue, ExpertsSchema, FfnSchema, Field, LimitSchema, SharedExpertSchema, StatedValue,
};
use super::value::brief;

impl Fill<'_> {
    /// The experts beside a dense part of a layer, if the model has them.
    pub(super) fn beside(&self, schema: &FfnSchema, layer: usize) -> Result<Option<Box<ExpertsFacts>>> {
        let (FfnSchema::Gated(dense) | FfnSchema::Plain(dense)) = schema else { return Ok(None) };
        let Some(beside) = dense.beside.as_deref() else { return Ok(None) };
        if !self.is_set(&beside.condition, &format!("layers.{layer}.ffn.router.weight"))? {
            return Ok(None);
        }
        match self.experts(&beside.experts, layer)? {
            Ffn::Experts(experts) => Ok(Some(experts)),
            Ffn::Gated { .. } | Ffn::Plain { .. } | Ffn::None => Ok(None),
        }
    }

    /// Whether a flag is true. A GGUF without a key for it states it by a weight of this name.
    pub(super) fn is_set(&self, field: &Field, weight: &str) -> Result<bool> {
        if self.config.is_gguf() && field.gguf.is_none() && field.default.is_none() {
            return Ok(self.stored.has(weight));
        }
        Ok(self.config.flag(field)? == Some(true))
    }

    pub(super) fn experts(&self, schema: &ExpertsSchema, layer: usize) -> Result<Ffn> {
        let at = format!("layers.{layer}.ffn");
        let has = |part: &str| self.stored.has(&format!("{at}.{part}"));
        let size = |name: &str, field: &Field| {
            self.size_of_layer(name, field, layer)?.ok_or_else(|| self.missing(name, field))
        };
        let (count, used) = (size("ffn.count", &schema.count)?, size("ffn.used", &schema.used)?);
        if count > self.limits.experts {
            let (key, cap) = (self.config.key(&schema.count), self.limits.experts);
            return Err(Error::new(format!("{key} is {count}; the cap is {cap} experts")));
        }
        let score = self.score(&schema.score)?;
        // The softmax of the chosen experts is that of all, normalized. GGUF's number for it is 3.
        let is_of_chosen = schema.softmax_of_chosen
            || self.config.is_gguf() && self.config.stated(&schema.score)? == Some(StatedValue::Number(3.0));
        let normalized = self.config.flag(&schema.normalized)? == Some(true)
            || is_of_chosen && score == RouterScore::Softmax;
        let router = Router {
            score,
            used: used as u32,
            normalized: normalized.then_some(schema.epsilon),
            groups: self.groups(schema, score)?,
            factor: self.router_factor(schema.factor.as_ref())?,
            near: self.router_near(schema.jitter.as_ref())?,
        };
        if !router.suits(count) {
            let key = self.config.key(&schema.used);
            let groups = router.groups.map_or(String::new(), |ExpertGroups { count, used, best }| {
                format!(" in {used} of {count} groups, which have {best} experts or more")
            });
            return Err(Error::new(format!(
                "{key} is {used}; a number of experts that can be chosen from {count} is needed{groups}"
            )));
        }
        let each = self.ffn_size(&schema.each, layer)?;
        let act = self.act(&schema.each, &self.act_word(&schema.each)?)?;
        let limit = self.limit(schema.limit.as_ref(), layer)?;
        let gate = GateRule { act, limit, offset: schema.offset };
        let shared_ffn = schema.shared.as_ref().map_or(Ok(None), |shared| self.shared_size(shared, each))?;
        if shared_ffn.is_none() && has("shared.up.weight") {
            return Err(Error::new(format!(
                "the model has a shared expert in layer {layer}, but its parameters state none"
            )));
        }
        Ok(Ffn::Experts(Box::new(ExpertsFacts {
            count,
            router,
            router_bias: has("router.bias"),
            router_norm: has("router.norm").then(|| self.epsilon(&self.arch.norms.epsilon)).transpose()?,
            router_factors: has("router.factors"),
            choice_bias: has("router.choice.bias"),
            router_softcap: self.optional(schema.softcap.as_ref())?.filter(|cap| *cap != 0.0),
            size: each,
            gate,
            weighs_inputs: schema.weighs_inputs,
            ungated: !has("experts.gate.weight"),
            latent: schema.latent.as_ref().map_or(Ok(None), |field| self.config.size(field))?,
            biases: ["gate", "up", "down"].map(|part| has(&format!("experts.{part}.bias"))),
            shared_ffn,
            shared_limit: self
                .limit(schema.shared.as_ref().and_then(|shared| shared.limit.as_ref()), layer)?,
            shared_is_scored: has("shared.score.weight"),
            shared_is_averaged: shared_ffn.is_some() && self.shared_is_averaged(schema)?,
        })))
    }

    /// Whether the results of the shared expert and of the others are averaged.
    fn shared_is_averaged(&self, schema: &ExpertsSchema) -> Result<bool> {
        let Some(field) = schema.shared.as_ref().and_then(|shared| shared.combined.as_ref()) else {
            return Ok(false);
        };
        match self.config.word(field)?.as_deref() {
            None | Some("sum") => Ok(false),
            Some("average") => Ok(true),
            Some(other) => {
                let (key, other) = (self.config.key(field), quote(other));
                Err(Error::new(format!("{key} is {other}; 'sum' or 'average' is needed")))
            }
        }
    }

    /// What the scores of a router become.
    fn score(&self, field: &Field) -> Result<RouterScore> {
        let of_word = |word: &str| RouterScore::ALL.iter().find(|score| score.name() == word).copied();
        let stated = self.config.stated(field)?;
        let score = match &stated {
            None => match self.config.default(field) {
                Some(DefaultValue::Word(word)) => of_word(word),
                _ => return Err(self.missing("ffn.score", field)),
            },
            Some(StatedValue::Number(1.0)) if self.config.is_gguf() => Some(RouterScore::Softmax),
            Some(StatedValue::Number(2.0)) if self.config.is_gguf() => Some(RouterScore::Sigmoid),
            Some(StatedValue::Number(3.0)) if self.config.is_gguf() => Some(RouterScore::Softmax),
            Some(StatedValue::Word(word)) => of_word(word),
            Some(_) => None,
        };
        score.ok_or_else(|| {
            let (key, shown) = (self.config.key(field), stated.map_or("missing".to_owned(), |s| shown(&s)));
            Error::new(format!("{key} is {shown}; the routers 'softmax' and 'sigmoid' are supported"))
        })
    }

    /// The groups of experts; one group is none.
    fn groups(&self, schema: &ExpertsSchema, score: RouterScore) -> Result<Option<ExpertGroups>> {
        let Some(field) = &schema.groups else { return Ok(None) };
        if let Some(method) = schema.groups_if.as_ref().filter(|_| !self.config.is_gguf()) {
            match self.config.word(method)?.as_deref() {
                Some("group_limited_greedy") => {}
                None | Some("greedy") => return Ok(None),
                Some(other) => {
                    let (key, other) = (self.config.key(method), quote(other));
                    return Err(Error::new(format!(
                        "{key} is {other}; 'greedy' or 'group_limited_greedy' is needed"
                    )));
                }
            }
        }
        let count = self.config.count(field)?.unwrap_or(1);
        if count <= 1 {
            return Ok(None);
        }
        let field = schema.used_groups.as_ref().unwrap_or(field);
        let used = self.size("ffn.used_groups", field)?;
        // DeepSeek-V2 shares its name in GGUF with V3, and no other file has groups and a softmax.
        let is_v2 = self.config.is_gguf() && score == RouterScore::Softmax;
        let best = if is_v2 { 1 } else { schema.group_best };
        Ok((used < count).then_some(ExpertGroups { count: count as u32, used: used as u32, best }))
    }

    /// The factor of a router's weights; 1 is none.
    fn router_factor(&self, field: Option<&Field>) -> Result<Option<f32>> {
        let Some(field) = field else { return Ok(None) };
        match self.optional(Some(field))? {
            None | Some(1.0) => Ok(None),
            Some(0.0) if self.config.is_gguf() => Ok(None),
            Some(factor) if factor > 0.0 => Ok(Some(factor)),
            Some(factor) => {
                let key = self.config.key(field);
                Err(Error::new(format!("{key} is {factor}; a positive number is needed")))
            }
        }
    }

    /// The bound of a gate of a layer, and of what it gates.
    pub(super) fn limit(&self, schema: Option<&LimitSchema>, layer: usize) -> Result<Option<GateLimit>> {
        let list = match schema {
            None => return Ok(None),
            Some(LimitSchema::Gate(field)) => return Ok(self.optional(Some(field))?.map(GateLimit::Gate)),
            Some(LimitSchema::Activated { activated }) => activated,
        };
        let stated = list.hf.iter().find_map(|key| Some((key, self.config.json(key)?)));
        let Some((key, value)) = stated else { return Ok(None) };
        match &self.config.listed(key, value, self.layers)?[layer] {
            Json::Null => Ok(None),
            value => match value.as_f64().map(|bound| bound as f32) {
                Some(0.0) => Ok(None),
                Some(bound) if bound > 0.0 && bound.is_finite() => Ok(Some(GateLimit::Activated(bound))),
                _ => {
                    let value = brief(value);
                    Err(Error::new(format!(
                        "config.json's '{key}' lists {value}; null or numbers of at least 0 are needed"
                    )))
                }
            },
        }
    }

    /// The share of scores within which experts are near each other.
    fn router_near(&self, field: Option<&Field>) -> Result<Option<f32>> {
        let Some(field) = field else { return Ok(None) };
        match self.required("ffn.jitter", field)? {
            jitter if jitter > 0.0 && jitter < 1.0 => Ok(Some(2.0 * jitter)),
            jitter => {
                let key = self.config.key(field);
                Err(Error::new(format!("{key} is {jitter}; a number between 0 and 1 is needed")))
            }
        }
    }

    /// The inner size of the expert of all rows, beside experts of this size.
    fn shared_size(&self, schema: &SharedExpertSchema, each: usize) -> Result<Option<usize>> {
        let (field, unit) = match (&schema.size, &schema.count) {
            (Some(size), None) => (size, 1),
            (None, Some(count)) => (count, each),
            _ => {
                let name = &self.arch.name;
                return Err(Error::new(format!("architecture {name}: ffn.shared needs a size or a count")));
            }
        };
        let size = self.config.count(field)?.unwrap_or(0).checked_mul(unit);
        let size = size.filter(|size| *size <= i32::MAX as usize).ok_or_else(|| {
            let key = self.config.key(field);
            Error::new(format!(
                "{key} makes an inner size above 2147483647; smaller shared experts are supported"
            ))
        })?;
        Ok((size > 0).then_some(size))
    }
}
