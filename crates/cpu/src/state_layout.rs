//! The layout of a block of keys or values, and rounding rows into it.
//!
//! ```text
//! block  = head 0 | head 1 | …
//! head   = tile 0 | tile 1                  of keys: 32 positions each, transposed
//!        | position 0 | … | position 63     of values: a row each, padded to a multiple of 16
//! ```
//! So the cells of one head over the positions of a block are contiguous, as [the
//! kernels](crate::kernels::attend) need them.

use girih_graph::state::pack_state;
use girih_graph::{BLOCK_POSITIONS, Graph, Node, Op, Role, Value, ValueId};
use girih_tensor::{DType, Shape};

use crate::kernels::Table;
use crate::kernels::attend::{Format, KEY_TILE, KV_GROUP, LANES};

/// The number of head dimensions that are rounded in one call.
const ROUNDED_DIMS: usize = 64;

/// The bits of infinity in `f16`; those of NaN are larger.
const F16_INFINITY: i16 = 0x7c00;

/// The same of `bf16`.
const BF16_INFINITY: i16 = 0x7f80;

/// The layout of a block of one state value, or of keys or values of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StateLayout {
    pub format: Format,
    role: StateRole,
    pub heads: usize,
    /// Values of one head at one position.
    pub size: usize,
    /// The same with padding.
    width: usize,
}

/// How attention uses a state value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StateRole {
    Keys,
    Values,
}

impl StateLayout {
    /// The layout of a state value, or why it has none.
    pub fn of(graph: &Graph, id: ValueId, value: &Value) -> Result<StateLayout, String> {
        let read_as = |index: usize| {
            let mut nodes = graph.nodes.iter().filter(|node| matches!(node.op, Op::Attend { .. }));
            nodes.any(|node| node.inputs.get(index) == Some(&id))
        };
        let is_latent = |node: &Node| match node.op {
            Op::AttendLatent { .. } => node.inputs.get(1) == Some(&id),
            Op::SelectKeys { .. } => node.inputs.get(2) == Some(&id),
            _ => false,
        };
        let role = match (read_as(1) || graph.nodes.iter().any(is_latent), read_as(2)) {
            (true, true) => return Err("it is read as keys and as values".to_owned()),
            (true, false) => StateRole::Keys,
            (false, _) => StateRole::Values,
        };
        let dtype = value.dtype;
        let format = Format::of(dtype)
            .ok_or_else(|| format!("its type is {dtype}; state can be f32, f16, bf16, q8_0 or q4_0"))?;
        let size = value.shape.columns();
        if format.is_grouped() && !size.is_multiple_of(KV_GROUP) {
            return Err(format!("{dtype} needs a head size divisible by {KV_GROUP}; this one is {size}"));
        }
        Ok(StateLayout::new(format, role, &value.shape))
    }

    /// The layouts of the keys and of the values of `node`, if it attends to rows of the step.
    pub fn of_rows(graph: &Graph, node: &Node) -> Option<[StateLayout; 2]> {
        let (Op::Attend { .. }, [_, keys, values, ..]) = (node.op, &node.inputs[..]) else { return None };
        let layout = |id: &ValueId, role| StateLayout::new(Format::F32, role, &graph.value(*id).shape);
        let is_state = matches!(graph.value(*keys).role, Role::State(_));
        (!is_state).then(|| [layout(keys, StateRole::Keys), layout(values, StateRole::Values)])
    }

    fn new(format: Format, role: StateRole, shape: &Shape) -> StateLayout {
        let size = shape.columns();
        let width = match role {
            StateRole::Keys => size,
            StateRole::Values => size.next_multiple_of(LANES),
        };
        StateLayout { format, role, heads: shape.stride() / size, size, width }
    }

    /// The bytes of `blocks` blocks; `None` if they exceed `usize`.
    pub fn bytes(&self, blocks: usize) -> Option<usize> {
        // Checks for the largest type, `f32`: sizes from a graph can overflow.
        let row = self.heads.checked_mul(self.width)?.checked_mul(size_of::<f32>())?;
        row.checked_mul(BLOCK_POSITIONS)?.checked_mul(blocks)?;
        Some(blocks * self.block_bytes())
    }

    /// The bytes of a block.
    pub fn block_bytes(&self) -> usize {
        self.heads * self.head_bytes()
    }

    /// The bytes of one head in a block.
    pub fn head_bytes(&self) -> usize {
        self.format.bytes(BLOCK_POSITIONS, self.width)
    }

    /// Writes rows of one head to the head's bytes in a block, from position `at` on. The rows are
    /// `stride` values apart. Returns whether a value that was written is infinite or NaN.
    #[must_use]
    pub fn put(&self, table: &Table, rows: &[f32], stride: usize, at: usize, bytes: &mut [u8]) -> bool {
        if self.role == StateRole::Keys && !self.format.is_grouped() {
            return self.put_keys(table, rows, stride, at, bytes);
        }
        let mut is_unbounded = false;
        for (index, row) in rows.chunks(stride).enumerate() {
            for (part, values) in row[..self.size].chunks(ROUNDED_DIMS).enumerate() {
                let mut rounded = [0; ROUNDED_DIMS * 4];
                let rounded = &mut rounded[..self.format.bytes(1, values.len())];
                is_unbounded |= self.round(table, values, rounded);
                let (first, at) = (part * ROUNDED_DIMS, at + index);
                if self.format.is_grouped() {
                    self.put_groups(rounded, first / KV_GROUP, at, bytes);
                } else {
                    let each = self.format.bytes(1, 1);
                    bytes[(at * self.width + first) * each..][..rounded.len()].copy_from_slice(rounded);
                }
            }
        }
        is_unbounded
    }

    /// As [`StateLayout::put`], for keys, whose lines hold one dimension of the head
    /// each: the rows of a tile are rounded first, so that each line is visited once.
    fn put_keys(&self, table: &Table, rows: &[f32], stride: usize, at: usize, bytes: &mut [u8]) -> bool {
        let mut is_unbounded = false;
        let mut rounded = [0; KEY_TILE * ROUNDED_DIMS * 4];
        let (mut rest, mut at) = (rows, at);
        while !rest.is_empty() {
            let count = (KEY_TILE - at % KEY_TILE).min(rest.len().div_ceil(stride));
            let (some, others) = rest.split_at(rest.len().min(count * stride));
            let tile = &mut bytes[at / KEY_TILE * self.format.bytes(KEY_TILE, self.size)..];
            for first in (0..self.size).step_by(ROUNDED_DIMS) {
                let dims = ROUNDED_DIMS.min(self.size - first);
                let row_bytes = self.format.bytes(1, dims);
                for (row, rounded) in some.chunks(stride).zip(rounded.chunks_exact_mut(row_bytes)) {
                    is_unbounded |= self.round(table, &row[first..first + dims], rounded);
                }
                let lines =
                    &mut tile[self.format.bytes(KEY_TILE, first)..][..self.format.bytes(KEY_TILE, dims)];
                let rounded = &rounded[..count * row_bytes];
                match self.format {
                    Format::F32 => put_columns::<4>(rounded, dims, at % KEY_TILE, lines),
                    _ => put_columns::<2>(rounded, dims, at % KEY_TILE, lines),
                }
            }
            (rest, at) = (others, at + count);
        }
        is_unbounded
    }

    /// Rounds values to the state's type. Returns whether one of them is then infinite or NaN; never
    /// for `f32`, which holds each value as it is.
    fn round(&self, table: &Table, values: &[f32], rounded: &mut [u8]) -> bool {
        match self.format {
            Format::F32 => {
                DType::F32.pack(values, rounded);
                false
            }
            Format::F16 => {
                (table.attend.halve)(values, rounded);
                reaches::<F16_INFINITY>(rounded)
            }
            Format::BF16 => {
                DType::BF16.pack(values, rounded);
                reaches::<BF16_INFINITY>(rounded)
            }
            Format::Q8_0 | Format::Q4_0 => {
                pack_state(self.format.dtype(), values, rounded);
                let mut blocks = rounded.chunks_exact(2 + self.format.code_bytes(KV_GROUP));
                blocks.any(|block| reaches::<F16_INFINITY>(&block[..2]))
            }
        }
    }

    /// Writes blocks of values with a scale at one position, from group `first` of one head on.
    fn put_groups(&self, blocks: &[u8], first: usize, at: usize, bytes: &mut [u8]) {
        let (format, groups) = (self.format, self.width / KV_GROUP);
        let group_bytes = format.bytes(KEY_TILE, KV_GROUP);
        for (group, block) in (first..).zip(blocks.chunks_exact(2 + format.code_bytes(KV_GROUP))) {
            let (scale, codes) = block.split_at(2);
            match self.role {
                StateRole::Keys => {
                    let group = &mut bytes[(at / KEY_TILE * groups + group) * group_bytes..][..group_bytes];
                    let (scales, lines) = group.split_at_mut(2 * KEY_TILE);
                    scales[at % KEY_TILE * 2..][..2].copy_from_slice(scale);
                    match format {
                        Format::Q4_0 => put_halves(codes, at % KEY_TILE, lines),
                        _ => put_columns::<1>(codes, KV_GROUP, at % KEY_TILE, lines),
                    }
                }
                StateRole::Values => {
                    let (lines, scales) = bytes.split_at_mut(format.code_bytes(BLOCK_POSITIONS * self.width));
                    // The order within a block of Q4_0 is that of the state.
                    let start = format.code_bytes(at * self.width + group * KV_GROUP);
                    lines[start..][..codes.len()].copy_from_slice(codes);
                    scales[(group * BLOCK_POSITIONS + at) * 2..][..2].copy_from_slice(scale);
                }
            }
        }
    }
}

/// Writes the codes of four bits of one position, in the order of a block of Q4_0, to column `at` of as many lines.
fn put_halves(codes: &[u8], at: usize, lines: &mut [u8]) {
    let (kept, shift) = if at < LANES { (0xf0, 0) } else { (0x0f, 4) };
    let (low, high) = (codes.iter().map(|codes| codes & 0x0f), codes.iter().map(|codes| codes >> 4));
    for (line, code) in lines.chunks_exact_mut(KEY_TILE / 2).zip(low.chain(high)) {
        let byte = &mut line[at % LANES];
        *byte = *byte & kept | code << shift;
    }
}

/// Whether the magnitude of a number of 16 bits has at least these bits.
fn reaches<const BITS: i16>(numbers: &[u8]) -> bool {
    // Signed, because the least instruction set has no maximum of unsigned words.
    let magnitudes = numbers.as_chunks::<2>().0.iter().map(|bytes| i16::from_le_bytes(*bytes) & i16::MAX);
    magnitudes.fold(0, i16::max) >= BITS
}

/// Writes rows of `dims` values of `BYTES` bytes each to the columns of `dims` lines, from column
/// `at` on.
fn put_columns<const BYTES: usize>(rows: &[u8], dims: usize, at: usize, lines: &mut [u8]) {
    let rows = rows.as_chunks::<BYTES>().0;
    for (dim, line) in lines.chunks_exact_mut(KEY_TILE * BYTES).enumerate() {
        let columns = line.as_chunks_mut::<BYTES>().0[at..].iter_mut();
        columns.zip(rows.chunks_exact(dims)).for_each(|(column, row)| *column = row[dim]);
    }
}
