//! What decides the numbers that matmuls multiply.

use std::sync::Arc;

use girih_cpu::{ActivationPrecision, Cpu, CpuOptions, PrecisionRule, kernels};
use girih_graph::Graph;
use girih_graph::backend::Input;
use girih_graph::description::{AnyBackend, BackendChoice, DefaultRounding, NoServices, Services};
use girih_tensor::DType;

use crate::fixture::{Random, Source, TestSequence, on, step};
use crate::two_layers::{Model, model};

/// The default of a processor that multiplies bf16 faster.
const BF16_PRODUCTS: PrecisionRule = PrecisionRule::Bf16Products { processor: "a processor" };

const REQUESTED_BF16: PrecisionRule = PrecisionRule::Requested(ActivationPrecision::Bf16);

fn with_rule(precision: PrecisionRule) -> Cpu {
    Cpu::new(CpuOptions { threads: 2, precision, ..CpuOptions::default() }).unwrap()
}

fn logits(precision: PrecisionRule, graph: &Graph) -> Vec<u32> {
    let source = Source::random(graph, &mut Random(5));
    let mut runner = on(with_rule(precision), graph, &source, 2);
    let output = step(&mut *runner, Input::Ids(&[3, 1, 4, 1, 5]), &[TestSequence::new(0, 0, 5)]);
    output.into_iter().map(f32::to_bits).collect()
}

#[test]
fn a_processors_default_multiplies_bf16_weights_by_bf16() {
    let graph = model(Model { weights: DType::BF16, ..Model::default() });
    assert_eq!(logits(BF16_PRODUCTS, &graph), logits(REQUESTED_BF16, &graph));
    assert_ne!(logits(BF16_PRODUCTS, &graph), logits(PrecisionRule::Fixed, &graph));
    let of = |precision| {
        let cpu = with_rule(precision);
        (cpu.numerics(&graph).name(), cpu.plan(&graph, &[2, 2]).host.scratch)
    };
    let (name, scratch) = of(BF16_PRODUCTS);
    assert_eq!((name.as_str(), scratch), ("bf16", of(REQUESTED_BF16).1));
    assert!(scratch < of(PrecisionRule::Fixed).1, "two bf16 numbers take a word");
    let note = with_rule(BF16_PRODUCTS).machine_default(&graph).unwrap();
    assert!(note.contains("the default on a processor; act-precision f32 "), "{note}");
}

#[test]
fn a_processors_default_changes_no_other_weights() {
    for weights in [DType::F32, DType::F16, DType::Q4_0, DType::Q8_0] {
        let graph = model(Model { width: 64, weights, ..Model::default() });
        assert_eq!(logits(BF16_PRODUCTS, &graph), logits(PrecisionRule::Fixed, &graph), "{weights}");
        assert_eq!(with_rule(BF16_PRODUCTS).machine_default(&graph), None, "{weights}");
    }
}

/// The backend of these options, as programs open it on this machine.
fn opened(options: &[(&str, &str)], default_rounding: DefaultRounding) -> Box<dyn AnyBackend> {
    let services: Arc<dyn Services> = Arc::new(NoServices);
    let cpu = BackendChoice::parse(&[&girih_cpu::INFO], "cpu").unwrap();
    let choice = options.iter().try_fold(cpu, |choice, (name, value)| choice.with(name, value));
    choice.unwrap().with_default_rounding(default_rounding).open(&services).unwrap()
}

#[test]
fn a_named_instruction_set_and_a_fixed_rounding_multiply_float_weights_in_f32() {
    let graph = model(Model { weights: DType::BF16, ..Model::default() });
    let of =
        |backend: Box<dyn AnyBackend>| (backend.numerics(&graph).name(), backend.machine_default(&graph));
    let single = ("f32".to_owned(), None);
    for table in kernels::tables() {
        let by_isa = opened(&[("isa", table.name)], DefaultRounding::ByProcessor);
        assert_eq!(of(by_isa), single, "{}", table.name);
    }
    assert_eq!(of(opened(&[], DefaultRounding::Fixed)), single);
    let requested = opened(&[("act-precision", "bf16")], DefaultRounding::Fixed);
    assert_eq!(of(requested), ("bf16".to_owned(), None));
    // Only the processor of this machine decides which of the two it is.
    let (name, note) = of(opened(&[], DefaultRounding::ByProcessor));
    assert_eq!(note.is_some(), name == "bf16", "{name}: {note:?}");
}

#[test]
fn quantized_weights_are_multiplied_by_int8_whatever_decides() {
    let graph = model(Model { width: 256, weights: DType::Q4_0, ..Model::default() });
    for default_rounding in [DefaultRounding::ByProcessor, DefaultRounding::Fixed] {
        let backend = opened(&[], default_rounding);
        assert_eq!(backend.numerics(&graph).name(), "int8", "{default_rounding:?}");
        assert_eq!(backend.machine_default(&graph), None);
    }
}
