//! Measured matrix-vector products of mlir-air (`bf16/matvec.py`): 8 columns of
//! one tile, weights through L2, the vector from DRAM for every call, and no
//! double buffers in L1 (`omit_pingpong`).

use girih_npu::form::schedule::{CallOperand, Direction, Tile};
use girih_tensor::Result;

use super::design::{
    Design, DesignTransfer, argument, buffer, call, calls, divides, from_dram, repeat, to_dram,
};

/// A matrix-vector product with its tiles.
#[derive(Clone, Copy, Debug)]
pub(super) struct AirGemv {
    /// Rows and columns of the matrix.
    pub m: u64,
    pub k: u64,
    /// Columns of tiles.
    pub herd: u8,
    /// Rows of a column in one launch point, and rows of a call.
    pub tile_m: u64,
    pub rows: u64,
}

impl AirGemv {
    /// Checks that the tiles divide the matrix and fit an array.
    ///
    /// # Errors
    /// When a size does not fit; the error names it.
    pub fn fits(&self) -> Result<()> {
        let AirGemv { m, k, herd, tile_m, rows } = *self;
        divides("m", m, tile_m * u64::from(herd))?;
        divides("the tile's m", tile_m, rows)?;
        // A word holds two elements.
        divides("k", k, 2)?;
        buffer("the weights in L2", tile_m * k * 2)?;
        buffer("the vector", k * 2)?;
        buffer("the results", (tile_m * 2).max(4))?;
        argument("the matrix", m * k * 2)?;
        calls(m / (tile_m * u64::from(herd)) * (tile_m / rows))
    }

    /// The launch.
    pub fn design(&self, name: &str) -> Design {
        let mut design = Design::new(name, 3);
        let points = self.m / (self.tile_m * u64::from(self.herd));
        let calls = self.tile_m / self.rows;
        for column in 0..self.herd {
            let (memory, tile) = (Tile::new(column, 1), Tile::new(column, 2));
            let staged = design.fifo(memory, "w", self.tile_m * self.k * 2, 2);
            let w = design.fifo(tile, "w", self.rows * self.k * 2, 1);
            let x = design.fifo(tile, "x", self.k * 2, 1);
            let y = design.fifo(tile, "y", (self.tile_m * 2).max(4), 1);
            let out = design.fifo(memory, "y", (self.tile_m * 2).max(4), 1);
            design.fill(memory.channel(Direction::S2mm, 0), &staged);
            design.drain(memory.channel(Direction::Mm2s, 0), &staged);
            design.fill(tile.channel(Direction::S2mm, 0), &w);
            design.fill(tile.channel(Direction::S2mm, 1), &x);
            design.drain(tile.channel(Direction::Mm2s, 0), &y);
            design.fill(memory.channel(Direction::S2mm, 1), &out);
            design.drain(memory.channel(Direction::Mm2s, 1), &out);
            design.route(from_dram(column, 0), &[memory.channel(Direction::S2mm, 0)]);
            design.route(memory.channel(Direction::Mm2s, 0), &[tile.channel(Direction::S2mm, 0)]);
            design.route(from_dram(column, 1), &[tile.channel(Direction::S2mm, 1)]);
            design.route(tile.channel(Direction::Mm2s, 0), &[memory.channel(Direction::S2mm, 1)]);
            design.route(memory.channel(Direction::Mm2s, 1), &[to_dram(column, 0)]);
            let operands = vec![w.slot(0), x.slot(0), CallOperand::whole(y.slots[0])];
            let iteration = vec![
                x.acquire_full(),
                w.acquire_full(),
                call("gemv_bf16", operands, &[self.rows, self.k]),
                x.release_empty(),
                w.release_empty(),
            ];
            let zero = call("zero_f32", vec![CallOperand::whole(y.slots[0])], &[self.tile_m.div_ceil(2)]);
            design.core(
                tile,
                vec![repeat(
                    points,
                    vec![y.acquire_empty(), zero, repeat(calls, iteration), y.release_full()],
                )],
            );
        }
        self.commands(&mut design, points, calls);
        design
    }

    /// Pushes one task per stream: a column's weights point by point, the vector
    /// once per call, and the results point by point.
    fn commands(&self, design: &mut Design, points: u64, calls: u64) {
        let herd = u64::from(self.herd);
        let piece = self.tile_m * self.k * 2;
        let y = (self.tile_m * 2).max(4);
        for column in 0..self.herd {
            let results = DesignTransfer::runs(2, points, y, y * herd);
            design.push_results(to_dram(column, 0), &results, u64::from(column) * y);
            design.push(from_dram(column, 0), &DesignTransfer::runs(0, points, piece, piece * herd));
            let x =
                DesignTransfer { argument: 1, dims: vec![(points * calls, 0), (self.k / 2, 1)], repeats: 1 };
            design.push(from_dram(column, 1), &x);
        }
        (0..self.herd).for_each(|column| design.wait(to_dram(column, 0)));
    }
}
