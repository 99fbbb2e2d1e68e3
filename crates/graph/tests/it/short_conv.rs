//! Carried values, and the convolution that carries the rows before a step.

use girih_graph::backend::{Block, Input, Range32, State, block_bytes};
use girih_graph::state::PositionMajor;
use girih_graph::{
    BLOCK_POSITIONS, Extent, Graph, GroupId, Outputs, Role, Runner, Sequence, Span, StateKind, faults,
};
use girih_tensor::{DType, Random};

use crate::forms::{edited, parse};
use crate::session::{TestSequence, open, step};

/// Columns.
const WIDTH: usize = 2;

/// A convolution of three taps over steps of up to 200 rows.
const FORM: &str = "graph rows 200 sequences 3 context 256 output_rows 200 -> hidden
group carried carried
input x: [rows 200, 2] f32
weight taps: [3, 2] f32
state carried: [2, 2] f32 in carried
y: [rows 200, 2] = short_conv x, taps, carried
output z: [output_rows 200, 2] = gather y
";

fn runner(taps: &[f32]) -> Box<dyn Runner> {
    open(FORM, |_, _| taps.to_vec())
}

/// Runs rows of one sequence from `position` on.
fn run(runner: &mut dyn Runner, blocks: &[Block], position: usize, x: &[f32]) -> Vec<f32> {
    let rows = (x.len() / WIDTH) as u32;
    let sequence = TestSequence { blocks, position: position as u32, ..TestSequence::whole(rows) };
    step(runner, Input::Rows(x), &[sequence])
}

#[test]
fn each_column_is_convolved_with_its_own_taps_from_zeros_on() {
    let mut runner = runner(&[1.0, 100.0, 10.0, 1000.0, 2.0, 3.0]);
    // The last tap is that of the row itself.
    let rows = run(runner.as_mut(), &[Block(0)], 0, &[1.0, 5.0, 2.0, 6.0, 3.0, 7.0]);
    let expected = [2.0, 15.0, 2.0 * 2.0 + 10.0, 3.0 * 6.0 + 5000.0, 6.0 + 20.0 + 1.0, 21.0 + 6000.0 + 500.0];
    assert_eq!(rows, expected);
}

#[test]
fn rows_in_chunks_are_those_of_one_step_and_a_kept_border_gives_them_again() {
    let (mut random, blocks) = (Random(3), [Block(1), Block(3), Block(0), Block(2)]);
    let x: Vec<f32> = (0..200 * WIDTH).map(|_| random.number()).collect();
    let taps: Vec<f32> = (0..3 * WIDTH).map(|_| random.number()).collect();
    let whole = run(runner(&taps).as_mut(), &blocks, 0, &x);
    for _ in 0..20 {
        let mut runner = runner(&taps);
        let (mut position, mut rows) = (0, Vec::new());
        while position < 200 {
            let count = (1 + random.below(90)).min(200 - position);
            let part = &x[position * WIDTH..(position + count) * WIDTH];
            rows.extend(run(runner.as_mut(), &blocks, position, part));
            position += count;
        }
        assert_eq!(rows, whole);
        // The values at the ends of blocks were kept, so each block can be run again; the last
        // first, as this replaces the value at its end.
        for border in [192, 128, 64] {
            let again = run(runner.as_mut(), &blocks, border, &x[border * WIDTH..(border + 5) * WIDTH]);
            assert_eq!(again, whole[border * WIDTH..(border + 5) * WIDTH], "from {border} on");
        }
    }
}

#[test]
fn the_sequences_of_a_step_carry_values_of_their_own() {
    let (mut random, taps) = (Random(4), [0.5, -1.0, 0.25, 2.0, 1.0, -0.5]);
    let x: Vec<f32> = (0..12 * WIDTH).map(|_| random.number()).collect();
    let alone = |from: usize| run(runner(&taps).as_mut(), &[Block(0)], 0, &x[from * 2..(from + 4) * 2]);
    let mut together = runner(&taps);
    let part = |index: usize, rows: u32, position: u32| TestSequence {
        blocks: [&[Block(0)][..], &[Block(1)], &[Block(2)]][index],
        position,
        ..TestSequence::whole(rows)
    };
    // The sequences have 4 rows each, which are run in two steps.
    let first: Vec<f32> = [&x[..2], &x[8..14], &x[16..20]].concat();
    let second: Vec<f32> = [&x[2..8], &x[14..16], &x[20..24]].concat();
    let a = step(together.as_mut(), Input::Rows(&first), &[part(0, 1, 0), part(1, 3, 0), part(2, 2, 0)]);
    let b = step(together.as_mut(), Input::Rows(&second), &[part(0, 3, 1), part(1, 1, 3), part(2, 2, 2)]);
    let rows = [&a[..2], &b[..6], &a[2..8], &b[6..8], &a[8..], &b[8..]].concat();
    assert_eq!(rows, [alone(0), alone(4), alone(8)].concat());
}

#[test]
fn a_carried_value_is_read_and_replaced_by_one_node() {
    let fault = |text: &str| {
        let found = faults(&parse(text));
        let first = found.first().unwrap_or_else(|| panic!("no fault in:\n{text}"));
        format!("{}: {}", first.name, first.sentence)
    };
    assert_eq!(faults(&parse(FORM)), []);
    let edit = |from: &str, to: &str| fault(&edited(FORM, from, to));
    let twice =
        "y: [rows 200, 2] = short_conv x, taps, carried\nw: [rows 200, 2] = short_conv y, taps, carried";
    let text = edited(FORM, "y: [rows 200, 2] = short_conv x, taps, carried", twice);
    assert_eq!(
        fault(&edited(&text, "gather y", "gather w")),
        "carried: is carried, but read more than once; one node reads and replaces it"
    );
    let written = "carried = write x\ny: [rows 200, 2] = short_conv x, taps, carried";
    let text = edited(FORM, "y: [rows 200, 2] = short_conv x, taps, carried", written);
    assert_eq!(fault(&text), "carried: 'write' does not write values of its role");
    assert_eq!(edit("[2, 2] f32 in", "[2, 2] f16 in"), "carried: f16 does not suit its role and shape");
    const SHAPES: &str = "y: short_conv: its operands do not have the shapes it needs";
    assert_eq!(edit("carried: [2, 2]", "carried: [3, 2]"), SHAPES);
    assert_eq!(edit("carried: [2, 2]", "carried: [2, 1]"), SHAPES);
    assert_eq!(edit("taps: [3, 2]", "taps: [3, 1]"), SHAPES);
    assert_eq!(
        edit("carried: [2, 2]", "carried: [context 256, 2]"),
        "carried: its outermost extent does not count what its role requires"
    );
    let by_position = edited(FORM, "group carried carried", "group carried span full");
    let found = faults(&parse(&by_position));
    assert!(found.iter().any(|fault| fault.sentence.starts_with("its outermost extent")), "{found:?}");
    let read = "y: [rows 200, 2] = add x, carried";
    let found = faults(&parse(&edited(FORM, "y: [rows 200, 2] = short_conv x, taps, carried", read)));
    assert!(found.iter().any(|fault| fault.sentence.contains("do not have the shapes")), "{found:?}");
}

#[test]
fn a_carried_value_is_never_gathered_before_its_op() {
    let text = edited(FORM, "output_rows 200 -> hidden", "output_rows 1 -> hidden");
    let text =
        text.replace("output z: [output_rows 200, 2] = gather y", "last: [output_rows 1, 2] = gather y");
    let text = text + "weight head: [5, 2] f32\noutput z: [output_rows 1, 5] = linear last, head\n";
    let graph = parse(&text);
    assert_eq!(faults(&graph), []);
    assert_eq!(girih_graph::sink_gather(&graph), None);
}

#[test]
fn state_has_one_value_in_each_block() {
    let graph: Graph = parse(FORM);
    let group = GroupId(0);
    let carried = graph.value(graph.find("carried").unwrap());
    assert_eq!(
        (carried.role, carried.outermost, carried.dtype),
        (Role::State(group), Extent::Fixed, DType::F32)
    );
    assert_eq!(block_bytes(&graph, group), 16);
    assert_eq!(PositionMajor::plan(&graph, &[5]), 80);
    let mut state = PositionMajor::new(&graph, &[5]).unwrap();
    let blocks: &[&[Block]] = &[&[Block(3), Block(1)]];
    let at = |position: u32| Sequence {
        blocks,
        position,
        rows: Range32 { start: 0, end: 1 },
        outputs: Outputs::None,
        spans: &[],
    };
    state.carry("carried", &at(0), 63, &[1.0, 2.0, 3.0, 4.0]).unwrap();
    state.carry("carried", &at(0), 64, &[5.0, 6.0, 7.0, 8.0]).unwrap();
    let values = [0, 1, 64, 65].map(|position| state.carried("carried", &at(position)).unwrap());
    assert_eq!(values, [[0.0; 4], [1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]);
    let saved = state.export(group, Block(3)).unwrap();
    state.copy(group, Block(1), Block(3)).unwrap();
    assert_eq!(state.carried("carried", &at(64)).unwrap(), [5.0, 6.0, 7.0, 8.0]);
    state.import(group, Block(3), &saved).unwrap();
    assert_eq!(state.carried("carried", &at(64)).unwrap(), [1.0, 2.0, 3.0, 4.0]);
    state.zero(group, Block(3)).unwrap();
    assert_eq!(state.carried("carried", &at(64)).unwrap(), [0.0; 4]);
    assert!(state.import(group, Block(3), &saved[1..]).is_err());
    assert!(state.carried("other", &at(64)).is_err());
    assert!(state.carry("other", &at(64), 0, &[0.0; 4]).is_err());
}

#[test]
fn a_kind_says_which_blocks_are_read_and_where_a_sequence_goes_on() {
    let (full, window) = (StateKind::from(Span::Full), StateKind::from(Span::Window(70)));
    let first = |kind: StateKind| [0, 1, 64, 65, 200].map(|position| kind.first_block(position));
    assert_eq!(first(full), [0; 5]);
    assert_eq!(first(window), [0, 0, 0, 0, 2]);
    assert_eq!(first(StateKind::Carried), [0, 0, 0, 1, 3]);
    // By position, anywhere that the blocks reach; carried, at the end of a block or of the sequence.
    let cases = [
        (window, 1, 300, 200, Some(200)),
        (window, 3, 300, 200, None),
        (StateKind::Carried, 0, 200, 200, Some(200)),
        (StateKind::Carried, 3, 200, 200, Some(200)),
        (StateKind::Carried, 0, 200, 199, Some(192)),
        (StateKind::Carried, 2, 200, 199, Some(192)),
        (StateKind::Carried, 3, 200, 199, None),
        (StateKind::Carried, 0, 200, 63, Some(0)),
        (StateKind::Carried, 1, 200, 63, None),
        (StateKind::Carried, 1, 200, 128, Some(128)),
    ];
    for (kind, held, length, to, at) in cases {
        assert_eq!(kind.resumes_at(held, length, to), at, "{kind}, from {held}, {length} to {to}");
    }
    let worst = |lengths: &[u32], rows| StateKind::Carried.worst_case(lengths.iter().copied(), rows);
    assert_eq!([worst(&[1], 1), worst(&[64], 64), worst(&[4096], 1), worst(&[4096; 3], 3)], [1, 1, 2, 8]);
    // No step of a sequence touches more blocks.
    let mut random = Random(5);
    for _ in 0..10_000 {
        let rows = 1 + random.below(300);
        let position = random.below(1000);
        let end = position + rows;
        let touched = end.div_ceil(BLOCK_POSITIONS) - StateKind::Carried.first_block(position);
        assert!(touched as u64 <= worst(&[end as u32], rows as u32), "{rows} rows from {position} on");
    }
}
