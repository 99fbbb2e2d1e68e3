//! Entries that work on rows or elements: norms, rotation, gates, sums and
//! copies. Each rounds once, when it stores.

use girih_tensor::DType;

use super::entry::{
    Access, Axis, CascadeUse, KernelEntry, KernelOperand, KernelValues, Param, matrix, no_fault, unpack,
    vector, whole,
};
use super::matmul::halve;

/// Vector lanes that sum a row.
const ROW_LANES: usize = 16;

/// `y = x / √(mean(x²) + epsilon) · w`, row by row; 16 lanes sum the squares.
/// The mean is over `width` values; the other values of a row are zeros.
pub(super) const RMS_NORM: KernelEntry = KernelEntry {
    name: "rms_norm",
    params: NORM_PARAMS,
    operands: &[
        KernelOperand::reads("x", |p| matrix(p[0], p[1])),
        KernelOperand::reads("w", |p| vector(p[1])),
        KernelOperand::writes("y", |p| matrix(p[0], p[1])),
    ],
    macs: |p| 3 * u64::from(p[0]) * u64::from(p[1]),
    cascade: CascadeUse::None,
    fault: wider,
    values: |params, values| {
        let (n, width, epsilon) = (params[1] as usize, params[2] as f32, f32::from_bits(params[3]));
        let (mut x, w) = (values.bf16(0), values.bf16(1));
        for row in x.chunks_exact_mut(n) {
            let scale = 1.0 / (lane_sum(row, |x| x * x) / width + epsilon).sqrt();
            row.iter_mut().zip(&w).for_each(|(x, w)| *x = *x * scale * w);
        }
        values.store(0, DType::BF16, &x);
    },
};

/// `y = (x − mean(x)) / √(var(x) + epsilon) · w + b`, row by row.
pub(super) const LAYER_NORM: KernelEntry = KernelEntry {
    name: "layer_norm",
    params: NORM_PARAMS,
    operands: &[
        KernelOperand::reads("x", |p| matrix(p[0], p[1])),
        KernelOperand::reads("w", |p| vector(p[1])),
        KernelOperand::reads("b", |p| vector(p[1])),
        KernelOperand::writes("y", |p| matrix(p[0], p[1])),
    ],
    macs: |p| 4 * u64::from(p[0]) * u64::from(p[1]),
    cascade: CascadeUse::None,
    fault: wider,
    values: |params, values| {
        let (n, width, epsilon) = (params[1] as usize, params[2] as usize, f32::from_bits(params[3]));
        let (mut x, w, b) = (values.bf16(0), values.bf16(1), values.bf16(2));
        for row in x.chunks_exact_mut(n) {
            let row = &mut row[..width];
            let center = lane_sum(row, |x| x) / width as f32;
            row.iter_mut().for_each(|x| *x -= center);
            let scale = 1.0 / (lane_sum(row, |x| x * x) / width as f32 + epsilon).sqrt();
            row.iter_mut().zip(w.iter().zip(&b)).for_each(|(x, (w, b))| *x = *x * scale * w + b);
        }
        values.store(0, DType::BF16, &x);
    },
};

const NORM_PARAMS: &[Param] =
    &[Param::size("rows"), Param::size("n"), Param::size("width"), Param::real("epsilon")];

fn wider(params: &[u32]) -> Option<String> {
    (params[2] > params[1]).then(|| format!("width is {}: it may not exceed n, {}", params[2], params[1]))
}

/// Rotates component `i` with `i + size/2` of every head. A row of the table
/// contains the cosines of the pairs, then their sines; all heads of the row
/// use it.
pub(super) const ROPE_HALVES: KernelEntry = rope("rope_halves", |params, values| {
    let half = params[2] as usize / 2;
    rotate(params, values, |pair| (pair, pair + half));
});

/// Rotates component `2i` with `2i + 1`, with the same table.
pub(super) const ROPE_NEIGHBOURS: KernelEntry = rope("rope_neighbours", |params, values| {
    rotate(params, values, |pair| (2 * pair, 2 * pair + 1));
});

/// `y = a / (1 + e^−a) · b`.
pub(super) const SILU_MUL: KernelEntry = pairwise("silu_mul", |_, values| join(values, |a, b| silu(a) * b));
/// `y = gelu(a) · b`, the tanh form.
pub(super) const GELU_MUL: KernelEntry = pairwise("gelu_mul", |_, values| join(values, |a, b| gelu(a) * b));
/// `y = a + b`.
pub(super) const ADD: KernelEntry = pairwise("add", |_, values| join(values, |a, b| a + b));

/// `y = gelu(x)`, the tanh form.
pub(super) const GELU: KernelEntry = KernelEntry {
    macs: |p| u64::from(p[0]),
    values: |_, values| {
        let y: Vec<f32> = values.bf16(0).into_iter().map(gelu).collect();
        values.store(0, DType::BF16, &y);
    },
    ..elementwise("gelu")
};

/// `y = x · factor`.
pub(super) const SCALE: KernelEntry = KernelEntry {
    params: &[Param::size("n"), Param::real("factor")],
    macs: |p| u64::from(p[0]),
    values: |params, values| {
        let factor = f32::from_bits(params[1]);
        let y: Vec<f32> = values.bf16(0).into_iter().map(|x| x * factor).collect();
        values.store(0, DType::BF16, &y);
    },
    ..elementwise("scale")
};

/// `y = 0`, in f32.
pub(super) const ZERO_F32: KernelEntry = KernelEntry {
    operands: &[KernelOperand::new("y", Access::Write, DType::F32, length)],
    values: |_, values| values.writes[0].fill(0),
    ..elementwise("zero_f32")
};

/// Copies bf16.
pub(super) const COPY: KernelEntry = KernelEntry {
    values: |_, values| values.writes[0].copy_from_slice(values.reads[0]),
    ..elementwise("copy")
};

/// Rounds f32 to bf16.
pub(super) const STORE_BF16: KernelEntry = KernelEntry {
    operands: &[
        KernelOperand::new("x", Access::Read, DType::F32, length),
        KernelOperand::writes("y", length),
    ],
    values: |_, values| {
        let x = unpack(DType::F32, values.reads[0]);
        values.store(0, DType::BF16, &x);
    },
    ..elementwise("store_bf16")
};

/// Sends words of 4 bytes to the next core of the cascade.
pub(super) const SEND: KernelEntry = KernelEntry {
    operands: &[KernelOperand::new("x", Access::Read, DType::F32, length)],
    cascade: CascadeUse::Send,
    values: |_, _| (),
    ..elementwise("send")
};

/// Receives words of 4 bytes from the previous core of the cascade.
pub(super) const RECEIVE: KernelEntry = KernelEntry {
    operands: &[KernelOperand::new("y", Access::Write, DType::F32, length)],
    cascade: CascadeUse::Receive,
    values: |_, _| (),
    ..elementwise("receive")
};

/// A vector of `n` values.
fn length(params: &[u32]) -> Vec<Axis> {
    vector(params[0])
}

const LENGTH_PARAM: &[Param] = &[Param::size("n")];
const UNARY_OPERANDS: &[KernelOperand] =
    &[KernelOperand::reads("x", length), KernelOperand::writes("y", length)];
const BINARY_OPERANDS: &[KernelOperand] = &[
    KernelOperand::reads("a", length),
    KernelOperand::reads("b", length),
    KernelOperand::writes("y", length),
];

/// An entry from one bf16 vector to another, with defaults for all other
/// fields.
const fn elementwise(name: &'static str) -> KernelEntry {
    KernelEntry {
        name,
        params: LENGTH_PARAM,
        operands: UNARY_OPERANDS,
        macs: |_| 0,
        cascade: CascadeUse::None,
        fault: no_fault,
        values: |_, _| (),
    }
}

const fn pairwise(name: &'static str, values: fn(&[u32], &mut KernelValues<'_>)) -> KernelEntry {
    KernelEntry { operands: BINARY_OPERANDS, macs: |p| u64::from(p[0]), values, ..elementwise(name) }
}

const ROPE_PARAMS: &[Param] = &[Param::size("rows"), Param::size("heads"), Param::size("size")];
const ROPE_OPERANDS: &[KernelOperand] = &[
    KernelOperand::reads("x", |p| matrix(p[0], p[1] * p[2])),
    KernelOperand::reads("table", |p| matrix(p[0], p[2])),
    KernelOperand::writes("y", |p| matrix(p[0], p[1] * p[2])),
];

const fn rope(name: &'static str, values: fn(&[u32], &mut KernelValues<'_>)) -> KernelEntry {
    KernelEntry {
        name,
        params: ROPE_PARAMS,
        operands: ROPE_OPERANDS,
        macs: |p| 2 * p.iter().map(|&size| u64::from(size)).product::<u64>(),
        cascade: CascadeUse::None,
        fault: |p| {
            let width = u64::from(p[1]) * u64::from(p[2]);
            let wide = width > u64::from(u32::MAX);
            whole("size", p[2], 2).or_else(|| wide.then(|| format!("a row of {width} values is too long")))
        },
        values,
    }
}

fn rotate(params: &[u32], values: &mut KernelValues<'_>, pair: impl Fn(usize) -> (usize, usize)) {
    let (heads, size) = (params[1] as usize, params[2] as usize);
    let (mut x, table) = (values.bf16(0), values.bf16(1));
    for (row, table) in x.chunks_exact_mut(heads * size).zip(table.chunks_exact(size)) {
        let (cosines, sines) = table.split_at(size / 2);
        for head in row.chunks_exact_mut(size) {
            for (at, (cosine, sine)) in cosines.iter().zip(sines).enumerate() {
                let (first, second) = pair(at);
                let (x, y) = (head[first], head[second]);
                head[first] = x * cosine - y * sine;
                head[second] = y * cosine + x * sine;
            }
        }
    }
    values.store(0, DType::BF16, &x);
}

fn join(values: &mut KernelValues<'_>, f: impl Fn(f32, f32) -> f32) {
    let y: Vec<f32> = values.bf16(0).into_iter().zip(values.bf16(1)).map(|(a, b)| f(a, b)).collect();
    values.store(0, DType::BF16, &y);
}

fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

/// `x/2 · (1 + tanh(√(2/π) · (x + 0.044715·x³)))` (Hendrycks & Gimpel 2016).
fn gelu(x: f32) -> f32 {
    let root = (2.0 / std::f32::consts::PI).sqrt();
    x / 2.0 * (1.0 + (root * (x + 0.044715 * x * x * x)).tanh())
}

/// The sum of `f` over a row in 16 lanes, which a tree reduction then adds.
fn lane_sum(row: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0; ROW_LANES];
    for part in row.chunks(ROW_LANES) {
        for (lane, &x) in lanes.iter_mut().zip(part) {
            *lane += f(x);
        }
    }
    halve(&mut lanes)
}
