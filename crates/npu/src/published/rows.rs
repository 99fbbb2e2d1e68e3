//! Measured kernels on elements and rows: every tile has its own streams from
//! and to DRAM, and buffers that take turns.

use girih_tensor::{Error, Result};

use super::design::{Design, Transfer, argument, buffer, call, calls, divides, from_dram, repeat, to_dram};
use crate::form::schedule::{Affine, CallOperand, Channel, CoreInstruction, Direction, Tile};

/// A kernel that walks over elements or rows.
#[derive(Clone, Debug)]
pub(super) struct Walk {
    pub entry: &'static str,
    /// The numbers of a call.
    pub numbers: Vec<u64>,
    /// Bytes of each operand that streams in, and of the one that streams out.
    pub inputs: Vec<u64>,
    pub output: u64,
    /// Bytes of operands that are loaded once, behind the inputs.
    pub constants: Vec<u64>,
    /// Calls of all tiles together.
    pub calls: u64,
    /// Columns and rows of tiles.
    pub herd: (u8, u8),
}

/// Columns and rows of tiles that measured arrays have for a kernel.
const HERD: (u8, u8) = (8, 4);

/// Streams that shims have for each direction, two a column.
const STREAMS: usize = 16;

/// Columns and rows of tiles, if an array has so many.
///
/// # Errors
/// When it has fewer.
pub(super) fn herd(columns: u64, rows: u64) -> Result<(u8, u8)> {
    let within = |size: u64, most: u8| u8::try_from(size).ok().filter(|size| (1..=most).contains(size));
    within(columns, HERD.0).zip(within(rows, HERD.1)).ok_or_else(|| {
        let (most_columns, most_rows) = HERD;
        Error::new(format!(
            "a herd of {columns}×{rows} tiles does not fit an array, which has {most_columns}×{most_rows}: correct the row"
        ))
    })
}

impl Walk {
    /// Whether the calls divide among the tiles, and could be fed on an array.
    ///
    /// # Errors
    /// When they cannot; the error says what is at fault.
    pub fn fits(&self) -> Result<()> {
        let (columns, rows) = self.herd;
        let tiles = u64::from(columns) * u64::from(rows);
        divides("the number of calls", self.calls, tiles)?;
        calls(self.calls / tiles)?;
        let streams = self.inputs.len() + usize::from(!self.constants.is_empty());
        if tiles as usize * streams.max(1) > STREAMS {
            return Err(Error::new(format!(
                "{tiles} tiles with {streams} streams each are over {STREAMS}, which shims have: correct the row"
            )));
        }
        for &bytes in self.inputs.iter().chain([&self.output]) {
            buffer("an operand", bytes)?;
            argument("an argument", bytes * self.calls)?;
        }
        self.constants.iter().try_for_each(|&bytes| buffer("a constant", bytes))
    }

    /// The launch. Tiles take pieces in turn, as `scf.parallel` hands them out,
    /// or a contiguous part each where `parts` says so.
    pub fn design(&self, name: &str, parts: bool) -> Design {
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
                design.push(from, &self.piece(u32::from(number), bytes, calls, tiles, parts), false);
                before.push(fifo.take());
                after.push(fifo.give_back());
                operands.push(fifo.turn(0));
            }
            if !self.constants.is_empty() {
                // Constants come one after another into one buffer.
                let number = self.inputs.len() as u8;
                let fifo = design.fifo(tile, "constants", self.constants.iter().sum(), 1);
                let channel = tile.channel(Direction::S2mm, number);
                design.fill(channel, &fifo);
                let from = ports.next(Direction::Mm2s, at);
                design.route(from, &[channel]);
                design.push(from, &Transfer::linear(u32::from(number), self.constants.iter().sum()), false);
                program.push(fifo.take());
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
            design.push(to, &self.piece(streams as u32, self.output, calls, tiles, parts), true);
            operands.push(out.turn(0));
            before.push(out.reserve());
            after.push(out.pass_on());
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

    fn piece(&self, argument: u32, bytes: u64, calls: u64, tiles: u64, parts: bool) -> Transfer {
        if parts {
            Transfer::linear(argument, bytes * calls)
        } else {
            Transfer::runs(argument, calls, bytes, bytes * tiles)
        }
    }
}

/// Channels of the shims, two a column and direction; a tile has those of the
/// column of its number first, then the next that are free.
#[derive(Default)]
struct Ports {
    taken: Vec<Channel>,
}

impl Ports {
    fn next(&mut self, direction: Direction, at: u8) -> Channel {
        let shim = |(number, column): (u8, u8)| match direction {
            Direction::Mm2s => from_dram(column, number),
            Direction::S2mm => to_dram(column, number),
        };
        let order = (0..8).flat_map(|next| (0..2).map(move |number| (number, (at + next) % 8)));
        let free = order.map(shim).find(|channel| !self.taken.contains(channel));
        let channel = free.expect("a published design has channels for all its streams");
        self.taken.push(channel);
        channel
    }
}
