//! Several residual streams: their schema, their facts, and the cutoff of gates that such models have.

use girih_tensor::{Error, Result, reference};
use serde::{Deserialize, Serialize};

use super::field::Field;
use super::fill::Fill;
use super::value::brief;

/// The number of residual streams of all known models.
pub const STREAMS: usize = 4;

/// Residual streams (AltUp, Baykal et al. 2023, arXiv 2301.13310): a layer reads the first one and changes all of
/// them. Beside attention, it has two matrices of a low rank (LAuReL, Menghani et al. 2024, arXiv 2411.07501).
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamsSchema {
    /// Whether the first stream is multiplied, column by column, before it gates a layer's embedding.
    pub scaled: Field,
    /// The rank of the matrices beside attention.
    pub rank: Field,
}

/// Several residual streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StreamsFacts {
    /// Whether the first stream is multiplied, column by column, before it gates a layer's embedding.
    #[serde(rename = "streams_scaled")]
    pub scaled: bool,
    /// The rank of the matrices beside attention.
    #[serde(rename = "streams_rank")]
    pub rank: usize,
}

impl Fill<'_> {
    /// The residual streams, if the description has several.
    pub(super) fn streams(&self) -> Result<Option<StreamsFacts>> {
        let Some(schema) = &self.arch.streams else { return Ok(None) };
        let scaled = self.config.flag(&schema.scaled)?;
        let scaled = scaled.ok_or_else(|| self.missing("streams.scaled", &schema.scaled))?;
        let rank = self.size("streams.rank", &schema.rank)?;
        let width = self.size("sizes.width", &self.arch.sizes.width)?;
        if rank > width {
            let key = self.config.key(&schema.rank);
            return Err(Error::new(format!("{key} is {rank}; at most {width}, the hidden size, is needed")));
        }
        Ok(Some(StreamsFacts { scaled, rank }))
    }

    /// How many standard deviations above their mean the gates of a layer are cut; `None` if they are not.
    pub(super) fn cutoff(&self, field: &Field, layer: usize) -> Result<Option<f32>> {
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
