//! The backend for CUDA on a driver without a GPU: the kernels' sources, made by a host's compiler, in the place of NVIDIA's
//! library. What it shows is that the kernels, their launches and the calls of the driver are right; it says nothing of speed.
#![allow(unsafe_code)]

use std::mem;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use girih_graph::OpName;
use girih_graph::testing::{Case, Open, Roundoff, TestedBackend, check_cases, draw, draw_decoder};
use girih_tensor::DType;
use libloading::Library;

use crate::opened::open;

/// The kernels, and what they are compiled with.
const MODULES: [&str; 3] = ["rows.cu", "products.cu", "attention.cu"];

/// Fused operations are the kernels' own; the other options let fibers jump, and bits be read as other types.
const OPTIONS: [&str; 10] = [
    "-std=c++17",
    "-O2",
    "-U_FORTIFY_SOURCE",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-march=native",
    "-shared",
    "-fPIC",
    "-Wno-unknown-pragmas",
    "-Wl,-soname,libcuda.so.1",
];

/// The name of the emulated device; `None` where there is no compiler. If the variable `GIRIH_CUDA` says `device`, it is that of
/// NVIDIA's driver.
pub fn emulated() -> Option<&'static str> {
    static LOADED: OnceLock<bool> = OnceLock::new();
    if std::env::var("GIRIH_CUDA").is_ok_and(|which| which == "device") {
        return Some("cuda");
    }
    let load = || {
        let Some(path) = built() else {
            eprintln!("skipped: this machine has no g++, which makes the emulated driver of CUDA");
            return false;
        };
        // SAFETY: the library has no initialization of its own. A later lookup of its name finds it.
        let library = unsafe { Library::new(path) }.expect("the emulated driver was just made");
        mem::forget(library);
        true
    };
    LOADED.get_or_init(load).then_some("cuda")
}

/// Makes the library; `None` without a compiler.
fn built() -> Option<PathBuf> {
    Command::new("g++").arg("--version").output().ok().filter(|said| said.status.success())?;
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let [tests, kernels] = ["tests/cuda", "src/kernels/cuda"].map(|folder| crate_folder.join(folder));
    // Tests of several processes make one each.
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cuda-{}.so", std::process::id()));
    let mut command = Command::new("g++");
    command.args(OPTIONS).arg("-include").arg(tests.join("emulation.h")).arg(tests.join("emulation.cpp"));
    command.args(["-x", "c++"]).args(MODULES.map(|module| kernels.join(module))).arg("-o").arg(&out);
    let said = command.output().expect("the compiler was just found");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    Some(out)
}

/// Ops that run.
const OPS: [OpName; 16] = [
    OpName::Embed,
    OpName::Norm,
    OpName::Linear,
    OpName::Concat,
    OpName::Rope,
    OpName::Attend,
    OpName::Gate,
    OpName::GateHeads,
    OpName::Activate,
    OpName::Add,
    OpName::Scale,
    OpName::ScaleColumns,
    OpName::Clamp,
    OpName::Softcap,
    OpName::Gather,
    OpName::Pool,
];

/// The cases of some seeds that have the formats of the kernels for CUDA: matrices in Q4_0 or Q6_K, keys and values in f16.
fn cases(op: OpName, seeds: std::ops::Range<u64>) -> impl Iterator<Item = (u64, Case)> {
    let device = open("cuda");
    let suits = move |case: &Case| device.refuses(&case.graph).is_empty();
    seeds.map(move |seed| (seed, draw(op, seed, Roundoff::SINGLE))).filter(move |(_, case)| suits(case))
}

#[test]
fn each_op_is_within_its_bound_and_has_equal_bytes_in_any_steps() {
    let Some(name) = emulated() else { return };
    let _open = open(name);
    let ways: [Open<'_>; 1] = [&|| open(name)];
    for op in OPS {
        // Rounded activations have no bound by the op's definition; `integers.rs` has one.
        let round = (op != OpName::Linear).then_some(Roundoff::SINGLE);
        let count = if op == OpName::Attend { 10 } else { 3 };
        let report = check_cases(TestedBackend::new(name, &ways, round), cases(op, 0..400).take(count));
        println!("{report}");
        assert_eq!(report.faults(), [] as [&str; 0]);
        assert_eq!(report.ops.values().map(|of_op| of_op.cases).sum::<usize>(), count, "{op:?}");
    }
}

/// Whole layers, in which queries, keys and values are one launch. `fusion.rs` compares them with the nodes alone.
#[test]
fn layers_for_cuda_have_equal_bytes_in_any_steps() {
    let Some(name) = emulated() else { return };
    let _open = open(name);
    let ways: [Open<'_>; 1] = [&|| open(name)];
    let decoders = (0..3).map(|seed| (seed, draw_decoder(seed, DType::Q4_0, DType::F16)));
    let report = check_cases(TestedBackend::new(name, &ways, None), decoders);
    println!("{report}");
    assert_eq!(report.faults(), [] as [&str; 0]);
    assert_eq!(report.ops.values().map(|of_op| of_op.cases).sum::<usize>(), 3);
}

#[test]
fn what_the_kernels_for_cuda_lack_is_refused_by_name() {
    let Some(name) = emulated() else { return };
    let device = open(name);
    let reasons = |op, seed| {
        let refusals = device.refuses(&draw(op, seed, Roundoff::SINGLE).graph);
        refusals.into_iter().map(|refusal| refusal.reason).collect::<Vec<_>>()
    };
    let all: Vec<String> = (0..20).flat_map(|seed| reasons(OpName::Linear, seed)).collect();
    assert!(all.iter().any(|reason| reason.contains("kernels for weights in q4_0 and q6_k")), "{all:?}");
    let all: Vec<String> = (0..20).flat_map(|seed| reasons(OpName::Attend, seed)).collect();
    assert!(all.iter().any(|reason| reason.contains("use --kv f16")), "{all:?}");
    for op in [OpName::Experts, OpName::DeltaRule, OpName::AttendLatent, OpName::ShortConv] {
        assert!(!reasons(op, 1).is_empty(), "{op:?}");
    }
}
