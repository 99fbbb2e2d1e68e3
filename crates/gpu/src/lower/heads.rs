//! The launch of the heads of queries, keys and values, and the launch of a single write.

use girih_graph::{Pairing, Role, ValueId};
use girih_tensor::{Error, Result};

use super::{FusedLaunches, Lowering};
use crate::heads::{FusedHeads, HeadChain};
use crate::kernel::GpuKernel;
use crate::launch::{BufferRef, Count, GpuLaunch, Instruction, LaunchGrid};
use crate::state::HeldLayout;
use crate::step_table::group_of;

/// Where keys or values are written.
pub(super) struct HeldTarget {
    pub layout: HeldLayout,
    pub to: BufferRef,
    /// The number of the state value, which faults have.
    pub id: u32,
}

/// Bits of the flags of `heads.wgsl`.
mod flag {
    /// Of the norms of queries, keys and values.
    pub const NORMS: [u32; 3] = [0, 1, 2];
    /// Of the rotations of queries and keys.
    pub const ROTATIONS: [u32; 2] = [3, 4];
    pub const NEIGHBOURS: u32 = 5;
}

impl Lowering<'_> {
    /// The launch that takes the place of the nodes of `heads`.
    pub(super) fn fused_heads(&self, heads: &FusedHeads) -> Result<FusedLaunches> {
        let FusedHeads { q, k, v, anchor } = heads;
        let group = group_of(self.graph, k.y).map(|(group, _)| group);
        let held = [self.held(k.y, true)?, self.held(v.y, false)?];
        let launch = self.head_launch(q.as_ref(), [k, v], held, group)?;
        let absent: Vec<usize> = heads.nodes().filter(|node| !self.is_state(*node)).collect();
        let skipped = heads.nodes().filter(|node| node != anchor).collect();
        Ok(FusedLaunches { instructions: vec![launch], absent, skipped })
    }

    fn is_state(&self, node: usize) -> bool {
        matches!(self.graph.value(self.graph.nodes[node].output).role, Role::State(_))
    }

    /// A state value as the target of a write.
    pub(super) fn held(&self, id: ValueId, is_transposed: bool) -> Result<HeldTarget> {
        let value = self.graph.value(id);
        let layout = HeldLayout::new(value.dtype, value, is_transposed);
        let to = self.value(id)?;
        let id = match to {
            BufferRef::State(index) => index as u32,
            _ => 0,
        };
        Ok(HeldTarget { layout, to, id })
    }

    /// One launch for all heads of queries, unless there are none, of keys and of values.
    pub(super) fn head_launch(
        &self,
        q: Option<&HeadChain>,
        [k, v]: [&HeadChain; 2],
        [keys, values]: [HeldTarget; 2],
        group: Option<u32>,
    ) -> Result<Instruction> {
        let heads = q.map_or(0, |q| (self.stride(q.x) / self.columns(q.x)) as u32);
        let chains = [q, Some(k), Some(v)];
        let rotation = q.and_then(|q| q.rotation).or(k.rotation);
        let epsilon = chains.iter().flatten().find_map(|chain| chain.norm).map_or(0.0, |norm| norm.epsilon);
        let mut flags = 0;
        for (chain, bit) in chains.iter().zip(flag::NORMS) {
            flags |= u32::from(chain.is_some_and(|chain| chain.norm.is_some())) << bit;
        }
        for (chain, bit) in chains.iter().zip(flag::ROTATIONS) {
            flags |= u32::from(chain.is_some_and(|chain| chain.rotation.is_some())) << bit;
        }
        let is_neighbours = rotation.is_some_and(|rotation| rotation.pairing == Pairing::Neighbours);
        flags |= u32::from(is_neighbours) << flag::NEIGHBOURS;
        let weight =
            |chain: Option<&HeadChain>| chain.and_then(|chain| chain.norm).and_then(|norm| norm.weight);
        let weights = [weight(q), weight(Some(k))];
        let counts = weights.map(|id| id.map_or(0, |id| self.graph.value(id).shape.elements() as u32));
        let [(_, q_weight), (_, k_weight)] = [self.optional(weights[0])?, self.optional(weights[1])?];
        let words = vec![
            0,
            heads,
            keys.layout.heads,
            keys.layout.size,
            values.layout.size,
            flags,
            rotation.map_or(0, |rotation| rotation.rotation.pairs(self.graph) as u32),
            rotation.map_or(0, |rotation| self.parts.rotation(rotation.rotation)),
            rotation.map_or(1.0, |rotation| rotation.factor).to_bits(),
            keys.layout.words(),
            values.layout.words(),
            self.parts.group(group),
            packed_ids(keys.id, values.id)?,
            epsilon.to_bits(),
            counts[0],
            counts[1],
        ];
        let binds = vec![
            BufferRef::Step,
            q.map_or(Ok(BufferRef::Unread), |q| self.value(q.x))?,
            self.value(k.x)?,
            self.value(v.x)?,
            q_weight,
            k_weight,
            q.map_or(Ok(BufferRef::Unwritten(0)), |q| self.value(q.y))?,
            keys.to,
            values.to,
            BufferRef::Faults,
        ];
        let grid = LaunchGrid::Runs { each: heads + 2 * keys.layout.heads };
        let kernel = GpuKernel::Heads(keys.layout.dtype);
        Ok(Instruction::Launch(GpuLaunch { id: 0, kernel, binds, words, count: Count::Rows, grid }))
    }

    /// The launch of one write.
    pub(super) fn write(&self, x: ValueId, target: HeldTarget, group: Option<u32>) -> Result<Instruction> {
        let HeldTarget { layout, to, id } = target;
        let words = vec![
            0,
            layout.heads,
            layout.size,
            layout.words(),
            u32::from(layout.is_transposed),
            self.parts.group(group),
            id,
            layout.write_units(),
        ];
        let binds = vec![BufferRef::Step, self.value(x)?, to, BufferRef::Faults];
        let each = (layout.heads * layout.write_units()) as usize;
        let kernel = GpuKernel::Write(layout.dtype);
        Ok(Instruction::Launch(GpuLaunch::elements(kernel, binds, words, Count::Rows, each)))
    }
}

/// The numbers of two state values in a word.
fn packed_ids(keys: u32, values: u32) -> Result<u32> {
    match [keys, values].map(u16::try_from) {
        [Ok(keys), Ok(values)] => Ok(u32::from(keys) | (u32::from(values) << 16)),
        _ => {
            let count = keys.max(values);
            Err(Error::new(format!("a graph has {count} state values; the GPU has room for 65,535")))
        }
    }
}
