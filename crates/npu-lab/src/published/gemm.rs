//! Measured matmuls of mlir-air (`matrix_multiplication/bf16/run.py`): 8 columns
//! of 4 tiles; a column shares a tile of A, a row of tiles one of B.
//!
//! The source does not state how many channels read B from DRAM. With four,
//! matmuls that write their results to DRAM would take longer than measured. So
//! the design uses eight, each with one half of every step of `k`; the
//! neighbour of a memory tile writes the second half.

use girih_npu::form::schedule::{CallOperand, Channel, CoreInstruction, Direction, Tile};
use girih_tensor::Result;

use super::design::{
    Design, DesignTransfer, Fifo, argument, buffer, call, divides, from_dram, repeat, to_dram, work,
};

/// A matmul with its tiles.
#[derive(Clone, Copy, Debug)]
pub(super) struct AirGemm {
    pub entry: &'static str,
    /// `m × k` by `k × n`.
    pub m: u64,
    pub k: u64,
    pub n: u64,
    /// Rows and columns of a result tile, and the steps of `k` in L2 and L1.
    pub tile_m: u64,
    pub tile_n: u64,
    pub k_l2: u64,
    pub k_l1: u64,
    pub out: GemmOutput,
}

/// How the result leaves a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GemmOutput {
    /// As f32, from the accumulator.
    F32,
    /// As bf16, from a bf16 accumulator.
    Bf16,
    /// As bf16, rounded in the tile from an f32 accumulator.
    Drained,
}

const GEMM_COLUMNS: u8 = 8;
const GEMM_ROWS: u8 = 4;
/// Launch points, in each direction of the grid, whose transfers the command
/// processor queues before it waits: `runtime_loop_tiling_sizes` = [2, 2].
const WAVE_POINTS: u64 = 2;

/// The memory-tile buffers that a column or row of tiles shares.
struct MemoryFifos {
    a: Vec<Fifo>,
    b: Vec<[Fifo; 2]>,
    c: Vec<Vec<Fifo>>,
}

impl AirGemm {
    /// Bytes of an element of the result.
    fn size(&self) -> u64 {
        if self.out == GemmOutput::F32 { 4 } else { 2 }
    }

    /// Launch points down and across the result.
    fn grid(&self) -> (u64, u64) {
        (self.m / (self.tile_m * u64::from(GEMM_COLUMNS)), self.n / (self.tile_n * u64::from(GEMM_ROWS)))
    }

    fn points(&self) -> u64 {
        self.grid().0 * self.grid().1
    }

    /// Checks that the tiles divide the matmul and fit an array.
    ///
    /// # Errors
    /// When a size does not fit; the error names it.
    pub fn fits(&self) -> Result<()> {
        let AirGemm { m, k, n, tile_m, tile_n, k_l2, k_l1, .. } = *self;
        divides("m", m, tile_m * u64::from(GEMM_COLUMNS))?;
        divides("n", n, tile_n * u64::from(GEMM_ROWS))?;
        divides("k", k, k_l2)?;
        divides("the step of k in L2", k_l2, k_l1)?;
        // A word holds two elements.
        divides("the step of k in L2", k_l2, 2)?;
        divides("the tile's n", tile_n, 2)?;
        buffer("A in L2", tile_m * k_l2 * 2)?;
        buffer("B in L2", tile_n * k_l2)?;
        buffer("A in L1", tile_m * k_l1 * 2)?;
        buffer("B in L1", tile_n * k_l1 * 2)?;
        buffer("the sums", tile_m * tile_n * 4)?;
        argument("A", m * k * 2)?;
        argument("B", k * n * 2)?;
        argument("the result", m * n * 4)?;
        work(self.points(), k / k_l1)
    }

    /// The launch.
    pub fn design(&self, name: &str) -> Design {
        let mut design = Design::new(name, 3);
        let feed = self.memories(&mut design);
        for column in 0..GEMM_COLUMNS {
            for row in 0..GEMM_ROWS {
                self.core(&mut design, Tile::new(column, 2 + row), &feed);
            }
        }
        self.routes(&mut design);
        self.commands(&mut design);
        design
    }

    fn memories(&self, design: &mut Design) -> MemoryFifos {
        let (mut a, mut b, mut c) = (Vec::new(), Vec::new(), Vec::new());
        for column in 0..GEMM_COLUMNS {
            let tile = Tile::new(column, 1);
            let fifo = design.fifo(tile, "a", self.tile_m * self.k_l2 * 2, 2);
            design.fill(tile.channel(Direction::S2mm, 0), &fifo);
            design.drain(tile.channel(Direction::Mm2s, 0), &fifo);
            a.push(fifo);
            let bytes = self.tile_m * self.tile_n * self.size();
            let outs: Vec<Fifo> = (0..GEMM_ROWS).map(|_| design.fifo(tile, "c", bytes, 1)).collect();
            for (row, out) in (0..GEMM_ROWS).zip(&outs) {
                design.fill(tile.channel(Direction::S2mm, 2 + row), out);
            }
            design.drain_all(tile.channel(Direction::Mm2s, 2), &outs.iter().collect::<Vec<_>>());
            c.push(outs);
        }
        for row in 0..GEMM_ROWS {
            let (tile, neighbour) = (Tile::new(2 * row, 1), Tile::new(2 * row + 1, 1));
            let half = self.k_l2 * self.tile_n;
            let halves = [design.fifo(tile, "b.low", half, 2), design.fifo(tile, "b.high", half, 2)];
            let [low, high] = &halves;
            design.fill(tile.channel(Direction::S2mm, 1), low);
            design.fill(neighbour.channel(Direction::S2mm, 1), high);
            design.drain_all(tile.channel(Direction::Mm2s, 1), &[low, high]);
            b.push(halves);
        }
        MemoryFifos { a, b, c }
    }

    fn core(&self, design: &mut Design, tile: Tile, feed: &MemoryFifos) {
        debug_assert_eq!((feed.a.len(), feed.b.len(), feed.c.len()), (8, 4, 8), "one feed for each stream");
        let a = design.fifo(tile, "a", self.tile_m * self.k_l1 * 2, 2);
        let b = design.fifo(tile, "b", self.tile_n * self.k_l1 * 2, 2);
        let c = design.fifo(tile, "c", self.tile_m * self.tile_n * self.size(), 1);
        design.fill(tile.channel(Direction::S2mm, 0), &a);
        design.fill(tile.channel(Direction::S2mm, 1), &b);
        design.drain(tile.channel(Direction::Mm2s, 0), &c);
        let cells = self.tile_m * self.tile_n;
        let sums = match self.out {
            GemmOutput::Drained => design.buffer(tile, "sums", (cells * 4) as u32),
            _ => c.slots[0],
        };
        let words = if self.out == GemmOutput::Bf16 { cells / 2 } else { cells };
        let zero = call("zero_f32", vec![CallOperand::whole(sums)], &[words]);
        let step = repeat(
            self.k / self.k_l1,
            vec![
                a.acquire_full(),
                b.acquire_full(),
                call(
                    self.entry,
                    vec![a.slot(1), b.slot(1), CallOperand::whole(sums)],
                    &[self.tile_m, self.tile_n, self.k_l1],
                ),
                a.release_empty(),
                b.release_empty(),
            ],
        );
        let body: Vec<CoreInstruction> = match self.out {
            GemmOutput::Drained => {
                let store = vec![CallOperand::whole(sums), CallOperand::whole(c.slots[0])];
                vec![zero, step, c.acquire_empty(), call("store_bf16", store, &[cells]), c.release_full()]
            }
            _ => vec![c.acquire_empty(), zero, step, c.release_full()],
        };
        design.core(tile, vec![repeat(self.points(), body)]);
    }

    fn routes(&self, design: &mut Design) {
        for column in 0..GEMM_COLUMNS {
            let memory = Tile::new(column, 1);
            design.route(from_dram(column, 0), &[memory.channel(Direction::S2mm, 0)]);
            let cores: Vec<Channel> =
                (0..GEMM_ROWS).map(|row| Tile::new(column, 2 + row).channel(Direction::S2mm, 0)).collect();
            design.route(memory.channel(Direction::Mm2s, 0), &cores);
            for row in 0..GEMM_ROWS {
                let core = Tile::new(column, 2 + row).channel(Direction::Mm2s, 0);
                design.route(core, &[memory.channel(Direction::S2mm, 2 + row)]);
            }
            design.route(memory.channel(Direction::Mm2s, 2), &[to_dram(column, 0)]);
        }
        for column in 0..GEMM_COLUMNS {
            design.route(from_dram(column, 1), &[Tile::new(column, 1).channel(Direction::S2mm, 1)]);
        }
        for row in 0..GEMM_ROWS {
            let cores: Vec<Channel> = (0..GEMM_COLUMNS)
                .map(|column| Tile::new(column, 2 + row).channel(Direction::S2mm, 1))
                .collect();
            design.route(Tile::new(2 * row, 1).channel(Direction::Mm2s, 1), &cores);
        }
    }

    /// Pushes all transfers of a wave of launch points, then waits for the last
    /// writes.
    fn commands(&self, design: &mut Design) {
        let rows = u64::from(GEMM_ROWS);
        let a = DesignTransfer {
            argument: 0,
            dims: vec![(self.k / self.k_l2, self.k_l2 / 2), (self.tile_m, self.k / 2), (self.k_l2 / 2, 1)],
            repeats: 1,
        };
        let half = self.k_l2 / 2;
        let words = self.n / 2;
        let b = DesignTransfer {
            argument: 1,
            dims: vec![(self.k / self.k_l2, self.k_l2 * words), (half, words), (self.tile_n / 2, 1)],
            repeats: 1,
        };
        let c = DesignTransfer::runs(2, self.tile_m, rows * self.tile_n * self.size(), self.n * self.size());
        let (down, across) = self.grid();
        let cut = |extent: u64| {
            (0..extent.div_ceil(WAVE_POINTS)).map(move |at| WAVE_POINTS.min(extent - at * WAVE_POINTS))
        };
        let waves = cut(down).flat_map(|rows| cut(across).map(move |columns| rows * columns));
        for wave in waves {
            for _ in 0..wave {
                for column in 0..GEMM_COLUMNS {
                    design.push(to_dram(column, 0), &c, true);
                    design.push(from_dram(column, 0), &a, false);
                }
                (0..GEMM_COLUMNS).for_each(|column| design.push(from_dram(column, 1), &b, false));
            }
            for _ in 0..wave {
                (0..GEMM_COLUMNS).for_each(|column| design.wait(to_dram(column, 0)));
            }
        }
    }
}
