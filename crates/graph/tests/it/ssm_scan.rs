//! The scan of Mamba-2: one state for each head, which decays and is added to.

use girih_graph::backend::{Block, Input, Unwatched};
use girih_graph::{Runner, faults};
use girih_tensor::Random;

use crate::forms::{edited, parse};
use crate::session::{TestSequence, open, watched};

/// Two heads of one value, with a state of two columns each, in one group.
const FORM: &str = "graph rows 200 sequences 2 context 256 output_rows 200 -> hidden
group carried carried
input x: [rows 200, 2, 1] f32
input dt: [rows 200, 2] f32
input b: [rows 200, 1, 2] f32
input c: [rows 200, 1, 2] f32
weight a: [2] f32
weight d: [2] f32
weight bias: [2] f32
state carried: [2, 1, 2] f32 in carried
y: [rows 200, 2, 1] = ssm_scan(least=0.0 most=2.0) x, dt, b, c, a, d, bias, carried
output z: [output_rows 200, 2, 1] = gather y
";

/// The values of each operand in a row.
const WIDTHS: [usize; 4] = [2, 2, 2, 2];

fn runner() -> Box<dyn Runner> {
    open(FORM, |name, _| match name {
        "a" => vec![-0.5, 0.0],
        "d" => vec![10.0, 0.0],
        _ => vec![0.0, 1.0],
    })
}

/// Runs rows of one sequence from `position` on.
fn run(runner: &mut dyn Runner, blocks: &[Block], position: usize, operands: [&[f32]; 4]) -> Vec<f32> {
    let rows = (operands[0].len() / WIDTHS[0]) as u32;
    let sequence = TestSequence { blocks, position: position as u32, ..TestSequence::whole(rows) };
    watched(runner, &operands.map(Input::Rows), &[sequence], &mut Unwatched)
}

fn softplus(x: f64) -> f64 {
    x.exp().ln_1p()
}

#[test]
fn a_state_decays_by_each_rows_own_step_and_a_new_sequence_begins_with_zeros() {
    let x = [2.0, 3.0, 5.0, 7.0];
    let dt = [0.0, 0.0, 1.0, 100.0];
    let b = [1.0, 2.0, 3.0, 4.0];
    let c = [1.0, 10.0, 1.0, 100.0];
    let mut runner = runner();
    let rows = run(runner.as_mut(), &[Block(0)], 0, [&x, &dt, &b, &c]);
    // The first head: its bias is 0 and its d is 10.
    let (first, second) = (softplus(0.0), softplus(1.0));
    let decay = (-0.5 * second).exp();
    let state = [first * 2.0 * 1.0, first * 2.0 * 2.0];
    let next = [decay * state[0] + second * 5.0 * 3.0, decay * state[1] + second * 5.0 * 4.0];
    // The second one: its bias is 1, it forgets nothing, and its second step is cut to 2.
    let (other, cut) = (softplus(1.0), 2.0);
    let of_other = [other * 3.0 * 1.0 + cut * 7.0 * 3.0, other * 3.0 * 2.0 + cut * 7.0 * 4.0];
    let want = [
        state[0] + 10.0 * state[1] + 20.0,
        other * 3.0 * (1.0 + 20.0),
        next[0] + 100.0 * next[1] + 50.0,
        of_other[0] + 100.0 * of_other[1],
    ];
    for (got, want) in rows.iter().zip(want) {
        assert!((f64::from(*got) / want - 1.0).abs() < 1e-6, "{rows:?} {want}");
    }
    // What the block has is not read at position 0.
    assert_eq!(run(runner.as_mut(), &[Block(0)], 0, [&x, &dt, &b, &c]), rows);
}

#[test]
fn rows_in_chunks_are_those_of_one_step_and_a_kept_border_gives_them_again() {
    let (mut random, blocks) = (Random(3), [Block(1), Block(3), Block(0), Block(2)]);
    let operands = WIDTHS.map(|width| random.numbers(200 * width));
    let part = |from: usize, count: usize| {
        [0, 1, 2, 3].map(|index| &operands[index][from * WIDTHS[index]..][..count * WIDTHS[index]])
    };
    let whole = run(runner().as_mut(), &blocks, 0, part(0, 200));
    for _ in 0..5 {
        let (mut runner, mut position, mut rows) = (runner(), 0, Vec::new());
        while position < 200 {
            let count = (1 + random.below(90)).min(200 - position);
            rows.extend(run(runner.as_mut(), &blocks, position, part(position, count)));
            position += count;
        }
        assert_eq!(rows, whole);
        for border in [192, 128, 64] {
            let again = run(runner.as_mut(), &blocks, border, part(border, 5));
            assert_eq!(again, whole[border * 2..(border + 5) * 2], "from {border} on");
        }
    }
}

#[test]
fn operands_of_other_sizes_are_refused() {
    assert_eq!(faults(&parse(FORM)), []);
    const SHAPES: &str = "ssm_scan: its operands do not have the shapes it needs";
    for (from, to) in [
        ("input dt: [rows 200, 2]", "input dt: [rows 200, 1]"),
        ("input c: [rows 200, 1, 2]", "input c: [rows 200, 2, 1]"),
        ("weight d: [2]", "weight d: [1]"),
        ("carried: [2, 1, 2]", "carried: [1, 2, 2]"),
        ("input x: [rows 200, 2, 1]", "input x: [rows 200, 1, 2]"),
    ] {
        let found = faults(&parse(&edited(FORM, from, to)));
        assert!(found.iter().any(|fault| fault.to_string().contains(SHAPES)), "{to}: {found:?}");
    }
    for most in ["most=-1.0", "most=nan"] {
        let found = parse_fault(&edited(FORM, "most=2.0", most));
        assert!(found, "{most}");
    }
}

/// Whether a graph is no graph, or has a fault.
fn parse_fault(text: &str) -> bool {
    text.parse::<girih_graph::Graph>().map_or(true, |graph| !faults(&graph).is_empty())
}
