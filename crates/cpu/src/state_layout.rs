//! The layout of a block of keys or values, and rounding rows into it.
//!
//! ```text
//! block  = head 0 | head 1 | …
//! head   = tile 0 | tile 1                  of keys: 32 positions each, transposed
//!        | position 0 | … | position 63     of values: a row each, padded to a multiple of 16
//! ```
//! So the cells of one head over the positions of a block are contiguous, as [the
//! kernels](crate::kernels::attend) need them.

use girih_graph::{BLOCK_POSITIONS, Graph, Node, Op, Role, Value, ValueId};
use girih_tensor::{DType, Shape};

use crate::kernels::Table;
use crate::kernels::attend::{Format, KEY_TILE, KV_GROUP, LANES, Q8_0_GROUP};

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
        let is_latent = graph
            .nodes
            .iter()
            .any(|node| matches!(node.op, Op::AttendLatent { .. }) && node.inputs.get(1) == Some(&id));
        let role = match (read_as(1) || is_latent, read_as(2)) {
            (true, true) => return Err("it is read as keys and as values".to_owned()),
            (true, false) => StateRole::Keys,
            (false, _) => StateRole::Values,
        };
        let dtype = value.dtype;
        let format = Format::of(dtype)
            .ok_or_else(|| format!("its type is {dtype}; state can be f32, f16, bf16 or q8_0"))?;
        let size = value.shape.columns();
        if format == Format::Q8_0 && !size.is_multiple_of(KV_GROUP) {
            return Err(format!("q8_0 needs a head size divisible by {KV_GROUP}; this one is {size}"));
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
        if self.role == StateRole::Keys && self.format != Format::Q8_0 {
            return self.put_keys(table, rows, stride, at, bytes);
        }
        let mut is_unbounded = false;
        for (index, row) in rows.chunks(stride).enumerate() {
            for (part, values) in row[..self.size].chunks(ROUNDED_DIMS).enumerate() {
                let mut rounded = [0; ROUNDED_DIMS * 4];
                let rounded = &mut rounded[..self.format.bytes(1, values.len())];
                is_unbounded |= self.round(table, values, rounded);
                let (first, at) = (part * ROUNDED_DIMS, at + index);
                if self.format == Format::Q8_0 {
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
            Format::Q8_0 => {
                DType::Q8_0.pack(values, rounded);
                rounded.chunks_exact(2 + KV_GROUP).any(|block| reaches::<F16_INFINITY>(&block[..2]))
            }
        }
    }

    /// Writes blocks of Q8_0 at one position, from group `first` of one head on.
    fn put_groups(&self, blocks: &[u8], first: usize, at: usize, bytes: &mut [u8]) {
        let groups = self.width / KV_GROUP;
        for (group, block) in blocks.chunks_exact(2 + KV_GROUP).enumerate() {
            let (scale, integers) = block.split_at(2);
            let group = first + group;
            match self.role {
                StateRole::Keys => {
                    let (scales, lines) = bytes[(at / KEY_TILE * groups + group) * Q8_0_GROUP..]
                        [..Q8_0_GROUP]
                        .split_at_mut(2 * KEY_TILE);
                    scales[at % KEY_TILE * 2..][..2].copy_from_slice(scale);
                    for (line, &integer) in lines.chunks_exact_mut(KEY_TILE).zip(integers) {
                        line[at % KEY_TILE] = integer;
                    }
                }
                StateRole::Values => {
                    let (lines, scales) = bytes.split_at_mut(BLOCK_POSITIONS * self.width);
                    lines[at * self.width + group * KV_GROUP..][..KV_GROUP].copy_from_slice(integers);
                    scales[(group * BLOCK_POSITIONS + at) * 2..][..2].copy_from_slice(scale);
                }
            }
        }
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
