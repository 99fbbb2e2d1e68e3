//! The entry points of the fuzz targets `blob`, `mapping` and `target`.

use girih_graph::Graph;
use sha2::{Digest as _, Sha256};

use crate::blob::{decode, encode, read_for_its_target};
use crate::form::PassForm;
use crate::pass::{ArrayMapping, NoDump, Policy, compile, groups, is_broken_rule};
use crate::sim::Simulator;
use crate::target::Target;

/// The graph that mappings and targets compile: one layer, as a test has it.
const LAYER: &str = include_str!("../tests/forms/partition/one-layer.npu");

/// Reads any bytes as a blob for the target `toy`, and again with the digest that they need:
/// refused, or a schedule that is printed, prepared for a run, and encoded again.
///
/// # Panics
/// If the schedule does not equal its encoding.
pub fn blob(bytes: &[u8]) {
    blob_with_digest(bytes);
    let Some((content, _)) = bytes.split_last_chunk::<32>() else { return };
    let digest = Sha256::digest(content);
    blob_with_digest(&[content, &digest[..]].concat());
}

fn blob_with_digest(bytes: &[u8]) {
    let target = Target::named("toy").expect("the repository has it");
    let of_its_target = read_for_its_target(bytes);
    let Ok(schedule) = decode(bytes, &target) else { return };
    assert_eq!(of_its_target.as_ref().map(ToString::to_string), Ok(schedule.to_string()));
    assert_eq!(schedule.faults(&target), []);
    let simulator = Simulator::new(&target).expect("the repository has its kernel times");
    // Prepared or refused: either is fine.
    let _ = simulator.prepare(&schedule);
    // A name may contain a byte that ELF does not allow.
    let Ok(encoded) = encode(&schedule, &target) else { return };
    let again = decode(&encoded, &target).expect("what girih encodes, it decodes");
    assert_eq!(again.to_string(), schedule.to_string());
}

/// Parses any text as a mapping: refused, or one that parses back unchanged, with which a
/// layer is compiled for the target `toy` or refused.
///
/// # Panics
/// If the mapping changes, or a pass makes a form with faults.
pub fn mapping(text: &str) {
    let Ok(mapping) = text.parse::<ArrayMapping>() else { return };
    assert_eq!(mapping.to_string().parse().as_ref(), Ok(&mapping));
    compile_layer(&Target::named("toy").expect("the repository has it"), &mapping);
}

/// Parses any text as a target, and as one with the variant of a seed: refused, or a target for
/// which a layer is compiled or refused.
///
/// # Panics
/// If a pass makes a form with faults.
pub fn target(text: &str) {
    for variant in [None, Some("cap-2025")] {
        let Ok(target) = Target::parse(text, variant) else { continue };
        let _ = target.to_string();
        if Simulator::new(&target).is_ok() {
            compile_layer(&target, &Policy::MLIR_AIR.into());
        }
    }
}

/// Compiles all programs of a layer.
fn compile_layer(target: &Target, mapping: &ArrayMapping) {
    let (_, text) = LAYER.split_once("=== in\n").expect("the file has an input");
    let (text, _) = text.split_once("=== out\n").expect("the file has an output");
    let graph: Graph = text.parse().expect("a test parses it");
    let is_ours = |error: girih_tensor::Error| is_broken_rule(&error);
    match groups(&graph, target, mapping, &mut NoDump) {
        Ok(groups) => {
            for program in &groups.programs {
                let compiled = compile(program, target, &mut NoDump);
                assert!(!compiled.is_err_and(is_ours), "{}: a form has faults", program.name);
            }
        }
        Err(error) => assert!(!is_ours(error), "the groups have faults"),
    }
}
