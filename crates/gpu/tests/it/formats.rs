//! Every format of weights: the device's numbers are those of the file, to the bit.

use std::collections::HashMap;

use girih_graph::backend::{Input, Step, Unwatched};
use girih_graph::testing::WeightTable;
use girih_graph::{Builder, Graph, Key, Op, OutputKind, Outputs, Sequence};
use girih_tensor::{DType, Random, Shape, View};

use crate::opened::{adapter, open};

const ROWS: usize = 70;
const COLUMNS: usize = 512;

/// A graph that embeds ids by a table.
fn graph(dtype: DType) -> Graph {
    let rows = ROWS as u32;
    let key = Key { rows, sequences: 1, context: rows, output_rows: rows, output: OutputKind::Logits };
    let mut builder = Builder::new(key);
    let ids = builder.input("tokens", &[], DType::I32);
    let table = builder.weight("table", Shape::new(&[ROWS, COLUMNS]).expect("it is small"), dtype);
    let x = builder.shaped("x", Op::Embed, &[ids, table], &[COLUMNS]);
    let y = builder.gather("y", x);
    builder.finish(y)
}

/// Bytes of a table: packed numbers, or any bytes of a format that girih does not write.
fn table(dtype: DType, random: &mut Random) -> Vec<u8> {
    if dtype.writes() {
        let numbers = random.numbers(ROWS * COLUMNS);
        return dtype.pack_matrix(ROWS, COLUMNS, &numbers).expect("it is written");
    }
    let bytes = dtype.matrix_bytes(ROWS, COLUMNS).expect("rows are whole blocks");
    (0..bytes).map(|_| random.below(256) as u8).collect()
}

#[test]
fn each_format_has_the_numbers_of_its_file() {
    let Some(name) = adapter() else {
        eprintln!("skipped: this machine has no adapter; Mesa's software Vulkan is one");
        return;
    };
    let _open = open(name);
    let mut random = Random(7);
    let integers = [DType::I8, DType::U8, DType::I32, DType::I64];
    for dtype in DType::ALL.iter().copied().filter(|dtype| !integers.contains(dtype)) {
        let bytes = table(dtype, &mut random);
        let mut want = vec![0.0; ROWS * COLUMNS];
        View::new(dtype, ROWS, COLUMNS, &bytes)
            .expect("the bytes have the shape")
            .unpack_rows(0..ROWS, &mut want);
        let weights = WeightTable(HashMap::from([("table".to_owned(), bytes)]));
        let graph = graph(dtype);
        let built = |_| Ok(graph.clone());
        let mut runner = open(name).load(&weights, graph.key, &[], &built).expect("the format has kernels");
        let ids: Vec<u32> = (0..ROWS as u32).collect();
        let rows = girih_graph::backend::Range32 { start: 0, end: ROWS as u32 };
        let sequence = Sequence { blocks: &[], position: 0, rows, outputs: Outputs::All, spans: &[] };
        let step = Step { inputs: &[Input::Ids(&ids)], sequences: &[sequence], watch: &mut Unwatched };
        runner.step(step).expect("the step runs");
        let got = runner.output().rows(0..ROWS).expect("the step has rows");
        let wrong = got.iter().zip(&want).enumerate().find(|(_, (got, want))| {
            // Devices may flush subnormal numbers, and all NaN are alike.
            want.is_normal() && got.to_bits() != want.to_bits()
        });
        assert_eq!(wrong, None, "{dtype}");
    }
}
