//! A layer with a block: attention and a feed-forward part, whose weights several layers share, before Mamba-2.

use girih_graph::{Op, ValueId};
use girih_tensor::{Error, Result};

use super::Assembly;
use super::adapters::{Adapters, AttentionRows};
use crate::arch::{BlockFacts, LayerFacts, Mixer, NormPosition};

impl Assembly<'_> {
    /// A layer with a block, as a value of this name. The block reads `x` and the embedding of the same row. Mamba-2
    /// reads the sum of `x` and of what the block made, and its result is added to `x`.
    pub(super) fn with_block(
        &mut self,
        index: usize,
        name: &str,
        layer: &LayerFacts,
        x: ValueId,
    ) -> Result<ValueId> {
        let (Some(block), Mixer::AttendAndSsm { attend, ssm }) = (&layer.block, &layer.mixer) else {
            return Err(Error::new(format!("layer {index} has no block before Mamba-2")));
        };
        let (at, width) = (format!("layers.{index}"), self.facts.sizes.width);
        let BlockFacts { of_layer: _, rank, in_attention } = *block;
        let both = self.beside_its_embedding(&at, x)?;
        let (normed, weight) = (format!("{at}.before_block"), format!("{at}.norms.before_block"));
        let read = self.rms_norm(&normed, &weight, both, 2 * width, layer.norms.norm.epsilon)?;
        let mixer = format!("{at}.mixer");
        let adapters = in_attention.then_some(Adapters { rank });
        let rows = AttentionRows { x: read, width: 2 * width, adapters };
        let attended = self.attend(index, &mixer, attend, rows)?;
        let read = self.norm_at(&at, layer, NormPosition::BeforeFfn, attended)?;
        let fed = self.adapted_ffn(&format!("{at}.ffn"), &layer.ffn, Some(Adapters { rank }), read)?;
        let made = self.linear(&format!("{at}.block"), fed, [width, width], false)?;
        let sum = self.graph.same(&format!("{at}.with_block"), Op::Add, &[x, made]);
        let read = self.norm_at(&at, layer, NormPosition::BeforeMixer, sum)?;
        let mixed = self.ssm(&mixer, ssm, read)?;
        self.residual(&at, name, layer, NormPosition::AfterMixerResidual, [x, mixed])
    }

    /// Rows of twice the width: `x`, then what the first layer read.
    fn beside_its_embedding(&mut self, at: &str, x: ValueId) -> Result<ValueId> {
        let width = self.facts.sizes.width;
        let first = self.first_rows.ok_or_else(|| Error::new("a block needs the rows of the first layer"))?;
        let mut head =
            |part: &str, x| self.graph.shaped(&format!("{at}.block.{part}"), Op::Reshape, &[x], &[1, width]);
        let parts = [head("rows", x), head("embedding", first)];
        let joined = self.graph.shaped(&format!("{at}.block.joined"), Op::Concat, &parts, &[1, 2 * width]);
        Ok(self.graph.shaped(&format!("{at}.block.read"), Op::Reshape, &[joined], &[2 * width]))
    }
}
