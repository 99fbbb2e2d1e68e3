//! FlashAttention in chunks (Dao 2022, arXiv 2205.14135): a core keeps, for
//! each of its query rows, the largest score so far, the sum of the weights and
//! the weighted sum of the values, and updates them with each chunk of keys and
//! values.
//!
//! The state is f32, `[rows][values + 2]`: the largest score, the sum, then the
//! weighted values. Scores are f32 sums over ascending components; weights are
//! rounded to bf16 before they are multiplied with the values, as the matrix
//! unit requires. Published kernels keep the state in bf16, which costs
//! accuracy and saves memory; the steps here are the same. Stages that attended
//! to different keys are merged over the cascade.

use girih_tensor::DType;

use super::entry::{
    Access, Axis, CascadeUse, KernelEntry, KernelOperand, KernelValues, Param, matrix, no_fault, round,
    unpack,
};

/// Writes a state without keys.
pub(super) const ATTEND_CLEAR: KernelEntry = KernelEntry {
    name: "attend_clear",
    params: STATE_PARAMS,
    operands: &[KernelOperand::new("state", Access::Write, DType::F32, state)],
    macs: |_| 0,
    cascade: CascadeUse::None,
    fault: no_fault,
    values: |params, values| {
        let clear: Vec<f32> = (0..params[0]).flat_map(|_| clear_row(params[1])).collect();
        values.store(0, DType::F32, &clear);
    },
};

/// Updates a state with a chunk of keys, of `size` components, and values.
///
/// Row `r` is at position `start[0] + query + r / group`, key `j` at `start[1] + key + j`.
/// With `causal` = 1 a row attends to the keys up to its own position, and only
/// to the last `window` of them if that is not 0.
pub(super) const ATTEND: KernelEntry = KernelEntry {
    name: "attend",
    params: &[
        Param::size("rows"),
        Param::size("size"),
        Param::size("values"),
        Param::size("keys"),
        Param::size("group"),
        Param::index("query"),
        Param::index("key"),
        Param::index("causal"),
        Param::index("window"),
        Param::real("scale"),
    ],
    operands: &[
        KernelOperand::reads("q", |p| matrix(p[0], p[1])),
        KernelOperand::reads("k", |p| matrix(p[3], p[1])),
        KernelOperand::reads("v", |p| matrix(p[3], p[2])),
        KernelOperand::new("start", Access::Read, DType::I32, |_| matrix(1, 2)),
        KernelOperand::new("state", Access::Update, DType::F32, |p| matrix(p[0], p[2] + 2)),
    ],
    macs: |p| u64::from(p[0]) * u64::from(p[3]) * (u64::from(p[1]) + u64::from(p[2])),
    cascade: CascadeUse::None,
    fault: |p| (p[7] > 1).then(|| format!("causal is {}: it must be 0 or 1", p[7])),
    values: attend,
};

/// Merges another state into a state: `state = state ⊕ other`.
pub(super) const ATTEND_MERGE: KernelEntry = KernelEntry {
    name: "attend_merge",
    params: STATE_PARAMS,
    operands: &[
        KernelOperand::new("other", Access::Read, DType::F32, state),
        KernelOperand::new("state", Access::Update, DType::F32, state),
    ],
    macs: |p| 2 * u64::from(p[0]) * u64::from(p[1]),
    cascade: CascadeUse::None,
    fault: no_fault,
    values: merge,
};

/// Divides the attention of each row by its sum, `y = values / sum`. A row
/// without keys gives zeros.
pub(super) const ATTEND_STORE: KernelEntry = KernelEntry {
    name: "attend_store",
    params: STATE_PARAMS,
    operands: &[
        KernelOperand::new("state", Access::Read, DType::F32, state),
        KernelOperand::writes("y", |p| matrix(p[0], p[1])),
    ],
    macs: |p| u64::from(p[0]) * u64::from(p[1]),
    cascade: CascadeUse::None,
    fault: no_fault,
    values: |params, values| {
        let rows = unpack(DType::F32, values.reads[0]);
        let y: Vec<f32> = rows.chunks_exact(params[1] as usize + 2).flat_map(divide).collect();
        values.store(0, DType::BF16, &y);
    },
};

const STATE_PARAMS: &[Param] = &[Param::size("rows"), Param::size("values")];

fn state(params: &[u32]) -> Vec<Axis> {
    matrix(params[0], params[1] + 2)
}

fn clear_row(size: u32) -> impl Iterator<Item = f32> {
    std::iter::once(f32::NEG_INFINITY).chain(std::iter::repeat_n(0.0, size as usize + 1))
}

fn divide(row: &[f32]) -> Vec<f32> {
    let sum = row[1];
    row[2..].iter().map(|value| if sum > 0.0 { value / sum } else { 0.0 }).collect()
}

fn attend(params: &[u32], values: &mut KernelValues<'_>) {
    let (size, width, keys, group) = (params[1] as usize, params[2] as usize, params[3] as usize, params[4]);
    let (q, v) = (values.bf16(0), values.bf16(2));
    let components = transposed(&values.bf16(1), size);
    let word = |bytes: &[u8]| i64::from(i32::from_le_bytes(bytes.try_into().expect("a word has four bytes")));
    let (start, first_key) = (word(&values.reads[3][..4]), word(&values.reads[3][4..]));
    let (first, scale) = (first_key + i64::from(params[6]), f32::from_bits(params[9]));
    let mut state = values.updated(0, DType::F32);
    let mut scores = vec![0.0; keys];
    for ((row, q), state) in (0..).zip(q.chunks_exact(size)).zip(state.chunks_exact_mut(width + 2)) {
        let position = start + i64::from(params[5] + row / group);
        let sees = |key: i64| {
            let back = position - (first + key);
            params[7] == 0 || (back >= 0 && (params[8] == 0 || back < i64::from(params[8])))
        };
        if (0..keys as i64).any(sees) {
            score(q, &components, scale, &mut scores);
        }
        for (key, score) in (0..).zip(&mut scores) {
            *score = if sees(key) { *score } else { f32::NEG_INFINITY };
        }
        update(&scores, &v, state);
    }
    values.store(0, DType::F32, &state);
}

/// Transposes rows of `size` values to `[size][rows]`.
fn transposed(rows: &[f32], size: usize) -> Vec<f32> {
    (0..size).flat_map(|component| rows.iter().skip(component).step_by(size)).copied().collect()
}

/// Computes the scores of all keys; `components` is `[size][keys]`. Each score
/// is a sum over ascending components, so keys can be vector lanes.
fn score(q: &[f32], components: &[f32], scale: f32, scores: &mut [f32]) {
    scores.fill(0.0);
    for (q, component) in q.iter().zip(components.chunks_exact(scores.len())) {
        for (score, k) in scores.iter_mut().zip(component) {
            *score += q * k;
        }
    }
    scores.iter_mut().for_each(|score| *score *= scale);
}

/// Updates the state of one row with one chunk.
fn update(scores: &[f32], v: &[f32], state: &mut [f32]) {
    let largest = scores.iter().copied().fold(state[0], f32::max);
    if largest == f32::NEG_INFINITY {
        return;
    }
    let fade = (state[0] - largest).exp();
    state[0] = largest;
    state[1..].iter_mut().for_each(|value| *value *= fade);
    let size = state.len() - 2;
    for (&score, v) in scores.iter().zip(v.chunks_exact(size)) {
        let unseen = score == f32::NEG_INFINITY;
        let weight = if unseen { 0.0 } else { round((score - largest).exp()) };
        state[1] += weight;
        state[2..].iter_mut().zip(v).for_each(|(sum, v)| *sum += weight * v);
    }
}

fn merge(params: &[u32], values: &mut KernelValues<'_>) {
    let other = unpack(DType::F32, values.reads[0]);
    let mut state = values.updated(0, DType::F32);
    let width = params[1] as usize + 2;
    for (other, state) in other.chunks_exact(width).zip(state.chunks_exact_mut(width)) {
        let largest = state[0].max(other[0]);
        if largest == f32::NEG_INFINITY {
            continue;
        }
        let (ours, theirs) = ((state[0] - largest).exp(), (other[0] - largest).exp());
        state[0] = largest;
        for (value, other) in state[1..].iter_mut().zip(&other[1..]) {
            *value = *value * ours + other * theirs;
        }
    }
    values.store(0, DType::F32, &state);
}
