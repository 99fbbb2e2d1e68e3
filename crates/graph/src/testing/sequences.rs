//! Cases of ops that read what earlier rows of their sequence have left.

use girih_tensor::{DType, Shape, reference};

use super::case::{Case, CaseSequence};
use super::draft::{Begin, CaseDraft, Numbers, held_by};
use super::roundoff::{Roundoff, TINY};
use crate::constant::Span;
use crate::ops::{Op, OpName};
use crate::selection::{SELECTION_POSITIONS, is_selected, select};
use crate::sequence::{Outputs, Range32, Sequence};
use crate::state_kind::STATE_TYPES;
use crate::value::ValueId;

/// The sizes and constants of attention.
#[derive(Clone, Copy, Debug)]
struct Heads {
    heads: usize,
    kv_heads: usize,
    size: usize,
    value_size: usize,
    scale: f32,
    span: Span,
    softcap: Option<f32>,
    dtype: DType,
    has_sinks: bool,
}

impl CaseDraft {
    /// Sizes of heads that the type of state allows.
    fn heads(&mut self) -> Heads {
        let dtype = match self.round.operands {
            DType::F32 => self.random.of(&STATE_TYPES),
            operands => operands,
        };
        let sizes: &[usize] = match dtype {
            DType::Q8_0 | DType::Q4_0 => &[32, 64, 128],
            _ => &[1, 4, 5, 9, 16, 31, 48, 64, 80, 128],
        };
        let kv_heads = 1 + self.random.below(3);
        let heads = kv_heads * (1 + self.random.below(5));
        let size = self.random.of(sizes);
        let value_size = self.random.of(sizes);
        // A scale of 20 leaves one weight, of 0 all equal ones.
        let scale = self.random.of(&[1.0 / (size as f32).sqrt(), 0.35, 0.35, 20.0, 0.0]);
        // Backends sum in chunks of a few hundred positions; some spans cross their borders.
        let longest = self.random.of(&[90, 90, 400]);
        let span = match self.random.below(5) {
            0 => self.random.of(&[Span::All, Span::Mutual, Span::Past]),
            1 => Span::Window(1 + self.random.below(longest) as u32),
            2 => Span::Chunk(1 + self.random.below(longest) as u32),
            _ => Span::Full,
        };
        let softcap = self.random.of(&[None, None, Some(0.5), Some(15.0)]);
        let has_sinks = self.random.once_in(2);
        let drawn = Heads { heads, kv_heads, size, value_size, scale, span, softcap, dtype, has_sinks };
        // Most models have plain attention, and some backends compute only that.
        let is_plain = matches!(span, Span::Full | Span::Window(_)) && self.random.once_in(2);
        let plain = Heads { value_size: size, softcap: None, has_sinks: false, ..drawn };
        if is_plain { plain } else { drawn }
    }

    /// The numbers of a selection.
    fn selection_numbers(&self) -> usize {
        let context = self.sequences.iter().map(|sequence| sequence.rows as usize).max().unwrap_or(1);
        context.div_ceil(SELECTION_POSITIONS)
    }

    /// An input of selections: each row has some of the positions that it sees with this span, and at least one.
    fn selection(&mut self, span: Span) -> Numbers {
        let numbers = self.selection_numbers();
        let mut all = Vec::new();
        let counts: Vec<u32> = self.sequences.iter().map(|sequence| sequence.rows).collect();
        for rows in counts {
            let one_in = self.random.of(&[2, 3, 40]);
            for row in 0..rows as usize {
                let range = Range32 { start: 0, end: rows };
                let sequence =
                    Sequence { blocks: &[], position: 0, rows: range, outputs: Outputs::All, spans: &[] };
                let (seen, mut selection) = (sequence.sees(span, row), vec![0.0; numbers]);
                let sure = seen.start + self.random.below(seen.len());
                let taken = seen.filter(|position| *position == sure || self.random.once_in(one_in));
                taken.for_each(|position| select(&mut selection, position));
                all.extend(selection);
            }
        }
        self.input_rows("selected", &[numbers], all)
    }

    /// The inputs of attention, its sinks, and its result.
    fn attention(
        &mut self,
        heads: Heads,
        queries: impl Fn(f32) -> f32,
    ) -> ([Numbers; 3], Option<Vec<f32>>, ValueId) {
        let Heads { heads: count, kv_heads, size, value_size, scale, span, softcap, dtype, has_sinks } =
            heads;
        let numbers = self.random.numbers(self.rows() * count * size).into_iter().map(queries).collect();
        let q = self.input_rows("q", &[count, size], numbers);
        let (k, v) = (
            self.rows_within(1.0, "k", &[kv_heads, size]),
            self.rows_within(1.0, "v", &[kv_heads, value_size]),
        );
        let (keys, values) = if span.is_of_step() {
            (k.0, v.0)
        } else {
            let group = self.builder.group(span);
            let keys = self.builder.state("keys", &[kv_heads, size], dtype, group);
            let values = self.builder.state("values", &[kv_heads, value_size], dtype, group);
            self.builder.write(k.0, keys);
            self.builder.write(v.0, values);
            (keys, values)
        };
        let op = Op::Attend { scale, span, softcap };
        let mut operands = vec![q.0, keys, values];
        let sinks = has_sinks.then(|| self.weight("sinks", &[count], DType::F32));
        operands.extend(sinks.iter().map(|(id, _)| *id));
        let y = self.builder.shaped("y", op, &operands, &[count, value_size]);
        ([q, k, v], sinks.map(|(_, numbers)| numbers), y)
    }
}

/// What a row that reads only its own position returns: the value as its state holds it. The weight of the
/// only position is 1.
pub(super) fn write(seed: u64, round: Roundoff) -> Case {
    let mut draft = CaseDraft::new(OpName::Write, seed, round, Begin::AtZero);
    let heads = Heads { span: Span::Window(1), softcap: None, scale: 0.5, has_sinks: false, ..draft.heads() };
    let ([_, _, (_, v)], _, y) = draft.attention(heads, |x| x);
    let held = held_by(heads.dtype, &v);
    let shared = heads.heads / heads.kv_heads;
    let heads_of = held.chunks_exact(heads.value_size).flat_map(|value| std::iter::repeat_n(value, shared));
    let bounds = heads_of.flatten().map(|x| round.gamma(3) * f64::from(x.abs()) + TINY).collect();
    draft.gathered(format!("{heads:?}"), y, bounds)
}

/// The bounds of one head of one row.
///
/// A score has an error of gamma(size + 4) of its terms: products, sums, and the roundings of the constant
/// and of the query that it is multiplied by. A cap adds eight roundings of itself: 2 of its tanh from the power,
/// 3 from a sum, a difference and a quotient, 2 of its own product, and terms of second order. The
/// exponential turns that into a relative error of a weight. To it are added the roundings of its distance
/// from the largest score and of the exponential (four), and the same again for each part of the positions whose
/// sum is brought to the scale of others: a part has a block of positions or more. The error of the largest score
/// itself cancels. A weight may be stored. Sums of weights and of weighted values then have an error of gamma of their terms, relative to
/// the sum of sizes; the result is their quotient. A weight below 2⁻¹²⁵ counts as zero. A sink is a score with two
/// roundings, of its unit and of its constant, and takes part in the sum of weights only.
fn attend_bounds(
    heads: Heads,
    round: Roundoff,
    (q, sink): (&[f32], Option<f32>),
    keys: &[&[f32]],
    values: &[&[f32]],
) -> Vec<f64> {
    let unit = round.unit;
    let scale = f64::from(heads.scale);
    let cap = heads.softcap.map(f64::from);
    let mut worst: f64 = 0.0;
    let scores = keys.iter().map(|key| {
        let exact = reference::dot(q, key);
        let error = round.gamma(heads.size + 4) * scale.abs() * exact.size;
        worst = worst.max(error + cap.unwrap_or(0.0) * 8.0 * unit);
        cap.map_or(scale * exact.sum, |cap| cap * (scale * exact.sum / cap).tanh())
    });
    let mut weights: Vec<f64> = scores.collect();
    if let Some(sink) = sink.map(f64::from) {
        weights.push(sink);
        worst = worst.max(round.gamma(2) * sink.abs());
    }
    let (least, most) = weights.iter().fold((f64::MAX, f64::MIN), |(a, b), &s| (a.min(s), b.max(s)));
    let reach = most - least + 2.0 * worst;
    reference::softmax(&mut weights);
    // One part more than the positions fill, as windows begin anywhere.
    let parts = (keys.len() / 64 + 2) as f64;
    let weight = worst + unit * reach + 4.0 * unit + parts * (unit * reach + 5.0 * unit);
    // For numerator and denominator; a tenth more for products of errors.
    let relative = 1.1 * 2.0 * (weight + round.gamma(keys.len() + parts as usize + 2) + round.stored);
    let bound = |column: usize| {
        let sizes = weights.iter().zip(values).map(|(w, v)| (w, f64::from(v[column].abs())));
        sizes.map(|(weight, size)| (relative * weight + 2f64.powi(-125)) * size).sum::<f64>() + TINY
    };
    (0..heads.value_size).map(bound).collect()
}

/// Attention over state or over the rows of the step, with windows, caps, and mutual spans.
pub(super) fn attend(seed: u64, round: Roundoff) -> Case {
    let mut draft = CaseDraft::new(OpName::Attend, seed, round, Begin::AtZero);
    let heads = draft.heads();
    let has_spans = match heads.span {
        Span::All => false,
        Span::Mutual => true,
        Span::Full | Span::Past | Span::Window(_) | Span::Chunk(_) => draft.random.once_in(3),
    };
    if has_spans {
        for index in 0..draft.sequences.len() {
            let rows = draft.sequences[index].rows as usize;
            let start = draft.random.below(rows) as u32;
            let middle = start + 1 + draft.random.below(rows - start as usize) as u32;
            let first = Range32 { start: 0, end: if heads.span == Span::Mutual { start } else { 0 } };
            let spans = [first, Range32 { start, end: middle }, Range32 { start: middle, end: rows as u32 }];
            draft.sequences[index].spans = spans.into_iter().filter(|span| span.start < span.end).collect();
        }
    }
    let ([(_, q), (_, k), (_, v)], sinks, y) = draft.attention(heads, |x| x);
    let Heads { size, value_size, kv_heads, .. } = heads;
    let [k, v] = match heads.span {
        Span::All | Span::Mutual => [k, v],
        Span::Full | Span::Past | Span::Window(_) | Span::Chunk(_) => {
            [k, v].map(|x| held_by(heads.dtype, &x))
        }
    };
    let (mut bounds, mut first) = (Vec::new(), 0);
    for CaseSequence { rows, spans, .. } in &draft.sequences {
        let rows = *rows as usize;
        let range = Range32 { start: 0, end: rows as u32 };
        let outputs = Outputs::All;
        let sequence = Sequence { blocks: &[], position: 0, rows: range, outputs, spans };
        for row in 0..rows {
            let seen = sequence.sees(heads.span, row);
            for head in 0..heads.heads {
                let kv_head = head / (heads.heads / kv_heads);
                let at = |position: usize| (first + position) * kv_heads + kv_head;
                let keys: Vec<_> = seen.clone().map(|p| &k[at(p) * size..][..size]).collect();
                let values: Vec<_> = seen.clone().map(|p| &v[at(p) * value_size..][..value_size]).collect();
                let q = &q[((first + row) * heads.heads + head) * size..][..size];
                let sink = sinks.as_ref().map(|sinks| sinks[head]);
                bounds.extend(attend_bounds(heads, round, (q, sink), &keys, &values));
            }
        }
        first += rows;
    }
    draft.gathered(format!("{heads:?}"), y, bounds)
}

/// Whole numbers, so that sums are exact, many scores are equal, and no rounding chooses.
pub(super) fn select_keys(seed: u64, round: Roundoff) -> Case {
    let mut draft = CaseDraft::new(OpName::SelectKeys, seed, round, Begin::AtZero);
    let dtype = match round.operands {
        DType::F32 => draft.random.of(&[DType::F32, DType::F16, DType::BF16]),
        operands => operands,
    };
    let (heads, size) = (draft.random.of(&[1, 2, 5]), draft.random.of(&[1, 4, 9, 16, 40]));
    let best = draft.random.of(&[1, 2, 7, 16, 60, 300]);
    let whole = |draft: &mut CaseDraft, name: &str, inner: &[usize], most: usize| {
        let count = draft.rows() * inner.iter().product::<usize>();
        let numbers = (0..count).map(|_| draft.random.below(2 * most + 1) as f32 - most as f32).collect();
        draft.input_rows(name, inner, numbers).0
    };
    let q = whole(&mut draft, "q", &[heads, size], 2);
    let weights = whole(&mut draft, "weights", &[heads], 3);
    let keys = whole(&mut draft, "keys", &[1, size], 2);
    let group = draft.builder.group(Span::Full);
    let held = draft.builder.state("held", &[1, size], dtype, group);
    draft.builder.write(keys, held);
    let numbers = draft.selection_numbers();
    let y = draft.builder.shaped("y", Op::SelectKeys { best }, &[q, weights, held], &[numbers]);
    let bounds = vec![TINY; draft.rows() * numbers];
    draft.gathered(format!("{best} best by {heads} heads of {size}, {dtype}"), y, bounds)
}

/// Attention over latents. Most models have one KV head.
pub(super) fn attend_latent(seed: u64, round: Roundoff) -> Case {
    let mut draft = CaseDraft::new(OpName::AttendLatent, seed, round, Begin::AtZero);
    let drawn = draft.heads();
    let span = if drawn.span.is_of_step() { Span::Full } else { drawn.span };
    let kv_heads = draft.random.of(&[1, 1, 1, 2]);
    let heads = kv_heads * draft.random.of(&[1, 2, 5, 16]);
    let sizes: &[usize] = match drawn.dtype {
        DType::Q8_0 | DType::Q4_0 => &[64, 96],
        _ => &[2, 9, 40, 72, 96],
    };
    let size = draft.random.of(sizes);
    let value_size = 1 + draft.random.below(size);
    let heads = Heads { heads, kv_heads, size, value_size, span, softcap: None, has_sinks: false, ..drawn };
    let count = draft.rows() * heads.heads * size;
    let numbers = draft.random.numbers(count);
    let (q, queries) = draft.input_rows("q", &[heads.heads, size], numbers);
    let (latents, rows) = draft.rows_within(1.0, "latents", &[kv_heads, size]);
    let group = draft.builder.group(span);
    let state = draft.builder.state("held", &[kv_heads, size], heads.dtype, group);
    draft.builder.write(latents, state);
    let held = held_by(heads.dtype, &rows);
    let selected = draft.random.once_in(2).then(|| draft.selection(span));
    let numbers = draft.selection_numbers();
    let (mut bounds, mut first) = (Vec::new(), 0);
    for CaseSequence { rows, .. } in &draft.sequences {
        let range = Range32 { start: 0, end: *rows };
        let sequence = Sequence { blocks: &[], position: 0, rows: range, outputs: Outputs::All, spans: &[] };
        for row in 0..*rows as usize {
            for head in 0..heads.heads {
                let kv_head = head / (heads.heads / kv_heads);
                let at = |position: usize| &held[((first + position) * kv_heads + kv_head) * size..][..size];
                let reads = |position: &usize| {
                    let of_row =
                        |all: &[f32]| is_selected(&all[(first + row) * numbers..][..numbers], *position);
                    selected.as_ref().is_none_or(|(_, all)| of_row(all))
                };
                let keys: Vec<&[f32]> = sequence.sees(span, row).filter(reads).map(at).collect();
                let q = &queries[((first + row) * heads.heads + head) * size..][..size];
                bounds.extend(attend_bounds(heads, round, (q, None), &keys, &keys));
            }
        }
        first += *rows as usize;
    }
    let op = Op::AttendLatent { scale: heads.scale, span, values: value_size as u32 };
    let mut operands = vec![q, state];
    operands.extend(selected.map(|(id, _)| id));
    let y = draft.builder.shaped("y", op, &operands, &[heads.heads, value_size]);
    draft.gathered(format!("{heads:?}"), y, bounds)
}

/// A sum of as many products as there are taps.
pub(super) fn short_conv(seed: u64, round: Roundoff) -> Case {
    let mut draft = CaseDraft::new(OpName::ShortConv, seed, round, Begin::AtZero);
    let (count, width) = (2 + draft.random.below(6), draft.columns());
    let (x, rows) = draft.rows_within(1.0, "x", &[width]);
    let (taps, weights) = draft.weight("taps", &[count, width], DType::F32);
    let carried = draft.builder.carried("carried", Shape::matrix(count - 1, width));
    let bias = draft.random.once_in(2).then(|| draft.weight("bias", &[width], DType::F32));
    let mut bounds = Vec::new();
    let mut first = 0;
    for sequence in &draft.sequences {
        for row in 0..sequence.rows as usize {
            bounds.extend((0..width).map(|column| {
                let term = |tap: usize| {
                    let seen = (row + tap).checked_sub(count - 1)?;
                    Some(f64::from(
                        (weights[tap * width + column] * rows[(first + seen) * width + column]).abs(),
                    ))
                };
                let bias = bias.as_ref().map_or(0.0, |(_, bias)| f64::from(bias[column].abs()));
                round.gamma(count + 2) * ((0..count).filter_map(term).sum::<f64>() + bias) + TINY
            }));
        }
        first += sequence.rows as usize;
    }
    let operands: Vec<_> = [x, taps, carried].into_iter().chain(bias.map(|(id, _)| id)).collect();
    let y = draft.builder.same("y", Op::ShortConv, &operands);
    draft.gathered(format!("{count} taps of {width} columns"), y, bounds)
}
