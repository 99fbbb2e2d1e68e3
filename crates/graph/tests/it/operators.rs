//! The ops that compute one row at a time, with numbers computed by hand.

use girih_graph::Outputs;
use girih_graph::backend::{Block, GivenRows, Input, Unwatched};

use crate::session::{TestSequence, open, step, watched};

/// Equal up to the rounding of the inputs (such as ln 3) and of the result: no
/// case multiplies an error of its inputs by more than seven.
#[track_caller]
pub fn near(have: &[f32], expected: &[f64]) {
    assert_eq!(have.len(), expected.len(), "{have:?} for {expected:?}");
    for (&have, &expected) in have.iter().zip(expected) {
        let bound = 8.0 * f64::from(f32::EPSILON) / 2.0 * expected.abs().max(1.0);
        assert!((f64::from(have) - expected).abs() <= bound, "{have} for {expected}");
    }
}

/// Runs the lines on the rows of `x`, one sequence from position 0, and returns
/// the rows of `y`, the result of the last line.
fn run(lines: &[&str], weights: &[(&str, &[f32])], x: &[f32]) -> Vec<f32> {
    run_from(0, lines, weights, x)
}

fn run_from(position: u32, lines: &[&str], weights: &[(&str, &[f32])], x: &[f32]) -> Vec<f32> {
    let last = lines[lines.len() - 1];
    let shape = last
        .strip_prefix("y: [rows ")
        .and_then(|rest| rest.split_once(']'))
        .expect("the last line computes y")
        .0;
    let rows = shape.split(',').next().expect("split yields one at least");
    let text = format!(
        "graph rows {rows} sequences 1 context 64 output_rows {rows} -> hidden\n{}\n\
         output z: [output_rows {shape}] = gather y",
        lines.join("\n"),
    );
    let mut runner = open(&text, |name, _| {
        weights.iter().find(|(known, _)| *known == name).expect("the case has the weight").1.to_vec()
    });
    let sequence = TestSequence { position, ..TestSequence::whole(rows.parse().expect("a number of rows")) };
    step(runner.as_mut(), Input::Rows(x), &[sequence])
}

#[test]
fn embed_returns_rows_of_its_table() {
    let text = "graph rows 3 sequences 1 context 64 output_rows 3 -> hidden
        input tokens: [rows 3] i32
        weight table: [3, 2] f32
        rows: [rows 3, 2] = embed tokens, table
        output z: [output_rows 3, 2] = gather rows";
    let mut runner = open(text, |_, _| vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let rows = step(runner.as_mut(), Input::Ids(&[2, 0, 2]), &[TestSequence::whole(3)]);
    assert_eq!(rows, [5.0, 6.0, 1.0, 2.0, 5.0, 6.0]);
}

#[test]
fn norm_divides_by_the_root_of_the_mean_square() {
    let norm = |epsilon: &str, x: &[f32]| {
        let last = format!("y: [rows 1, 2] = norm(epsilon={epsilon}) x, w");
        run(&["input x: [rows 1, 2] f32", "weight w: [2] f32", &last], &[("w", &[1.0, 10.0])], x)
    };
    // The mean square of 3 and 4 is 12.5; √12.5 = 5/√2.
    near(&norm("0.0", &[3.0, 4.0]), &[0.6 * 2f64.sqrt(), 8.0 * 2f64.sqrt()]);
    // √(12.5 + 12.5) = 5: the epsilon stands inside the root.
    near(&norm("12.5", &[3.0, 4.0]), &[0.6, 8.0]);
    near(&norm("1.0", &[0.0, 0.0]), &[0.0, 0.0]);
}

#[test]
fn norm_of_heads_is_over_each_head() {
    let lines =
        ["input x: [rows 1, 2, 2] f32", "weight w: [2] f32", "y: [rows 1, 2, 2] = norm(epsilon=12.5) x, w"];
    // The second head: (36 + 64) / 2 + 12.5 = 62.5; √62.5 = 2.5·√10.
    let tenth = 1.0 / (2.5 * 10f64.sqrt());
    near(&run(&lines, &[("w", &[1.0, 1.0])], &[3.0, 4.0, 6.0, 8.0]), &[0.6, 0.8, 6.0 * tenth, 8.0 * tenth]);
}

#[test]
fn layer_norm_subtracts_the_mean_and_divides_by_the_deviation() {
    let layer_norm = |epsilon: &str, bias: &str, operands: &str, x: &[f32]| {
        let last = format!("y: [rows 1, 4] = layer_norm(epsilon={epsilon}) {operands}");
        let lines = ["input x: [rows 1, 4] f32", "weight w: [4] f32", bias, &last];
        run(&lines, &[("w", &[1.0, 1.0, 10.0, -1.0]), ("b", &[0.5, 0.0, -1.0, 2.0])], x)
    };
    // The mean is 3. The variance is the mean of the squares less the square of the mean:
    // (1 + 4 + 9 + 36) / 4 - 9 = 3.5.
    let x = [1.0, 2.0, 3.0, 6.0];
    let unit = 1.0 / 3.5f64.sqrt();
    near(&layer_norm("0.0", "", "x, w", &x), &[-2.0 * unit, -unit, 0.0, -3.0 * unit]);
    // √(3.5 + 12.5) = 4: the epsilon stands inside the root, and the bias is not scaled.
    let with_bias = layer_norm("12.5", "weight b: [4] f32", "x, w, b", &x);
    near(&with_bias, &[0.0, -0.25, -1.0, 1.25]);
    near(&layer_norm("1.0", "", "x, w", &[7.0; 4]), &[0.0; 4]);
}

#[test]
fn linear_multiplies_by_the_transposed_weight() {
    let linear = |operands: &str, bias: &str| {
        let last = format!("y: [rows 2, 2] = linear {operands}");
        let lines = ["input x: [rows 2, 3] f32", "weight w: [2, 3] f32", bias, &last];
        let weights: [(&str, &[f32]); 2] = [("w", &[3.0, 4.0, 0.0, 5.0, 6.0, 1.0]), ("b", &[10.0, 20.0])];
        run(&lines, &weights, &[1.0, 2.0, 0.0, 0.0, 0.0, 7.0])
    };
    // 1·3 + 2·4 = 11, 1·5 + 2·6 = 17; then 7·0 and 7·1.
    assert_eq!(linear("x, w", ""), [11.0, 17.0, 0.0, 7.0]);
    assert_eq!(linear("x, w, b", "weight b: [2] f32"), [21.0, 37.0, 10.0, 27.0]);
}

#[test]
fn reshape_keeps_numbers_and_order() {
    let lines = ["input x: [rows 2, 4] f32", "y: [rows 2, 2, 2] = reshape x"];
    let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
    assert_eq!(run(&lines, &[], &x), x);
}

/// The same four numbers, rotated at `position` and at the next one.
fn rotated(position: u32, pairing: &str) -> Vec<f32> {
    let last = format!("y: [rows 2, 1, 4] = rope(pairing={pairing}) x, f");
    let lines = ["input x: [rows 2, 1, 4] f32", "weight f: [2] f32", &last];
    // The first pair rotates by a quarter turn per position, the second by nothing.
    let frequencies = [std::f32::consts::FRAC_PI_2, 0.0];
    run_from(position, &lines, &[("f", &frequencies)], &[1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0])
}

#[test]
fn rope_rotates_pairs_by_position_times_frequency() {
    // A quarter turn maps (a, b) to (−b, a): halves pair 1 with 3, neighbours 1 with 2.
    near(&rotated(0, "halves"), &[1.0, 2.0, 3.0, 4.0, -3.0, 2.0, 1.0, 4.0]);
    near(&rotated(0, "neighbours"), &[1.0, 2.0, 3.0, 4.0, -2.0, 1.0, 3.0, 4.0]);
    // Two quarter turns negate; three map (a, b) to (b, −a).
    near(&rotated(2, "halves"), &[-1.0, 2.0, -3.0, 4.0, 3.0, 2.0, -1.0, 4.0]);
    near(&rotated(2, "neighbours"), &[-1.0, -2.0, 3.0, 4.0, 2.0, -1.0, 3.0, 4.0]);
}

#[test]
fn rope_keeps_the_components_behind_the_pairs_and_multiplies_the_others() {
    let quarter = [std::f32::consts::FRAC_PI_2];
    for (pairing, result) in [("halves", [-4.0, 2.0, 3.0, 4.0]), ("neighbours", [-4.0, 2.0, 3.0, 4.0])] {
        let last = format!("y: [rows 1, 1, 4] = rope(pairing={pairing} factor=2.0) x, f");
        let lines = ["input x: [rows 1, 1, 4] f32", "weight f: [1] f32", &last];
        near(&run_from(1, &lines, &[("f", &quarter)], &[1.0, 2.0, 3.0, 4.0]), &result);
    }
}

#[test]
fn rope_rotates_every_head_by_the_same_angles() {
    let lines =
        ["input x: [rows 1, 2, 2] f32", "weight f: [1] f32", "y: [rows 1, 2, 2] = rope(pairing=halves) x, f"];
    let quarter = [std::f32::consts::FRAC_PI_2];
    near(&run_from(1, &lines, &[("f", &quarter)], &[1.0, 2.0, 3.0, 4.0]), &[-2.0, 1.0, -4.0, 3.0]);
}

#[test]
fn gate_activates_its_first_operand_and_multiplies() {
    let gate = |act: &str, x: [f32; 2]| {
        let last = format!("y: [rows 1, 1] = gate(act={act}) gate, up");
        let lines = [
            "input x: [rows 1, 2] f32",
            "weight first: [1, 2] f32",
            "gate: [rows 1, 1] = linear x, first",
            "weight second: [1, 2] f32",
            "up: [rows 1, 1] = linear x, second",
            &last,
        ];
        run(&lines, &[("first", &[1.0, 0.0]), ("second", &[0.0, 1.0])], &x)
    };
    // silu(ln 3) = ln 3 / (1 + 1/3) = 3/4 · ln 3.
    near(&gate("silu", [3f32.ln(), 2.0]), &[1.5 * 3f64.ln()]);
    near(&gate("silu", [0.0, 2.0]), &[0.0]);
    // √(2/π) · (1 + 0.044715) = 0.8335615754…; its tanh is 0.6823839…, from
    // (e²ᵗ − 1) / (e²ᵗ + 1).
    let grown = (2.0 * 0.797_884_560_802_865_4 * 1.044_715f64).exp();
    near(&gate("gelu_tanh", [1.0, 4.0]), &[2.0 * (1.0 + (grown - 1.0) / (grown + 1.0))]);
    near(&gate("gelu_tanh", [-1.0, 4.0]), &[-2.0 * (1.0 - (grown - 1.0) / (grown + 1.0))]);
}

/// `erf(x)` by its Taylor series, `2/√π · Σ (−1)ⁿ x²ⁿ⁺¹ / (n! (2n + 1))`, for small `x`.
fn erf_by_its_series(x: f64) -> f64 {
    let (mut power, mut sum) = (x, 0.0);
    for n in 0..60 {
        sum += power / f64::from(2 * n + 1);
        power *= -x * x / f64::from(n + 1);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

#[test]
fn activate_applies_each_activation_by_element() {
    let activate = |act: &str, x: &[f32; 4]| {
        let last = format!("y: [rows 2, 2] = activate(act={act}) x");
        run(&["input x: [rows 2, 2] f32", &last], &[], x)
    };
    // silu(−x) = silu(x) − x, and silu(ln 3) = 3/4 · ln 3.
    let log = 3f64.ln();
    near(&activate("silu", &[0.0, 3f32.ln(), -3f32.ln(), -1e30]), &[0.0, 0.75 * log, -0.25 * log, 0.0]);
    let x = [0.5f32, -1.25, 2.0, -0.0];
    let expected = x.map(|x| {
        let x = f64::from(x);
        x / 2.0 * (1.0 + erf_by_its_series(x / 2f64.sqrt()))
    });
    near(&activate("gelu", &x), &expected);
    // 1 + tanh(t) = 2 / (1 + e⁻²ᵗ).
    let expected = x.map(|x| {
        let x = f64::from(x);
        x / (1.0 + (-2.0 * (2.0 / std::f64::consts::PI).sqrt() * x * (1.0 + 0.044715 * x * x)).exp())
    });
    near(&activate("gelu_tanh", &x), &expected);
    near(&activate("gelu", &[0.0, 30.0, -30.0, 1e30]), &[0.0, 30.0, 0.0, f64::from(1e30f32)]);
}

#[test]
fn gate_with_gelu_multiplies_the_activation() {
    let lines = ["input x: [rows 1, 2] f32", "y: [rows 1, 2] = gate(act=gelu) x, x"];
    let expected = [1.0, -0.5].map(|x: f64| x * x / 2.0 * (1.0 + erf_by_its_series(x / 2f64.sqrt())));
    near(&run(&lines, &[], &[1.0, -0.5]), &expected);
}

#[test]
fn splice_replaces_the_given_rows() {
    let text = "graph rows 4 sequences 2 context 64 output_rows 4 -> hidden
        input x: [rows 4, 2] f32
        input image: [rows 4, 2] f32
        y: [rows 4, 2] = splice x, image
        output z: [output_rows 4, 2] = gather y";
    let spliced = |given: &[GivenRows<'_>]| {
        let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        let other = TestSequence { blocks: &[Block(1)], ..TestSequence::whole(1) };
        let sequences = [TestSequence::whole(3), other];
        let inputs = [Input::Rows(&x), Input::Given(given)];
        watched(open(text, |_, _| Vec::new()).as_mut(), &inputs, &sequences, &mut Unwatched)
    };
    assert_eq!(spliced(&[]), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    // Rows are numbered over all sequences of the step.
    let first = GivenRows { first_row: 1, values: &[-1.0, -2.0] };
    let last = GivenRows { first_row: 2, values: &[-3.0, -4.0, -5.0, -6.0] };
    assert_eq!(spliced(&[first]), [1.0, 2.0, -1.0, -2.0, 5.0, 6.0, 7.0, 8.0]);
    assert_eq!(spliced(&[first, last]), [1.0, 2.0, -1.0, -2.0, -3.0, -4.0, -5.0, -6.0]);
}

#[test]
fn pool_makes_one_row_of_each_sequence() {
    let pooled = |how: &str| {
        let text = format!(
            "graph rows 4 sequences 2 context 64 output_rows 1 -> pooled
            input x: [rows 4, 2] f32
            output z: [sequences 2, 2] = pool(how={how}) x"
        );
        let sequence = |rows| TestSequence { outputs: Outputs::None, ..TestSequence::whole(rows) };
        let x = [1.0, -1.0, 2.0, -2.0, 6.0, 0.5, 9.0, 10.0];
        step(open(&text, |_, _| Vec::new()).as_mut(), Input::Rows(&x), &[sequence(3), sequence(1)])
    };
    assert_eq!(pooled("first"), [1.0, -1.0, 9.0, 10.0]);
    assert_eq!(pooled("last"), [6.0, 0.5, 9.0, 10.0]);
    // (1 + 2 + 6) / 3 and (-1 - 2 + 1/2) / 3.
    near(&pooled("mean"), &[3.0, -2.5 / 3.0, 9.0, 10.0]);
}

#[test]
fn add_scale_and_softcap_are_elementwise() {
    let x = "input x: [rows 1, 2] f32";
    assert_eq!(run(&[x, "y: [rows 1, 2] = add x, x"], &[], &[1.5, -2.0]), [3.0, -4.0]);
    assert_eq!(run(&[x, "y: [rows 1, 2] = scale(factor=-0.5) x"], &[], &[1.5, -2.0]), [-0.75, 1.0]);
    // tanh(ln 3 / 2) = (3 − 1) / (3 + 1) = 1/2, times the cap of 2.
    near(&run(&[x, "y: [rows 1, 2] = softcap(cap=2.0) x"], &[], &[3f32.ln(), -1e30]), &[1.0, -2.0]);
}

#[test]
fn clamp_bounds_each_number() {
    let lines = ["input x: [rows 1, 4] f32", "y: [rows 1, 4] = clamp(low=-1.0 high=2.5) x"];
    let y = run(&lines, &[], &[-1.5, 0.25, 3.0, f32::NAN]);
    assert_eq!(y[..3], [-1.0, 0.25, 2.5]);
    assert!(y[3].is_nan());
}

#[test]
fn hadamard_turns_each_block() {
    let lines = ["input x: [rows 1, 4] f32", "y: [rows 1, 4] = hadamard(size=2) x"];
    let root = 2f64.sqrt();
    near(&run(&lines, &[], &[3.0, 1.0, 0.0, 2.0]), &[4.0 / root, 2.0 / root, 2.0 / root, -2.0 / root]);
    let whole = ["input x: [rows 1, 4] f32", "y: [rows 1, 4] = hadamard(size=4) x"];
    assert_eq!(run(&whole, &[], &[1.0, 2.0, 3.0, 4.0]), [5.0, -1.0, -2.0, 0.0]);
}

/// The output rows of a step with rows 10, 20, 30, 40 of one sequence.
fn gathered(outputs: Outputs) -> Vec<f32> {
    gathered_of_two([4, 0], [outputs, Outputs::None])
}

fn gathered_of_two(rows: [u32; 2], outputs: [Outputs; 2]) -> Vec<f32> {
    let text = "graph rows 4 sequences 2 context 64 output_rows 4 -> hidden
        input x: [rows 4, 1] f32
        output z: [output_rows 4, 1] = gather x";
    let sequence = |index: usize| TestSequence {
        rows: rows[index],
        outputs: outputs[index],
        blocks: &[Block(0)],
        ..TestSequence::whole(0)
    };
    let both = [sequence(0), sequence(1)].into_iter();
    let sequences: Vec<_> = both.filter(|sequence| sequence.rows > 0).collect();
    step(open(text, |_, _| Vec::new()).as_mut(), Input::Rows(&[10.0, 20.0, 30.0, 40.0]), &sequences)
}

#[test]
fn gather_returns_the_output_rows_in_order() {
    assert!(gathered(Outputs::None).is_empty());
    assert_eq!(gathered(Outputs::Last), [40.0]);
    assert_eq!(gathered(Outputs::LastN(2)), [30.0, 40.0]);
    assert_eq!(gathered(Outputs::LastN(9)), [10.0, 20.0, 30.0, 40.0]);
    assert_eq!(gathered(Outputs::All), [10.0, 20.0, 30.0, 40.0]);
    assert_eq!(gathered_of_two([1, 3], [Outputs::Last, Outputs::LastN(2)]), [10.0, 30.0, 40.0]);
    assert_eq!(gathered_of_two([3, 1], [Outputs::None, Outputs::All]), [40.0]);
}

/// Two heads, the second one with a matrix that doubles and swaps.
#[test]
fn linear_heads_has_a_matrix_for_each_head() {
    let lines = [
        "input x: [rows 1, 2, 2] f32",
        "weight w: [2, 1, 2] f32",
        "heads: [rows 1, 2, 1] = linear_heads x, w",
        "y: [rows 1, 2] = reshape heads",
    ];
    near(&run(&lines, &[("w", &[1.0, 2.0, -3.0, 0.5])], &[1.0, 2.0, 3.0, 4.0]), &[5.0, -7.0]);
}

/// The second head counts a half.
#[test]
fn mix_heads_adds_weighed_heads() {
    let lines = [
        "input x: [rows 1, 2, 2] f32",
        "weight w: [2, 4] f32",
        "flat: [rows 1, 4] = reshape x",
        "weights: [rows 1, 2] = linear flat, w",
        "y: [rows 1, 2] = mix_heads weights, x",
    ];
    // The weights are x[0] and x[3] / 8.
    let w = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.125];
    near(&run(&lines, &[("w", &w)], &[1.0, 2.0, 3.0, 4.0]), &[1.0 + 1.5, 2.0 + 2.0]);
}

/// The mean is 2, the variance 2.
#[test]
fn sparsify_cuts_a_row() {
    let lines = ["input x: [rows 1, 4] f32", "y: [rows 1, 4] = sparsify(deviations=1.0) x"];
    near(&run(&lines, &[], &[0.0, 2.0, 2.0, 4.0]), &[0.0, 0.0, 0.0, 0.585_786]);
}

/// The root mean squares are 2.5 and 5, so the second one counts with the least one, 5.
#[test]
fn match_rms_takes_the_size_of_another_row() {
    let lines = [
        "input x: [rows 1, 4] f32",
        "like: [rows 1, 4] = scale(factor=2.0) x",
        "matched: [rows 1, 4] = match_rms(least=0.00001) x, like",
        "y: [rows 1, 4] = match_rms(least=25.0) matched, x",
    ];
    near(&run(&lines, &[], &[3.0, 4.0, 0.0, 0.0]), &[3.0, 4.0, 0.0, 0.0]);
}

#[test]
fn concat_joins_heads() {
    let lines = ["input x: [rows 1, 2, 2] f32", "y: [rows 1, 2, 4] = concat x, x"];
    let y = run(&lines, &[], &[1.0, 2.0, 3.0, 4.0]);
    assert_eq!(y, [1.0, 2.0, 1.0, 2.0, 3.0, 4.0, 3.0, 4.0]);
}

/// The keys are the rows themselves: row 2 has the scores 2, 0 and 4, and row 1 sees one position of its size.
#[test]
fn select_keys_takes_the_best_positions() {
    let lines = [
        "group full span full",
        "input x: [rows 3, 1, 2] f32",
        "weight w: [1, 2] f32",
        "flat: [rows 3, 2] = reshape x",
        "weights: [rows 3, 1] = linear flat, w",
        "state held: [context 64, 1, 2] f32 in full",
        "held = write x",
        "y: [rows 3, 4] = select_keys(best=2) x, weights, held",
    ];
    let y = run(&lines, &[("w", &[1.0, 0.0])], &[1.0, 1.0, -1.0, 3.0, 2.0, 0.0]);
    let of_row = |row: usize| y[4 * row];
    // The weight of row 1 is negative, so its own score is below that of an orthogonal key.
    assert_eq!([of_row(0), of_row(1), of_row(2)], [1.0, 3.0, 5.0]);
    assert!(y.iter().enumerate().all(|(at, y)| at % 4 == 0 || *y == 0.0));
}

/// The score of each row's own key is its square; values are the first numbers. By hand: row 1 has the scores 2 and
/// 4, times ln(3)/2, so the weights 1/4 and 3/4.
#[test]
fn attend_latent_reads_values_from_keys() {
    let lines = [
        "group full span full",
        "input x: [rows 2, 1, 2] f32",
        "state held: [context 64, 1, 2] f32 in full",
        "held = write x",
        "y: [rows 2, 1, 1] = attend_latent(scale=0.54930615 span=full values=1) x, held",
    ];
    near(&run(&lines, &[], &[1.0, 5.0, 2.0, 0.0]), &[1.0, 0.25 + 1.5]);
}
