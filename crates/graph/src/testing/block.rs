//! Cases of whole layers, in which a backend may compute several ops at once. They have no bounds: what the steps and
//! the threads are must not change a byte.

use girih_tensor::{DType, Shape};

use super::case::Case;
use super::draft::{Begin, CaseDraft};
use super::roundoff::Roundoff;
use crate::constant::{Act, GateLimit, Pairing, RouterScore, Span, Weighed};
use crate::ops::{Op, OpName};
use crate::sequence::{Outputs, Range32};
use crate::value::ValueId;

/// What the layers of a case share.
struct Layers {
    draft: CaseDraft,
    width: usize,
    weights: DType,
    state: DType,
    pairing: Pairing,
    /// Whether layers have attention, feed-forward parts without experts, and norms of root mean squares only.
    is_plain: bool,
}

/// Query heads and KV heads.
const HEADS: [usize; 2] = [4, 2];

/// The rows of the table of tokens.
const VOCABULARY: usize = 50;

impl Layers {
    fn new(seed: u64) -> Layers {
        let mut draft = CaseDraft::new(OpName::Linear, seed, Roundoff::SINGLE, Begin::AtZero);
        // Integers without scales have numbers that a state in f16 cannot hold.
        let formats: Vec<DType> =
            DType::ALL.iter().copied().filter(|dtype| !matches!(dtype, DType::I8 | DType::I32)).collect();
        let weights = draft.random.of(&formats);
        let width = match weights.tile() {
            (1, 256) => 256,
            (1, 32) => draft.random.of(&[64, 128]),
            (1, 1) => draft.random.of(&[32, 40, 64]),
            (_, columns) => columns.next_multiple_of(8),
        };
        let size = width / HEADS[0];
        let states: &[DType] = match (weights.writes(), size.is_multiple_of(32)) {
            (true, true) => &[DType::Q8_0, DType::F16],
            (true, false) => &[DType::F16, DType::BF16, DType::F32],
            (false, _) => &[DType::BF16, DType::F32],
        };
        let state = draft.random.of(states);
        let pairing = draft.random.of(Pairing::ALL);
        Layers { draft, width, weights, state, pairing, is_plain: false }
    }

    /// Layers of a plain decoder with weights and keys and values in these formats, whose blocks have 32 columns.
    fn plain(seed: u64, weights: DType, state: DType) -> Layers {
        let mut draft = CaseDraft::new(OpName::Linear, seed, Roundoff::SINGLE, Begin::AtZero);
        let (width, pairing) = (draft.random.of(&[128, 256]), draft.random.of(Pairing::ALL));
        Layers { draft, width, weights, state, pairing, is_plain: true }
    }

    fn matrix(&mut self, name: &str, outputs: usize, inputs: usize) -> ValueId {
        let weights = self.weights;
        self.draft.weight(name, &[outputs, inputs], weights).0
    }

    fn linear(&mut self, name: &str, x: ValueId, [outputs, inputs]: [usize; 2]) -> ValueId {
        let mut operands = vec![x, self.matrix(&format!("{name}.weight"), outputs, inputs)];
        if self.draft.random.once_in(4) {
            operands.push(self.draft.weight(&format!("{name}.bias"), &[outputs], DType::F32).0);
        }
        self.draft.builder.shaped(name, Op::Linear, &operands, &[outputs])
    }

    /// A norm of rows or of heads, of either kind.
    fn norm(&mut self, name: &str, x: ValueId, size: usize) -> ValueId {
        let weight = self.draft.weight(&format!("{name}.weight"), &[size], DType::F32).0;
        let kinds = [Op::Norm { epsilon: 1e-5 }, Op::LayerNorm { epsilon: 1e-5 }];
        let op = self.draft.random.of(if self.is_plain { &kinds[..1] } else { &kinds });
        self.draft.builder.same(name, op, &[x, weight])
    }

    /// The heads of q, k or v.
    fn heads(&mut self, name: &str, x: ValueId, heads: usize) -> ValueId {
        let (width, size) = (self.width, self.width / HEADS[0]);
        let flat = self.linear(name, x, [heads * size, width]);
        self.draft.builder.shaped(&format!("{name}.heads"), Op::Reshape, &[flat], &[heads, size])
    }

    /// Rotated heads of q or k, some of them normed.
    fn rotated(&mut self, name: &str, x: ValueId, heads: usize, rotation: (ValueId, Option<f32>)) -> ValueId {
        let (heads, size) = (self.heads(name, x, heads), self.width / HEADS[0]);
        let normed = if self.draft.random.once_in(3) {
            self.norm(&format!("{name}.norm"), heads, size)
        } else {
            heads
        };
        let (frequencies, factor) = rotation;
        let op = Op::Rope { pairing: self.pairing, factor };
        self.draft.builder.same(&format!("{name}.rotated"), op, &[normed, frequencies])
    }

    /// Frequencies, and the factor of a rotation.
    fn rotation(&mut self, name: &str) -> (ValueId, Option<f32>) {
        let size = self.width / HEADS[0];
        let pairs = 1 + self.draft.random.below(size / 2);
        let frequencies = self.draft.weight(&format!("{name}.frequencies"), &[pairs], DType::F32).0;
        (frequencies, self.draft.random.of(&[None, Some(1.2)]))
    }

    fn attend(&mut self, name: &str, x: ValueId, span: Span) -> ValueId {
        let (width, size) = (self.width, self.width / HEADS[0]);
        let rotation = self.rotation(&format!("{name}.rope"));
        let q = self.rotated(&format!("{name}.q"), x, HEADS[0], rotation);
        let own = self.draft.random.once_in(4).then(|| self.rotation(&format!("{name}.k")));
        let k = self.rotated(&format!("{name}.k"), x, HEADS[1], own.unwrap_or(rotation));
        let mut v = self.heads(&format!("{name}.v"), x, HEADS[1]);
        if self.draft.random.once_in(3) {
            v = self.draft.builder.same(&format!("{name}.v.normed"), Op::Norm { epsilon: 1e-5 }, &[v]);
        }
        let (group, state) = (self.draft.builder.group(span), self.state);
        let [keys, values] = ["keys", "values"]
            .map(|part| self.draft.builder.state(&format!("{name}.{part}"), &[HEADS[1], size], state, group));
        self.draft.builder.write(k, keys);
        self.draft.builder.write(v, values);
        let softcap = self.draft.random.of(&[None, Some(2.0)]);
        let op = Op::Attend { scale: 0.4, span, softcap };
        let mut operands = vec![q, keys, values];
        if self.draft.random.once_in(3) {
            operands.push(self.draft.weight(&format!("{name}.sinks"), &[HEADS[0]], DType::F32).0);
        }
        let mut mixed = self.draft.builder.same(&format!("{name}.mixed"), op, &operands);
        if self.draft.random.once_in(3) {
            let gate = self.linear(&format!("{name}.head_gates"), x, [HEADS[0], width]);
            let op = Op::GateHeads { act: Act::Sigmoid };
            let inner = [HEADS[0], size];
            mixed = self.draft.builder.shaped(&format!("{name}.gated_heads"), op, &[gate, mixed], &inner);
        }
        let flat = self.draft.builder.shaped(&format!("{name}.flat"), Op::Reshape, &[mixed], &[width]);
        self.linear(&format!("{name}.o"), flat, [width, width])
    }

    fn short_conv(&mut self, name: &str, x: ValueId) -> ValueId {
        let (width, taps) = (self.width, 2 + self.draft.random.below(3));
        let weight = self.draft.weight(&format!("{name}.taps"), &[taps, width], DType::F32).0;
        let carried = self.draft.builder.carried(&format!("{name}.carried"), Shape::matrix(taps - 1, width));
        self.draft.builder.same(&format!("{name}.conv"), Op::ShortConv, &[x, weight, carried])
    }

    fn feed_forward(&mut self, name: &str, x: ValueId) -> ValueId {
        let width = self.width;
        let inner = width * (1 + self.draft.random.below(2));
        let act = self.draft.random.of(&[Act::Silu, Act::GeluTanh, Act::Gelu]);
        let [gate, up] = ["gate", "up"].map(|part| self.linear(&format!("{name}.{part}"), x, [inner, width]));
        let gated = self.draft.builder.same(&format!("{name}.gated"), Op::gate(act), &[gate, up]);
        self.linear(&format!("{name}.down"), gated, [width, inner])
    }

    fn experts(&mut self, name: &str, x: ValueId) -> ValueId {
        let (width, weights, count, used) = (self.width, self.weights, 6, 2);
        let scores = self.linear(&format!("{name}.router"), x, [count, width]);
        let route = Op::Route {
            score: RouterScore::Softmax,
            near: None,
            used,
            normalized: Some(0.0),
            groups: None,
            factor: None,
        };
        let chosen = self.draft.builder.same(&format!("{name}.route"), route, &[scores]);
        let [up, down, gate] = ["up", "down", "gate"]
            .map(|part| self.draft.weight(&format!("{name}.{part}s"), &[count, width, width], weights).0);
        let op = Op::Experts {
            used,
            act: Act::Silu,
            limit: Some(GateLimit::Activated(2.0)),
            offset: None,
            weighed: Weighed::default(),
        };
        self.draft.builder.shaped(&format!("{name}.experts"), op, &[x, chosen, up, down, gate], &[width])
    }

    fn layer(&mut self, name: &str, x: ValueId, span: Span) -> ValueId {
        let normed = self.norm(&format!("{name}.first"), x, self.width);
        let mixed = match self.draft.random.below(4) {
            0 if !self.is_plain => self.short_conv(name, normed),
            _ => self.attend(name, normed, span),
        };
        let sum = self.draft.builder.same(&format!("{name}.mixed_sum"), Op::Add, &[x, mixed]);
        let normed = self.norm(&format!("{name}.second"), sum, self.width);
        // An expert's rows are whole blocks of a format of one row.
        let more = match (self.weights.tile(), self.draft.random.below(4)) {
            ((1, _), 0) if !self.is_plain => self.experts(name, normed),
            _ => self.feed_forward(name, normed),
        };
        self.draft.builder.same(&format!("{name}.sum"), Op::Add, &[sum, more])
    }
}

/// Two layers between an embedding and a head.
pub fn draw_block(seed: u64) -> Case {
    drawn(Layers::new(seed))
}

/// The same of a plain decoder, such as Llama, with weights and state in these formats, whose blocks have at most 32 columns.
pub fn draw_decoder(seed: u64, weights: DType, state: DType) -> Case {
    drawn(Layers::plain(seed, weights, state))
}

fn drawn(mut layers: Layers) -> Case {
    let width = layers.width;
    let tokens = layers.draft.ids("tokens", VOCABULARY);
    let table = layers.matrix("table", VOCABULARY, width);
    let mut x = layers.draft.builder.shaped("embed", Op::Embed, &[tokens, table], &[width]);
    let local = layers.draft.random.of(&[Span::Window(20), Span::Chunk(20)]);
    for (name, span) in [("a", local), ("b", Span::Full)] {
        x = layers.layer(name, x, span);
    }
    let gathered = layers.draft.builder.gather("gathered", x);
    let normed = layers.norm("last", gathered, width);
    let head = layers.linear("head", normed, [VOCABULARY, width]);
    let has_spans = layers.draft.random.once_in(3);
    for sequence in &mut layers.draft.sequences {
        let rows = sequence.rows;
        sequence.outputs =
            layers.draft.random.of(&[Outputs::All, Outputs::Last, Outputs::LastN(3), Outputs::All]);
        if has_spans && rows > 4 {
            sequence.spans = vec![Range32 { start: 1, end: 3 }, Range32 { start: 3, end: rows - 1 }];
        }
    }
    let name = format!("{} weights, {} state, width {width}", layers.weights, layers.state);
    layers.draft.finished_by(name, head)
}
