//! The launches of attention, and of the choice of the positions that rows attend to.

use girih_graph::{Span, ValueId};
use girih_tensor::{DType, Result};

use super::heads::HeldTarget;
use super::{GpuAttention, Lowering};
use crate::heads::HeadChain;
use crate::kernel::GpuKernel;
use crate::launch::{AttendLaunch, BufferRef, Count, GpuLaunch, Instruction, LaunchGrid};
use crate::state::HeldLayout;
use crate::step_table::group_of;
use crate::temporary::{inner, partial_words};

/// The largest head of a query that `attend_rows.wgsl` has room for.
const TILE_HEAD: u32 = 256;

/// The most words of a head of values that it has room for.
const TILE_WORDS: u32 = 128;

/// The workgroup memory that it takes.
const TILE_BYTES: u32 = 32 << 10;

impl Lowering<'_> {
    #[allow(clippy::too_many_arguments, reason = "the operands of attention")]
    pub(super) fn attend(
        &self,
        sizes: &GpuAttention,
        q: ValueId,
        [keys, values]: [ValueId; 2],
        sinks: Option<ValueId>,
        selected: Option<ValueId>,
        slots: &[usize],
        y: ValueId,
    ) -> Result<Vec<Instruction>> {
        let GpuAttention { scale, span, softcap, value_size, is_latent } = *sizes;
        let group = group_of(self.graph, keys).map(|(group, _)| group);
        let dtype = group.map_or(DType::F32, |_| self.graph.value(keys).dtype);
        let layout = |id, is_transposed| HeldLayout::new(dtype, self.graph.value(id), is_transposed);
        let [of_keys, of_values] = [layout(keys, true), layout(values, false)];
        let mut list = Vec::new();
        let [held_keys, held_values] = match group {
            Some(_) => [self.value(keys)?, self.value(values)?],
            None => {
                let held = [1, 2].map(|index| BufferRef::Slot(slots[index]));
                let plain = [keys, values].map(HeadChain::plain);
                let target = |layout, to| HeldTarget { layout, to, id: 0 };
                let targets = [target(of_keys, held[0].clone()), target(of_values, held[1].clone())];
                list.push(self.head_launch(None, [&plain[0], &plain[1]], targets, None)?);
                held
            }
        };
        let heads = inner(self.graph, q)[0] as u32;
        let numbers = selected.map_or(0, |id| self.stride(id) as u32);
        let (place, value_size) = (self.parts.span(span), value_size as u32);
        let (has_sinks, sinks) = self.optional(sinks)?;
        let words = vec![
            0,
            0,
            heads,
            of_keys.heads,
            of_keys.size,
            value_size,
            of_keys.words(),
            of_values.words(),
            place,
            self.parts.group(group),
            numbers,
            u32::from(is_latent),
            u32::from(softcap.is_some()),
            scale.to_bits(),
            softcap.unwrap_or(1.0).to_bits(),
            has_sinks,
        ];
        let partial = BufferRef::Slot(slots[0]);
        let (_, selected) = self.optional(selected)?;
        let binds = vec![
            BufferRef::Step,
            self.value(q)?,
            held_keys,
            held_values,
            selected,
            sinks.clone(),
            partial.clone(),
            self.value(y)?,
        ];
        let (count, grid) = (Count::Rows, LaunchGrid::Beside { x: heads });
        let chunks = GpuLaunch { id: 0, kernel: GpuKernel::Attend(dtype), binds, words, count, grid };
        let words = vec![0, 0, heads, value_size, place, has_sinks, 0];
        let binds = vec![BufferRef::Step, partial, sinks, self.value(y)?];
        let join = GpuLaunch::elements(GpuKernel::Join, binds, words, count, (heads * value_size) as usize);
        let room = partial_words(self.graph, q, value_size as usize, span);
        let has_room = !is_latent && of_keys.size <= TILE_HEAD && of_values.words() <= TILE_WORDS;
        let has_memory = self.weights.device.workgroup_bytes() >= TILE_BYTES;
        let kernel = GpuKernel::AttendRows(dtype);
        let tiles = (has_room && has_memory).then(|| GpuLaunch { kernel, ..chunks.clone() });
        let attend = AttendLaunch { chunks, join, tiles, span, heads, value_size, room };
        list.push(Instruction::Attend(Box::new(attend)));
        Ok(list)
    }

    pub(super) fn select_keys(
        &self,
        best: u32,
        [q, weights, keys]: [ValueId; 3],
        slots: &[usize],
        y: ValueId,
    ) -> Result<Vec<Instruction>> {
        let held = self.graph.value(keys);
        let layout = HeldLayout::new(held.dtype, held, true);
        let words = vec![
            0,
            inner(self.graph, q)[0] as u32,
            layout.size,
            layout.words(),
            self.parts.span(Span::Full),
            self.parts.group(group_of(self.graph, keys).map(|(group, _)| group)),
            self.stride(y) as u32,
            best,
            self.graph.key.context,
        ];
        let scores = BufferRef::Slot(slots[0]);
        let binds = vec![
            BufferRef::Step,
            self.value(q)?,
            self.value(weights)?,
            self.value(keys)?,
            scores,
            self.value(y)?,
        ];
        let (kernel, grid) = (GpuKernel::Select(layout.dtype), LaunchGrid::Runs { each: 1 });
        Ok(vec![Instruction::Launch(GpuLaunch { id: 0, kernel, binds, words, count: Count::Rows, grid })])
    }
}
