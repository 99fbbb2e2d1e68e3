//! Facts of values of attention: their norm, the projection that they are made of, and the layer that has them; and of
//! what a layer adds and multiplies at its end.

use girih_tensor::{Error, Result};

use super::facts::{AssistantFacts, Ffn, LayerInput, ValuesFacts};
use super::fill::Fill;
use super::schema::{DenseSchema, ValuesSchema};

/// The maximum number of rows that a table of embeddings per layer may lack: Gemma 3n's lacks 256.
const MAX_MISSING_ROWS: usize = 1 << 16;

impl Fill<'_> {
    /// The source of the values of a layer. A norm has the epsilon of the layer's other norms.
    pub(super) fn values(&self, schema: &ValuesSchema, layer: usize, epsilon: f32) -> Result<ValuesFacts> {
        if self.arch.assistant.is_some() {
            return self.values_of_model();
        }
        let of_layer = self.kv_of_layer(layer)?;
        let has = |part: &str| self.stored.has(&format!("layers.{layer}.mixer.{part}.weight"));
        let mut are_keys = false;
        if let Some(field) = schema.are_keys_if.as_ref().filter(|_| of_layer.is_none()) {
            let stated = if self.config.is_gguf() { None } else { self.config.flag(field)? };
            are_keys = has("k") && !has("v");
            if let Some(stated) = stated.filter(|stated| *stated != are_keys) {
                let (key, has) = (self.config.key(field), if are_keys { "no" } else { "a" });
                return Err(Error::new(format!(
                    "{key} is {stated}, but layer {layer} has {has} projection of values; both must agree"
                )));
            }
        }
        let norm = (schema.norm && of_layer.is_none()).then_some(epsilon);
        Ok(ValuesFacts { norm, are_keys, of_layer, of_model: false })
    }

    /// The values of an assistant, all of whose layers share those of its model.
    fn values_of_model(&self) -> Result<ValuesFacts> {
        let shared = self.arch.layers.shared_kv.as_ref();
        let stated = shared.map_or(Ok(None), |field| self.config.count(field))?.unwrap_or(0);
        if let Some(field) = shared.filter(|_| stated != 0 && stated != self.layers) {
            let (key, layers) = (self.config.key(field), self.layers);
            return Err(Error::new(format!(
                "{key} is {stated}; an assistant, whose layers all share keys and values, needs {layers}"
            )));
        }
        Ok(ValuesFacts { of_model: true, ..ValuesFacts::default() })
    }

    /// What the model needs of another one, if it drafts for that.
    pub(super) fn assistant(&self) -> Result<Option<AssistantFacts>> {
        let Some(schema) = &self.arch.assistant else { return Ok(None) };
        Ok(Some(AssistantFacts { width: self.size("assistant.width", &schema.width)? }))
    }

    /// The layer whose keys and values a layer reads, if it has none of its own.
    pub(super) fn kv_of_layer(&self, layer: usize) -> Result<Option<usize>> {
        let Some(field) = self.arch.layers.shared_kv.as_ref().filter(|_| self.arch.assistant.is_none())
        else {
            return Ok(None);
        };
        let shared = self.config.count(field)?.unwrap_or(0);
        let first = self.layers.checked_sub(shared).ok_or_else(|| {
            let (key, layers) = (self.config.key(field), self.layers);
            Error::new(format!("{key} is {shared}; at most {layers}, the number of layers, is needed"))
        })?;
        if layer < first {
            return Ok(None);
        }
        let kind = self.kinds[layer];
        let of = (0..first).rev().find(|earlier| self.kinds[*earlier] == kind);
        of.map(Some).ok_or_else(|| {
            let key = self.config.key(field);
            Error::new(format!(
                "{key} is {shared}, so layer {layer} shares keys and values; an earlier {kind} layer that has them is \
                 needed"
            ))
        })
    }

    /// Whether a layer has twice the inner size that `config.json` states.
    pub(super) fn is_doubled(&self, schema: &DenseSchema, layer: usize) -> Result<bool> {
        let Some(field) = schema.hf_doubled_if.as_ref().filter(|_| !self.config.is_gguf()) else {
            return Ok(false);
        };
        Ok(self.config.flag(field)? == Some(true) && self.kv_of_layer(layer)?.is_some())
    }

    /// The embedding of a layer's own, whose gate has the activation of the feed-forward part.
    pub(super) fn layer_input(&self, ffn: &Ffn, layer: usize) -> Result<Option<LayerInput>> {
        let Some(schema) = &self.arch.embed.per_layer else { return Ok(None) };
        let size = self.config.count(&schema.size)?.filter(|size| *size > 0);
        let table = format!("layers.{layer}.input.table");
        match (size, self.stored.has(&table)) {
            (None, false) => return Ok(None),
            (Some(_), true) => {}
            (_, has) => {
                let (key, has) = (self.config.key(&schema.size), if has { "a" } else { "no" });
                let size = size.unwrap_or(0);
                return Err(Error::new(format!(
                    "{key} is {size}, but the model has {has} table of embeddings per layer; both must agree"
                )));
            }
        }
        let Ffn::Gated { act, .. } = *ffn else {
            return Err(Error::new("embeddings per layer need a gated feed-forward part"));
        };
        let vocabulary = self.stored.rows(&table)?;
        if let Some(field) = &schema.vocabulary {
            self.check_rows(
                field,
                self.config.size(field)?,
                "the table of embeddings per layer",
                vocabulary,
            )?;
        }
        let tokens = if schema.first_beyond { self.stored.rows("embed.table")? } else { 0 };
        let missing = tokens.saturating_sub(vocabulary);
        if missing > MAX_MISSING_ROWS {
            return Err(Error::new(format!(
                "the table of embeddings per layer has {missing} rows fewer than there are tokens; at most \
                 {MAX_MISSING_ROWS} may be missing"
            )));
        }
        let vocabulary = vocabulary.max(tokens);
        Ok(size.map(|size| LayerInput { size, vocabulary, act }))
    }

    /// The factor of a layer's result, a weight of one value.
    pub(super) fn layer_scale(&self, layer: usize) -> Result<Option<f32>> {
        let name = format!("layers.{layer}.scale");
        if !self.stored.has(&name) {
            return Ok(None);
        }
        match self.stored.values(&name)?[..] {
            [scale] if scale.is_finite() => Ok(Some(scale)),
            _ => Err(Error::new(format!("weight '{name}' is not one finite number, which a layer needs"))),
        }
    }
}
