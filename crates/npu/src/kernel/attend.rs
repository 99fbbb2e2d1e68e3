//! FlashAttention in chunks (Dao 2022, arXiv 2205.14135): a core keeps, for
//! each of its query rows, the largest score so far, the sum of the weights and
//! the weighted sum of the values, and updates them with each chunk of keys and
//! values.
//!
//! The state is f32, `[rows][values + 2]`: the largest score, the sum, then the
//! weighted values. Scores are f32 sums over ascending components; weights are
//! rounded to bf16 before they are multiplied with the values, as the matrix
//! unit requires. A pair of cores can share the work: one computes the weights, the other the
//! weighted values. Published kernels keep the state in bf16, which costs
//! accuracy and saves memory; the steps here are the same. Stages that attended
//! to different keys are merged over the cascade.

use std::ops::Range;

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
/// A row attends to the keys up to its own position, and only to the last `window` of them if
/// that is not 0. With `causal` = 0 it attends to all keys of its mutual span, too: `start[2]` to
/// `start[15]` are the first positions of up to 7 spans, each followed by the position after its last.
/// A span that is empty contains no row.
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
        KernelOperand::new("start", Access::Read, DType::I32, |p| start(p[7])),
        KernelOperand::new("state", Access::Update, DType::F32, |p| matrix(p[0], p[2] + 2)),
    ],
    macs: |p| u64::from(p[0]) * u64::from(p[3]) * (u64::from(p[1]) + u64::from(p[2])),
    cascade: CascadeUse::None,
    fault: |p| causal_fault(p[7]),
    values: attend,
};

/// Computes the weights of a chunk of keys: the part of [`ATTEND`] before the values, with its
/// parameters. `weights` is `[rows][keys + 3]`: the largest score, the sum of the weights, the
/// factor of the values so far, then the weights of the chunk. [`ATTEND_CLEAR`] with
/// `values` = `keys` + 1 clears it.
pub(super) const ATTEND_SCORES: KernelEntry = KernelEntry {
    name: "attend_scores",
    params: &[
        Param::size("rows"),
        Param::size("size"),
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
        KernelOperand::reads("k", |p| matrix(p[2], p[1])),
        KernelOperand::new("start", Access::Read, DType::I32, |p| start(p[6])),
        KernelOperand::new("weights", Access::Update, DType::F32, |p| weights(p[0], p[2])),
    ],
    macs: |p| u64::from(p[0]) * u64::from(p[2]) * u64::from(p[1]),
    cascade: CascadeUse::None,
    fault: |p| causal_fault(p[6]),
    values: attend_scores,
};

/// Updates a state with a chunk of values, whose weights [`ATTEND_SCORES`] computed: the rest
/// of [`ATTEND`], with the same bits.
pub(super) const ATTEND_VALUES: KernelEntry = KernelEntry {
    name: "attend_values",
    params: &[Param::size("rows"), Param::size("values"), Param::size("keys")],
    operands: &[
        KernelOperand::reads("v", |p| matrix(p[2], p[1])),
        KernelOperand::new("weights", Access::Read, DType::F32, |p| weights(p[0], p[2])),
        KernelOperand::new("state", Access::Update, DType::F32, state),
    ],
    macs: |p| u64::from(p[0]) * u64::from(p[2]) * u64::from(p[1]),
    cascade: CascadeUse::None,
    fault: no_fault,
    values: attend_values,
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

/// Numbers of a row of weights ahead of the weights.
pub(crate) const WEIGHTS_HEAD: usize = 3;

fn weights(rows: u32, keys: u32) -> Vec<Axis> {
    matrix(rows, keys + WEIGHTS_HEAD as u32)
}

/// Mutual spans that rows of a call may have.
pub(crate) const MAX_SPANS: usize = 7;

fn start(causal: u32) -> Vec<Axis> {
    matrix(1, if causal == 1 { 2 } else { 2 + 2 * MAX_SPANS as u32 })
}

fn causal_fault(causal: u32) -> Option<String> {
    (causal > 1).then(|| format!("causal is {causal}: it must be 0 or 1"))
}

fn clear_row(size: u32) -> impl Iterator<Item = f32> {
    std::iter::once(f32::NEG_INFINITY).chain(std::iter::repeat_n(0.0, size as usize + 1))
}

fn divide(row: &[f32]) -> Vec<f32> {
    let sum = row[1];
    row[2..].iter().map(|value| if sum > 0.0 { value / sum } else { 0.0 }).collect()
}

fn attend(params: &[u32], values: &mut KernelValues<'_>) {
    let (rows, width, keys) = (params[0] as usize, params[2] as usize, params[3] as usize);
    let sight = Sight { size: params[1], keys: params[3], group: params[4], of: &params[5..] };
    let (q, v, start) = (values.bf16(0), values.bf16(2), values.reads[3]);
    let scores = sight.scores(&q, &values.bf16(1), start);
    let mut state = values.updated(0, DType::F32);
    let mut weights = vec![0.0; keys];
    for (row, state) in (0..rows).zip(state.chunks_exact_mut(width + 2)) {
        let (head, sums) = state.split_at_mut(2);
        if let Some(fade) = weigh(&scores[row * keys..][..keys], head, &mut weights) {
            accumulate(fade, &weights, &v, sums);
        }
    }
    values.store(0, DType::F32, &state);
}

fn attend_scores(params: &[u32], values: &mut KernelValues<'_>) {
    let keys = params[2] as usize;
    let sight = Sight { size: params[1], keys: params[2], group: params[3], of: &params[4..] };
    let scores = sight.scores(&values.bf16(0), &values.bf16(1), values.reads[2]);
    let mut state = values.updated(0, DType::F32);
    for (scores, state) in scores.chunks_exact(keys).zip(state.chunks_exact_mut(keys + WEIGHTS_HEAD)) {
        let (head, weights) = state.split_at_mut(WEIGHTS_HEAD);
        head[2] = weigh(scores, &mut head[..2], weights).unwrap_or(1.0);
    }
    values.store(0, DType::F32, &state);
}

fn attend_values(params: &[u32], values: &mut KernelValues<'_>) {
    let (width, keys) = (params[1] as usize, params[2] as usize);
    let (v, weights) = (values.bf16(0), unpack(DType::F32, values.reads[1]));
    let mut state = values.updated(0, DType::F32);
    for (from, state) in weights.chunks_exact(keys + WEIGHTS_HEAD).zip(state.chunks_exact_mut(width + 2)) {
        let (head, sums) = state.split_at_mut(2);
        head.copy_from_slice(&from[..2]);
        if head[0] != f32::NEG_INFINITY {
            accumulate(from[2], &from[WEIGHTS_HEAD..], &v, sums);
        }
    }
    values.store(0, DType::F32, &state);
}

/// Which keys the rows of a call see, and how their scores are scaled.
struct Sight<'a> {
    size: u32,
    keys: u32,
    group: u32,
    /// The parameters from `query` on.
    of: &'a [u32],
}

impl Sight<'_> {
    /// Returns the scores, `[rows][keys]`; those of keys that a row does not see are minus
    /// infinity.
    fn scores(&self, q: &[f32], k: &[f32], start: &[u8]) -> Vec<f32> {
        let &[query, key, causal, window, scale] = self.of else { unreachable!("an entry has these") };
        let (size, keys) = (self.size as usize, self.keys as usize);
        let components = transposed(k, size);
        let word =
            |bytes: &[u8]| i64::from(i32::from_le_bytes(bytes.try_into().expect("a word has four bytes")));
        let words: Vec<i64> = start.chunks_exact(4).map(word).collect();
        let (start, first_key, spans) = (words[0], words[1], if causal == 0 { &words[2..] } else { &[] });
        let (first, scale) = (first_key + i64::from(key), f32::from_bits(scale));
        let mut scores = vec![0.0; q.len() / size * keys];
        for ((row, q), scores) in (0..).zip(q.chunks_exact(size)).zip(scores.chunks_exact_mut(keys)) {
            let position = start + i64::from(query + row / self.group);
            let seen = seen(position, window, spans);
            let sees = |key: i64| seen.contains(&(first + key));
            if (0..keys as i64).any(sees) {
                score(q, &components, scale, scores);
            }
            for (key, score) in (0..).zip(scores) {
                *score = if sees(key) { *score } else { f32::NEG_INFINITY };
            }
        }
        scores
    }
}

/// The positions that the row at `position` sees. `spans` are the first positions of mutual spans, each
/// followed by the position after its last.
fn seen(position: i64, window: u32, spans: &[i64]) -> Range<i64> {
    let first = if window == 0 { 0 } else { position + 1 - i64::from(window) };
    let span = spans.chunks_exact(2).find(|span| (span[0]..span[1]).contains(&position));
    span.map_or(first..position + 1, |span| first.min(span[0])..span[1])
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

/// Computes the weights of a row's keys, and updates its largest score and the sum of its
/// weights. Returns the factor of the values so far; none if the row has seen no key yet.
fn weigh(scores: &[f32], head: &mut [f32], weights: &mut [f32]) -> Option<f32> {
    let largest = scores.iter().copied().fold(head[0], f32::max);
    if largest == f32::NEG_INFINITY {
        weights.fill(0.0);
        return None;
    }
    let fade = (head[0] - largest).exp();
    head[0] = largest;
    head[1] *= fade;
    for (weight, &score) in weights.iter_mut().zip(scores) {
        let unseen = score == f32::NEG_INFINITY;
        *weight = if unseen { 0.0 } else { round((score - largest).exp()) };
        head[1] += *weight;
    }
    Some(fade)
}

/// Adds the weighted values of a chunk to those of a row.
fn accumulate(fade: f32, weights: &[f32], v: &[f32], sums: &mut [f32]) {
    sums.iter_mut().for_each(|sum| *sum *= fade);
    for (&weight, v) in weights.iter().zip(v.chunks_exact(sums.len())) {
        sums.iter_mut().zip(v).for_each(|(sum, v)| *sum += weight * v);
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
