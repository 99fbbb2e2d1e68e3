//! Keys and values that the type of the state cannot hold are reported, row by row.

use girih_graph::backend::{Block, Input, Range32, Step, Unwatched};
use girih_graph::testing::WeightTable;
use girih_graph::{Builder, Graph, Key, Op, OutputKind, Outputs, RangeFault, Sequence, Span};
use girih_tensor::DType;

use crate::emulated::emulated;
use crate::opened::{adapter, open};

const ROWS: usize = 5;
const SIZE: usize = 32;

/// Attention to keys and values of this type.
fn graph(dtype: DType) -> Graph {
    let rows = ROWS as u32;
    let key = Key { rows, sequences: 1, context: 64, output_rows: rows, output: OutputKind::Logits };
    let mut builder = Builder::new(key);
    let [q, k, v] = ["q", "k", "v"].map(|name| builder.input(name, &[1, SIZE], DType::F32));
    let group = builder.group(Span::Full);
    let [keys, values] = ["keys", "values"].map(|name| builder.state(name, &[1, SIZE], dtype, group));
    builder.write(k, keys);
    builder.write(v, values);
    let op = Op::Attend { scale: 1e-9, span: Span::Full, softcap: None };
    let heads = builder.shaped("heads", op, &[q, keys, values], &[1, SIZE]);
    let y = builder.gather("y", heads);
    builder.finish(y)
}

#[test]
fn what_the_kernels_for_cuda_cannot_hold_is_reported() {
    let Some(name) = emulated() else { return };
    let _open = open(name);
    let large = [(1, 3, 65_519.9), (2, 0, 7e4), (2, 31, -8e4), (3, 7, f32::INFINITY), (4, 1, 65_520.0)];
    let fault = |row, value| RangeFault { row, name: "values".to_owned(), dtype: DType::F16, value };
    assert_eq!(faults(name, DType::F16, &large), [fault(2, -8e4), fault(4, 65_520.0)]);
}

/// The faults of a step whose values have these numbers at these places.
fn faults(name: &str, dtype: DType, large: &[(usize, usize, f32)]) -> Vec<RangeFault> {
    run(name, dtype, large).0
}

/// The faults of such a step, and its output.
fn run(name: &str, dtype: DType, large: &[(usize, usize, f32)]) -> (Vec<RangeFault>, Vec<f32>) {
    let graph = graph(dtype);
    let built = |_| Ok(graph.clone());
    let weights = WeightTable::default();
    let mut runner = open(name).load(&weights, graph.key, &[1], &built).expect("the graph runs");
    let plain = vec![0.5; ROWS * SIZE];
    let mut numbers = plain.clone();
    large.iter().for_each(|(row, column, number)| numbers[row * SIZE + column] = *number);
    let inputs = [Input::Rows(&plain), Input::Rows(&plain), Input::Rows(&numbers)];
    let rows = Range32 { start: 0, end: ROWS as u32 };
    let blocks: [&[Block]; 1] = [&[Block(0)]];
    let sequence = Sequence { blocks: &blocks, position: 0, rows, outputs: Outputs::All, spans: &[] };
    runner
        .step(Step { inputs: &inputs, sequences: &[sequence], watch: &mut Unwatched })
        .expect("the step runs");
    let output = runner.output().rows(0..ROWS).expect("the step has rows").to_vec();
    (runner.state().take_range_faults(), output)
}

#[test]
fn the_largest_value_of_each_row_that_the_state_cannot_hold_is_reported() {
    let Some(name) = adapter() else {
        eprintln!("skipped: this machine has no adapter; Mesa's software Vulkan is one");
        return;
    };
    let _open = open(name);
    // 65520 is the first number that rounds to infinity; what is infinite already is no fault.
    let large = [(1, 3, 65_519.9), (2, 0, 7e4), (2, 31, -8e4), (3, 7, f32::INFINITY), (4, 1, 65_520.0)];
    let fault = |row, value| RangeFault { row, name: "values".to_owned(), dtype: DType::F16, value };
    assert_eq!(faults(name, DType::F16, &large), [fault(2, -8e4), fault(4, 65_520.0)]);
    assert_eq!(faults(name, DType::F32, &large), []);
    assert_eq!(faults(name, DType::BF16, &large), []);
    // The scale is a 127th of the largest number of 32.
    let fault = |row, value| RangeFault { row, name: "values".to_owned(), dtype: DType::Q8_0, value };
    assert_eq!(faults(name, DType::Q8_0, &large), []);
    let large = [(1, 3, 8e6), (2, 0, 8.4e6), (3, 31, -9e6), (4, 7, f32::INFINITY)];
    assert_eq!(faults(name, DType::Q8_0, &large), [fault(2, 8.4e6), fault(3, -9e6)]);
    // Codes have no NaN, so the whole block has it, and no fault beside it is reported.
    let (found, output) = run(name, DType::Q8_0, &[(2, 3, f32::NAN), (2, 5, 9e6)]);
    let (before, from) = output.split_at(2 * SIZE);
    assert!(
        before.iter().all(|value| (value - 0.5).abs() < 1e-3) && from.iter().all(|value| value.is_nan()),
        "{output:?}"
    );
    assert_eq!(found, []);
}
