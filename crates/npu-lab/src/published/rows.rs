//! Measured kernels on elements and rows: every tile has its own streams from
//! and to DRAM, and double buffers.

use girih_npu::form::schedule::{Affine, CallOperand, Channel, CoreInstruction, Direction, Tile};
use girih_tensor::{Error, Result};

use super::design::{
    Design, DesignTransfer, argument, buffer, call, calls, divides, from_dram, repeat, to_dram,
};

/// A kernel on elements or rows.
#[derive(Clone, Debug)]
pub(super) struct RowKernel {
    pub entry: &'static str,
    /// The numbers of a call.
    pub numbers: Vec<u64>,
    /// Bytes of each operand that is streamed in, and of the one streamed out.
    pub inputs: Vec<u64>,
    pub output: u64,
    /// Bytes of operands that are loaded once; they follow the inputs.
    pub constants: Vec<u64>,
    /// Calls of all tiles together.
    pub calls: u64,
    /// Columns and rows of tiles.
    pub herd: (u8, u8),
    /// Whether each core takes one contiguous part of the data. Otherwise cores
    /// take pieces in rotation, as `scf.parallel` assigns them.
    pub contiguous: bool,
}

/// The maximum number of columns and rows of cores that a measured kernel uses.
const MAX_HERD: (u8, u8) = (8, 4);

/// Streams of all shims in each direction: two per column.
const SHIM_STREAMS: usize = 16;

/// Columns and rows of tiles, if an array has them.
///
/// # Errors
/// When the herd is larger than the array.
pub(super) fn herd(columns: u64, rows: u64) -> Result<(u8, u8)> {
    let within = |size: u64, max: u8| u8::try_from(size).ok().filter(|size| (1..=max).contains(size));
    within(columns, MAX_HERD.0).zip(within(rows, MAX_HERD.1)).ok_or_else(|| {
        let (max_columns, max_rows) = MAX_HERD;
        Error::new(format!(
            "a herd of {columns}×{rows} tiles does not fit an array, which has {max_columns}×{max_rows}: correct the row"
        ))
    })
}

impl RowKernel {
    /// A kernel on `n` elements of bf16; each call takes `tile` of them.
    pub fn elements(entry: &'static str, inputs: usize, n: u64, tile: u64, herd: (u8, u8)) -> RowKernel {
        RowKernel {
            entry,
            numbers: vec![tile],
            inputs: vec![tile * 2; inputs],
            output: tile * 2,
            constants: Vec::new(),
            calls: n / tile,
            herd,
            contiguous: false,
        }
    }

    /// Checks that the tiles divide the calls, and that the array has streams
    /// and memory for them.
    ///
    /// # Errors
    /// When a size does not fit; the error names it.
    pub fn fits(&self) -> Result<()> {
        let (columns, rows) = self.herd;
        let tiles = u64::from(columns) * u64::from(rows);
        divides("the number of calls", self.calls, tiles)?;
        calls(self.calls / tiles)?;
        let streams = self.inputs.len() + usize::from(!self.constants.is_empty());
        if tiles as usize * streams.max(1) > SHIM_STREAMS {
            return Err(Error::new(format!(
                "{tiles} tiles with {streams} streams each exceed the {SHIM_STREAMS} streams of the shims: correct the row"
            )));
        }
        for &bytes in self.inputs.iter().chain([&self.output]) {
            buffer("an operand", bytes)?;
            argument("an argument", bytes * self.calls)?;
        }
        self.constants.iter().try_for_each(|&bytes| buffer("a constant", bytes))
    }

    /// The launch.
    pub fn design(&self, name: &str) -> Design {
        let (columns, rows) = self.herd;
        let tiles = u64::from(columns) * u64::from(rows);
        let streams = self.inputs.len() + usize::from(!self.constants.is_empty());
        let mut design = Design::new(name, streams + 1);
        let mut ports = Ports::default();
        let calls = self.calls / tiles;
        let mut ends = Vec::new();
        for at in 0..tiles as u8 {
            let tile = Tile::new(at % columns, 2 + at / columns);
            let (mut program, mut operands) = (Vec::new(), Vec::new());
            let (mut before, mut after) = (Vec::new(), Vec::new());
            for (number, &bytes) in (0u8..).zip(&self.inputs) {
                let fifo = design.fifo(tile, "in", bytes, 2);
                let channel = tile.channel(Direction::S2mm, number);
                design.fill(channel, &fifo);
                let from = ports.next(Direction::Mm2s, at);
                design.route(from, &[channel]);
                design.push(from, &self.piece(u32::from(number), bytes, calls, tiles));
                before.push(fifo.acquire_full());
                after.push(fifo.release_empty());
                operands.push(fifo.slot(0));
            }
            if !self.constants.is_empty() {
                // All constants share one buffer and arrive in order.
                let number = self.inputs.len() as u8;
                let fifo = design.fifo(tile, "constants", self.constants.iter().sum(), 1);
                let channel = tile.channel(Direction::S2mm, number);
                design.fill(channel, &fifo);
                let from = ports.next(Direction::Mm2s, at);
                design.route(from, &[channel]);
                design.push(from, &DesignTransfer::linear(u32::from(number), self.constants.iter().sum()));
                program.push(fifo.acquire_full());
                let mut offset = 0;
                for &bytes in &self.constants {
                    let whole = CallOperand::whole(fifo.slots[0]);
                    operands.push(CallOperand { offset: Affine::constant(offset), ..whole });
                    offset += bytes.cast_signed();
                }
            }
            let out = design.fifo(tile, "out", self.output, 2);
            let channel = tile.channel(Direction::Mm2s, 0);
            design.drain(channel, &out);
            let to = ports.next(Direction::S2mm, at);
            design.route(channel, &[to]);
            let offset = u64::from(at) * if self.contiguous { self.output * calls } else { self.output };
            design.push_results(to, &self.piece(streams as u32, self.output, calls, tiles), offset);
            operands.push(out.slot(0));
            before.push(out.acquire_empty());
            after.push(out.release_full());
            let mut body: Vec<CoreInstruction> = before;
            body.push(call(self.entry, operands, &self.numbers));
            body.extend(after);
            program.push(repeat(calls, body));
            design.core(tile, program);
            ends.push(to);
        }
        ends.into_iter().for_each(|end| design.wait(end));
        design
    }

    fn piece(&self, argument: u32, bytes: u64, calls: u64, tiles: u64) -> DesignTransfer {
        if self.contiguous {
            DesignTransfer::linear(argument, bytes * calls)
        } else {
            DesignTransfer::runs(argument, calls, bytes, bytes * tiles)
        }
    }
}

/// Assigns channels of the shims, two per column and direction. Tile `n` gets
/// those of column `n` first, then free ones of the following columns.
#[derive(Default)]
struct Ports {
    used: Vec<Channel>,
}

impl Ports {
    fn next(&mut self, direction: Direction, at: u8) -> Channel {
        let shim = |(number, column): (u8, u8)| match direction {
            Direction::Mm2s => from_dram(column, number),
            Direction::S2mm => to_dram(column, number),
        };
        let order = (0..8).flat_map(|next| (0..2).map(move |number| (number, (at + next) % 8)));
        let free = order.map(shim).find(|channel| !self.used.contains(channel));
        let channel = free.expect("`fits` has limited the streams to the shims' channels");
        self.used.push(channel);
        channel
    }
}
