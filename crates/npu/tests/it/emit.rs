//! Compiled programs are emitted as MLIR that mlir-opt accepts by the definitions of `tests/aie/aie.irdl.mlir`,
//! and what the dialects cannot express is refused.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use girih_npu::Target;
use girih_npu::emit::{EmittedProgram, emit, verify};
use girih_npu::form::groups::{AttendSizes, Kernel};
use girih_npu::form::schedule::Schedule;
use girih_npu::form::weights::WeightLayout;
use girih_npu::pass::{ArrayMapping, ArrayWeights, NoDump, Policy, compile, groups};

use crate::llama::{LlamaSizes, SMALL, key, llama};
use crate::locks::scheduled;

/// The target of the tests: a device that mlir-aie has.
pub const TARGET: &str = "xdna2-strix";

/// Debian's mlir-opt, of the package mlir-19-tools.
const MLIR_OPT: &str = "mlir-opt-19";

pub fn target() -> Target {
    Target::named(TARGET).unwrap()
}

/// The four designs: a GEMM, a GEMV, attention, and the programs of a layer in prefill and for a token, with
/// weights in bf16 and in Q4NX.
pub fn designs() -> Vec<(&'static str, Vec<EmittedProgram>)> {
    let attend = Kernel::Attend(AttendSizes {
        rows: 64,
        heads: 8,
        kv_heads: 4,
        size: 64,
        keys: 512,
        latest: 448,
        causal: true,
        window: 0,
        scale: 0.125,
    });
    let kernels = [
        ("gemm", Kernel::Gemm { m: 512, n: 512, k: 512, weights: WeightLayout::Rows }),
        ("gemv", Kernel::Gemv { first: 0, n: 2048, k: 512, weights: WeightLayout::Rows }),
        ("attend", attend),
    ];
    let one = |(name, kernel)| (name, vec![emitted(&scheduled(name, kernel, TARGET))]);
    let layer = layer().iter().map(emitted).collect();
    kernels.into_iter().map(one).chain([("layer", layer)]).collect()
}

fn emitted(schedule: &Schedule) -> EmittedProgram {
    emit(schedule, &target()).unwrap_or_else(|error| panic!("{error}"))
}

/// The programs of a Llama layer.
fn layer() -> Vec<Schedule> {
    let (target, sizes) = (target(), LlamaSizes { layers: 1, ..SMALL });
    let mut schedules = Vec::new();
    for (rows, weights) in [(64, ArrayWeights::Bf16), (1, ArrayWeights::Bf16), (1, ArrayWeights::Q4nx)] {
        let mapping = ArrayMapping { weights, ..ArrayMapping::from(Policy::MLIR_AIR) };
        let groups = groups(&llama(&sizes, key(rows)), &target, &mapping, &mut NoDump).unwrap();
        let compiled = groups.programs.iter().map(|program| compile(program, &target, &mut NoDump).unwrap());
        schedules.extend(compiled);
    }
    schedules
}

/// The text with what IRDL cannot define replaced, as `aie.irdl.mlir` says.
fn for_irdl(text: &str) -> String {
    let mut lines = Vec::new();
    for line in text.lines() {
        let indent = &line[..line.len() - line.trim_start().len()];
        if let Some((name, dims)) = line.split_once(" = #aie<bd_dim_layout_array[") {
            let dims = dims.replace("<size = ", "[").replace("stride = ", "").replace('>', "]");
            let dims = dims.trim_end_matches(']').to_owned() + "]";
            lines.push(format!("{name} = #aie.bd_dim_layout_array<[{dims}]>"));
            continue;
        }
        if line.contains("sym_name = \"sequence\"") {
            lines.push(format!("{indent}  \"terminator.end\"() : () -> ()"));
        }
        lines.push(line.replace(&format!("aie.device({})", device_of(line)), "module"));
    }
    let text = lines.join("\n");
    let terminators = ["end", "next_bd", "dma_start"];
    terminators
        .iter()
        .fold(text, |text, name| text.replace(&format!("\"aie.{name}\""), &format!("\"terminator.{name}\"")))
}

fn device_of(line: &str) -> &str {
    line.trim_start()
        .strip_prefix("aie.device(")
        .and_then(|rest| rest.split_once(')'))
        .map_or("", |(name, _)| name)
}

/// What mlir-opt says of a text; none if the machine has no mlir-opt.
fn mlir_opt(text: &str) -> Option<String> {
    let definitions = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/aie/aie.irdl.mlir");
    let child = Command::new(MLIR_OPT)
        .arg(format!("--irdl-file={}", definitions.display()))
        .args(["--allow-unregistered-dialect", "-o", "/dev/null"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        println!("skipped: {MLIR_OPT} is not installed (Debian's package mlir-19-tools)");
        return None;
    };
    // A refused text may end the reader early.
    let _ = child.stdin.take().unwrap().write_all(text.as_bytes());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.success(), said.is_empty(), "{said}");
    Some(said)
}

#[test]
fn mlir_opt_accepts_every_emitted_module() {
    for (name, programs) in designs() {
        for program in programs {
            let text = for_irdl(&program.module.to_string());
            match mlir_opt(&text) {
                None => return,
                Some(said) => assert_eq!(said, "", "{name}: {}", program.manifest.program),
            }
        }
    }
}

/// An operation without an attribute, of another type, or with a value that has no name.
#[test]
fn mlir_opt_refuses_what_the_definitions_exclude() {
    let (_, programs) = designs().swap_remove(0);
    let text = for_irdl(&programs[0].module.to_string());
    for (from, to) in [
        ("\"lockID\"", "\"lockID\""),
        ("lockID = ", "lock = "),
        ("source_bundle = 1", "source_bundle = 3"),
        ("action = 2", "action = 0"),
        ("issue_token = true", "issue_token = 1 : i32"),
        ("burst_length = 0 : i32", "burst = 0 : i32"),
        ("\"aie.core\"", "\"aie.cores\""),
    ] {
        let changed = text.replace(from, to);
        let Some(said) = mlir_opt(&changed) else { return };
        assert_eq!(said.is_empty(), changed == text, "{from} as {to}: {said}");
    }
}

/// The counts of a GEMM on 32 cores, by hand: the program is that of the schedule.
#[test]
fn an_emitted_gemm_has_what_its_schedule_has() {
    let schedule =
        scheduled("gemm", Kernel::Gemm { m: 512, n: 512, k: 512, weights: WeightLayout::Rows }, TARGET);
    let text = emitted(&schedule).module.to_string();
    let launch = &schedule.launches[0];
    let count = |name: &str| text.matches(&format!("\"{name}\"(")).count();
    let shim = launch.descriptors.iter().filter(|descriptor| descriptor.tile.row == 0).count();
    assert_eq!(count("aie.core"), launch.cores.len());
    assert_eq!(count("aie.lock"), launch.locks.len());
    assert_eq!(count("aie.buffer"), launch.buffers.len());
    assert_eq!(count("aie.dma_bd"), launch.descriptors.len() - shim);
    assert_eq!(count("aie.dma_start"), launch.starts.len());
    assert_eq!(count("aie.flow"), launch.routes.iter().map(|route| route.to.len()).sum::<usize>());
    assert_eq!(text.matches("aie.device(npu2) @launch_0 {").count(), 1);
}

#[test]
fn what_the_dialects_cannot_express_is_refused() {
    let sentence = |text: &str, target: &str| {
        let schedule: Schedule = text.parse().unwrap();
        emit(&schedule, &Target::named(target).unwrap()).unwrap_err().to_string()
    };
    let copy = |body: &str| {
        format!(
            "schedule copy target {TARGET}\nargument 0 x input 4096\nlaunch copy\n  buffer 0 b 0,2 0x400 1024\n\
             {body}  route 0,0:mm2s:0 0,2:s2mm:0@2\n  run {{\n  }}\n"
        )
    };
    assert_eq!(
        sentence("schedule copy target toy\nlaunch copy\n  run {\n  }\n", "toy"),
        "target toy is no device of mlir-aie: choose xdna1-phoenix, xdna2-strix or xdna2-kraken"
    );
    let iterated = "  descriptor 0,2 0 b0+0 8x1 iteration 4x8\n  start 0,2:s2mm:0 0 1\n";
    assert_eq!(
        sentence(&copy(iterated), TARGET),
        "program copy: launch copy: descriptor 0 of tile 0,2 advances from run to run, which aie.dma_bd of the \
         emitted version cannot express"
    );
    let twice = "  descriptor 0,2 0 b0+0 8x1\n  start 0,2:s2mm:0 0 1\n  start 0,2:s2mm:0 0 1\n";
    assert_eq!(
        sentence(&copy(twice), TARGET),
        "program copy: launch copy: channel 0,2:s2mm:0 has several first tasks; aie.dma_start starts one"
    );
    let unreached = "  descriptor 0,2 0 b0+0 8x1\n";
    assert_eq!(
        sentence(&copy(unreached), TARGET),
        "program copy: launch copy: descriptor 0 of tile 0,2 is in no first task; mlir-aie removes such descriptors"
    );
}

/// mlir-aie lets sizes up to 512 pass, the registers of a memory tile up to 1023.
#[test]
fn a_size_that_only_the_registers_hold_is_refused() {
    let text = format!(
        "schedule copy target {TARGET}\nlaunch copy\n  buffer 0 b 0,1 0x0 131072\n\
         descriptor 0,1 0 b0+0 2x16384,700x16,8x1\n  start 0,1:s2mm:0 0 1\n  route 0,0:mm2s:0 0,1:s2mm:0@1\n  run {{\n  }}\n"
    );
    let schedule: Schedule = text.parse().unwrap();
    assert_eq!(
        emit(&schedule, &target()).unwrap_err().to_string(),
        "program copy breaks a rule of mlir-aie: launch_0: aie.memtile_dma: descriptor 0 has a size of 700; 1..=512 \
         is allowed"
    );
}

#[test]
fn every_emitted_module_passes_the_verifier() {
    for (name, programs) in designs() {
        for program in programs {
            assert_eq!(verify::faults(&program.module, &target()), [], "{name}");
        }
    }
}
