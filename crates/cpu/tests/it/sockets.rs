//! Machines with two sockets, made up of the files that Linux would show: what is copied, planned and refused. Both sockets
//! are CPUs of this machine, whose memory is equally near.

use std::fs;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use girih_cpu::kernels::tables;
use girih_cpu::topology::Topology;
use girih_cpu::{Affinity, Cpu, CpuOptions, EqualWeights, HostMachine, MemoryPolicy, Residence};
use girih_graph::store::{Store, StoredItem, UnsavedItem};
use girih_graph::{Backend, Error, ErrorKind, Graph, WeightSource};
use girih_tensor::DType;

use crate::fixture::{Random, Source, cpu, on};
use crate::two_layers::{Model, logits, model};

/// The CPUs of this machine that stand for the sockets' first; the same one if there is no other.
fn cpus() -> [usize; 2] {
    let all = HostMachine::here().topology.processors();
    [all[0].number, all[all.len() - 1].number]
}

/// A machine whose sockets have one CPU each, read from a made-up `/sys`; `None` if this machine has one CPU.
fn machine() -> Option<HostMachine> {
    let [first, last] = cpus();
    if first == last {
        return None;
    }
    let root = tempfile::tempdir().unwrap();
    let write = |path: String, text: String| {
        let path = root.path().join("sys/devices/system").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("cpu/online".to_owned(), format!("{first},{last}"));
    write("node/online".to_owned(), "0-1".to_owned());
    for (socket, cpu) in [first, last].into_iter().enumerate() {
        write(format!("cpu/cpu{cpu}/topology/core_cpus_list"), cpu.to_string());
        write(format!("cpu/cpu{cpu}/topology/physical_package_id"), socket.to_string());
        write(format!("node/node{socket}/cpulist"), cpu.to_string());
    }
    let topology = Topology::read(root.path()).unwrap();
    assert_eq!((topology.sockets(), topology.nodes()), (2, 2));
    Some(HostMachine { topology, memory_nodes: vec![0, 1], ..HostMachine::here().clone() })
}

fn options(threads: usize, hot_replicate: Option<u64>) -> CpuOptions {
    CpuOptions { threads, hot_replicate, affinity: Affinity::Compact, ..CpuOptions::default() }
}

fn weights(cpu: &Cpu, graph: &Graph) -> u64 {
    cpu.plan(graph, &vec![4; graph.groups.len()]).host.weights
}

#[test]
fn copies_of_hot_weights_change_no_bit_and_are_planned() {
    let Some(machine) = machine() else { return };
    let tokens: Vec<u32> = (0..40).map(|at| at * 7 % 50).collect();
    for dtype in [DType::Q4_0, DType::BF16] {
        let graph = model(Model { width: 256, weights: dtype, ..Model::default() });
        let mut source = Source::random(&graph, &mut Random(11));
        source.zero_units(&graph, 32, &mut Random(3));
        let open = |threads, limit| Cpu::on_machine(options(threads, limit), tables()[0], &machine).unwrap();
        let plain = weights(&open(2, None), &graph);
        let kept = &mut *on(open(1, None), &graph, &source, 4);
        let want = logits(kept, &tokens, 7);
        for threads in [2, 5] {
            for limit in [1_000_000, 1 << 30] {
                let cpu = open(threads, Some(limit));
                let copies = weights(&cpu, &graph) - plain;
                assert!((1..=limit).contains(&copies), "{copies} of {limit} bytes");
                let runner = &mut *on(cpu, &graph, &source, 4);
                let said = runner.tuning().unwrap();
                assert!(said.contains(" copied to each of 2 sockets, "), "{said}");
                for chunk in [1, 40] {
                    assert!(logits(runner, &tokens, chunk) == want, "{dtype}, {threads} threads, {limit}");
                }
            }
        }
    }
}

/// Weights with an identity, which a store may keep.
struct Identified(Source);

impl WeightSource for Identified {
    fn read(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        self.0.read(name, offset, into)
    }

    fn identity(&self) -> Option<[u8; 32]> {
        Some([1; 32])
    }
}

/// A store that sends the number of CPUs of the threads that it starts.
#[derive(Debug)]
struct ThreadStore(Sender<usize>);

impl Store for ThreadStore {
    fn find(&self, _: &str) -> Option<Box<dyn StoredItem>> {
        None
    }

    fn keep(&self, _: Box<dyn UnsavedItem>) {
        self.0.send(thread::spawn(cpu_count).join().unwrap()).unwrap();
    }

    fn note(&self, why: &Error) {
        panic!("{why}");
    }
}

/// The number of CPUs on which this thread may run.
fn cpu_count() -> usize {
    thread::available_parallelism().unwrap().get()
}

/// A thread that the caller of pinned threads starts would else stay on the caller's CPU.
#[test]
fn threads_of_a_store_are_not_pinned() {
    let Some(machine) = machine() else { return };
    let graph = model(Model { width: 256, weights: DType::Q4_0, ..Model::default() });
    let source = Identified(Source::random(&graph, &mut Random(15)));
    let (sender, counts) = channel();
    let cpu = Cpu::on_machine(options(2, None), tables()[0], &machine).unwrap();
    let cpu = cpu.with_store(Box::new(ThreadStore(sender)));
    let (all, blocks) = (cpu_count(), vec![4; graph.groups.len()]);
    let runner = girih_graph::load(cpu, &source, graph.key, &blocks, |_| Ok(graph.clone())).unwrap();
    assert_eq!(counts.try_iter().collect::<Vec<_>>(), [all]);
    assert_eq!(cpu_count(), 1, "the caller is pinned");
    drop(runner);
    assert_eq!(cpu_count(), all);
}

#[test]
fn equal_weights_share_their_copies() {
    let Some(machine) = machine() else { return };
    let tokens: Vec<u32> = (0..40).map(|at| at * 7 % 50).collect();
    let graph = model(Model { width: 256, weights: DType::Q4_0, ..Model::default() });
    let mut source = Source::random(&graph, &mut Random(14));
    source.double_layer();
    let want = logits(&mut *on(cpu(1), &graph, &source, 4), &tokens, 7);
    let copies = |equal_weights| {
        let options = CpuOptions { equal_weights, ..options(2, Some(1 << 30)) };
        let cpu = Cpu::on_machine(options, tables()[0], &machine).unwrap();
        let runner = &mut *on(cpu, &graph, &source, 4);
        let said = runner.tuning().unwrap();
        assert!(logits(runner, &tokens, 7) == want, "{said}");
        let (_, said) = said.split_once(" copied to each of 2 sockets, ").unwrap();
        said.strip_suffix(" bytes in all").unwrap().parse::<u64>().unwrap()
    };
    let (own, shared) = (copies(EqualWeights::Keep), copies(EqualWeights::Share));
    let layer = graph
        .weights()
        .filter(|(_, weight)| weight.name.starts_with("layers.1.") && weight.shape.extents().len() > 1);
    let layer: u64 = layer.map(|(_, weight)| weight.dtype.bytes(&weight.shape).unwrap() as u64).sum();
    assert!(layer > 0 && own - shared == 2 * layer, "{own} and {shared} bytes, a layer has {layer}");
}

#[test]
fn one_socket_copies_nothing_and_says_so() {
    let graph = model(Model { width: 256, ..Model::default() });
    let source = Source::random(&graph, &mut Random(12));
    let one =
        |limit| Cpu::new(CpuOptions { threads: 1, hot_replicate: limit, ..CpuOptions::default() }).unwrap();
    assert_eq!(weights(&one(Some(1 << 30)), &graph), weights(&one(None), &graph));
    let said = on(one(Some(1 << 30)), &graph, &source, 4).tuning().unwrap();
    assert!(said.ends_with("; no copies of hot weights, as all threads run on one socket"), "{said}");
    let Some(machine) = machine() else { return };
    let small = Cpu::on_machine(options(2, Some(100)), tables()[0], &machine).unwrap();
    let said = on(small, &graph, &source, 4).tuning().unwrap();
    assert!(
        said.ends_with("; no copies of hot weights, as none fits into 100 bytes for 2 sockets"),
        "{said}"
    );
}

#[test]
fn what_would_have_no_effect_is_refused() {
    let Some(machine) = machine() else { return };
    let refusal = |options: CpuOptions| {
        let error = Cpu::on_machine(options, tables()[0], &machine).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused);
        error.to_string()
    };
    assert_eq!(
        refusal(CpuOptions { affinity: Affinity::None, ..options(2, Some(1 << 30)) }),
        "hot-replicate needs pinned threads, but 2 threads run on any of 2 cores; choose affinity compact or scatter"
    );
    let placed = |policy| CpuOptions { memory_policy: Some(policy), ..options(2, None) };
    assert_eq!(
        refusal(placed(MemoryPolicy::Strict(7))),
        "memory-policy strict:7 names NUMA node 7; the nodes with memory are: 0, 1"
    );
    let mapped = CpuOptions { residence: Residence::File, ..placed(MemoryPolicy::Interleave) };
    assert_eq!(
        refusal(mapped),
        "memory-policy interleave places weights in memory, but weights are mapped from their file; choose weights read"
    );
}

/// The policies that this machine allows change no bit; a system that refuses the call says so in a sentence.
#[test]
fn policies_of_memory_change_no_bit() {
    let graph = model(Model { width: 256, weights: DType::Q4_0, ..Model::default() });
    let source = Source::random(&graph, &mut Random(13));
    let tokens: Vec<u32> = (0..10).map(|at| at * 7 % 50).collect();
    let open =
        |memory_policy| Cpu::new(CpuOptions { threads: 2, memory_policy, ..CpuOptions::default() }).unwrap();
    let want = logits(&mut *on(open(None), &graph, &source, 4), &tokens, 10);
    let node = HostMachine::here().memory_nodes[0];
    for policy in
        [MemoryPolicy::Local, MemoryPolicy::Interleave, MemoryPolicy::Node(node), MemoryPolicy::Strict(node)]
    {
        let blocks = vec![4; graph.groups.len()];
        match girih_graph::load(open(Some(policy)), &source, graph.key, &blocks, |_| Ok(graph.clone())) {
            Ok(mut runner) => assert!(logits(&mut *runner, &tokens, 10) == want, "{policy:?}"),
            Err(error) => {
                let sentence = error.to_string();
                assert!(sentence.starts_with("this system refuses memory-policy "), "{sentence}");
            }
        }
    }
}
