//! Measured FlashAttention of mlir-air (`attn_npu2.py`): four cascade stages in
//! the rows, query tiles and heads in the columns. Every tile receives all query
//! tiles of its head and keeps one; each stage sees a quarter of the keys. No
//! buffers take turns.

use girih_tensor::Result;

use super::design::{
    Design, Fifo, Transfer, argument, buffer, call, divides, from_dram, repeat, to_dram, work,
};
use crate::form::schedule::{CallOperand, Channel, CoreInstruction, Direction, Tile};

/// Attention with its tiles.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attend {
    /// Query rows and keys.
    pub rows: u64,
    pub keys: u64,
    /// Components of a head, of keys and of values.
    pub size: u64,
    pub values: u64,
    /// Query heads.
    pub heads: u64,
    pub causal: bool,
    /// Query tiles and heads side by side; their product is 8.
    pub q_tiles: u8,
    pub side: u8,
}

const STAGES: u8 = 4;
/// Rows of a query tile, and keys of a chunk.
const CHUNK: u64 = 64;

/// What the streams of a stage and head pass through.
struct Relay {
    qk: Fifo,
    v: Fifo,
}

impl Attend {
    /// Pieces that the components of queries and keys come in.
    fn depth(&self) -> u64 {
        self.size / CHUNK
    }

    fn chunks(&self) -> u64 {
        self.keys / CHUNK / u64::from(STAGES)
    }

    fn points(&self) -> u64 {
        let blocks = self.rows / (CHUNK * u64::from(self.q_tiles));
        blocks * (self.heads / u64::from(self.side)) * (self.values / CHUNK)
    }

    /// Whether the tiles divide the heads and could lie in an array.
    ///
    /// # Errors
    /// When they do not; the error says which size is at fault.
    pub fn fits(&self) -> Result<()> {
        let Attend { rows, keys, size, values, heads, .. } = *self;
        divides("the number of query rows", rows, CHUNK * u64::from(self.q_tiles))?;
        divides("the number of keys", keys, CHUNK * u64::from(STAGES))?;
        divides("a head's size", size, CHUNK)?;
        divides("the size of a head's values", values, CHUNK)?;
        divides("the number of heads", heads, u64::from(self.side))?;
        buffer("a query tile", CHUNK * size * 2)?;
        argument("the queries", (rows * heads).saturating_mul(size * 2))?;
        argument("the keys", (keys * heads).saturating_mul(size * 2))?;
        argument("the values", (keys * heads).saturating_mul(values * 2))?;
        work(self.points(), self.chunks())
    }

    /// The launch.
    pub fn design(&self, name: &str) -> Design {
        let mut design = Design::new(name, 4);
        for head in 0..self.side {
            for stage in 0..STAGES {
                let relay = self.relay(&mut design, head, stage);
                debug_assert_eq!(relay.qk.tile(), relay.v.tile(), "a relay lies in one tile");
            }
            for tile in 0..self.q_tiles {
                let column = head * self.q_tiles + tile;
                for stage in 0..STAGES {
                    self.core(&mut design, column, stage);
                }
                for stage in 1..STAGES {
                    design.cascade(Tile::new(column, 2 + stage), Tile::new(column, 1 + stage));
                }
            }
        }
        self.outputs(&mut design);
        self.commands(&mut design);
        design
    }

    /// The memory tile of a stage of a head: one of the head's columns.
    fn relay_column(&self, head: u8, stage: u8) -> u8 {
        head * self.q_tiles + stage % self.q_tiles.min(STAGES)
    }

    fn relay(&self, design: &mut Design, head: u8, stage: u8) -> Relay {
        let column = self.relay_column(head, stage);
        let memory = Tile::new(column, 1);
        let row = |number: u8| -> Vec<Channel> {
            let columns = (0..self.q_tiles).map(|tile| head * self.q_tiles + tile);
            columns.map(|column| Tile::new(column, 2 + stage).channel(Direction::S2mm, number)).collect()
        };
        let bytes = CHUNK * CHUNK * 2;
        let mut pass = |number: u8, name: &str| {
            let fifo = design.fifo(memory, name, bytes, 1);
            design.fill(memory.channel(Direction::S2mm, number), &fifo);
            design.drain(memory.channel(Direction::Mm2s, number), &fifo);
            design.route(from_dram(column, number), &[memory.channel(Direction::S2mm, number)]);
            design.route(memory.channel(Direction::Mm2s, number), &row(number));
            fifo
        };
        Relay { qk: pass(0, "qk"), v: pass(1, "v") }
    }

    fn core(&self, design: &mut Design, column: u8, stage: u8) {
        let tile = Tile::new(column, 2 + stage);
        let bytes = CHUNK * CHUNK * 2;
        let qk = design.fifo(tile, "qk", bytes, 1);
        let v = design.fifo(tile, "v", bytes, 1);
        design.fill(tile.channel(Direction::S2mm, 0), &qk);
        design.fill(tile.channel(Direction::S2mm, 1), &v);
        let q = design.buffer(tile, "q", (CHUNK * self.size * 2) as u32);
        let start = design.buffer(tile, "start", 64);
        // The measured kernels keep their state in bf16.
        let words = CHUNK * (CHUNK + 2) / 2;
        let state = CallOperand::whole(design.buffer(tile, "state", (words * 4) as u32));
        let other = CallOperand::whole(design.buffer(tile, "other", (words * 4) as u32));
        let shape = [CHUNK, CHUNK];
        let mut body = vec![call("attend_clear", vec![state.clone()], &shape)];
        let depth = self.depth();
        let tile_of_q = u64::from(column % self.q_tiles);
        for sent in 0..u64::from(self.q_tiles) * depth {
            body.push(qk.take());
            if sent / depth == tile_of_q {
                body.push(call("copy", vec![qk.turn(0), CallOperand::whole(q)], &[CHUNK * CHUNK]));
            }
            body.push(qk.give_back());
        }
        body.push(repeat(
            self.chunks(),
            self.chunk(&qk, &v, CallOperand::whole(q), CallOperand::whole(start), &state),
        ));
        if stage + 1 < STAGES {
            body.push(call("receive", vec![other.clone()], &[words]));
            body.push(call("attend_merge", vec![other, state.clone()], &shape));
        }
        if stage > 0 {
            body.push(call("send", vec![state], &[words]));
        } else {
            let y = design.fifo(tile, "y", bytes, 1);
            design.drain(tile.channel(Direction::Mm2s, 0), &y);
            body.extend([
                y.reserve(),
                call("attend_store", vec![state, CallOperand::whole(y.slots[0])], &shape),
                y.pass_on(),
            ]);
        }
        design.core(tile, vec![repeat(self.points(), body)]);
    }

    fn chunk(
        &self,
        qk: &Fifo,
        v: &Fifo,
        q: CallOperand,
        start: CallOperand,
        state: &CallOperand,
    ) -> Vec<CoreInstruction> {
        let numbers = [CHUNK, self.size, CHUNK, CHUNK, 1, 0, 0, u64::from(self.causal), 0, 0];
        let mut body: Vec<CoreInstruction> =
            (1..self.depth()).flat_map(|_| [qk.take(), qk.give_back()]).collect();
        body.extend([
            qk.take(),
            v.take(),
            call("attend", vec![q, qk.turn(1), v.turn(1), start, state.clone()], &numbers),
            qk.give_back(),
            v.give_back(),
        ]);
        body
    }

    /// The lowest stage's results gather in a memory tile of the head.
    fn outputs(&self, design: &mut Design) {
        let bytes = CHUNK * CHUNK * 2;
        for head in 0..self.side {
            // A memory tile has four inputs left beside the two of its relay.
            let column = head * self.q_tiles;
            let mut gathered = Vec::new();
            for tile in 0..self.q_tiles {
                let memory = Tile::new(column + tile / 4, 1);
                let fifo = design.fifo(memory, "y", bytes, 1);
                let channel = memory.channel(Direction::S2mm, 2 + tile % 4);
                design.fill(channel, &fifo);
                design.route(Tile::new(column + tile, 2).channel(Direction::Mm2s, 0), &[channel]);
                gathered.push(fifo);
            }
            for (part, fifos) in (0u8..).zip(gathered.chunks(4)) {
                let memory = Tile::new(column + part, 1);
                design.drain_all(memory.channel(Direction::Mm2s, 2), &fifos.iter().collect::<Vec<_>>());
                design.route(memory.channel(Direction::Mm2s, 2), &[to_dram(column + part, 0)]);
            }
        }
    }

    fn commands(&self, design: &mut Design) {
        let (piece, run) = (CHUNK * CHUNK * 2, CHUNK * 2);
        let stride = self.heads * self.size * 2;
        let depth = self.size * 2;
        let q = Transfer::runs(0, u64::from(self.q_tiles) * CHUNK, depth, stride);
        let k = Transfer::runs(1, self.chunks() * CHUNK, depth, stride);
        let v = Transfer::runs(2, self.chunks() * CHUNK, run, stride);
        let parts = self.q_tiles.div_ceil(4);
        let y = Transfer::runs(3, u64::from(self.q_tiles / parts) * piece / run, run, stride);
        for _ in 0..self.points() {
            for head in 0..self.side {
                for stage in 0..STAGES {
                    let column = self.relay_column(head, stage);
                    design.push(from_dram(column, 0), &q, false);
                    design.push(from_dram(column, 0), &k, false);
                    design.push(from_dram(column, 1), &v, false);
                }
                for part in 0..parts {
                    design.push(to_dram(head * self.q_tiles + part, 0), &y, true);
                }
            }
            for head in 0..self.side {
                (0..parts).for_each(|part| design.wait(to_dram(head * self.q_tiles + part, 0)));
            }
        }
    }
}
