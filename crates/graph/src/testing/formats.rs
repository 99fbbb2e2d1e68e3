//! The numbers of a weight format as a backend reads them, beside those of its definition.

use std::collections::HashMap;

use girih_tensor::{DType, Random, Shape, View};

use super::case::WeightTable;
use super::draft::stored_values;
use crate::backend::{Input, Step, Unwatched};
use crate::description::AnyBackend;
use crate::graph::{Builder, Graph, Key, OutputKind};
use crate::ops::Op;
use crate::sequence::{Outputs, Range32, Sequence};

/// Rows of the matrix: no multiple of 32.
const ROWS: usize = 70;

/// Columns of the matrix: whole blocks of every format.
const COLUMNS: usize = 512;

/// The op that shows a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShownBy {
    /// Each row is embedded.
    Embed,
    /// Rows with one 1 each are multiplied with it.
    Linear,
}

/// The numbers of a matrix with random blocks, row after row.
#[derive(Clone, Debug)]
pub struct FormatNumbers {
    /// Those of the format's definition.
    pub want: Vec<f32>,
    /// Those that the backend has.
    pub got: Vec<f32>,
    /// The number of columns.
    pub columns: usize,
}

fn graph(dtype: DType, by: ShownBy) -> Graph {
    let rows = if by == ShownBy::Embed { ROWS } else { COLUMNS } as u32;
    let key = Key { rows, sequences: 1, context: rows, output_rows: rows, output: OutputKind::Logits };
    let mut builder = Builder::new(key);
    let shape = Shape::new(&[ROWS, COLUMNS]).expect("it is small");
    let shown = match by {
        ShownBy::Embed => {
            let ids = builder.input("tokens", &[], DType::I32);
            let table = builder.weight("matrix", shape, dtype);
            builder.shaped("shown", Op::Embed, &[ids, table], &[COLUMNS])
        }
        ShownBy::Linear => {
            let x = builder.input("x", &[COLUMNS], DType::F32);
            let matrix = builder.weight("matrix", shape, dtype);
            builder.shaped("shown", Op::Linear, &[x, matrix], &[ROWS])
        }
    };
    let y = builder.gather("y", shown);
    builder.finish(y)
}

/// Loads a random matrix of a format, and returns its numbers as an op of the backend shows them.
///
/// # Panics
/// When the backend refuses the format or fails.
pub fn shown_numbers(
    backend: Box<dyn AnyBackend>,
    dtype: DType,
    by: ShownBy,
    random: &mut Random,
) -> FormatNumbers {
    let bytes = stored_values(dtype, &Shape::new(&[ROWS, COLUMNS]).expect("it is small"), random);
    let mut want = vec![0.0; ROWS * COLUMNS];
    View::new(dtype, ROWS, COLUMNS, &bytes)
        .expect("the bytes have the shape")
        .unpack_rows(0..ROWS, &mut want);
    let weights = WeightTable(HashMap::from([("matrix".to_owned(), bytes)]));
    let graph = graph(dtype, by);
    let built = |_| Ok(graph.clone());
    let mut runner = backend.load(&weights, graph.key, &[], &built).expect("the backend has the format");
    let rows = graph.key.rows;
    let ids: Vec<u32> = (0..rows).collect();
    let ones: Vec<f32> =
        (0..COLUMNS * COLUMNS).map(|at| f32::from(u8::from(at % (COLUMNS + 1) == 0))).collect();
    let input = if by == ShownBy::Embed { Input::Ids(&ids) } else { Input::Rows(&ones) };
    let range = Range32 { start: 0, end: rows };
    let sequence = Sequence { blocks: &[], position: 0, rows: range, outputs: Outputs::All, spans: &[] };
    let step = Step { inputs: &[input], sequences: &[sequence], watch: &mut Unwatched };
    runner.step(step).expect("the step runs");
    let shown = runner.output().rows(0..rows as usize).expect("the step has rows");
    let got = match by {
        ShownBy::Embed => shown.to_vec(),
        ShownBy::Linear => (0..ROWS * COLUMNS).map(|at| shown[at % COLUMNS * ROWS + at / COLUMNS]).collect(),
    };
    FormatNumbers { want, got, columns: COLUMNS }
}
