//! Entries that read Q4NX weights: a matrix-vector product that unpacks them on the fly, and
//! unpacking to bf16.
//!
//! Both compute with `ŵ = bf16(d · q + m)`, rounded to nearest, ties to even: the bf16 weights
//! that a matrix product reads after unpacking. The vector product keeps one f32 sum per row,
//! over `k` in ascending order, with rows in vector lanes. That is the order of the matrix unit,
//! so a row alone has the bits of a row among many.

use girih_tensor::DType;

use super::entry::{
    Access, Axis, CascadeUse, KernelEntry, KernelOperand, KernelValues, Param, blocks, round, vector, whole,
};
use crate::form::weights::{GROUP_COLUMNS, TILE_BYTES, TILE_COLUMNS, TILE_ROWS};

/// Rows, columns and bytes of a tile.
const SIDES: [usize; 2] = [TILE_ROWS as usize, TILE_COLUMNS as usize];
/// Groups of a row.
const GROUPS: u32 = TILE_COLUMNS / GROUP_COLUMNS;
/// Rows and columns of a block of the matrix unit's right operand.
const BLOCK: (u32, u32) = (8, 8);
/// Rows whose sums advance together; for speed only.
const LANES: usize = 8;

/// `sums += ŵ · x`, for 32 rows of tiles.
pub(super) const GEMV_Q4NX: KernelEntry = KernelEntry {
    name: "gemv_q4nx",
    params: &[Param::size("rows"), Param::size("k")],
    operands: &[
        KernelOperand::new("w", Access::Read, DType::Q4NX, |p| tiles(p[0], p[1])),
        KernelOperand::reads("x", |p| vector(p[1])),
        KernelOperand::new("sums", Access::Update, DType::F32, |p| vector(p[0])),
    ],
    macs: |p| u64::from(p[0]) * u64::from(p[1]),
    cascade: CascadeUse::None,
    fault: |p| whole("rows", p[0], TILE_ROWS).or_else(|| whole("k", p[1], TILE_COLUMNS)),
    values: vector_product,
};

/// Unpacks groups of a tile to bf16: `groups` of them, from group `first`, each 32 rows of 32
/// values.
pub(super) const DEQUANT_Q4NX: KernelEntry = KernelEntry {
    name: "dequant_q4nx",
    params: &[Param::index("first"), Param::size("groups")],
    operands: &[
        KernelOperand::new("w", Access::Read, DType::Q4NX, |_| tiles(TILE_ROWS, TILE_COLUMNS)),
        KernelOperand::writes("y", |p| {
            vec![
                Axis { extent: p[1], rows: 0, columns: GROUP_COLUMNS },
                Axis { extent: TILE_ROWS, rows: 1, columns: 0 },
                Axis { extent: GROUP_COLUMNS, rows: 0, columns: 1 },
            ]
        }),
    ],
    macs: |p| u64::from(p[1]) * u64::from(TILE_ROWS * GROUP_COLUMNS),
    cascade: CascadeUse::None,
    fault: |p| {
        let end = p[0].saturating_add(p[1]);
        (end > GROUPS).then(|| format!("groups end at {end}: a tile has {GROUPS}"))
    },
    values: unpack_groups,
};

/// Unpacks groups of a tile to the blocks that the matrix unit loads as its right operand.
pub(super) const UNPACK_Q4NX: KernelEntry = KernelEntry {
    name: "unpack_q4nx",
    operands: &[
        KernelOperand::new("w", Access::Read, DType::Q4NX, |_| tiles(TILE_ROWS, TILE_COLUMNS)),
        KernelOperand::writes("y", |p| blocks(TILE_ROWS, p[1] * GROUP_COLUMNS, BLOCK)),
    ],
    values: unpack_blocks,
    ..DEQUANT_Q4NX
};

/// The layout of tiles; an element is a tile.
fn tiles(rows: u32, columns: u32) -> Vec<Axis> {
    vec![
        Axis { extent: rows / TILE_ROWS, rows: TILE_ROWS, columns: 0 },
        Axis { extent: columns / TILE_COLUMNS, rows: 0, columns: TILE_COLUMNS },
    ]
}

/// Unpacks a tile, row by row, each value rounded to bf16.
fn unpacked(tile: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; SIDES[0] * SIDES[1]];
    DType::Q4NX.unpack(tile, &mut values);
    values.iter_mut().for_each(|value| *value = round(*value));
    values
}

fn vector_product(params: &[u32], values: &mut KernelValues<'_>) {
    let (x, mut sums) = (values.bf16(1), values.updated(0, DType::F32));
    let tile_row_bytes = params[1] as usize / SIDES[1] * TILE_BYTES as usize;
    for (sums, tiles) in sums.chunks_exact_mut(SIDES[0]).zip(values.reads[0].chunks_exact(tile_row_bytes)) {
        for (tile, x) in tiles.chunks_exact(TILE_BYTES as usize).zip(x.chunks_exact(SIDES[1])) {
            let weights = unpacked(tile);
            for (sums, rows) in sums.chunks_exact_mut(LANES).zip(weights.chunks_exact(LANES * SIDES[1])) {
                for (column, &x) in x.iter().enumerate() {
                    for (row, sum) in sums.iter_mut().enumerate() {
                        *sum += rows[row * SIDES[1] + column] * x;
                    }
                }
            }
        }
    }
    values.store(0, DType::F32, &sums);
}

fn unpack_groups(params: &[u32], values: &mut KernelValues<'_>) {
    let weights = unpacked(values.reads[0]);
    let side = GROUP_COLUMNS as usize;
    let groups = (params[0]..params[0] + params[1]).map(|group| group as usize * side);
    let row = |first: usize| weights.chunks_exact(SIDES[1]).flat_map(move |row| &row[first..first + side]);
    let groups: Vec<f32> = groups.flat_map(row).copied().collect();
    values.store(0, DType::BF16, &groups);
}

fn unpack_blocks(params: &[u32], values: &mut KernelValues<'_>) {
    let weights = unpacked(values.reads[0]);
    let [first, end] = [params[0], params[0] + params[1]].map(|group| (group * GROUP_COLUMNS) as usize);
    let (height, width) = (BLOCK.0 as usize, BLOCK.1 as usize);
    let mut blocks = Vec::with_capacity(SIDES[0] * (end - first));
    for rows in weights.chunks_exact(height * SIDES[1]) {
        for left in (first..end).step_by(width) {
            blocks.extend(rows.chunks_exact(SIDES[1]).flat_map(|row| &row[left..left + width]));
        }
    }
    values.store(0, DType::BF16, &blocks);
}
