//! The name of the arithmetic of a planned model.

use std::path::Path;

use girih::{BackendChoice, DType, DefaultRounding, Model, Plan, RunOptions};

/// The plan of a model with BF16 weights.
fn plan(backend: BackendChoice, kv: DType) -> Plan {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/llama32_tied");
    let options = RunOptions { backend, kv: Some(kv), ..RunOptions::default() };
    Model::open(path.to_str().unwrap()).unwrap().plan(options).unwrap()
}

#[test]
fn the_arithmetic_is_named() {
    let cpu = || girih::backend("cpu").unwrap();
    let named = |backend| plan(backend, DType::F16).arithmetic();
    let portable = cpu().with("isa", "portable").unwrap();
    assert_eq!(named(portable.clone()), "cpu-portable-f32-kv-f16");
    assert_eq!(named(portable.with("act-precision", "bf16").unwrap()), "cpu-portable-bf16-kv-f16");
    assert_eq!(named(girih::backend("interpreter").unwrap()), "interpreter-f32-kv-f16");
    let by_processor = plan(cpu(), DType::F16);
    let fixed = plan(cpu().with_default_rounding(DefaultRounding::Fixed), DType::F16);
    assert!(fixed.arithmetic().ends_with("-f32-kv-f16"), "{}", fixed.arithmetic());
    assert_eq!(fixed.arithmetic() == by_processor.arithmetic(), by_processor.machine_default().is_none());
}
