//! Opening the backend neither starts nor pins threads. This is the only test of its binary, because
//! it counts the threads of the process.

use std::fs;
use std::sync::Arc;

use girih_cpu::HostMachine;
use girih_graph::description::{BackendChoice, NoServices, Services};
use girih_graph::{Builder, Error, Graph, Key, Op, OutputKind, WeightSource};
use girih_tensor::{DType, Shape};

struct Ones;

impl WeightSource for Ones {
    fn read(&self, _: &str, _: u64, into: &mut [u8]) -> Result<(), Error> {
        into.chunks_exact_mut(4).for_each(|value| value.copy_from_slice(&1f32.to_le_bytes()));
        Ok(())
    }
}

fn build(key: Key) -> Graph {
    let mut graph = Builder::new(key);
    let x = graph.input("x", &[8], DType::F32);
    let last = graph.gather("last", x);
    let weight = graph.weight("weight", Shape::matrix(3, 8), DType::F32);
    let sums = graph.shaped("sums", Op::Linear, &[last, weight], &[3]);
    graph.finish(sums)
}

/// The number of threads of this process, if the system lists them.
fn threads() -> Option<usize> {
    Some(fs::read_dir("/proc/self/task").ok()?.count())
}

/// The CPUs that this thread may use, if the system lists them.
fn cpus() -> Option<String> {
    let status = fs::read_to_string("/proc/thread-self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).map(str::to_owned)
}

#[test]
fn threads_start_when_weights_are_loaded() {
    let Some(before) = threads() else { return };
    let services: Arc<dyn Services> = Arc::new(NoServices);
    let unpinned = cpus();
    let cpu = BackendChoice::parse(&[&girih_cpu::INFO], "cpu").unwrap().with_threads(Some(3));
    let cpu = cpu.with("affinity", "compact").unwrap().open(&services).unwrap();
    let key = Key { rows: 4, sequences: 1, context: 64, output_rows: 1, output: OutputKind::Hidden };
    let graph = build(key);
    assert!(cpu.plan(&graph, &[]).total() > 0);
    assert!(cpu.refuses(&graph).is_empty());
    assert_eq!((threads(), cpus()), (Some(before), unpinned.clone()), "planning needs no threads");
    let runner = cpu.load(&Ones, key, &[], &|key| Ok(build(key))).unwrap();
    assert_eq!(threads(), Some(before + 2), "the thread that loads is one of the three");
    let cores = HostMachine::here().topology.cores();
    assert!(cores < 2 || cpus() != unpinned, "and it is pinned to a core");
    drop(runner);
    assert_eq!(cpus(), unpinned);
}
