//! Attention and the state it reads: which positions a row attends to, with
//! numbers computed by hand.

use girih_graph::backend::{Block, Input, Range32, Unwatched};
use girih_graph::{Outputs, Sequence, Step};
use girih_tensor::Random;

use crate::operators::near;
use crate::session::{TestSequence, open, step};

/// Two query heads that share one KV head, all of size 1. A row of the input
/// has the two queries, the key and the value. With the spans `all` and `mutual` there is no state.
fn form(span: &str, cap: &str, dtype: &str) -> String {
    let (group, state, held) = match span {
        "all" | "mutual" => (String::new(), String::new(), "k.heads, v.heads"),
        _ => (
            format!("group only span {span}"),
            format!(
                "state keys: [context 128, 1, 1] {dtype} in only
                state values: [context 128, 1, 1] {dtype} in only
                keys = write k.heads
                values = write v.heads"
            ),
            "keys, values",
        ),
    };
    format!(
        "graph rows 8 sequences 2 context 128 output_rows 8 -> hidden
        {group}
        input x: [rows 8, 4] f32
        weight queries: [2, 4] f32
        q: [rows 8, 2] = linear x, queries
        q.heads: [rows 8, 2, 1] = reshape q
        weight third: [1, 4] f32
        k: [rows 8, 1] = linear x, third
        k.heads: [rows 8, 1, 1] = reshape k
        weight fourth: [1, 4] f32
        v: [rows 8, 1] = linear x, fourth
        v.heads: [rows 8, 1, 1] = reshape v
        {state}
        mixed: [rows 8, 2, 1] = attend(scale=2.0 span={span}{cap}) q.heads, {held}
        flat: [rows 8, 2] = reshape mixed
        output z: [output_rows 8, 2] = gather flat"
    )
}

fn run(text: &str, x: &[[f32; 4]], sequences: &[TestSequence<'_>]) -> Vec<f32> {
    let mut runner = open(text, |name, _| match name {
        "queries" => vec![1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0],
        "third" => vec![0.0, 0.0, 1.0, 0.0],
        "fourth" => vec![0.0, 0.0, 0.0, 1.0],
        "sinks" => vec![2f32.ln(), 6f32.ln()],
        other => panic!("no weight '{other}' in the form"),
    });
    step(runner.as_mut(), Input::Rows(x.as_flattened()), sequences)
}

#[test]
fn results_are_values_weighted_by_the_softmax_of_scores() {
    // Head 0 of the second row scores 2 · 1/2 · 0 and 2 · 1/2 · ln 3: weights
    // 1/4 and 3/4 of the values 1 and 5. Head 1 scores 0 and 0: their mean.
    let x = [[0.5, 0.0, 0.0, 1.0], [0.5, 0.0, 3f32.ln(), 5.0]];
    near(&run(&form("full", "", "f32"), &x, &[TestSequence::whole(2)]), &[1.0, 1.0, 4.0, 3.0]);
}

/// As above, with sinks of ln 2 and ln 6 for a second row: head 0 has the weights 1/6 and 3/6 of 1 and 5, and
/// 2/6 of nothing; head 1 has 1/8 of each.
#[test]
fn a_sink_takes_a_share_of_the_softmax() {
    let text = form("full", "", "f32")
        .replace("mixed: ", "weight sinks: [2] f32\n        mixed: ")
        .replace("keys, values\n", "keys, values, sinks\n");
    let x = [[0.5, 0.0, 0.0, 1.0], [0.5, 0.0, 3f32.ln(), 5.0]];
    let found = run(&text, &x, &[TestSequence::whole(2)]);
    near(&found, &[1.0 / 3.0, 1.0 / 7.0, 16.0 / 6.0, 6.0 / 8.0]);
}

/// Chunks of 2: rows 0 and 1 share one, row 2 begins another. All scores are 0.
#[test]
fn a_row_attends_to_its_chunk() {
    let x = [1.0, 3.0, 8.0, 10.0].map(|value| [0.0, 0.0, 0.0, value]);
    let found = run(&form("chunk:2", "", "f32"), &x, &[TestSequence::whole(4)]);
    near(&found, &[1.0, 1.0, 2.0, 2.0, 8.0, 8.0, 9.0, 9.0]);
}

#[test]
fn neighbouring_query_heads_share_a_head_of_keys() {
    // Four query heads share two KV heads: two of them read 10, two read 20.
    let text = "graph rows 1 sequences 1 context 64 output_rows 1 -> hidden
        group full span full
        input x: [rows 1, 2, 1] f32
        flat: [rows 1, 2] = reshape x
        weight twice: [4, 2] f32
        q: [rows 1, 4] = linear flat, twice
        heads: [rows 1, 4, 1] = reshape q
        state values: [context 64, 2, 1] f32 in full
        values = write x
        seen: [rows 1, 4, 1] = attend(scale=1.0 span=full) heads, values, values
        output z: [output_rows 1, 4, 1] = gather seen";
    let mut runner = open(text, |_, count| vec![1.0; count]);
    let out = step(runner.as_mut(), Input::Rows(&[10.0, 20.0]), &[TestSequence::whole(1)]);
    assert_eq!(out, [10.0, 10.0, 20.0, 20.0]);
}

#[test]
fn scores_are_capped_before_the_softmax() {
    // 2 · tanh(s / 2) = ln 3 gives the weights of the case above.
    let score = 2.0 * (3f64.ln() / 2.0).atanh();
    let x = [[0.5, 0.0, 0.0, 1.0], [0.5, 0.0, score as f32, 5.0]];
    near(&run(&form("full", " softcap=2.0", "f32"), &x, &[TestSequence::whole(2)]), &[1.0, 1.0, 4.0, 3.0]);
}

/// The results of both heads when all scores are zero: every row is the mean of
/// the values that it attends to. The values are 1, 2, 4, 8, …
fn means(span: &str, sequences: &[TestSequence<'_>]) -> Vec<f32> {
    let rows = sequences.iter().map(|sequence| sequence.rows).sum::<u32>();
    let x: Vec<_> = (0..rows).map(|row| [0.0, 0.0, 1.0, (1 << row) as f32]).collect();
    let both = run(&form(span, "", "f32"), &x, sequences);
    assert!(both.chunks_exact(2).all(|heads| heads[0] == heads[1]), "{both:?}");
    both.chunks_exact(2).map(|heads| heads[0]).collect()
}

#[test]
fn a_row_sees_the_positions_of_its_span() {
    near(&means("full", &[TestSequence::whole(4)]), &[1.0, 3.0 / 2.0, 7.0 / 3.0, 15.0 / 4.0]);
    near(&means("window:1", &[TestSequence::whole(4)]), &[1.0, 2.0, 4.0, 8.0]);
    near(&means("window:3", &[TestSequence::whole(4)]), &[1.0, 3.0 / 2.0, 7.0 / 3.0, 14.0 / 3.0]);
    near(&means("window:4294967295", &[TestSequence::whole(3)]), &[1.0, 3.0 / 2.0, 7.0 / 3.0]);
}

#[test]
fn rows_without_state_attend_to_all_rows_of_their_sequence() {
    near(&means("all", &[TestSequence::whole(4)]), &[15.0 / 4.0; 4]);
    let both = [TestSequence::whole(2), TestSequence::whole(3)];
    near(&means("all", &both), &[1.5, 1.5, 28.0 / 3.0, 28.0 / 3.0, 28.0 / 3.0]);
    // Head 0 of both rows scores 2 · 1/2 · 0 and 2 · 1/2 · ln 3, as with state; the first
    // row attends to the second one, too. Head 1 scores 0 and 0.
    let x = [[0.5, 0.0, 0.0, 1.0], [0.5, 0.0, 3f32.ln(), 5.0]];
    near(&run(&form("all", "", ""), &x, &[TestSequence::whole(2)]), &[4.0, 3.0, 4.0, 3.0]);
}

/// The last row of a causal sequence attends to all rows, as every row of a span `all` does.
#[test]
fn attention_over_rows_equals_attention_over_state_for_the_last_row() {
    let mut random = Random(11);
    let x: Vec<[f32; 4]> = (0..8).map(|_| [0; 4].map(|_| random.number())).collect();
    for cap in ["", " softcap=0.5"] {
        let over_rows = run(&form("all", cap, ""), &x, &[TestSequence::whole(8)]);
        let over_state = run(&form("full", cap, "f32"), &x, &[TestSequence::whole(8)]);
        assert_eq!(over_rows[14..], over_state[14..]);
        assert_ne!(over_rows[..14], over_state[..14]);
    }
}

#[test]
fn rows_without_state_attend_within_their_mutual_spans() {
    let spans = [Range32 { start: 0, end: 1 }, Range32 { start: 1, end: 4 }];
    let sequence = TestSequence { spans: &spans, ..TestSequence::whole(4) };
    near(&means("mutual", &[sequence]), &[1.0, 14.0 / 3.0, 14.0 / 3.0, 14.0 / 3.0]);
    let other = [Range32 { start: 0, end: 2 }];
    let other = TestSequence { spans: &other, ..TestSequence::whole(2) };
    near(&means("mutual", &[other, other]), &[1.5, 1.5, 6.0, 6.0]);
}

/// Rows that no span has would see nothing.
#[test]
fn rows_outside_of_all_mutual_spans_are_refused() {
    let mut runner = open(&form("mutual", "", ""), |_, count| vec![1.0; count]);
    let spans = [Range32 { start: 1, end: 3 }];
    let range = Range32 { start: 0, end: 4 };
    let sequence = Sequence { blocks: &[], position: 0, rows: range, outputs: Outputs::All, spans: &spans };
    let step = Step { inputs: &[Input::Rows(&[0.0; 16])], sequences: &[sequence], watch: &mut Unwatched };
    let error = runner.step(step).unwrap_err().to_string();
    assert!(error.contains("the mutual spans of a sequence have 2 of its 4 rows"), "{error}");
}

#[test]
fn rows_of_a_mutual_span_see_each_other() {
    let spans = [Range32 { start: 1, end: 3 }];
    let sequence = TestSequence { spans: &spans, ..TestSequence::whole(4) };
    near(&means("full", &[sequence]), &[1.0, 7.0 / 3.0, 7.0 / 3.0, 15.0 / 4.0]);
    // A mutual span extends a window: row 2 attends to row 1.
    near(&means("window:1", &[sequence]), &[1.0, 3.0, 3.0, 8.0]);
    // Row 1 attends to row 0 by its window and to row 2 by the mutual span.
    near(&means("window:2", &[sequence]), &[1.0, 7.0 / 3.0, 3.0, 6.0]);
}

#[test]
fn mutual_spans_are_positions_of_the_sequence() {
    let spans = [Range32 { start: 70, end: 72 }];
    let sequence =
        TestSequence { position: 70, blocks: &[Block(1), Block(3)], spans: &spans, ..TestSequence::whole(3) };
    near(&means("window:1", &[sequence]), &[1.5, 1.5, 4.0]);
}

#[test]
fn sequences_do_not_see_each_other() {
    let other = TestSequence { blocks: &[Block(2)], ..TestSequence::whole(2) };
    near(&means("full", &[TestSequence::whole(2), other]), &[1.0, 3.0 / 2.0, 4.0, 6.0]);
    // A mutual span does not apply to the other sequence, at the same positions.
    let spans = [Range32 { start: 0, end: 2 }];
    let sequences = [TestSequence { spans: &spans, ..TestSequence::whole(2) }, other];
    near(&means("full", &sequences), &[3.0 / 2.0, 3.0 / 2.0, 4.0, 6.0]);
}

#[test]
fn writes_round_to_the_type_of_the_state() {
    let alone = |dtype: &str, value: f32| {
        let out = run(&form("full", "", dtype), &[[0.0, 0.0, 0.0, value]], &[TestSequence::whole(1)]);
        out[0]
    };
    // Ties round to even: f16 has 10 fraction bits, bf16 has 7.
    let power = |exponent: i32| 2f32.powi(exponent);
    assert_eq!(alone("f32", 1.0 + power(-23)), 1.0 + power(-23));
    assert_eq!(alone("f16", 1.0 + power(-11)), 1.0);
    assert_eq!(alone("f16", 1.0 + 3.0 * power(-11)), 1.0 + power(-9));
    assert_eq!(alone("f16", 1.0 + power(-11) + power(-20)), 1.0 + power(-10));
    assert_eq!(alone("bf16", 1.0 + power(-8)), 1.0);
    assert_eq!(alone("bf16", 1.0 + 3.0 * power(-8)), 1.0 + power(-6));
}
