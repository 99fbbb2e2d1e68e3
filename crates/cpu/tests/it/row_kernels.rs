//! The kernels of rows and elements, called with the operands of the conformance suite's cases: in memory beside pages
//! without access, within the bound of the case.

use std::f64::consts::TAU;

use girih_cpu::kernels::{Table, tables};
use girih_cpu::ops::{
    Activate, Add, ApplyXielu, Clamp, Gate, GateRow, Hadamard, LayerNorm, MatchRms, MixRow, Norm, Rotate,
    Rotation, Scale, ScaleColumns, ShiftColumns, Softcap, Sparsify,
};
use girih_graph::testing::{Case, CaseInput, Roundoff, draw, judge};
use girih_graph::{AppliedOp, GateRule, OpName, Role, ValueId, Xielu};

use crate::guarded::Side;
use crate::path::{Memory, Placed};

/// Cases of each op.
const SEEDS: u64 = 16;

/// Ops whose kernels compute a row or an element at a time.
const OPS: [OpName; 17] = [
    OpName::Norm,
    OpName::LayerNorm,
    OpName::Rope,
    OpName::Gate,
    OpName::GateHeads,
    OpName::Activate,
    OpName::Xielu,
    OpName::Add,
    OpName::Scale,
    OpName::ScaleColumns,
    OpName::ShiftColumns,
    OpName::MatchRms,
    OpName::Sparsify,
    OpName::MixHeads,
    OpName::Softcap,
    OpName::Clamp,
    OpName::Hadamard,
];

/// The rows of an input.
fn rows(case: &Case, input: usize) -> &[f32] {
    match &case.inputs[input] {
        CaseInput::Rows(_, values) => values,
        CaseInput::Ids(_) | CaseInput::Given(..) => panic!("input {input} of {} has no rows", case.name),
    }
}

/// The cosines and sines of a row's angles, and the row: what the op's rotations are. An angle is rounded to `f32`, as
/// the definition says.
fn rotations(
    case: &Case,
    (frequencies, factor): (&[f32], Option<f32>),
    axes: Option<usize>,
) -> Vec<[Vec<f32>; 2]> {
    let factor = f64::from(factor.unwrap_or(1.0));
    let own = case.sequences.iter().flat_map(|s| s.position..s.position + s.rows);
    let positions: Vec<Vec<f32>> = match axes {
        None => own.map(|position| vec![position as f32]).collect(),
        Some(axes) => rows(case, 1).chunks(axes).map(<[f32]>::to_vec).collect(),
    };
    let of_row = |positions: &Vec<f32>| {
        let angles = frequencies.chunks(positions.len()).map(|frequencies| {
            let products =
                positions.iter().zip(frequencies).map(|(position, frequency)| position * frequency);
            f64::from(products.reduce(|sum, product| sum + product).unwrap_or(0.0)) % TAU
        });
        let (sines, cosines) =
            angles.map(|angle| ((factor * angle.sin()) as f32, (factor * angle.cos()) as f32)).unzip();
        [cosines, sines]
    };
    positions.iter().map(of_row).collect()
}

/// The result of the case's op by its kernel, row by row.
#[allow(clippy::too_many_lines, reason = "each kernel has its arm")]
fn by_kernel(table: &Table, case: &Case, memory: Memory) -> Vec<f32> {
    let node = &case.graph.nodes[0];
    let width = case.graph.value(node.output).shape.columns();
    let stride = case.graph.value(node.output).shape.stride();
    let weight = |id: ValueId| memory.place(&case.weight(&case.graph.value(id).name));
    let applied = case.graph.applied_op(node).expect("the case has no faults");
    let ids: Vec<Placed<f32>> = node.inputs[1..]
        .iter()
        .map(|id| match case.graph.value(*id).role {
            Role::Weight => weight(*id),
            _ => memory.place(&[]),
        })
        .collect();
    let operand = |present: bool, index: usize| present.then(|| &ids[index][..]);
    let mut all = Vec::new();
    let mut run = |x: &[f32], kernel: &mut dyn FnMut(&[f32], &mut [f32])| {
        let x = memory.place(x);
        let mut y = memory.place(&vec![f32::NAN; x.len()]);
        kernel(&x, &mut y);
        all.extend_from_slice(&y);
    };
    let x = rows(case, 0);
    match applied {
        AppliedOp::Norm { epsilon, x: _, weight } => x.chunks(width).enumerate().for_each(|(index, x)| {
            // A weight of all values of a row begins again with the next one.
            let weight = operand(weight.is_some(), 0).map(|all| &all[index * width % all.len()..][..width]);
            run(x, &mut |x, y| table.run(Norm { x, weight, epsilon, y }));
        }),
        AppliedOp::LayerNorm { epsilon, x: _, weight, bias } => x.chunks(width).for_each(|x| {
            let (weight, bias) = (operand(weight.is_some(), 0), operand(bias.is_some(), 1));
            run(x, &mut |x, y| table.run(LayerNorm { x, weight, bias, epsilon, y }));
        }),
        AppliedOp::Rope { pairing, factor, x: _, frequencies: _, positions } => {
            let axes = positions.map(|_| case.graph.value(node.inputs[2]).shape.columns());
            let turns = rotations(case, (&ids[0], factor), axes);
            for (x, [cosines, sines]) in x.chunks(stride).zip(turns) {
                let (cosines, sines) = (memory.place(&cosines), memory.place(&sines));
                let rotation = Rotation { cosines: &cosines, sines: &sines };
                run(x, &mut |x, y| table.run(Rotate { x, rotation, pairing, size: width, y }));
            }
        }
        AppliedOp::Gate { act, limit, offset, gate: _, up: _ } => {
            let rule = GateRule { act, limit, offset };
            for (gate, up) in x.chunks(stride).zip(rows(case, 1).chunks(stride)) {
                let up = memory.place(up);
                run(gate, &mut |gate, y| {
                    y.copy_from_slice(&up);
                    table.run(Gate { rule, gate, up: y });
                });
            }
        }
        AppliedOp::GateHeads { act, gate: _, x: _ } => {
            let heads = stride / width;
            for (gate, x) in x.chunks(heads).zip(rows(case, 1).chunks(stride)) {
                let gate = memory.place(gate);
                run(x, &mut |x, y| table.run(GateRow { act, gate: &gate, x, y }));
            }
        }
        AppliedOp::Add { a: _, b: _ } => {
            for (a, b) in x.chunks(stride).zip(rows(case, 1).chunks(stride)) {
                let b = memory.place(b);
                run(a, &mut |a, y| table.run(Add { a, b: &b, y }));
            }
        }
        AppliedOp::Activate { act, x: _ } => {
            x.chunks(stride).for_each(|x| run(x, &mut |x, y| table.run(Activate { act, x, y })));
        }
        AppliedOp::Xielu { positive, negative, beta, epsilon, x: _ } => {
            let xielu = Xielu { positive, negative, beta, epsilon };
            x.chunks(stride).for_each(|x| run(x, &mut |x, y| table.run(ApplyXielu { xielu, x, y })));
        }
        AppliedOp::Scale { factor, x: _ } => {
            x.chunks(stride).for_each(|x| run(x, &mut |x, y| table.run(Scale { x, factor, y })));
        }
        AppliedOp::ScaleColumns { x: _, weight: _ } => x.chunks(width).for_each(|x| {
            run(x, &mut |x, y| table.run(ScaleColumns { x, weight: &ids[0], y }));
        }),
        AppliedOp::ShiftColumns { x: _, shift: _ } => x.chunks(width).for_each(|x| {
            run(x, &mut |x, y| table.run(ShiftColumns { x, shift: &ids[0], y }));
        }),
        AppliedOp::MatchRms { least, x: _, like: _ } => {
            for (x, like) in x.chunks(width).zip(rows(case, 1).chunks(width)) {
                let like = memory.place(like);
                run(x, &mut |x, y| table.run(MatchRms { x, like: &like, least, y }));
            }
        }
        AppliedOp::Sparsify { deviations, x: _ } => {
            x.chunks(width).for_each(|x| run(x, &mut |x, y| table.run(Sparsify { x, deviations, y })));
        }
        AppliedOp::MixHeads { weights: _, x: _ } => {
            let heads = case.graph.value(node.inputs[0]).shape.stride();
            for (weights, x) in x.chunks(heads).zip(rows(case, 1).chunks(heads * width)) {
                let x = memory.place(x);
                // A result of a row has the length of a head.
                run(&vec![0.0; width], &mut |_, y| table.run(MixRow { weights, x: &x, y }));
            }
        }
        AppliedOp::Softcap { cap, x: _ } => {
            x.chunks(stride).for_each(|x| run(x, &mut |x, y| table.run(Softcap { x, cap, y })));
        }
        AppliedOp::Clamp { low, high, x: _ } => {
            x.chunks(stride).for_each(|x| run(x, &mut |x, y| table.run(Clamp { x, low, high, y })));
        }
        AppliedOp::Hadamard { size, x: _ } => {
            let size = size as usize;
            x.chunks(width).for_each(|x| run(x, &mut |x, y| table.run(Hadamard { x, size, y })));
        }
        other => panic!("{other:?} has no kernel of rows"),
    }
    all
}

fn check(side: Side) {
    for (op, seed) in OPS.into_iter().flat_map(|op| (0..SEEDS).map(move |seed| (op, seed))) {
        let case = draw(op, seed, Roundoff::SINGLE);
        for table in tables() {
            let got = by_kernel(table, &case, Memory::Guarded(side));
            let judged = judge(&case, &got, Roundoff::SINGLE);
            assert!(judged.is_ok(), "{} {op:?} seed {seed}, {}: {judged:?}", table.name, case.name);
        }
    }
}

#[test]
fn no_kernel_of_rows_accesses_memory_after_its_slices() {
    check(Side::End);
}

#[test]
fn no_kernel_of_rows_accesses_memory_before_its_slices() {
    check(Side::Start);
}
