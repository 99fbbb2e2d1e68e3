//! Facts of several residual streams, and the cutoff of gates that such models have.

use girih_file::{Metadata, MetadataArray, MetadataValue};
use girih_tensor::{Error, Result, reference};

use super::config::ModelConfig;
use super::field::Field;
use super::fill::Fill;
use super::streams_facts::StreamsFacts;
use super::value::brief;

impl Fill<'_> {
    /// The residual streams, if the description has several.
    pub(super) fn streams(&self) -> Result<Option<StreamsFacts>> {
        let Some(schema) = &self.arch.streams else { return Ok(None) };
        let scaled = self.config.flag(&schema.scaled)?;
        let scaled = scaled.ok_or_else(|| self.missing("streams.scaled", &schema.scaled))?;
        // A GGUF states it by the matrices.
        let rank = match self.config.is_gguf() {
            true => self.stored.rows("layers.0.laurel.in.weight")?,
            false => self.size("streams.rank", &schema.rank)?,
        };
        let width = self.size("sizes.width", &self.arch.sizes.width)?;
        if rank > width {
            let key = self.config.key(&schema.rank);
            return Err(Error::new(format!("{key} is {rank}; at most {width}, the hidden size, is needed")));
        }
        Ok(Some(StreamsFacts { scaled, rank }))
    }

    /// How many standard deviations above their mean the gates of a layer are cut; `None` if they are not.
    pub(super) fn cutoff(&self, field: &Field, layer: usize) -> Result<Option<f32>> {
        if let (ModelConfig::Gguf(metadata), Some(key)) = (self.config, &field.gguf) {
            return self.stated_cutoff(metadata, key, layer);
        }
        let stated = field.hf.iter().find_map(|key| Some((key, self.config.json(key)?)));
        let (key, value) = stated.ok_or_else(|| self.missing("ffn.sparsity", field))?;
        let value = &self.config.listed(key, value, self.layers)?[layer];
        match value.as_f64().filter(|share| (0.0..1.0).contains(share)) {
            Some(0.0) => Ok(None),
            Some(share) => Ok(Some(normal_quantile(share) as f32)),
            None => {
                let value = brief(value);
                Err(Error::new(format!(
                    "config.json's '{key}' lists {value} for layer {layer}; a number from 0 to below 1 is needed"
                )))
            }
        }
    }
}

impl Fill<'_> {
    /// The cutoff that a GGUF lists for a layer, which is −∞ for none.
    fn stated_cutoff(&self, metadata: &Metadata, key: &str, layer: usize) -> Result<Option<f32>> {
        let Some(MetadataValue::Array(MetadataArray::F32(list))) = metadata.value(key) else {
            return Err(Error::new(format!(
                "GGUF's '{key}' is not a list of numbers, which the model needs"
            )));
        };
        match list.get(layer).filter(|_| list.len() == self.layers) {
            Some(cutoff) if cutoff.is_finite() => Ok(Some(*cutoff)),
            Some(cutoff) if *cutoff == f32::NEG_INFINITY => Ok(None),
            Some(cutoff) => Err(Error::new(format!("GGUF's '{key}' lists {cutoff} for layer {layer}"))),
            None => {
                let (count, layers) = (list.len(), self.layers);
                Err(Error::new(format!("GGUF's '{key}' lists {count} layers; the model has {layers}")))
            }
        }
    }
}

/// The number below which a share of a standard normal distribution lies, by bisection.
fn normal_quantile(share: f64) -> f64 {
    // `f64` has no share below 1 that lies farther from 0.
    let (mut low, mut high) = (-40.0, 40.0);
    while high - low > 1e-12 {
        let middle = f64::midpoint(low, high);
        let below = (1.0 + reference::erf(middle * std::f64::consts::FRAC_1_SQRT_2)) / 2.0;
        if below < share {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::midpoint(low, high)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From a table of the normal distribution.
    #[test]
    fn quantiles_are_those_of_tables() {
        for (share, want) in
            [(0.5, 0.0), (0.95, 1.644_853_627), (0.975, 1.959_963_985), (0.05, -1.644_853_627)]
        {
            let found = normal_quantile(share);
            assert!((found - want).abs() < 1e-8, "{share}: {found}");
        }
    }
}
