//! Errors of small graphs, with sizes and errors by hand.

use std::ops::Range;

use girih_graph::Watch as _;
use girih_tensor::Shape;

use super::attention::HeadPart;
use super::*;

/// One unit per stored result, and none of other kinds.
const UNIT: RoundingErrors =
    RoundingErrors { term: 0.0, result: 1e-6, state: 0.0, largest: 7.0, change: 1.0 };

/// The errors of a graph of two rows, in stores; the values are rows of two numbers. Weights have the
/// mean square 0.5, so a sum of two products has the noise of its row. A node that is not followed
/// counts three stores.
fn errors(graph: &str, values: &[(&str, [f32; 4])]) -> RowErrors {
    let graph: Graph = graph.parse().expect("a graph");
    let weights = graph.weights().map(|(_, weight)| (weight.name.clone(), 0.5)).collect();
    let mut sizes = RowSizes::of(&graph, &weights, vec![Range { start: 0, end: 2 }]);
    for (name, rows) in values {
        assert!(sizes.wants(name));
        sizes.value(name, &Shape::matrix(2, 2), rows);
    }
    sizes.errors(UNIT, &vec![3.0 * UNIT.result; graph.nodes.len()], &vec![0.0; graph.values.len()])
}

fn stores(errors: &RowErrors, name: &str) -> [f64; 2] {
    [0, 1].map(|row| errors.of(name, row).expect("two rows") / UNIT.result)
}

fn assert_near(found: [f64; 2], want: [f64; 2]) {
    assert!(found.iter().zip(want).all(|(found, want)| (found - want).abs() <= 1e-3 * want), "{found:?}");
}

const LINEAR: &str = "\
graph rows 2 sequences 1 context 64 output_rows 2 -> hidden
input tokens: [rows 2] i32
weight table: [4, 2] bf16
x: [rows 2, 2] = embed tokens, table
weight weight: [2, 2] bf16
y: [rows 2, 2] = linear x, weight
sum: [rows 2, 2] = add x, y
output rows: [output_rows 2, 2] = gather sum
";

/// The first row of `y` has the size 1, the second a tenth of it.
#[test]
fn a_row_whose_products_cancel_has_larger_errors() {
    let (x, y) = ([1.0; 4], [1.0, 1.0, 0.1, 0.1]);
    let found = errors(LINEAR, &[("x", x), ("y", y), ("sum", [2.0, 2.0, 1.1, 1.1])]);
    assert_near(stores(&found, "y"), [2.0, 100.0 + 1.0]);
    // The noise of both operands, over the sum's square, and its own store.
    assert_near(stores(&found, "rows"), [(1.0 + 2.0) / 4.0 + 1.0, (1.0 + 1.01) / 1.21 + 1.0]);
    assert!(found.not_followed.is_empty(), "{:?}", found.not_followed);
}

#[test]
fn a_residual_that_cancels_keeps_the_noise_of_its_operands() {
    let (x, y) = ([1.0; 4], [1.0, 1.0, -0.9, -0.9]);
    let found = errors(LINEAR, &[("x", x), ("y", y), ("sum", [2.0, 2.0, 0.1, 0.1])]);
    let [first, second] = stores(&found, "sum");
    assert!(first < 2.0 && second > 200.0, "{first} {second}");
}

/// Attention of two rows: queries, keys and values are the embedding's rows.
fn attend(scale: &str, span: &str) -> String {
    format!(
        "\
graph rows 2 sequences 1 context 64 output_rows 2 -> hidden
input tokens: [rows 2] i32
weight table: [4, 2] bf16
x: [rows 2, 2] = embed tokens, table
heads: [rows 2, 1, 2] = reshape x
mixed: [rows 2, 1, 2] = attend(scale={scale} span={span}) heads, heads, heads
output rows: [output_rows 2, 1, 2] = gather mixed
"
    )
}

#[test]
fn errors_of_scores_grow_with_the_scores() {
    let found = errors(&attend("0.5", "all"), &[("x", [1.0, -1.0, -1.0, 1.0])]);
    let [found, _] = stores(&found, "mixed");
    // Scores ±1: p is 0.881 and 0.119, the result 0.762 of a row, the distances of values from it
    // 0.238 and 1.762, and p times them 0.2100. A score has three stores, of key, sum and
    // product, each of the size 1. The query's matrix is 0.2100 · (0.238 + 1.762) in each of its four
    // elements, so the mean of its rows' squares is 2 · 0.42², and the scale halves it.
    let scores = 2.0 * 0.21f64.powi(2) * (0.5 + 2.0) + 0.5f64.powi(2) * 2.0 * 0.42f64.powi(2);
    let values = 2.0 * (0.881f64.powi(2) + 0.119f64.powi(2));
    let want = (scores + values) / 0.762f64.powi(2) + 1.0;
    assert!((found / want - 1.0).abs() < 0.01, "{found} {want}");
}

#[test]
fn a_row_with_one_key_has_no_error_of_scores() {
    for (scale, span) in [("0.5", "full"), ("500.0", "full"), ("500.0", "window:1")] {
        let found = errors(&attend(scale, span), &[("x", [1.0, 2.0, -2.0, 1.0])]);
        // The value, the softmax and the result.
        let [first, second] = stores(&found, "mixed");
        assert!((first - 3.0).abs() < 1e-3, "{first}");
        assert!(span == "full" || (second - 3.0).abs() < 1e-3, "{second}");
    }
}

/// Two equal keys: an error of the query is common to both scores.
#[test]
fn an_error_common_to_all_scores_cancels() {
    let part = |numbers, error| HeadPart { numbers, error, noise: error };
    let head = |keys: [&'static [f32]; 2], error| {
        let values: [&[f32]; 2] = [&[1.0, 0.0], &[0.0, 1.0]];
        let read = [0, 1].map(|key| (part(keys[key], 0.0), part(values[key], 0.0))).to_vec();
        let choices = vec![PositionChoice::Read; 2];
        let one = RoundingErrors { term: 0.0, result: 0.0, state: 0.0, largest: 7.0, change: 1.0 };
        AttendingHead { one, scale: 1.0, cap: None, sink: None, q: part(&[1.0, 1.0], error), read, choices }
            .noise_and_size()
    };
    assert_eq!(head([&[3.0, 4.0], &[3.0, 4.0]], 0.01), (0.0, 0.25));
    assert!(head([&[3.0, 4.0], &[4.0, 3.0]], 0.01).0 > 0.0);
    assert_eq!(head([&[3.0, 4.0], &[4.0, 3.0]], 0.0), (0.0, 0.25));
}

/// A key of the same probability as the sink: an error `d` of its score changes the result by `d/4` of the value.
#[test]
fn a_sink_takes_weight_from_keys() {
    let part = |numbers, noise| HeadPart { numbers, error: 0.0, noise };
    let head = |sink| {
        let one = RoundingErrors { term: 0.0, result: 0.0, state: 0.0, largest: 7.0, change: 1.0 };
        let (read, choices) =
            (vec![(part(&[3.0, 4.0], 0.0), part(&[1.0, 0.0], 0.0))], vec![PositionChoice::Read]);
        AttendingHead { one, scale: 1.0, cap: None, sink, q: part(&[1.0, 1.0], 0.01), read, choices }
            .noise_and_size()
    };
    let (noise, size) = head(Some(7.0));
    let want = 0.5 * 0.25f64.powi(2) * 25.0 * 0.01;
    assert!((noise / want - 1.0).abs() < 1e-9 && (size - 0.125).abs() < 1e-9, "{noise} {want} {size}");
    assert_eq!(head(None), (0.0, 0.5));
}

/// Where all inputs are negative, sigmoid and softplus are near `e^x`, whose relative error is the input's absolute
/// one.
#[test]
fn gates_of_negative_inputs_have_large_relative_errors() {
    for act in [Act::Sigmoid, Act::Softplus] {
        let gain = |row: &[f32]| gain_of_row(act, derivative(act).expect("it has one"), row);
        assert!((gain(&[-6.0; 4]) / 36.0 - 1.0).abs() < 0.01, "{act:?}: {}", gain(&[-6.0; 4]));
        assert!(gain(&[6.0; 4]) < 1.1, "{act:?}: {}", gain(&[6.0; 4]));
    }
}

/// The lead of an expert is a tenth; errors that are only counted may exceed it.
#[test]
fn counted_errors_of_scores_make_choices_uncertain() {
    let graph: Graph = "graph rows 2 sequences 1 context 64 output_rows 2 -> hidden\n\
            input tokens: [rows 2] i32\nweight table: [4, 2] bf16\nscores: [rows 2, 2] = embed tokens, table\n\
            weights: [rows 2, 2] = route(score=softmax used=1) scores\n\
            output rows: [output_rows 2, 2] = gather weights\n"
            .parse()
            .expect("a graph");
    let weights = HashMap::new();
    let mut sizes = RowSizes::of(&graph, &weights, vec![Range { start: 0, end: 2 }]);
    sizes.value("scores", &Shape::matrix(2, 2), &[1.0, 0.9, 1.0, -1.0]);
    sizes.value("weights", &Shape::matrix(2, 2), &[0.5, 0.0, 0.9, 0.0]);
    let uncertain = |others| {
        let others = vec![others; graph.values.len()];
        sizes.errors(UNIT, &vec![0.0; graph.nodes.len()], &others).uncertain_choices
    };
    assert_eq!([uncertain(0.0), uncertain(1e-4), uncertain(0.1)], [0, 1, 2]);
    assert_eq!(sizes.routed(), (4, 0));
}

/// The products of both rows add up, as those of trained weights do; errors do not.
#[test]
fn the_gain_of_a_row_is_not_that_of_its_errors() {
    let found = errors(LINEAR, &[("x", [1.0; 4]), ("y", [30.0; 4]), ("sum", [31.0; 4])]);
    assert_near(stores(&found, "y"), [1.0 + 1.0 / 900.0; 2]);
}

#[test]
fn no_error_exceeds_its_row() {
    let x = [1.0; 4];
    let found = errors(LINEAR, &[("x", x), ("y", [0.0; 4]), ("sum", [0.0, 0.0, f32::NAN, 0.0])]);
    assert!([0, 1].iter().all(|row| found.of("rows", *row) == Some(1.0)));
    assert!(found.of("rows", 2).is_none() && found.of("other", 0).is_none());
}

/// The sum's size is not known: the larger error of its operands, and three stores.
#[test]
fn a_node_that_is_not_followed_is_counted_and_named() {
    let (x, y) = ([1.0; 4], [1.0, 1.0, 0.1, 0.1]);
    let found = errors(LINEAR, &[("x", x), ("y", y)]);
    assert_near(stores(&found, "rows"), [2.0 + 3.0, 101.0 + 3.0]);
    assert_eq!(found.not_followed, ["sum (add)"]);
}

/// The rows of two sequences, of one row each, and of one sequence of two rows that cancel.
#[test]
fn errors_of_pooled_rows_are_those_of_their_sequences() {
    let graph = |how: &str| -> Graph {
        let text = "graph rows 2 sequences 2 context 64 output_rows 1 -> pooled\n\
                input tokens: [rows 2] i32\nweight table: [4, 2] bf16\n\
                x: [rows 2, 2] = embed tokens, table\nscaled: [rows 2, 2] = scale(factor=2.0) x\n\
                sum: [rows 2, 2] = add x, scaled\noutput row: [sequences 2, 2] = pool(how=HOW) sum\n";
        text.replace("HOW", how).parse().expect("a graph")
    };
    let (one, first, second) = (UNIT.result, (1.0 + 3.0 * 4.0) / 9.0 + 1.0, (1.0 + 3.0 * 0.25) / 2.25 + 1.0);
    let weights = HashMap::new();
    let found = |how: &str, sequences: Vec<Range<usize>>, row: &[f32]| {
        let graph = graph(how);
        let mut sizes = RowSizes::of(&graph, &weights, sequences);
        for (name, rows) in [("x", [1.0; 4]), ("scaled", [2.0, 2.0, 0.5, 0.5]), ("sum", [3.0, 3.0, 1.5, 1.5])]
        {
            sizes.value(name, &Shape::matrix(2, 2), &rows);
        }
        sizes.value("row", &Shape::matrix(row.len() / 2, 2), row);
        let errors = sizes.errors(UNIT, &vec![0.0; graph.nodes.len()], &vec![0.0; graph.values.len()]);
        assert!(errors.not_followed.is_empty(), "{:?}", errors.not_followed);
        [0, 1].map(|row| errors.of("row", row).unwrap_or(0.0) / one)
    };
    let two = || vec![Range { start: 0, end: 1 }, Range { start: 1, end: 2 }];
    let all = || vec![Range { start: 0, end: 2 }];
    for how in ["first", "last"] {
        assert_near(found(how, two(), &[3.0, 3.0, 1.5, 1.5]), [first, second]);
    }
    assert_near(found("last", all(), &[1.5, 1.5]), [second, 0.0]);
    // The mean noise of both rows, over the square of the mean.
    let mean = (first * 9.0 + second * 2.25) / 2.0 / 0.25 + 1.0;
    assert_near(found("mean", all(), &[0.5, 0.5]), [mean, 0.0]);
}

/// A row reads one of two keys of equal weight, and may read the other one: half of the weights may change, by the
/// distance of the other value, (1, 1), from the one that it reads.
#[test]
fn a_choice_that_may_change_counts_with_its_weight() {
    let part = |numbers| HeadPart { numbers, error: 0.0, noise: 0.0 };
    let noise = |choices: [PositionChoice; 2]| {
        let one = RoundingErrors { term: 0.0, result: 0.0, state: 0.0, largest: 7.0, change: 3.0 };
        let key = part(&[1.0, 0.0]);
        let read = vec![(key, part(&[1.0, 0.0])), (key, part(&[2.0, 1.0]))];
        let q = part(&[1.0, 1.0]);
        AttendingHead { one, scale: 1.0, cap: None, sink: None, q, read, choices: choices.to_vec() }
            .noise_and_size()
    };
    let (found, size) = noise([PositionChoice::Read, PositionChoice::PerhapsRead]);
    assert!((found - 2.0 * 3.0 * 0.25).abs() < 1e-12 && size == 0.5, "{found} {size}");
    assert_eq!(noise([PositionChoice::Read, PositionChoice::Read]).0, 0.0);
}
