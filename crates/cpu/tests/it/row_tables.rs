//! Tables that stay in their file: rows that are read in a step have the bits of rows in memory.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use girih_cpu::kernels::tables;
use girih_graph::backend::{Backend, Input, RowSource};
use girih_graph::description::Services;
use girih_graph::store::{Store, StoreOptions};
use girih_graph::{Builder, Error, Graph, Op};
use girih_tensor::{DType, Shape};

use crate::fixture::{Random, Source, TestSequence, cpu_with, finish, key, on, step};

const ROWS: usize = 37;
/// A row of F32 is read in two pieces.
const COLUMNS: usize = 1536;

/// The sum of rows of a table that nothing else reads and of rows of a matrix, times that matrix.
fn graph(dtype: DType) -> Graph {
    let mut builder = Builder::new(key(9, 64));
    let ids = builder.input("tokens", &[], DType::I32);
    let table = builder.weight("table", Shape::matrix(ROWS, COLUMNS), dtype);
    let tied = builder.weight("tied", Shape::matrix(64, COLUMNS), dtype);
    let rows = builder.shaped("rows", Op::Embed, &[ids, table], &[COLUMNS]);
    let others = builder.shaped("others", Op::Embed, &[ids, tied], &[COLUMNS]);
    let both = builder.same("both", Op::Add, &[rows, others]);
    let product = builder.shaped("product", Op::Linear, &[both, tied], &[64]);
    finish(builder, product)
}

/// A file of all weights.
#[derive(Clone, Debug, Default)]
struct Tables(Arc<Mutex<TablesState>>);

#[derive(Debug, Default)]
struct TablesState {
    bytes: Vec<u8>,
    reads: usize,
    is_short: bool,
    is_changed: bool,
}

impl Services for Tables {
    fn cache(&self) -> Option<PathBuf> {
        None
    }

    fn store(&self, _: &str, _: StoreOptions) -> Option<Box<dyn Store>> {
        None
    }

    fn note(&self, _: &str) {}

    fn rows(&self, _: &str) -> Option<Arc<dyn RowSource>> {
        Some(Arc::new(self.clone()))
    }
}

impl RowSource for Tables {
    fn read(&self, row: usize, offset: usize, into: &mut [u8]) -> Result<(), Error> {
        let mut state = self.0.lock().unwrap();
        state.reads += 1;
        if state.is_short {
            return Err(Error::new("the file ends before this row"));
        }
        let start = row * state.bytes.len() / ROWS + offset;
        into.copy_from_slice(&state.bytes[start..start + into.len()]);
        Ok(())
    }

    fn check_unchanged(&self) -> Result<(), Error> {
        if self.0.lock().unwrap().is_changed { Err(Error::new("was changed")) } else { Ok(()) }
    }
}

#[test]
fn rows_of_a_table_in_its_file_have_the_bits_of_rows_in_memory() {
    let ids: Vec<u32> = [0, 36, 5, 5, 17, 36].to_vec();
    for dtype in [DType::F32, DType::BF16, DType::Q8_0, DType::Q4_K, DType::Q6_K, DType::IQ4_XS] {
        let graph = graph(dtype);
        let source = Source::random(&graph, &mut Random(3));
        let sequences = [TestSequence::new(0, 0, ids.len() as u32)];
        for (table, threads) in tables().iter().flat_map(|table| [(*table, 1), (*table, 3)]) {
            let expected =
                step(&mut *on(cpu_with(table, threads), &graph, &source, 1), Input::Ids(&ids), &sequences);
            let file = Tables::default();
            file.0.lock().unwrap().bytes.clone_from(&source.0["table"]);
            let backend = cpu_with(table, threads).with_rows(Arc::new(file.clone()));
            let (resident, in_file) =
                (cpu_with(table, threads).plan(&graph, &[]).host, backend.plan(&graph, &[]).host);
            assert_eq!((resident.in_file, in_file.in_file), (0, source.0["table"].len() as u64), "{dtype}");
            assert!(in_file.weights < resident.weights, "{dtype}");
            let got = step(&mut *on(backend, &graph, &source, 1), Input::Ids(&ids), &sequences);
            assert!(got.iter().map(|x| x.to_bits()).eq(expected.iter().map(|x| x.to_bits())), "{dtype}");
            // A weight that a matmul reads, too, is held.
            let pieces = (source.0["table"].len() / ROWS).div_ceil(4096);
            assert_eq!(file.0.lock().unwrap().reads, ids.len() * pieces, "{dtype}");
        }
    }
}

#[test]
fn a_file_that_is_shorter_or_was_changed_fails_the_step_and_no_later_one() {
    let graph = graph(DType::Q8_0);
    let source = Source::random(&graph, &mut Random(4));
    let file = Tables::default();
    file.0.lock().unwrap().bytes.clone_from(&source.0["table"]);
    let backend = cpu_with(tables()[0], 2).with_rows(Arc::new(file.clone()));
    let mut runner = on(backend, &graph, &source, 1);
    let mut fault = |set: fn(&mut TablesState)| {
        set(&mut file.0.lock().unwrap());
        let tried = std::panic::AssertUnwindSafe(|| {
            step(&mut *runner, Input::Ids(&[1, 2, 3]), &[TestSequence::new(0, 0, 3)]);
        });
        std::panic::catch_unwind(tried).err().map(|panic| panic.downcast_ref::<String>().cloned().unwrap())
    };
    assert!(fault(|_| {}).is_none());
    assert!(fault(|state| state.is_short = true).unwrap().contains("the file ends before this row"));
    assert!(fault(|state| state.is_short = false).is_none());
    assert!(fault(|state| state.is_changed = true).unwrap().contains("was changed"));
}
