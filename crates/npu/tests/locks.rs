//! The locks that the passes set are needed and are enough: any order that
//! they allow computes the same bytes, and without one of them the simulator
//! names what goes wrong, or nothing does because another orders the same.

mod llama;

use girih_npu::Target;
use girih_npu::form::groups::{ArrayProgram, Kernel, KernelLaunch};
use girih_npu::form::schedule::{Argument, ArgumentRole, Schedule};
use girih_npu::memory::{Binding, Memory, Objects};
use girih_npu::pass::{NoDump, Policy, compile, groups};
use girih_npu::sim::{Fault, FaultKind, Order, Simulator, Unwatched};
use girih_tensor::DType;

/// Programs of one launch, large enough that every buffer is used again.
fn programs() -> Vec<(&'static str, String)> {
    let attend =
        Kernel::Attend { rows: 64, heads: 4, kv_heads: 2, size: 16, keys: 512, window: 0, scale: 0.25 };
    let kernels = [
        ("add", Kernel::Add { n: 32768 }),
        ("bias", Kernel::Bias { rows: 64, n: 512 }),
        ("gemm", Kernel::Gemm { m: 128, n: 192, k: 256 }),
        ("gemv", Kernel::Gemv { first: 0, n: 256, k: 256 }),
        ("attend", attend),
    ];
    kernels.into_iter().map(|(name, kernel)| (name, scheduled(name, kernel))).collect()
}

/// The schedule of one kernel, as text.
fn scheduled(name: &str, kernel: Kernel) -> String {
    let roles = [ArgumentRole::Input, ArgumentRole::Input, ArgumentRole::Output];
    let arguments = kernel.operand_bytes().into_iter().zip(roles).enumerate();
    let arguments = arguments.map(|(i, (bytes, role))| Argument { name: format!("a{i}"), role, bytes });
    let launches =
        vec![KernelLaunch { name: name.to_owned(), kernel, arguments: vec![0, 1, 2], tiling: None }];
    let program = ArrayProgram { name: name.to_owned(), arguments: arguments.collect(), launches };
    compile(&program, &Target::named("toy").unwrap(), &mut NoDump).unwrap().to_string()
}

/// The bytes of all arguments after a run on arguments full of small numbers.
fn run(schedule: &Schedule, order: Order) -> Result<Vec<Vec<u8>>, Fault> {
    let mut simulator = Simulator::new(&Target::named("toy").unwrap()).unwrap();
    let mut objects = Objects::new();
    let mut bindings = Vec::new();
    for argument in &schedule.arguments {
        let object = objects.add(argument.bytes).unwrap();
        let given = matches!(argument.role, ArgumentRole::Input | ArgumentRole::Static);
        let values =
            (0..argument.bytes / 2).map(|i| if given { (i * 37 % 64) as f32 / 32.0 - 1.0 } else { 0.0 });
        DType::BF16.pack(&values.collect::<Vec<f32>>(), objects.bytes_mut(object));
        bindings.push(Binding { object, offset: 0 });
    }
    simulator.run(schedule, &bindings, &mut Memory::Values(&mut objects), &mut Unwatched, order)?;
    Ok(bindings.iter().map(|binding| objects.bytes(binding.object).to_vec()).collect())
}

/// The schedule with each acquire or release left out in turn, and what it was.
fn without_one(text: &str) -> Vec<(String, Schedule)> {
    let mut all = Vec::new();
    let lines: Vec<&str> = text.lines().collect();
    for (number, line) in lines.iter().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        for at in 0..words.len() {
            if !matches!(words[at], "acquire" | "release") {
                continue;
            }
            let kept = [&words[..at], &words[at + 3..]].concat().join(" ");
            let mut changed = lines.clone();
            changed[number] = &kept;
            all.push((
                format!("line {}: {}", number + 1, words[at..at + 3].join(" ")),
                changed.join("\n").parse().unwrap(),
            ));
        }
    }
    all
}

#[test]
fn any_order_that_the_locks_allow_computes_the_same() {
    for (name, text) in programs() {
        let schedule: Schedule = text.parse().unwrap();
        let want = run(&schedule, Order::Earliest).unwrap();
        for seed in 0..30 {
            let found = run(&schedule, Order::Seeded(seed));
            let found = found.unwrap_or_else(|fault| panic!("{name}, seed {seed}: {fault}"));
            assert!(found == want, "{name}, seed {seed}");
        }
    }
}

/// Leaves out each `step`th acquire or release of a program in turn: none may
/// change the numbers in silence. Returns how many were named, and what is
/// redundant.
fn leave_out(name: &str, text: &str, step: usize) -> (usize, Vec<String>) {
    let want = run(&text.parse().unwrap(), Order::Earliest).unwrap();
    let (mut named, mut redundant) = (0, Vec::new());
    for (what, schedule) in without_one(text).into_iter().step_by(step) {
        let fault = [Order::Earliest, Order::Seeded(1)].into_iter().find_map(|order| {
            let found = run(&schedule, order);
            let silent = found.as_ref().is_ok_and(|found| *found != want);
            assert!(!silent, "{name}, {what}, {order:?}: wrong numbers in silence");
            found.err()
        });
        match fault {
            Some(fault) => {
                assert_ne!(fault.kind, FaultKind::Malformed, "{name}, {what}: {fault}");
                named += 1;
            }
            None => redundant.push(what),
        }
    }
    println!("{name}: {named} named; redundant: {redundant:#?}");
    (named, redundant)
}

/// Every fourth of them is left out, which takes the test from a minute to
/// seconds and still leaves out each kind in each program.
#[test]
fn without_a_lock_the_fault_is_named_or_there_is_none() {
    for (name, text) in programs() {
        let (named, redundant) = leave_out(name, &text, 4);
        assert!(named > redundant.len(), "{name}: {named} named, {} redundant", redundant.len());
    }
}

/// The programs of one layer of Llama's form.
fn layer() -> Vec<(String, String)> {
    let target = Target::named("toy").unwrap();
    let graph = llama::llama(&llama::LlamaSizes { layers: 1, ..llama::SMALL }, llama::key(16));
    let programs = groups(&graph, &target, &Policy::MLIR_AIR.into(), &mut NoDump).unwrap().programs;
    let compiled = programs
        .iter()
        .map(|program| (program.name.clone(), compile(program, &target, &mut NoDump).unwrap().to_string()));
    compiled.collect()
}

fn a_layer_without_a_lock(step: usize) {
    let layer = layer();
    let names: Vec<&str> = layer.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["rms_gemms_rope", "flash_attn", "o_ffn", "lm_head_gemv"]);
    for (name, text) in &layer {
        let (named, _) = leave_out(name, text, step);
        assert!(named > 0, "{name}");
    }
}

#[test]
fn a_compiled_layer_without_a_lock_is_named_or_the_same() {
    a_layer_without_a_lock(37);
}

/// ```text
/// cargo test --release --locked -p girih-npu --test locks -- --ignored
/// ```
#[test]
#[ignore = "leaves out every lock of a layer in turn, which takes minutes"]
fn a_compiled_layer_without_any_lock_is_named_or_the_same() {
    a_layer_without_a_lock(1);
}
