//! Facts of latent attention: the sizes of its parts, which weights must have, too.

use girih_tensor::{Error, Result};

use super::attend_schema::{IndexerSchema, LatentSchema};
use super::facts::{AttentionFacts, Biases, IndexerFacts, LatentFacts, ValuesFacts};
use super::field::Field;
use super::fill::Fill;
use super::schema::AttendSchema;
use super::value::brief;

/// The maximum number of heads by which positions are chosen: known models have 64.
const MAX_INDEXER_HEADS: usize = 1024;

impl Fill<'_> {
    /// Latent attention of a layer.
    pub(super) fn attend_latent(
        &self,
        schema: &AttendSchema,
        latent: &LatentSchema,
        layer: usize,
    ) -> Result<AttentionFacts> {
        let heads = self.size("mixer.heads", &schema.heads)?;
        let facts = self.latent(schema, latent, layer)?;
        let head_size = facts.nope + facts.rope;
        if !self.config.is_gguf() {
            // transformers repeats the heads of keys that are fewer, although they are as many as those of queries.
            let kv_heads = self.config.size(&schema.kv_heads)?.unwrap_or(heads);
            if kv_heads != heads {
                let key = self.config.key(&schema.kv_heads);
                return Err(Error::new(format!(
                    "{key} is {kv_heads}; latent attention needs the number of query heads, {heads}"
                )));
            }
        }
        let rope = self.rotation(schema, layer, facts.rope)?;
        let score = rope.as_ref().and_then(|rope| rope.score).unwrap_or(1.0);
        let scale = (1.0 / (head_size as f64).sqrt() * f64::from(score)) as f32;
        let has_bias = |part: &str| self.stored.has(&format!("layers.{layer}.mixer.{part}.bias"));
        Ok(AttentionFacts {
            heads,
            kv_heads: 1,
            head_size,
            value_size: None,
            value_factor: None,
            span: self.span(schema, layer)?,
            rope,
            qk_norm: None,
            biases: Biases { o: has_bias("o"), ..Biases::default() },
            scale,
            softcap: None,
            sinks: false,
            gate: None,
            latent: Some(facts),
            values: ValuesFacts::default(),
            input_scale: None,
            output_scale: None,
            temperature: schema.temperature.as_ref().map_or(Ok(None), |schema| self.temperature(schema))?,
        })
    }

    fn latent(&self, schema: &AttendSchema, latent: &LatentSchema, layer: usize) -> Result<LatentFacts> {
        let rank = self.size("mixer.latent.rank", &latent.rank)?;
        let rope = self.size("mixer.latent.rope", &latent.rope)?;
        let nope = if self.config.is_gguf() {
            let whole = self.size("mixer.head_size", &schema.head_size)?;
            whole.checked_sub(rope).filter(|nope| *nope > 0).ok_or_else(|| {
                let key = self.config.key(&schema.head_size);
                Error::new(format!("{key} is {whole}, of which {rope} are rotated; a larger head is needed"))
            })?
        } else {
            self.size("mixer.latent.nope", &latent.nope)?
        };
        let (heads, width) =
            (self.size("mixer.heads", &schema.heads)?, self.size("sizes.width", &self.arch.sizes.width)?);
        let name = "mixer.latent.value_size";
        let value_size = self.size_or(name, &latent.value_size, layer, ("width / heads", width / heads))?;
        if value_size == 0 {
            return Err(Error::new(format!("{heads} heads of a width of {width} have no values")));
        }
        let cap = self.limits.head_size;
        if let Some(size) = [rank, rope, nope, value_size].into_iter().find(|size| *size > cap) {
            return Err(Error::new(format!(
                "a part of a head or of its latent has {size} values; the cap is {cap}"
            )));
        }
        let epsilon = self.required("mixer.latent.epsilon", &latent.epsilon)?;
        let query_rank = self.query_rank(latent, layer)?;
        let has_bias = |part: &str| self.stored.has(&format!("layers.{layer}.mixer.{part}.bias"));
        let biases = has_bias("latent");
        if query_rank.is_some() && has_bias("q_a") != biases {
            return Err(Error::new(format!(
                "layer {layer} has a bias for the latent of queries or for that of keys; both or none are needed"
            )));
        }
        let indexer = latent.indexer.as_ref().map(|schema| self.indexer(schema, layer, rope)).transpose()?;
        if indexer.is_some() && query_rank.is_none() {
            let key = self.config.key(&latent.query_rank);
            return Err(Error::new(format!(
                "{key} is missing; a choice of positions needs a latent of queries"
            )));
        }
        Ok(LatentFacts { query_rank, rank, nope, rope, value_size, epsilon, biases, indexer })
    }

    /// The choice of positions of a layer, of which `rope` numbers of a head are rotated.
    fn indexer(&self, schema: &IndexerSchema, layer: usize, rope: usize) -> Result<IndexerFacts> {
        let heads = self.size("mixer.latent.indexer.heads", &schema.heads)?;
        let size = self.size("mixer.latent.indexer.size", &schema.size)?;
        let best = self.size("mixer.latent.indexer.best", &schema.best)?;
        let cap = self.limits.head_size;
        if size > cap || size < rope {
            let key = self.config.key(&schema.size);
            return Err(Error::new(format!(
                "{key} is {size}; a size from {rope}, which are rotated, to {cap} is needed"
            )));
        }
        if heads > MAX_INDEXER_HEADS {
            let key = self.config.key(&schema.heads);
            return Err(Error::new(format!("{key} is {heads}; the cap is {MAX_INDEXER_HEADS} heads")));
        }
        let epsilon = self.required("mixer.latent.indexer.epsilon", &schema.epsilon)?;
        let chooses = match &schema.listed {
            None => true,
            Some(field) => self.chooses(field, layer)?,
        };
        let has = self.stored.has(&format!("layers.{layer}.mixer.indexer.q.weight"));
        if has != chooses {
            let part = self.config.part();
            let (chooses, has) =
                (if chooses { "chooses" } else { "shares" }, if has { "has" } else { "lacks" });
            return Err(Error::new(format!(
                "layer {layer} {chooses} its positions by {part}, but {has} the weights of an indexer; both must agree"
            )));
        }
        Ok(IndexerFacts { heads, size, best, pairing: schema.pairing.into(), epsilon, chooses })
    }

    /// Whether a list makes a layer choose. The first one must. A GGUF lists flags.
    fn chooses(&self, field: &Field, layer: usize) -> Result<bool> {
        if let Some(key) = field.gguf.as_ref().filter(|_| self.config.is_gguf()) {
            let chooses = self.config.gguf_size(key, layer, self.layers)? != Some(0);
            return match chooses || layer > 0 {
                true => Ok(chooses),
                false => Err(Error::new(format!(
                    "GGUF's '{key}' makes the first layer share a choice; it must be one that chooses"
                ))),
            };
        }
        let stated = field.hf.iter().find_map(|key| Some((key, self.config.json(key)?)));
        let Some((key, value)) = stated else { return Ok(true) };
        match self.config.listed(key, value, self.layers)?[layer].as_str() {
            Some("full") => Ok(true),
            Some("shared") if layer > 0 => Ok(false),
            _ => {
                let value = brief(&value[layer]);
                Err(Error::new(format!(
                    "config.json's '{key}' lists {value} for layer {layer}; full, or shared after the first, is needed"
                )))
            }
        }
    }

    /// The size of the latent of queries: the rows of its weight, which the parameters must state, too.
    fn query_rank(&self, latent: &LatentSchema, layer: usize) -> Result<Option<usize>> {
        let weight = format!("layers.{layer}.mixer.q_a.weight");
        let rows = if self.stored.has(&weight) { Some(self.stored.rows(&weight)?) } else { None };
        let stated = self.config.size(&latent.query_rank)?;
        if rows != stated {
            let key = self.config.key(&latent.query_rank);
            let shown = |size: Option<usize>| size.map_or("no size".to_owned(), |size| size.to_string());
            let (stated, rows) = (shown(stated), shown(rows));
            return Err(Error::new(format!(
                "{key} states {stated} of the latent of queries, and the weights of layer {layer} have {rows}; equal ones are needed"
            )));
        }
        Ok(rows)
    }
}
