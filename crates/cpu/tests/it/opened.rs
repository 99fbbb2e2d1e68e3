//! The backend opened by its description is the one that is made directly.

use std::sync::Arc;

use girih_cpu::{ActivationPrecision, Cpu, CpuOptions, PrecisionRule, kernels};
use girih_graph::backend::Input;
use girih_graph::description::{BackendChoice, NoServices, Services};
use girih_graph::{Backend, Runner};
use girih_tensor::DType;

use crate::fixture::{Random, Source, TestSequence, cpu, on, portable, step};
use crate::two_layers::{Model, model};

fn logits(mut runner: Box<dyn Runner>) -> Vec<u32> {
    let tokens = [3, 1, 4, 1, 5];
    let output = step(&mut *runner, Input::Ids(&tokens), &[TestSequence::new(0, 0, 5)]);
    output.into_iter().map(f32::to_bits).collect()
}

#[test]
fn a_backend_opened_by_name_computes_the_same_bits() {
    let graph = model(Model { width: 256, weights: DType::Q4_0, ..Model::default() });
    let source = Source::random(&graph, &mut Random(9));
    let services: Arc<dyn Services> = Arc::new(NoServices);
    let opened = |options: &[(&str, &str)]| {
        let choice = BackendChoice::parse(&[&girih_cpu::INFO], "cpu").unwrap().with_threads(Some(2));
        let choice = options.iter().try_fold(choice, |choice, (name, value)| choice.with(name, value));
        let backend = choice.unwrap().open(&services).unwrap();
        let blocks = vec![2; graph.groups.len()];
        logits(backend.load(&source, graph.key, &blocks, &|_| Ok(graph.clone())).unwrap())
    };
    let direct = |cpu: Cpu| logits(on(cpu, &graph, &source, 2));
    let by_default = opened(&[]);
    assert_eq!(by_default, direct(cpu(2)));
    let precision = PrecisionRule::Requested(ActivationPrecision::F32);
    let exact = CpuOptions { threads: 2, precision, ..CpuOptions::default() };
    let exact = direct(Cpu::with_table(exact, portable()).unwrap());
    assert_eq!(opened(&[("isa", "portable"), ("act-precision", "f32")]), exact);
    assert_ne!(exact, by_default, "the options reach the backend");
}

#[test]
fn a_description_names_the_kernels_and_the_formats_without_a_fast_path() {
    let describe = |weights| cpu(1).describe(&model(Model { width: 256, weights, ..Model::default() }));
    let best = kernels::tables()[0].name;
    assert_eq!(describe(DType::Q4_0), format!("cpu, {best} kernels"));
    let slow = " decoded by portable code and multiplied as floats";
    let stored = DType::ALL.iter().copied().find(|&dtype| {
        matches!(kernels::packed::Layout::of(dtype), kernels::packed::Layout::Stored(_)) && dtype.writes()
    });
    let stored = stored.expect("there is such a format");
    assert_eq!(describe(stored), format!("cpu, {best} kernels, {}{slow}", stored.name()));
}
