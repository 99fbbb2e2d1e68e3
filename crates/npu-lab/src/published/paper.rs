//! Measured matmuls of arXiv 2512.13282: A is broadcast over a row of tiles, B
//! down a column; L2 holds a chunk of `k`, and the result has one buffer.

use girih_npu::form::schedule::{CallOperand, Channel, Direction, Tile};
use girih_tensor::Result;

use super::design::{
    Design, DesignTransfer, Fifo, argument, buffer, call, divides, from_dram, repeat, to_dram, work,
};

/// A matmul with its tiles.
#[derive(Clone, Copy, Debug)]
pub(super) struct PaperGemm {
    pub entry: &'static str,
    pub m: u64,
    pub k: u64,
    pub n: u64,
    /// A tile of the result, and the step of `k` in L1.
    pub tile_m: u64,
    pub tile_k: u64,
    pub tile_n: u64,
    /// Bytes of an operand's element, and of the result's.
    pub input: u64,
    pub output: u64,
    /// Columns and rows of tiles.
    pub herd: (u8, u8),
    /// The step of `k` in L2, which is contiguous in DRAM.
    pub deep_k: u64,
    /// Whether B is stored in the order in which it is read, so that all of a step is contiguous.
    pub tiled_b: bool,
    /// Columns of shims that read A for a row of tiles: one, or two with a half of each step.
    pub a_feeds: u8,
}

impl PaperGemm {
    fn points(&self) -> u64 {
        let (columns, rows) = (u64::from(self.herd.0), u64::from(self.herd.1));
        self.m.div_ceil(self.tile_m * rows) * self.n.div_ceil(self.tile_n * columns)
    }

    /// The number of L1 steps of `k`, including those that pad the last L2
    /// step.
    fn steps(&self) -> u64 {
        self.k.div_ceil(self.deep_k) * (self.deep_k / self.tile_k)
    }

    /// Checks that the tiles fit an array; sizes that they do not divide are
    /// padded.
    ///
    /// # Errors
    /// When a size does not fit; the error names it.
    pub fn fits(&self) -> Result<()> {
        let PaperGemm { m, k, n, tile_m, tile_k, tile_n, input, output, deep_k, .. } = *self;
        divides("the step of k in L2", deep_k, tile_k)?;
        divides("the tile's m", tile_m, u64::from(self.a_feeds))?;
        // Transfers move whole words.
        divides("the byte count of k in L2", deep_k * input, 4)?;
        divides("the byte count of a tile's row", tile_n * output, 4)?;
        for side in [tile_m, tile_n] {
            buffer("an operand in L2", side * deep_k * input)?;
            buffer("an operand in L1", side * tile_k * input)?;
            argument("an operand", (side * k.div_ceil(deep_k)).saturating_mul(k * input))?;
        }
        buffer("the sums", tile_m * tile_n * output)?;
        argument("the result", m * n * output)?;
        work(self.points(), self.steps())
    }

    /// The launch.
    pub fn design(&self, name: &str) -> Design {
        let mut design = Design::new(name, 3);
        let (columns, rows) = self.herd;
        for column in 0..columns {
            for row in 0..rows {
                self.core(&mut design, Tile::new(column, 2 + row));
            }
        }
        for row in 0..rows {
            let ends: Vec<Channel> =
                (0..columns).map(|column| Tile::new(column, 2 + row).channel(Direction::S2mm, 0)).collect();
            // With eight columns, only every other column reads for a row of tiles.
            self.feed(&mut design, row * (columns / rows), self.a_feeds, 0, self.tile_m, &ends);
        }
        for column in 0..columns {
            let ends: Vec<Channel> =
                (0..rows).map(|row| Tile::new(column, 2 + row).channel(Direction::S2mm, 1)).collect();
            self.feed(&mut design, column, 1, 1, self.tile_n, &ends);
            self.collect(&mut design, column);
        }
        self.commands(&mut design);
        design
    }

    /// Passes an operand from `feeds` neighbouring shims through the memory tile of the first.
    fn feed(&self, design: &mut Design, column: u8, feeds: u8, number: u8, side: u64, ends: &[Channel]) {
        let memory = Tile::new(column, 1);
        let bytes = side * self.deep_k * self.input / u64::from(feeds);
        let parts: Vec<Fifo> = (0..feeds).map(|_| design.fifo(memory, "in", bytes, 2)).collect();
        for (column, part) in (column..).zip(&parts) {
            let channel = Tile::new(column, 1).channel(Direction::S2mm, number);
            design.fill(channel, part);
            design.route(from_dram(column, number), &[channel]);
        }
        design.drain_all(memory.channel(Direction::Mm2s, number), &parts.iter().collect::<Vec<_>>());
        design.route(memory.channel(Direction::Mm2s, number), ends);
    }

    fn core(&self, design: &mut Design, tile: Tile) {
        let a = design.fifo(tile, "a", self.tile_m * self.tile_k * self.input, 2);
        let b = design.fifo(tile, "b", self.tile_n * self.tile_k * self.input, 2);
        let c = design.fifo(tile, "c", self.tile_m * self.tile_n * self.output, 1);
        design.fill(tile.channel(Direction::S2mm, 0), &a);
        design.fill(tile.channel(Direction::S2mm, 1), &b);
        design.drain(tile.channel(Direction::Mm2s, 0), &c);
        let sums = CallOperand::whole(c.slots[0]);
        let numbers = [self.tile_m, self.tile_n, self.tile_k];
        let step = vec![
            a.acquire_full(),
            b.acquire_full(),
            call(self.entry, vec![a.slot(1), b.slot(1), sums.clone()], &numbers),
            a.release_empty(),
            b.release_empty(),
        ];
        let words = self.tile_m * self.tile_n * self.output / 4;
        let body = vec![
            c.acquire_empty(),
            call("zero_f32", vec![sums], &[words]),
            repeat(self.steps(), step),
            c.release_full(),
        ];
        design.core(tile, vec![repeat(self.points(), body)]);
    }

    fn collect(&self, design: &mut Design, column: u8) {
        let memory = Tile::new(column, 1);
        let bytes = self.tile_m * self.tile_n * self.output;
        let outs: Vec<Fifo> = (0..self.herd.1).map(|_| design.fifo(memory, "c", bytes, 1)).collect();
        for (row, out) in (0u8..).zip(&outs) {
            let channel = memory.channel(Direction::S2mm, 2 + row);
            design.fill(channel, out);
            design.route(Tile::new(column, 2 + row).channel(Direction::Mm2s, 0), &[channel]);
        }
        design.drain_all(memory.channel(Direction::Mm2s, 2), &outs.iter().collect::<Vec<_>>());
        design.route(memory.channel(Direction::Mm2s, 2), &[to_dram(column, 0)]);
    }

    /// Writes descriptors before their transfers start, so that the array never
    /// waits for the command processor (section 4.4 of the paper).
    fn commands(&self, design: &mut Design) {
        let (columns, rows) = self.herd;
        let run = self.deep_k * self.input;
        let deep = self.k.div_ceil(self.deep_k);
        let reads = |side: u64, argument: u32| DesignTransfer::runs(argument, side * deep, run, deep * run);
        let a = reads(self.tile_m / u64::from(self.a_feeds), 0);
        let b = match self.tiled_b {
            true => DesignTransfer::linear(1, self.tile_n * deep * run),
            false => reads(self.tile_n, 1),
        };
        let c = DesignTransfer::runs(
            2,
            u64::from(rows) * self.tile_m,
            self.tile_n * self.output,
            self.n.next_multiple_of(self.tile_n) * self.output,
        );
        let mut open = 0;
        for _ in 0..self.points() {
            for column in 0..columns {
                design.push_results(to_dram(column, 0), &c, u64::from(column) * self.tile_n * self.output);
                design.push(from_dram(column, 1), &b);
            }
            let feeds = (0..rows).flat_map(|row| (0..self.a_feeds).map(move |next| (row, next)));
            feeds.for_each(|(row, next)| design.push(from_dram(row * (columns / rows) + next, 0), &a));
            open += 1;
            if open > 2 {
                (0..columns).for_each(|column| design.wait(to_dram(column, 0)));
                open -= 1;
            }
        }
        for _ in 0..open {
            (0..columns).for_each(|column| design.wait(to_dram(column, 0)));
        }
    }
}
