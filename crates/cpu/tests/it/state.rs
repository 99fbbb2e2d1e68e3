//! Operations of an engine on state, block by block, and what loading refuses.

use girih_cpu::kernels::tables;
use girih_cpu::{Cpu, CpuOptions};
use girih_graph::backend::{Block, Input, Watch};
use girih_graph::interpret::Interpreter;
use girih_graph::{
    Backend, Builder, Error, Graph, GroupId, Op, Pairing, RangeFault, Runner, Span, Step, WeightSource,
};
use girih_tensor::{DType, Shape};

use crate::fixture::{Random, Source, TestSequence, cpu, cpu_with, finish, key, on, step, step_of};
use crate::two_layers::{Model, logits, model, runner};

const GROUPS: [GroupId; 2] = [GroupId(0), GroupId(1)];

fn next(runner: &mut dyn Runner, block: u32, position: usize) -> Vec<u32> {
    let sequence = TestSequence::new(block, position as u32, 1);
    step(runner, Input::Ids(&[7]), &[sequence]).iter().map(|x| x.to_bits()).collect()
}

#[test]
fn a_copied_sequence_continues_like_the_original() {
    let tokens: Vec<u32> = (0..100).collect::<Vec<_>>().iter().map(|i| i * 7 % 50).collect();
    let mut runner = runner(Model::default(), 2);
    logits(&mut *runner, &tokens, 40);
    for group in GROUPS {
        (0..2).for_each(|block| runner.state().copy(group, Block(block), Block(8 + block)).unwrap());
        let exported = runner.state().export(group, Block(1)).unwrap();
        runner.state().import(group, Block(12), &exported).unwrap();
        runner.state().copy(group, Block(0), Block(11)).unwrap();
        assert_eq!(runner.state().export(group, Block(12)).unwrap(), exported);
    }
    let copied = next(&mut *runner, 8, 100);
    assert_eq!(next(&mut *runner, 11, 100), copied, "through bytes");
    assert_eq!(next(&mut *runner, 0, 100), copied, "the original itself");
}

#[test]
fn a_zeroed_block_is_zero_and_its_neighbours_are_not() {
    let tokens = vec![3; 150];
    let mut runner = runner(Model::default(), 1);
    logits(&mut *runner, &tokens, 150);
    for group in GROUPS {
        let neighbours = [0, 2].map(|block| runner.state().export(group, Block(block)).unwrap());
        runner.state().zero(group, Block(1)).unwrap();
        assert!(runner.state().export(group, Block(1)).unwrap().iter().all(|&byte| byte == 0));
        assert_eq!(neighbours, [0, 2].map(|block| runner.state().export(group, Block(block)).unwrap()));
        assert!(neighbours[0].iter().any(|&byte| byte != 0));
    }
}

#[test]
fn a_block_of_another_model_is_refused() {
    let mut runner = runner(Model::default(), 1);
    let error = runner.state().import(GroupId(0), Block(0), &[0; 3]).unwrap_err();
    assert_eq!(error.to_string(), "a block of state has 6144 bytes; got 3");
}

/// Attention to state of a type, with queries, keys and values as inputs.
fn attention(state: DType) -> Graph {
    let mut builder = Builder::new(key(16, 128));
    let [q, k, v] = ["q", "k", "v"].map(|name| builder.input(name, &HEADS, DType::F32));
    let group = builder.group(Span::Full);
    let [keys, values] = ["keys", "values"].map(|name| builder.state(name, &HEADS, state, group));
    builder.write(k, keys);
    builder.write(v, values);
    let op = Op::Attend { scale: 0.1, span: Span::Full, softcap: None };
    let y = builder.same("y", op, &[q, keys, values]);
    finish(builder, y)
}

const HEADS: [usize; 2] = [2, 96];

/// The faults of a step of two sequences. The first sequence crosses into its second block.
fn range_faults(backend: impl Backend, graph: &Graph, k: &[f32], v: &[f32]) -> Vec<RangeFault> {
    let mut runner = on(backend, graph, &Source::default(), 4);
    let sequences = [TestSequence::new(0, 60, 10), TestSequence::new(2, 0, 3)];
    step_of(&mut *runner, &[Input::Rows(k), Input::Rows(k), Input::Rows(v)], &sequences);
    let mut faults = runner.state().take_range_faults();
    // The interpreter reports one fault for a row, the backend one for each head. The first head is compared.
    faults.sort_by_key(|fault| fault.row);
    faults.dedup_by_key(|fault| (fault.row, fault.name.clone()));
    faults
}

#[test]
fn keys_and_values_that_the_type_cannot_hold_are_faults_of_their_rows() {
    let width = HEADS[0] * HEADS[1];
    let cases = [
        (DType::F32, f32::MAX, false),
        (DType::F16, 65519.0, false),
        (DType::F16, -65520.0, true),
        (DType::F16, f32::INFINITY, false),
        (DType::F16, f32::NAN, false),
        (DType::BF16, -3.39e38, false),
        (DType::BF16, f32::MAX, true),
        (DType::Q8_0, 8.32e6, false),
        (DType::Q8_0, 8.33e6, true),
        (DType::Q8_0, f32::NEG_INFINITY, false),
        (DType::Q8_0, f32::NAN, false),
        (DType::Q4_0, 5.24e5, false),
        (DType::Q4_0, -5.25e5, true),
        (DType::Q4_0, f32::NAN, false),
    ];
    for (state, value, is_lost) in cases {
        let graph = attention(state);
        let mut k = Random(5).numbers(13 * width);
        let mut v = Random(6).numbers(13 * width);
        // Behind the block's end, in the last head; in the first row of the second sequence.
        k[7 * width + HEADS[1] + 90] = value;
        v[7 * width + 3] = value;
        v[10 * width + 40] = value;
        let fault = |row, name: &str| RangeFault { row, name: name.to_owned(), dtype: state, value };
        let expected = [fault(7, "keys"), fault(7, "values"), fault(10, "values")];
        let expected = if is_lost { &expected[..] } else { &[] };
        let what = format!("{value} in {state}");
        assert_eq!(range_faults(Interpreter, &graph, &k, &v), expected, "{what}");
        for table in tables() {
            for threads in [1, 3] {
                let found = range_faults(cpu_with(*table, threads), &graph, &k, &v);
                assert_eq!(found, expected, "{what}, {} on {threads} threads", table.name);
            }
        }
    }
}

#[test]
fn a_failing_source_is_an_error() {
    struct Broken;
    impl WeightSource for Broken {
        fn read(&self, name: &str, _: u64, _: &mut [u8]) -> Result<(), Error> {
            Err(Error::new(format!("'{name}' cannot be read")))
        }
    }
    let error = cpu(2).load(&model(Model::default()), &Broken).unwrap_err();
    assert_eq!(error.to_string(), "'embed.weight' cannot be read");
}

#[test]
fn too_much_state_is_an_error() {
    let graph = model(Model { width: 4096, ..Model::default() });
    let error = cpu(1).state(&graph, &[u32::MAX, 1]).unwrap_err();
    assert!(error.to_string().contains("cannot allocate"), "{error}");
}

#[test]
fn zero_threads_are_refused() {
    let error = Cpu::new(CpuOptions { threads: 0, ..CpuOptions::default() }).unwrap_err();
    assert_eq!(error.to_string(), "0 threads requested; at least 1 is needed");
}

#[test]
fn operands_of_the_wrong_kind_are_refused_by_name() {
    let mut builder = Builder::new(key(4, 64));
    let x = builder.input("x", &[4, 8], DType::F32);
    let taken = builder.gather("taken", x);
    let frequencies = builder.weight("frequencies", Shape::vector(4), DType::F32);
    let op = Op::Rope { pairing: Pairing::Halves, factor: None };
    let y = builder.same("rotated", op, &[taken, frequencies]);
    let refusals = cpu(1).refuses(&builder.finish(y));
    assert_eq!(refusals.len(), 1);
    assert_eq!(refusals[0].node, "rotated");
    let reason = "its operand 'taken' is not the rows of the step, which 'rope' needs";
    assert_eq!(refusals[0].reason, reason);
}

/// The names and shapes of watched values, and their contents.
#[test]
fn a_watch_gets_the_values_that_it_wants() {
    #[derive(Default)]
    struct Log(Vec<(String, String, Vec<f32>)>);
    impl Watch for Log {
        fn wants(&self, name: &str) -> bool {
            name == "layers.1.q.heads" || name == "logits"
        }
        fn value(&mut self, name: &str, shape: &Shape, data: &[f32]) {
            self.0.push((name.to_owned(), shape.to_string(), data.to_vec()));
        }
    }
    let graph = model(Model::default());
    let mut runner = on(cpu(2), &graph, &Source::random(&graph, &mut Random(1)), 2);
    let mut log = Log::default();
    let blocks = [Block(0)];
    let sequence = girih_graph::Sequence {
        blocks: &[&blocks, &blocks],
        position: 0,
        rows: girih_graph::backend::Range32 { start: 0, end: 3 },
        outputs: girih_graph::Outputs::Last,
        spans: &[],
    };
    let inputs = [Input::Ids(&[1, 2, 3])];
    runner.step(Step { inputs: &inputs, sequences: &[sequence], watch: &mut log }).unwrap();
    let [(q, q_shape, heads), (name, shape, data)] = &log.0[..] else { panic!("two values: {:?}", log.0) };
    assert_eq!((q.as_str(), q_shape.as_str(), heads.len()), ("layers.1.q.heads", "[3, 4, 8]", 96));
    assert_eq!((name.as_str(), shape.as_str()), ("logits", "[1, 50]"));
    assert_eq!(*data, runner.output().rows(0..1).unwrap());
}
