//! The gated delta rule: a matrix for each head, which decays and which each row corrects.

use girih_graph::backend::{Block, Input, Unwatched};
use girih_graph::{Runner, faults};
use girih_tensor::Random;

use crate::forms::{edited, parse};
use crate::session::{TestSequence, open, watched};

/// One head of queries and keys with two channels, and two heads of one value.
const FORM: &str = "graph rows 200 sequences 2 context 256 output_rows 200 -> hidden
group carried carried
input q: [rows 200, 1, 2] f32
input k: [rows 200, 1, 2] f32
input v: [rows 200, 2, 1] f32
input beta: [rows 200, 2] f32
input dt: [rows 200, 2] f32
weight a: [2] f32
state carried: [2, 2, 1] f32 in carried
y: [rows 200, 2, 1] = delta_rule q, k, v, beta, dt, a, carried
output z: [output_rows 200, 2, 1] = gather y
";

/// The rate at which the first head forgets; the second one forgets nothing.
const RATE: f32 = -std::f32::consts::LN_2;

fn runner(form: &str) -> Box<dyn Runner> {
    open(form, |_, _| vec![RATE, 0.0])
}

/// Runs rows of one sequence from `position` on. Each operand has two values in a row.
fn run(runner: &mut dyn Runner, blocks: &[Block], position: usize, operands: [&[f32]; 5]) -> Vec<f32> {
    let rows = (operands[0].len() / 2) as u32;
    let sequence = TestSequence { blocks, position: position as u32, ..TestSequence::whole(rows) };
    watched(runner, &operands.map(Input::Rows), &[sequence], &mut Unwatched)
}

#[test]
fn a_row_corrects_what_the_decayed_matrix_predicts() {
    let q = [1.0, 0.0, 1.0, 10.0];
    let k = [1.0, 0.0, 0.5, 0.5];
    let v = [4.0, 8.0, 3.0, 6.0];
    let beta = [1.0, 0.5, 1.0, 0.5];
    let dt = [5.0, 5.0, 1.0, 1.0];
    let mut runner = runner(FORM);
    let rows = run(runner.as_mut(), &[Block(0)], 0, [&q, &k, &v, &beta, &dt]);
    // After the first row the matrices are (4, 0) and (4, 0). A step of 1 halves the first one: (2, 0), which predicts
    // 1 where 3 was to be, so (2, 0) + 2 · (0.5, 0.5) = (3, 1). The second one predicts 2 where 6 was to be, of which it
    // takes half: (4, 0) + 2 · (0.5, 0.5) = (5, 1).
    for (got, want) in rows.iter().zip([4.0, 4.0, 3.0 + 10.0, 5.0 + 10.0]) {
        assert!((got - want).abs() < 1e-5, "{rows:?}");
    }
    // A new sequence begins with zeros.
    let again = run(runner.as_mut(), &[Block(0)], 0, [&q[..2], &k[..2], &v[..2], &beta[..2], &dt[..2]]);
    assert_eq!(again, rows[..2]);
}

/// With a step for each channel, the channels decay apart.
#[test]
fn channels_may_decay_apart() {
    let form = edited(FORM, "input dt: [rows 200, 2] f32", "input dt: [rows 200, 2, 2] f32");
    let mut runner = runner(&form);
    let sequence = TestSequence::whole(2);
    let rows = |values: [f32; 4]| values;
    let (q, k) = (rows([1.0, 0.0, 1.0, 10.0]), rows([1.0, 1.0, 0.0, 0.0]));
    let (v, beta) = (rows([4.0, 4.0, 0.0, 0.0]), rows([1.0; 4]));
    let dt = [0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 1.0, 2.0];
    let inputs = [&q[..], &k, &v, &beta, &dt].map(Input::Rows);
    let got = watched(runner.as_mut(), &inputs, &[sequence], &mut Unwatched);
    // Both channels have 4; those of the first head are halved once and twice.
    for (got, want) in got.iter().zip([4.0, 4.0, 2.0 + 10.0, 4.0 + 40.0]) {
        assert!((got - want).abs() < 1e-4, "{got} {want}");
    }
}

#[test]
fn rows_in_chunks_are_those_of_one_step_and_a_kept_border_gives_them_again() {
    let (mut random, blocks) = (Random(3), [Block(1), Block(3), Block(0), Block(2)]);
    let operands: Vec<Vec<f32>> =
        (0..5).map(|_| (0..400).map(|_| 0.7 * random.number().abs()).collect()).collect();
    let part = |from: usize, count: usize| -> Vec<&[f32]> {
        operands.iter().map(|operand| &operand[2 * from..2 * (from + count)]).collect()
    };
    let rows = |runner: &mut dyn Runner, from: usize, count: usize| {
        let operands = part(from, count).try_into().expect("five operands");
        run(runner, &blocks, from, operands)
    };
    let whole = rows(runner(FORM).as_mut(), 0, 200);
    let mut runner = runner(FORM);
    let (mut position, mut found) = (0, Vec::new());
    while position < 200 {
        let count = (1 + random.below(90)).min(200 - position);
        found.extend(rows(runner.as_mut(), position, count));
        position += count;
    }
    assert_eq!(found, whole);
    for border in [192, 128, 64] {
        assert_eq!(rows(runner.as_mut(), border, 5), whole[2 * border..2 * (border + 5)], "from {border} on");
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    assert_eq!(faults(&parse(FORM)), []);
    for (from, to) in [
        ("input k: [rows 200, 1, 2] f32", "input k: [rows 200, 2, 1] f32"),
        ("input beta: [rows 200, 2] f32", "input beta: [rows 200, 1] f32"),
        ("input dt: [rows 200, 2] f32", "input dt: [rows 200, 2, 1] f32"),
        ("weight a: [2] f32", "weight a: [1] f32"),
        ("state carried: [2, 2, 1] f32", "state carried: [2, 1, 2] f32"),
    ] {
        let found = faults(&parse(&edited(FORM, from, to)));
        assert!(found.iter().any(|fault| fault.name == "y"), "{to}: {found:?}");
    }
}
