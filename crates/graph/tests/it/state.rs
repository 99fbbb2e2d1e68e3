//! State in the host's memory: its bytes, its blocks and the stamps of its writes.

use girih_graph::backend::{Block, Range32, State};
use girih_graph::state::PositionMajor;
use girih_graph::{Graph, GroupId, Outputs, RangeFault, Sequence};
use girih_tensor::DType;

use crate::forms::{TOKENS, edited, parse};

/// Keys of 2 heads of 32 values in one group, values of the other layer in another.
fn graph(dtype: &str) -> Graph {
    let text =
        edited(TOKENS, "layers.0.keys: [context 128, 2, 8] f16", "layers.0.keys: [context 128, 2, 32] f16");
    parse(&edited(&text, "[context 128, 2, 32] f16", &format!("[context 128, 2, 32] {dtype}")))
}

fn sequence<'a>(blocks: &'a [&'a [Block]], position: u32, rows: u32) -> Sequence<'a> {
    Sequence { blocks, position, rows: Range32 { start: 0, end: rows }, outputs: Outputs::None, spans: &[] }
}

const BLOCKS: &[&[Block]] = &[&[Block(2), Block(0)], &[Block(0), Block(1)]];
const FULL: GroupId = GroupId(0);

/// Rows of whole numbers that every type of state holds exactly: the largest of each block of
/// q8_0 is 127, so that its scale is 1.
fn rows(count: usize) -> Vec<f32> {
    (0..count * 64).map(|index| if index % 32 == 0 { 127.0 } else { 20.0 - (index % 32) as f32 }).collect()
}

#[test]
fn rows_that_are_written_are_read_and_the_plan_counts_their_bytes() {
    for (dtype, position_bytes) in [("f32", 256), ("f16", 128), ("bf16", 128), ("q8_0", 68)] {
        let graph = graph(dtype);
        let values = 2 * 2 * 8;
        let others = 64 * (3 * values + 5 * 2 * values);
        assert_eq!(PositionMajor::plan(&graph, &[3, 5]), 3 * 64 * position_bytes + others, "{dtype}");
        let mut state = PositionMajor::new(&graph, &[3, 5]).unwrap();
        assert_eq!(state.export(FULL, Block(1)).unwrap().len() as u64, 64 * (position_bytes + values));
        // The rows cross from block 2 to block 0.
        let sequence = sequence(BLOCKS, 62, 4);
        state.write("layers.0.keys", &sequence, &rows(4)).unwrap();
        let read = state.rows("layers.0.keys", &sequence, 61..67).unwrap();
        assert_eq!(read[..64], [0.0; 64]);
        assert_eq!(read[64..5 * 64], rows(4), "{dtype}");
        assert_eq!(read[5 * 64..], [0.0; 64]);
        assert_eq!(state.rows("layers.0.values", &sequence, 62..66).unwrap(), [0.0; 4 * 16]);
    }
}

/// A block of types with a scale has no code for NaN, so its scale is NaN; the other head keeps its numbers.
#[test]
fn a_row_with_nan_is_read_as_nan() {
    for (dtype, position_bytes) in [("q8_0", 68), ("q4_0", 36)] {
        let mut state = PositionMajor::new(&graph(dtype), &[3, 5]).unwrap();
        let whole = state.export(FULL, Block(1)).unwrap().len();
        assert_eq!(whole, 64 * (position_bytes + 2 * 2 * 8), "{dtype}");
        let sequence = sequence(BLOCKS, 5, 1);
        let mut row: Vec<f32> = (0..64).map(|index| (index % 16) as f32 - 8.0).collect();
        row[3] = f32::NAN;
        state.write("layers.0.keys", &sequence, &row).unwrap();
        let read = state.rows("layers.0.keys", &sequence, 5..6).unwrap();
        assert!(read[..32].iter().all(|value| value.is_nan()), "{dtype}: {read:?}");
        let far = |(got, want): (&f32, &f32)| (got - want).abs() > 5.0 / 127.0;
        assert!(!read[32..].iter().zip(&row[32..]).any(far), "{dtype}: {read:?}");
        assert_eq!(state.take_range_faults(), []);
    }
}

#[test]
fn a_stamp_changes_with_the_contents_of_its_block_only() {
    let mut state = PositionMajor::new(&graph("f16"), &[3, 5]).unwrap();
    let sequence = sequence(BLOCKS, 62, 4);
    let stamps = |state: &PositionMajor| {
        let stamp = |name: &str, index: usize| state.stamp(name, &sequence, index).unwrap();
        [stamp("layers.0.keys", 0), stamp("layers.0.keys", 1), stamp("layers.0.values", 0)]
    };
    let mut before = stamps(&state);
    assert_eq!(before, [0; 3]);
    let mut changes = |state: &PositionMajor, expected: [bool; 3]| {
        let after = stamps(state);
        let changed = [0, 1, 2].map(|index| after[index] != before[index]);
        assert_eq!(changed, expected);
        before = after;
    };
    state.write("layers.0.keys", &sequence, &rows(4)).unwrap();
    changes(&state, [true, true, false]);
    state.write("layers.0.keys", &self::sequence(BLOCKS, 0, 1), &rows(1)).unwrap();
    changes(&state, [true, false, false]);
    // Block 0 holds the positions from 64 of the group; block 2 those from 0.
    state.copy(FULL, Block(2), Block(0)).unwrap();
    changes(&state, [false, true, false]);
    state.zero(FULL, Block(2)).unwrap();
    changes(&state, [true, false, true]);
    let saved = state.export(FULL, Block(0)).unwrap();
    changes(&state, [false; 3]);
    state.import(FULL, Block(2), &saved).unwrap();
    changes(&state, [true, false, true]);
    state.zero(GroupId(1), Block(0)).unwrap();
    changes(&state, [false; 3]);
    assert_eq!(state.export(FULL, Block(2)).unwrap(), saved);
    assert!(state.import(FULL, Block(2), &saved[1..]).is_err());
    changes(&state, [false; 3]);
    // No stamp of another state is equal.
    let mut other = PositionMajor::new(&graph("f16"), &[3, 5]).unwrap();
    other.write("layers.0.keys", &sequence, &rows(4)).unwrap();
    assert!(stamps(&other)[..2].iter().all(|stamp| !stamps(&state).contains(stamp)));
}

#[test]
fn state_of_another_graph_is_refused_by_name() {
    let mut state = PositionMajor::new(&graph("f16"), &[3, 5]).unwrap();
    let sequence = sequence(BLOCKS, 0, 1);
    let sentence = "the state has no 'keys'; it belongs to another graph";
    assert_eq!(state.rows("keys", &sequence, 0..1).unwrap_err().to_string(), sentence);
    assert_eq!(state.write("keys", &sequence, &rows(1)).unwrap_err().to_string(), sentence);
    assert_eq!(state.stamp("keys", &sequence, 0).unwrap_err().to_string(), sentence);
}

#[test]
fn a_row_that_the_type_cannot_hold_is_a_fault_with_its_row_and_its_largest_value() {
    // 65519 rounds to 65504, the largest number of f16; q8_0 has a scale in f16 for 32 values.
    let cases = [
        ("f32", f32::MAX, None),
        ("f16", 65519.0, None),
        ("f16", -65520.0, Some(DType::F16)),
        ("f16", f32::INFINITY, None),
        ("f16", f32::NAN, None),
        ("bf16", 3.39e38, None),
        ("bf16", f32::MAX, Some(DType::BF16)),
        ("q8_0", 8.32e6, None),
        ("q8_0", -8.33e6, Some(DType::Q8_0)),
        ("q8_0", f32::NEG_INFINITY, None),
        ("q4_0", 5.24e5, None),
        ("q4_0", 5.25e5, Some(DType::Q4_0)),
    ];
    for (dtype, value, lost) in cases {
        let mut state = PositionMajor::new(&graph(dtype), &[3, 5]).unwrap();
        let sequence = Sequence { rows: Range32 { start: 7, end: 11 }, ..sequence(BLOCKS, 62, 4) };
        let mut rows = rows(4);
        rows[3 * 64 + 9] = value;
        state.write("layers.0.keys", &sequence, &rows).unwrap();
        let name = "layers.0.keys".to_owned();
        let expected: Vec<_> =
            lost.into_iter().map(|dtype| RangeFault { row: 10, name: name.clone(), dtype, value }).collect();
        assert_eq!(state.take_range_faults(), expected, "{value} in {dtype}");
        assert_eq!(state.take_range_faults(), [], "they are taken");
    }
}
