//! A token of the Gemma 3 mapping (Du et al., sections 3.2 and 4), built by hand as far as the text
//! states it. One configuration has two parts: 16 cores in four columns unpack and multiply weights in
//! Q4NX; in two other columns, each KV head has a pair of cores. One core of a pair receives the keys,
//! the other one the values.
//!
//! The text states no size of a chunk; 16 positions fit a core. Vectors wait in memory tiles and take no
//! bandwidth of DRAM. Norms, rotations and activations are pipelined and "negligible", so they are left out.

use girih_npu::form::schedule::{CallOperand, CoreInstruction, Direction, Tile};

use super::design::{Design, DesignTransfer, Fifo, call, from_dram, repeat, to_dram};

/// The sizes of a Gemma 3 text model.
#[derive(Clone, Copy, Debug)]
pub(super) struct GemmaSizes {
    pub width: u64,
    pub layers: u64,
    pub heads: u64,
    pub kv_heads: u64,
    /// Width of the feed-forward network.
    pub inner: u64,
    pub vocabulary: u64,
    /// Positions that a local layer attends to.
    pub window: u64,
}

/// The size of a head of all Gemma 3 text models here.
const HEAD: u64 = 256;
/// Local layers before each one that attends to all positions.
const LOCAL_LAYERS: u64 = 5;
/// Bytes of a Q4NX block of 32×256 weights.
const BLOCK: u64 = 5120;
/// Positions of a chunk of keys or values.
const CHUNK: u64 = 16;
/// Columns of the matrix-vector product, with four cores each.
const GEMV_COLUMNS: u8 = 4;
const GEMV_CORES: u64 = 16;
/// The first of two columns of attention.
const ATTENTION_COLUMN: u8 = 4;
/// Bytes that a core returns at the end of a phase.
const RESULT: u64 = 64;
/// Shim channels of a column that read.
const CHANNELS: usize = 2;

/// Weights in blocks, of a matrix of `n` rows and `k` columns: each core has as many.
fn blocks(n: u64, k: u64) -> u64 {
    (n.div_ceil(32) * k.div_ceil(256)).div_ceil(GEMV_CORES)
}

impl GemmaSizes {
    /// Blocks for each core of the phases of a layer: queries, keys and values; the output of attention;
    /// gate and up; down. Between them, all cores need the whole vector.
    fn phases(&self) -> [u64; 4] {
        let GemmaSizes { width, heads, kv_heads, inner, .. } = *self;
        [
            blocks((heads + 2 * kv_heads) * HEAD, width),
            blocks(width, heads * HEAD),
            blocks(2 * inner, width),
            blocks(width, inner),
        ]
    }

    /// The chunks that a layer attends to in a context of this many positions.
    fn chunks(&self, layer: u64, context: u64) -> u64 {
        let local = layer % (LOCAL_LAYERS + 1) < LOCAL_LAYERS;
        if local { context.min(self.window).div_ceil(CHUNK) } else { context.div_ceil(CHUNK) }
    }

    /// The launch of a token that is the last of `context` positions.
    pub fn token(&self, context: u64) -> Design {
        let mut design = Design::new("token", 3);
        for column in 0..GEMV_COLUMNS {
            self.gemv_column(&mut design, column);
        }
        let cores: Vec<usize> = (0..2).map(|column| self.attention_cores(column).len()).collect();
        for column in 0..2 {
            self.attention_column(&mut design, column, context);
        }
        let head = blocks(self.vocabulary, self.width);
        for layer in 0..self.layers {
            let [qkv, o, gate, down] = self.phases();
            read_weights(&mut design, qkv);
            let chunks = self.chunks(layer, context);
            for (at, cores) in (0u8..).zip(&cores) {
                read_keys(&mut design, ATTENTION_COLUMN + at, *cores, chunks);
            }
            for (at, _) in (0u8..).zip(&cores).filter(|(_, cores)| **cores > 0) {
                design.wait(to_dram(ATTENTION_COLUMN + at, 0));
            }
            [o, gate, down].into_iter().for_each(|phase| read_weights(&mut design, phase));
        }
        read_weights(&mut design, head);
        design
    }

    fn gemv_column(&self, design: &mut Design, column: u8) {
        let cores: Vec<Tile> = (2..6).map(|row| Tile::new(column, row)).collect();
        let inputs = feed(design, column, &cores, BLOCK);
        let outputs = collect(design, column, &cores);
        let k = self.width.max(self.inner).max(self.heads * HEAD).next_multiple_of(256);
        for ((tile, w), y) in cores.into_iter().zip(inputs).zip(outputs) {
            let x = CallOperand::whole(design.buffer(tile, "x", (k * 2) as u32));
            let body = vec![
                w.acquire_full(),
                call("gemv_q4nx", vec![w.slot(1), x, CallOperand::whole(y.slots[0])], &[32, 256]),
                w.release_empty(),
            ];
            let phase = |blocks: u64| -> Vec<CoreInstruction> {
                vec![y.acquire_empty(), repeat(blocks, body.clone()), y.release_full()]
            };
            let layer = self.phases().into_iter().flat_map(phase).collect();
            let mut program = vec![repeat(self.layers, layer)];
            program.extend(phase(blocks(self.vocabulary, self.width)));
            design.core(tile, program);
        }
    }

    /// The cores of a column of attention: whether each receives keys or values.
    fn attention_cores(&self, column: u64) -> Vec<bool> {
        (0..2 * self.kv_heads).skip(4 * column as usize).take(4).map(|core| core % 2 == 0).collect()
    }

    fn attention_column(&self, design: &mut Design, at: u64, context: u64) {
        let kinds = self.attention_cores(at);
        let column = ATTENTION_COLUMN + at as u8;
        let cores: Vec<Tile> = (2u8..).zip(&kinds).map(|(row, _)| Tile::new(column, row)).collect();
        let inputs = feed(design, column, &cores, CHUNK * HEAD * 2);
        let outputs = collect(design, column, &cores);
        let group = self.heads / self.kv_heads;
        for (((tile, keys), chunk), y) in cores.into_iter().zip(kinds).zip(inputs).zip(outputs) {
            let mut own =
                |name: &str, bytes: u64| CallOperand::whole(design.buffer(tile, name, bytes as u32));
            let (q, other, start) = (own("q", group * HEAD * 2), own("other", CHUNK * 32), own("start", 64));
            let state = own("state", group * (HEAD + 2) * 4);
            // One core computes scores and their softmax, the other the weighted sum.
            let (operands, numbers) = if keys {
                (vec![q, chunk.slot(1), other, start, state], [group, HEAD, 16, CHUNK, group, 0, 0, 0, 0, 0])
            } else {
                (vec![q, other, chunk.slot(1), start, state], [group, 8, HEAD, CHUNK, group, 0, 0, 0, 0, 0])
            };
            let step = vec![chunk.acquire_full(), call("attend", operands, &numbers), chunk.release_empty()];
            let layer = |layer: u64| -> Vec<CoreInstruction> {
                let chunks = repeat(self.chunks(layer, context), step.clone());
                vec![y.acquire_empty(), chunks, y.release_full()]
            };
            design.core(tile, (0..self.layers).flat_map(layer).collect());
        }
    }
}

/// Streams from DRAM for cores of a column: each channel feeds one or two cores in turns, through the
/// memory tile.
fn feed(design: &mut Design, column: u8, cores: &[Tile], bytes: u64) -> Vec<Fifo> {
    let memory = Tile::new(column, 1);
    let mut inputs = Vec::new();
    for (number, pair) in (0u8..).zip(cores.chunks(fed_cores(cores.len()))) {
        let staged: Vec<Fifo> = pair.iter().map(|_| design.fifo(memory, "in", bytes, 2)).collect();
        design.fill_all(memory.channel(Direction::S2mm, number), &staged.iter().collect::<Vec<_>>());
        design.route(from_dram(column, number), &[memory.channel(Direction::S2mm, number)]);
        for ((staged, tile), next) in staged.iter().zip(pair).zip(0u8..) {
            let out = memory.channel(Direction::Mm2s, CHANNELS as u8 * number + next);
            design.drain(out, staged);
            let input = design.fifo(*tile, "in", bytes, 2);
            design.fill(tile.channel(Direction::S2mm, 0), &input);
            design.route(out, &[tile.channel(Direction::S2mm, 0)]);
            inputs.push(input);
        }
    }
    inputs
}

/// Gathers a short result of each core of a column and writes it to DRAM.
fn collect(design: &mut Design, column: u8, cores: &[Tile]) -> Vec<Fifo> {
    let memory = Tile::new(column, 1);
    let (mut results, mut gathered) = (Vec::new(), Vec::new());
    for (tile, number) in cores.iter().zip(2u8..) {
        let (y, staged) = (design.fifo(*tile, "y", RESULT, 1), design.fifo(memory, "y", RESULT, 1));
        design.drain(tile.channel(Direction::Mm2s, 0), &y);
        design.fill(memory.channel(Direction::S2mm, number), &staged);
        design.route(tile.channel(Direction::Mm2s, 0), &[memory.channel(Direction::S2mm, number)]);
        results.push(y);
        gathered.push(staged);
    }
    if !gathered.is_empty() {
        let out = memory.channel(Direction::Mm2s, 4);
        design.drain_all(out, &gathered.iter().collect::<Vec<_>>());
        design.route(out, &[to_dram(column, 0)]);
    }
    results
}

/// Reads as many blocks for each core, and waits for the results.
fn read_weights(design: &mut Design, blocks: u64) {
    for column in 0..GEMV_COLUMNS {
        design.push(to_dram(column, 0), &DesignTransfer::linear(1, 4 * RESULT), true);
        for number in 0..2 {
            let bytes = blocks * BLOCK * GEMV_CORES / u64::from(GEMV_COLUMNS) / CHANNELS as u64;
            design.push(from_dram(column, number), &DesignTransfer::linear(0, bytes), false);
        }
    }
    (0..GEMV_COLUMNS).for_each(|column| design.wait(to_dram(column, 0)));
}

/// Reads as many chunks for each core of a column of attention.
fn read_keys(design: &mut Design, column: u8, cores: usize, chunks: u64) {
    if cores == 0 {
        return;
    }
    design.push(to_dram(column, 0), &DesignTransfer::linear(1, cores as u64 * RESULT), true);
    for number in 0..CHANNELS {
        let bytes = chunks * CHUNK * HEAD * 2 * fed_cores(cores) as u64;
        design.push(from_dram(column, number as u8), &DesignTransfer::linear(2, bytes), false);
    }
}

/// Cores of a column that one channel feeds.
fn fed_cores(cores: usize) -> usize {
    cores.div_ceil(CHANNELS).max(1)
}
