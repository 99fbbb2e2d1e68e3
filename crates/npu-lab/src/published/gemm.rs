//! Measured matmuls of mlir-air (`matrix_multiplication/bf16/run.py`), mostly on
//! 8 columns of 4 tiles; a column shares a tile of A, a row of tiles one of B.
//!
//! The source does not state how many channels read B from DRAM. With four,
//! matmuls that write their results to DRAM would take longer than measured. So
//! the design uses two for each row of tiles if there are enough columns, each
//! with one half of every step of `k`; the neighbour of a memory tile writes the
//! second half.

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
    /// Columns and rows of tiles, at least as many columns as rows.
    pub herd: (u8, u8),
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

/// Launch points, in each direction of the grid, whose transfers the command
/// processor queues before it waits: `runtime_loop_tiling_sizes` = [2, 2].
const WAVE_POINTS: u64 = 2;

/// The memory-tile buffers that a column or row of tiles shares.
struct MemoryFifos {
    a: Vec<Fifo>,
    b: Vec<Vec<Fifo>>,
    c: Vec<Vec<Fifo>>,
}

impl AirGemm {
    /// Bytes of an element of the result.
    fn size(&self) -> u64 {
        if self.out == GemmOutput::F32 { 4 } else { 2 }
    }

    /// Columns that read B for a row of tiles.
    fn feeds(&self) -> u8 {
        if self.herd.0 >= 2 * self.herd.1 { 2 } else { 1 }
    }

    /// Columns that read B.
    fn b_columns(&self) -> u8 {
        self.herd.1 * self.feeds()
    }

    /// Launch points down and across the result.
    fn grid(&self) -> (u64, u64) {
        let (columns, rows) = (u64::from(self.herd.0), u64::from(self.herd.1));
        (self.m / (self.tile_m * columns), self.n / (self.tile_n * rows))
    }

    fn points(&self) -> u64 {
        self.grid().0 * self.grid().1
    }

    /// Checks that the tiles divide the matmul and fit an array.
    ///
    /// # Errors
    /// When a size does not fit; the error names it.
    pub fn fits(&self) -> Result<()> {
        let AirGemm { m, k, n, tile_m, tile_n, k_l2, k_l1, herd: (columns, rows), .. } = *self;
        divides("m", m, tile_m * u64::from(columns))?;
        divides("n", n, tile_n * u64::from(rows))?;
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
        for column in 0..self.herd.0 {
            for row in 0..self.herd.1 {
                self.core(&mut design, Tile::new(column, 2 + row), &feed);
            }
        }
        self.routes(&mut design);
        self.commands(&mut design);
        design
    }

    fn memories(&self, design: &mut Design) -> MemoryFifos {
        let (mut a, mut b, mut c) = (Vec::new(), Vec::new(), Vec::new());
        for column in 0..self.herd.0 {
            let tile = Tile::new(column, 1);
            let fifo = design.fifo(tile, "a", self.tile_m * self.k_l2 * 2, 2);
            design.fill(tile.channel(Direction::S2mm, 0), &fifo);
            design.drain(tile.channel(Direction::Mm2s, 0), &fifo);
            a.push(fifo);
            let bytes = self.tile_m * self.tile_n * self.size();
            let outs: Vec<Fifo> = (0..self.herd.1).map(|_| design.fifo(tile, "c", bytes, 1)).collect();
            for (row, out) in (0..self.herd.1).zip(&outs) {
                design.fill(tile.channel(Direction::S2mm, 2 + row), out);
            }
            design.drain_all(tile.channel(Direction::Mm2s, 2), &outs.iter().collect::<Vec<_>>());
            c.push(outs);
        }
        for row in 0..self.herd.1 {
            let first = row * self.feeds();
            let tile = Tile::new(first, 1);
            let bytes = self.k_l2 * self.tile_n * 2 / u64::from(self.feeds());
            let parts: Vec<Fifo> = ["b.low", "b.high"][..usize::from(self.feeds())]
                .iter()
                .map(|name| design.fifo(tile, name, bytes, 2))
                .collect();
            for (column, part) in (first..).zip(&parts) {
                design.fill(Tile::new(column, 1).channel(Direction::S2mm, 1), part);
            }
            design.drain_all(tile.channel(Direction::Mm2s, 1), &parts.iter().collect::<Vec<_>>());
            b.push(parts);
        }
        MemoryFifos { a, b, c }
    }

    fn core(&self, design: &mut Design, tile: Tile, feed: &MemoryFifos) {
        let (columns, rows) = (usize::from(self.herd.0), usize::from(self.herd.1));
        debug_assert_eq!(
            (feed.a.len(), feed.b.len(), feed.c.len()),
            (columns, rows, columns),
            "a feed a stream"
        );
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
        for column in 0..self.herd.0 {
            let memory = Tile::new(column, 1);
            design.route(from_dram(column, 0), &[memory.channel(Direction::S2mm, 0)]);
            let cores: Vec<Channel> =
                (0..self.herd.1).map(|row| Tile::new(column, 2 + row).channel(Direction::S2mm, 0)).collect();
            design.route(memory.channel(Direction::Mm2s, 0), &cores);
            for row in 0..self.herd.1 {
                let core = Tile::new(column, 2 + row).channel(Direction::Mm2s, 0);
                design.route(core, &[memory.channel(Direction::S2mm, 2 + row)]);
            }
            design.route(memory.channel(Direction::Mm2s, 2), &[to_dram(column, 0)]);
        }
        for column in 0..self.b_columns() {
            design.route(from_dram(column, 1), &[Tile::new(column, 1).channel(Direction::S2mm, 1)]);
        }
        for row in 0..self.herd.1 {
            let cores: Vec<Channel> = (0..self.herd.0)
                .map(|column| Tile::new(column, 2 + row).channel(Direction::S2mm, 1))
                .collect();
            design.route(Tile::new(row * self.feeds(), 1).channel(Direction::Mm2s, 1), &cores);
        }
    }

    /// Pushes all transfers of a wave of launch points, then waits for the last
    /// writes.
    fn commands(&self, design: &mut Design) {
        let rows = u64::from(self.herd.1);
        let a = DesignTransfer {
            argument: 0,
            dims: vec![(self.k / self.k_l2, self.k_l2 / 2), (self.tile_m, self.k / 2), (self.k_l2 / 2, 1)],
            repeats: 1,
        };
        let part = self.k_l2 / u64::from(self.feeds());
        let words = self.n / 2;
        let b = DesignTransfer {
            argument: 1,
            dims: vec![(self.k / self.k_l2, self.k_l2 * words), (part, words), (self.tile_n / 2, 1)],
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
                for column in 0..self.herd.0 {
                    let offset = u64::from(column) * self.tile_m * self.n * self.size();
                    design.push_results(to_dram(column, 0), &c, offset);
                    design.push(from_dram(column, 0), &a);
                }
                (0..self.b_columns()).for_each(|column| design.push(from_dram(column, 1), &b));
            }
            for _ in 0..wave {
                (0..self.herd.0).for_each(|column| design.wait(to_dram(column, 0)));
            }
        }
    }
}
