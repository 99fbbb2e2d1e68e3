//! Measured FlashAttention of mlir-air (`attn_npu2.py`): four cascade stages in
//! the rows, query tiles and heads in the columns. Every core receives all query
//! tiles of its head and keeps one; each stage reads a quarter of the keys.
//! Nothing is double-buffered.

use girih_npu::form::schedule::{Affine, CallOperand, Channel, CoreInstruction, Direction, Tile};
use girih_tensor::Result;

use super::design::{
    Design, DesignTransfer, Fifo, argument, buffer, call, divides, from_dram, repeat, to_dram, work,
};
use super::rows::herd;

/// FlashAttention with its tiles.
#[derive(Clone, Copy, Debug)]
pub(super) struct AirAttention {
    /// Query rows and keys.
    pub rows: u64,
    pub keys: u64,
    /// Head sizes: components of a key and of a value.
    pub size: u64,
    pub values: u64,
    /// Query heads.
    pub heads: u64,
    pub causal: bool,
    /// Query tiles of a head, and heads side by side; their product is 8: one each per column.
    pub q_tiles: u8,
    pub heads_abreast: u8,
}

const CASCADE_STAGES: u8 = 4;
/// Rows of a query tile, and keys of a chunk.
const ATTENTION_CHUNK: u64 = 64;

/// The memory-tile buffers of one stage of a head.
struct Relay {
    qk: Fifo,
    v: Fifo,
}

impl AirAttention {
    /// Pieces that a query or key is split into.
    fn depth(&self) -> u64 {
        self.size / ATTENTION_CHUNK
    }

    fn chunks(&self) -> u64 {
        self.keys / ATTENTION_CHUNK / u64::from(CASCADE_STAGES)
    }

    fn points(&self) -> u64 {
        let blocks = self.rows / (ATTENTION_CHUNK * u64::from(self.q_tiles));
        blocks * (self.heads / u64::from(self.heads_abreast)) * (self.values / ATTENTION_CHUNK)
    }

    /// Checks that the tiles divide the heads and fit an array.
    ///
    /// # Errors
    /// When a size does not fit; the error names it.
    pub fn fits(&self) -> Result<()> {
        let AirAttention { rows, keys, size, values, heads, .. } = *self;
        // Each stage of a head has a column of its own, and a memory tile gathers four results.
        divides("the number of query tiles", u64::from(self.q_tiles), u64::from(CASCADE_STAGES))?;
        herd(u64::from(self.q_tiles) * u64::from(self.heads_abreast), u64::from(CASCADE_STAGES))?;
        divides("the number of query rows", rows, ATTENTION_CHUNK * u64::from(self.q_tiles))?;
        divides("the number of keys", keys, ATTENTION_CHUNK * u64::from(CASCADE_STAGES))?;
        divides("a head's size", size, ATTENTION_CHUNK)?;
        divides("the size of a head's values", values, ATTENTION_CHUNK)?;
        divides("the number of heads", heads, u64::from(self.heads_abreast))?;
        buffer("a query tile", ATTENTION_CHUNK * size * 2)?;
        argument("the queries", (rows * heads).saturating_mul(size * 2))?;
        argument("the keys", (keys * heads).saturating_mul(size * 2))?;
        argument("the values", (keys * heads).saturating_mul(values * 2))?;
        work(self.points(), self.chunks())
    }

    /// The launch.
    pub fn design(&self, name: &str) -> Design {
        let mut design = Design::new(name, 4);
        for head in 0..self.heads_abreast {
            for stage in 0..CASCADE_STAGES {
                let relay = self.relay(&mut design, head, stage);
                debug_assert_eq!(relay.qk.tile(), relay.v.tile(), "a relay lies in one tile");
            }
            for tile in 0..self.q_tiles {
                let column = head * self.q_tiles + tile;
                for stage in 0..CASCADE_STAGES {
                    self.core(&mut design, column, stage);
                }
                for stage in 1..CASCADE_STAGES {
                    design.cascade(Tile::new(column, 2 + stage), Tile::new(column, 1 + stage));
                }
            }
        }
        self.outputs(&mut design);
        self.commands(&mut design);
        design
    }

    /// The column of the memory tile of a head's stage: one of the head's columns.
    fn relay_column(&self, head: u8, stage: u8) -> u8 {
        head * self.q_tiles + stage % self.q_tiles.min(CASCADE_STAGES)
    }

    fn relay(&self, design: &mut Design, head: u8, stage: u8) -> Relay {
        let column = self.relay_column(head, stage);
        let memory = Tile::new(column, 1);
        let row = |number: u8| -> Vec<Channel> {
            let columns = (0..self.q_tiles).map(|tile| head * self.q_tiles + tile);
            columns.map(|column| Tile::new(column, 2 + stage).channel(Direction::S2mm, number)).collect()
        };
        let bytes = ATTENTION_CHUNK * ATTENTION_CHUNK * 2;
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
        let bytes = ATTENTION_CHUNK * ATTENTION_CHUNK * 2;
        let qk = design.fifo(tile, "qk", bytes, 1);
        let v = design.fifo(tile, "v", bytes, 1);
        design.fill(tile.channel(Direction::S2mm, 0), &qk);
        design.fill(tile.channel(Direction::S2mm, 1), &v);
        let q = design.buffer(tile, "q", (ATTENTION_CHUNK * self.size * 2) as u32);
        let start = design.buffer(tile, "start", 64);
        // The measured kernels keep their state in bf16.
        let words = ATTENTION_CHUNK * (ATTENTION_CHUNK + 2) / 2;
        let state = CallOperand::whole(design.buffer(tile, "state", (words * 4) as u32));
        let other = CallOperand::whole(design.buffer(tile, "other", (words * 4) as u32));
        let shape = [ATTENTION_CHUNK, ATTENTION_CHUNK];
        let begin = call("zero_f32", vec![CallOperand::whole(start)], &[16]);
        let mut body = vec![call("attend_clear", vec![state.clone()], &shape)];
        let depth = self.depth();
        let tile_of_q = u64::from(column % self.q_tiles);
        for sent in 0..u64::from(self.q_tiles) * depth {
            body.push(qk.acquire_full());
            if sent / depth == tile_of_q {
                let offset = Affine::constant((sent % depth * bytes).cast_signed());
                let part = CallOperand { offset, ..CallOperand::whole(q) };
                body.push(call("copy", vec![qk.slot(0), part], &[ATTENTION_CHUNK * ATTENTION_CHUNK]));
            }
            body.push(qk.release_empty());
        }
        body.push(repeat(
            self.chunks(),
            self.chunk(&qk, &v, CallOperand::whole(q), CallOperand::whole(start), &state),
        ));
        if stage + 1 < CASCADE_STAGES {
            body.push(call("receive", vec![other.clone()], &[words]));
            body.push(call("attend_merge", vec![other, state.clone()], &shape));
        }
        if stage > 0 {
            body.push(call("send", vec![state], &[words]));
        } else {
            let y = design.fifo(tile, "y", bytes, 1);
            design.drain(tile.channel(Direction::Mm2s, 0), &y);
            body.extend([
                y.acquire_empty(),
                call("attend_store", vec![state, CallOperand::whole(y.slots[0])], &shape),
                y.release_full(),
            ]);
        }
        design.core(tile, vec![begin, repeat(self.points(), body)]);
    }

    fn chunk(
        &self,
        qk: &Fifo,
        v: &Fifo,
        q: CallOperand,
        start: CallOperand,
        state: &CallOperand,
    ) -> Vec<CoreInstruction> {
        let numbers = [
            ATTENTION_CHUNK,
            self.size,
            ATTENTION_CHUNK,
            ATTENTION_CHUNK,
            1,
            0,
            0,
            u64::from(self.causal),
            0,
            0,
        ];
        let mut body: Vec<CoreInstruction> =
            (1..self.depth()).flat_map(|_| [qk.acquire_full(), qk.release_empty()]).collect();
        body.extend([
            qk.acquire_full(),
            v.acquire_full(),
            call("attend", vec![q, qk.slot(1), v.slot(1), start, state.clone()], &numbers),
            qk.release_empty(),
            v.release_empty(),
        ]);
        body
    }

    /// Gathers the lowest stage's results in a memory tile of the head.
    fn outputs(&self, design: &mut Design) {
        let bytes = ATTENTION_CHUNK * ATTENTION_CHUNK * 2;
        for head in 0..self.heads_abreast {
            // A memory tile has four inputs left besides the two of its relay.
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
        let (piece, run) = (ATTENTION_CHUNK * ATTENTION_CHUNK * 2, ATTENTION_CHUNK * 2);
        let stride = self.heads * self.size * 2;
        let depth = self.size * 2;
        let q = DesignTransfer::runs(0, u64::from(self.q_tiles) * ATTENTION_CHUNK, depth, stride);
        let k = DesignTransfer::runs(1, self.chunks() * ATTENTION_CHUNK, depth, stride);
        let v = DesignTransfer::runs(2, self.chunks() * ATTENTION_CHUNK, run, stride);
        let parts = self.q_tiles.div_ceil(4);
        let y = DesignTransfer::runs(3, u64::from(self.q_tiles / parts) * piece / run, run, stride);
        for _ in 0..self.points() {
            for head in 0..self.heads_abreast {
                for stage in 0..CASCADE_STAGES {
                    let column = self.relay_column(head, stage);
                    design.push(from_dram(column, 0), &q);
                    design.push(from_dram(column, 0), &k);
                    design.push(from_dram(column, 1), &v);
                }
                for part in 0..parts {
                    let rows = u64::from(part) * u64::from(self.q_tiles / parts) * ATTENTION_CHUNK;
                    let offset = rows * stride + u64::from(head) * run;
                    design.push_results(to_dram(head * self.q_tiles + part, 0), &y, offset);
                }
            }
            for head in 0..self.heads_abreast {
                (0..parts).for_each(|part| design.wait(to_dram(head * self.q_tiles + part, 0)));
            }
        }
    }
}
