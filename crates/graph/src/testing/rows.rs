//! Cases of ops that move rows, and of those that depend on the step's sequences.

use girih_tensor::{DType, Shape};

use super::case::Case;
use super::draft::{Begin, CaseDraft};
use super::roundoff::{Roundoff, TINY};
use crate::constant::{Pairing, Pooling};
use crate::graph::OutputKind;
use crate::ops::temper::Temperature;
use crate::ops::{Op, OpName};
use crate::sequence::Outputs;
use crate::value::ValueId;

/// Rows of a table, decoded without rounding.
pub(super) fn embed(seed: u64, round: Roundoff) -> Case {
    let mut draft = CaseDraft::new(OpName::Embed, seed, round, Begin::Anywhere);
    let dtype = draft.format();
    let (width, count) = (draft.columns_of(dtype), 1 + draft.random.below(60));
    let ids = draft.ids("tokens", count);
    let (table, _) = draft.weight("table", &[count, width], dtype);
    let y = draft.builder.shaped("y", Op::Embed, &[ids, table], &[width]);
    let bounds = vec![0.0; draft.rows() * width];
    draft.gathered(format!("{dtype} [{count}, {width}]"), y, bounds)
}

/// Given rows replace others without rounding.
pub(super) fn splice(seed: u64, round: Roundoff) -> Case {
    let mut draft = CaseDraft::new(OpName::Splice, seed, round, Begin::Anywhere);
    let width = draft.columns();
    let (x, _) = draft.rows_within(1.0, "x", &[width]);
    let given = draft.given("given", width);
    let y = draft.builder.same("y", Op::Splice, &[x, given]);
    let bounds = vec![0.0; draft.rows() * width];
    draft.gathered(format!("rows of {width}"), y, bounds)
}

/// The same numbers, of rows or of output rows. A reshape that makes the result of the graph must copy: others may be
/// views.
pub(super) fn reshape(seed: u64, round: Roundoff) -> Case {
    let mut draft = CaseDraft::new(OpName::Reshape, seed, round, Begin::Anywhere);
    let [heads, size] = [1 + draft.random.below(5), draft.columns()];
    let (x, _) = draft.rows_within(1.0, "x", &[heads * size]);
    let bounds = vec![0.0; draft.rows() * heads * size];
    let is_last = draft.in_turn(&[false, true]);
    let x = if is_last { draft.builder.gather("gathered", x) } else { x };
    let y = draft.builder.shaped("y", Op::Reshape, &[x], &[heads, size]);
    let name = format!("[{heads}, {size}]");
    if is_last {
        draft.ended(format!("{name}, the last node"), y, bounds)
    } else {
        draft.gathered(name, y, bounds)
    }
}

/// Other output rows in each sequence, the same numbers.
pub(super) fn gather(seed: u64, round: Roundoff) -> Case {
    let mut draft = CaseDraft::new(OpName::Gather, seed, round, Begin::Anywhere);
    let width = draft.columns();
    let (x, _) = draft.rows_within(1.0, "x", &[width]);
    for index in 0..draft.sequences.len() {
        let count = 1 + draft.random.below(5) as u32;
        let outputs = draft.random.of(&[Outputs::None, Outputs::Last, Outputs::LastN(count), Outputs::All]);
        draft.sequences[index].outputs = outputs;
    }
    let taken: u32 = draft.sequences.iter().map(|s| s.outputs.count(s.rows)).sum();
    let bounds = vec![0.0; taken as usize * width];
    draft.gathered(format!("{taken} rows of {width}"), x, bounds)
}

/// A sum of rows and its quotient.
pub(super) fn pool(seed: u64, round: Roundoff) -> Case {
    let mut draft = CaseDraft::with_output(OpName::Pool, seed, round, Begin::AtZero, OutputKind::Pooled);
    let (width, how) = (draft.columns(), draft.in_turn(Pooling::ALL));
    let (x, numbers) = draft.rows_within(1.0, "x", &[width]);
    let mut rest = numbers.as_slice();
    let mut bounds = Vec::new();
    for sequence in &draft.sequences {
        let count = sequence.rows as usize;
        let (own, others) = rest.split_at(count * width);
        rest = others;
        bounds.extend((0..width).map(|column| match how {
            Pooling::First | Pooling::Last => 0.0,
            Pooling::Mean => {
                let sizes = own[column..].iter().step_by(width).map(|x| f64::from(x.abs()));
                round.gamma(count + 1) * sizes.sum::<f64>() / count as f64 + TINY
            }
        }));
    }
    let y = draft.builder.pool("y", how, x);
    draft.pooled(format!("{how:?} of rows of {width}"), y, bounds)
}

/// Sine and cosine have a rounding each, of the angle that is rounded as the definition says; the factor, two
/// products and a sum follow. Components behind the pairs are exact. Sine and cosine may be stored. No term exceeds
/// the sizes of the pair, times the factor. Rows may have one to three positions of their own.
pub(super) fn rope(seed: u64, round: Roundoff) -> Case {
    let mut draft = CaseDraft::new(OpName::Rope, seed, round, Begin::Anywhere);
    let (heads, half) = (1 + draft.random.below(4), draft.columns());
    let pairing = draft.in_turn(Pairing::ALL);
    let kept = draft.random.of(&[0, 0, 1, 6]);
    let factor = draft.random.of(&[None, Some(1.3f32), Some(0.7)]);
    let size = 2 * half + kept;
    let (x, numbers) = draft.rows_within(4.0, "x", &[heads, size]);
    let streams = draft.random.of(&[None, Some(1), Some(2), Some(3)]);
    let count = half * streams.unwrap_or(1);
    let frequencies: Vec<f32> = (0..count).map(|_| draft.random.number().abs()).collect();
    let bytes = DType::F32.pack_matrix(1, count, &frequencies).expect("floats are packed");
    let frequencies = draft.weight_of("frequencies", Shape::vector(count), DType::F32, bytes).0;
    let positions = streams.map(|streams| draft.rows_within(300.0, "positions", &[streams]).0);
    let bounds = numbers.chunks_exact(size).flat_map(|head| {
        (0..size).map(move |i| {
            if i >= 2 * half {
                return TINY;
            }
            let (a, b) = match pairing {
                Pairing::Halves => (i % half, i % half + half),
                Pairing::Neighbours => (i / 2 * 2, i / 2 * 2 + 1),
            };
            let terms = f64::from(factor.unwrap_or(1.0)) * f64::from(head[a].abs() + head[b].abs());
            (round.gamma(5) + round.stored) * terms + TINY
        })
    });
    let bounds = bounds.collect();
    let operands: Vec<ValueId> = [Some(x), Some(frequencies), positions].into_iter().flatten().collect();
    let y = draft.builder.same("y", Op::Rope { pairing, factor }, &operands);
    let given = streams.map_or("the sequence's".to_owned(), |streams| format!("{streams} given"));
    let what =
        format!("{heads} heads of {half} pairs and {kept}, {pairing:?}, {factor:?}, {given} positions");
    draft.gathered(what, y, bounds)
}

/// The factor is rounded, and the product.
pub(super) fn temper(seed: u64, round: Roundoff) -> Case {
    let mut draft = CaseDraft::new(OpName::Temper, seed, round, Begin::Anywhere);
    let (heads, size) = (1 + draft.random.below(4), draft.columns());
    let beta = draft.random.number();
    let temperature =
        Temperature { beta, every: draft.random.of(&[1, 3, 50]), offset: draft.random.below(2) as u32 };
    let (x, numbers) = draft.rows_within(4.0, "x", &[heads, size]);
    let positions = draft.sequences.iter().flat_map(|s| s.position..s.position + s.rows);
    let rows = numbers.chunks_exact(heads * size).zip(positions);
    let of_row = |(row, position): (&'_ [f32], u32)| {
        let factor = temperature.at(position).abs();
        row.iter().map(|x| round.gamma(3) * factor * f64::from(x.abs()) + TINY).collect::<Vec<f64>>()
    };
    let bounds = rows.flat_map(of_row).collect();
    let Temperature { beta, every, offset } = temperature;
    let y = draft.builder.same("y", Op::Temper { beta, every, offset }, &[x]);
    draft.gathered(format!("{heads} heads of {size}, {temperature:?}"), y, bounds)
}
