//! Weights in Q4NX: on the array they are their values rounded to bf16, whatever reads them. So
//! unpacking changes no bit, and a row alone gives the bits of a row among many.

use std::collections::BTreeMap;

use girih_graph::backend::Watch;
use girih_graph::interpret::Interpreter;
use girih_graph::{Error, Graph, Key, Op, Runner, WeightSource, load};
use girih_npu::driver::{Compiler, time_programs};
use girih_npu::form::groups::ArrayTensor;
use girih_npu::pass::{ArrayMapping, ArrayWeights, AttentionPlacement, Grouping, NoDump, Policy, groups};
use girih_npu::{Npu, NpuOptions, Target};
use girih_tensor::{DType, Shape};

use crate::llama::{LlamaSizes, SMALL, key, llama};
use crate::random::RandomWeights;
use crate::values::{HEADS, assert_close, outputs, watched_outputs};

/// Sides that are no whole tiles, so that every kind of padding occurs.
const SIZES: LlamaSizes = LlamaSizes { layers: 2, vocabulary: 544, ..SMALL };

/// The small model with matrices of this format.
fn model(dtype: DType, rows: u32) -> Graph {
    model_of(&SIZES, dtype, key(rows))
}

fn model_of(sizes: &LlamaSizes, dtype: DType, key: Key) -> Graph {
    let mut graph = llama(sizes, key);
    let linear = graph.nodes.iter().filter(|node| node.op == Op::Linear);
    let matrices: Vec<usize> = linear.map(|node| node.inputs[1].0 as usize).collect();
    matrices.into_iter().for_each(|matrix| graph.values[matrix].dtype = dtype);
    graph
}

/// A model's weights: matrices packed as Q4NX, or unpacked from that and rounded to bf16.
struct Packed {
    sizes: LlamaSizes,
    dtype: DType,
}

impl WeightSource for Packed {
    fn read(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        let graph = model_of(&self.sizes, self.dtype, key(1));
        let value = graph.value(graph.find(name).unwrap());
        let (rows, columns) = (value.shape.rows(), value.shape.columns());
        if value.shape.extents().len() != 2 {
            return RandomWeights(7).read(name, offset, into);
        }
        let mut bytes = vec![0; 2 * rows * columns];
        RandomWeights(7).read(name, offset, &mut bytes)?;
        let mut numbers = vec![0.0; rows * columns];
        DType::BF16.unpack(&bytes, &mut numbers);
        let packed = DType::Q4NX.pack_matrix(rows, columns, &numbers)?;
        if self.dtype == DType::Q4NX {
            into.copy_from_slice(&packed);
            return Ok(());
        }
        let view = girih_tensor::View::new(DType::Q4NX, rows, columns, &packed)?;
        view.unpack_rows(0..rows, &mut numbers);
        DType::BF16.pack(&numbers, into);
        Ok(())
    }
}

/// Every value of a step.
#[derive(Default)]
struct Watched(BTreeMap<String, Vec<u32>>);

impl Watch for Watched {
    fn wants(&self, _: &str) -> bool {
        true
    }

    fn value(&mut self, name: &str, _: &Shape, data: &[f32]) {
        self.0.insert(name.to_owned(), data.iter().map(|number| number.to_bits()).collect());
    }
}

fn on_array(target: &str, weights: ArrayWeights, stored: DType, rows: u32) -> Box<dyn Runner> {
    let policy = Policy { attention: AttentionPlacement::Host, ..Policy::MLIR_AIR };
    mapped(&SIZES, ArrayMapping { weights, ..ArrayMapping::from(policy) }, target, stored, rows)
}

fn mapped(
    sizes: &LlamaSizes,
    mapping: ArrayMapping,
    target: &str,
    stored: DType,
    rows: u32,
) -> Box<dyn Runner> {
    let npu = Npu::new(target, NpuOptions::default()).unwrap().with_mapping(mapping);
    let weights = Packed { sizes: *sizes, dtype: stored };
    load(npu, &weights, key(rows), &[32], |key| Ok(model_of(sizes, stored, key))).unwrap()
}

/// The interpreter with the unpacked weights.
fn interpreted(sizes: &LlamaSizes, rows: u32) -> Box<dyn Runner> {
    let weights = Packed { sizes: *sizes, dtype: DType::BF16 };
    load(Interpreter, &weights, key(rows), &[32], |key| Ok(model_of(sizes, DType::BF16, key))).unwrap()
}

/// The logits of the last row and every value, after steps of these numbers of rows.
fn run(runner: &mut dyn Runner, steps: &[u32]) -> (Vec<f32>, Watched) {
    let mut watched = Watched::default();
    let last = watched_outputs(runner, steps, &mut watched).pop().unwrap();
    (last, watched)
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|number| number.to_bits()).collect()
}

#[test]
fn a_row_alone_gives_the_bits_of_a_row_among_many() {
    for target in ["toy", "xdna2-strix"] {
        let mut runner = on_array(target, ArrayWeights::Stored, DType::Q4NX, 8);
        let logits: Vec<Vec<u32>> =
            [&[8][..], &[1; 8], &[3, 1, 4]].map(|steps| bits(&run(&mut *runner, steps).0)).into();
        assert!(logits.iter().all(|row| *row == logits[0]), "{target}");
    }
}

/// The vector comes in parts and the tiles through memory tiles, but the sums are the same. Attention
/// on the array has other cores than the launches around it.
#[test]
fn resident_launches_give_the_same_bits() {
    for target in ["toy", "xdna2-strix"] {
        for stored in [DType::Q4NX, DType::BF16] {
            for attention in [AttentionPlacement::Host, AttentionPlacement::Array] {
                let [ours, theirs] = [Grouping::Resident, Grouping::Joined].map(|grouping| {
                    let policy = Policy { grouping, attention };
                    let mut runner = mapped(&SIZES, policy.into(), target, stored, 8);
                    run(&mut *runner, &[1; 5])
                });
                assert_eq!(bits(&ours.0), bits(&theirs.0), "{target} {stored}");
                assert_eq!(ours.1.0, theirs.1.0, "{target} {stored}");
            }
        }
    }
}

/// The kernels of a token keep their cores, attention too. What is written again is loop counts, the
/// circuits of shim tiles that attention shares, and the herds of the small matrices of this model, which
/// are not alike.
#[test]
fn a_token_of_resident_launches_configures_the_array_once() {
    let target = Target::named("xdna2-strix").unwrap();
    for attention in [AttentionPlacement::Host, AttentionPlacement::Array] {
        let cycles = |grouping: Grouping| {
            let graph = model(DType::Q4NX, 1);
            let compiler = Compiler::new(target.clone(), Policy { grouping, attention }, None);
            let compiled = compiler.compile(&graph, &mut NoDump).unwrap();
            let programs = time_programs(&compiled, &target).unwrap();
            programs.iter().map(|program| program.runs * program.report.configure).sum::<u64>()
        };
        let (resident, joined) = (cycles(Grouping::Resident), cycles(Grouping::Joined));
        assert!(resident > 0 && resident * 4 < joined, "{resident} and {joined} cycles");
    }
}

/// Every value of a step of several rows, with weights unpacked on the array, has the bits that
/// it has with the same weights in bf16, except the logits: they come of products of single rows,
/// and those of bf16 weights sum in another order.
#[test]
fn unpacking_changes_no_bit_of_a_step_of_several_rows() {
    // Few rows are multiplied by cores that unpack, more by weights that a launch has unpacked.
    for (target, rows, launches) in
        [("toy", 8, 0), ("toy", 80, 14), ("xdna2-strix", 8, 0), ("xdna2-strix", 264, 14)]
    {
        let graph = model(DType::Q4NX, rows);
        let cut = groups(&graph, &Target::named(target).unwrap(), &Policy::MLIR_AIR.into(), &mut NoDump);
        let unpacked = |tensor: &&ArrayTensor| tensor.name.ends_with(".unpacked");
        assert_eq!(cut.unwrap().tensors.iter().filter(unpacked).count(), launches, "{target}, {rows} rows");
        let of = |weights, stored| {
            let mut watched = run(&mut *on_array(target, weights, stored, rows), &[rows]).1.0;
            watched.remove("logits").unwrap();
            watched
        };
        let packed = of(ArrayWeights::Stored, DType::Q4NX);
        assert!(packed.len() > 30);
        for other in [of(ArrayWeights::Bf16, DType::Q4NX), of(ArrayWeights::Stored, DType::BF16)] {
            for (name, values) in &packed {
                assert!(Some(values) == other.get(name), "{target}, {rows} rows: {name}");
            }
        }
    }
}

#[test]
fn steps_match_the_interpreter() {
    let mut exact = interpreted(&SIZES, 8);
    for target in ["toy", "xdna2-strix"] {
        let mut array = on_array(target, ArrayWeights::Stored, DType::Q4NX, 8);
        for steps in [&[8][..], &[5, 1, 1]] {
            let [found, exact] = [&mut array, &mut exact].map(|runner| outputs(&mut **runner, steps));
            assert_close(&found, &exact);
        }
    }
}

#[test]
fn heads_and_groups_of_any_size_match_the_interpreter() {
    for (sizes, targets) in HEADS {
        for target in targets {
            for grouping in [Grouping::Stitched, Grouping::Resident] {
                let policy = Policy { grouping, attention: AttentionPlacement::Array };
                let mut array = mapped(&sizes, policy.into(), target, DType::Q4NX, 64);
                let mut exact = interpreted(&sizes, 64);
                let [found, exact] =
                    [&mut array, &mut exact].map(|runner| outputs(&mut **runner, &[30, 1, 40, 1]));
                assert_close(&found, &exact);
            }
        }
    }
}

/// Packing at load is packing into a file, and a model that is stored as Q4NX is loaded as it is.
#[test]
fn weights_are_packed_at_load_as_in_a_file() {
    let steps = &[4, 1];
    let stored = run(&mut *on_array("toy", ArrayWeights::Stored, DType::Q4NX, 8), steps).1.0;
    let graph = model(DType::BF16, 4);
    let policy = Policy { attention: AttentionPlacement::Host, ..Policy::MLIR_AIR };
    let mapping = ArrayMapping { weights: ArrayWeights::Q4nx, ..ArrayMapping::from(policy) };
    let npu = Npu::new("toy", NpuOptions::default()).unwrap().with_mapping(mapping.clone());
    let build = |key: Key| Ok(model(DType::BF16, key.rows));
    let mut packed = load(npu, &RandomWeights(7), key(8), &[32], build).unwrap();
    let found = run(&mut *packed, steps).1.0;
    // The rows of the table are looked up in the packed matrix, too.
    assert!(stored == found);
    let cut = groups(&graph, &Target::named("toy").unwrap(), &mapping, &mut NoDump).unwrap();
    let packed: Vec<_> = cut.tensors.iter().filter(|tensor| tensor.dtype == DType::Q4NX).collect();
    assert_eq!(packed.len(), 7 * SIZES.layers + 1);
    for tensor in packed {
        let [rows, columns] = tensor.padded;
        assert!(rows.is_multiple_of(32) && columns.is_multiple_of(256), "{}", tensor.name);
        assert_eq!(tensor.bytes(), u64::from(rows * columns) * 5 / 8);
    }
}
