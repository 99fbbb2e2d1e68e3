//! Facts of a layer's block: which layer has its weights, and its adapters.

use girih_tensor::{Error, Result};

use super::block_facts::BlockFacts;
use super::block_places::block_places;
use super::facts::{Ffn, Mixer, Norms, Residual};
use super::fill::Fill;
use super::schema::{LayerSchema, NormKind, NormPosition};

/// The positions of the norms of a layer with a block.
const POSITIONS: [NormPosition; 3] =
    [NormPosition::BeforeMixer, NormPosition::BeforeBlock, NormPosition::BeforeFfn];

impl Fill<'_> {
    pub(super) fn block(
        &self,
        schema: &LayerSchema,
        layer: usize,
        (mixer, ffn, norms, residual): (&Mixer, &Ffn, &Norms, Residual),
    ) -> Result<Option<BlockFacts>> {
        let (name, kind) = (&self.arch.name, self.kinds[layer]);
        let Some(block) = &schema.block else {
            if norms.positions.contains(&NormPosition::BeforeBlock) {
                return Err(Error::new(format!("architecture {name}: [layer.{kind}] has no block to norm")));
            }
            return Ok(None);
        };
        let has_norms = norms.positions.len() == POSITIONS.len()
            && POSITIONS.iter().all(|position| norms.positions.contains(position))
            && norms.norm.kind == NormKind::Rms;
        let has_parts = matches!((mixer, ffn), (Mixer::AttendAndSsm { .. }, Ffn::Gated { .. }));
        let place = block_places(self.arch, self.config, self.kinds)?[layer];
        let Some(place) = place.filter(|_| has_parts && has_norms && residual == Residual::default()) else {
            return Err(Error::new(format!(
                "architecture {name}: a block needs attention beside Mamba-2, a gated feed-forward part, RMS norms before \
                 each of the three and layers.blocks, but [layer.{kind}] has others"
            )));
        };
        let has = self.stored.has(&format!("layers.{layer}.mixer.q.adapter.in.weight"));
        let in_attention = self.config.flag(&block.in_attention)? == Some(true);
        if has != in_attention {
            let (key, has) = (self.config.key(&block.in_attention), if has { "an" } else { "no" });
            return Err(Error::new(format!(
                "{key} is {in_attention}, but layer {layer} has {has} adapter of queries; both must agree"
            )));
        }
        let rank = self.size("block.rank", &block.rank)?;
        Ok(Some(BlockFacts { of_layer: place.layer, rank, in_attention }))
    }
}
