//! The locks set by the passes are necessary and sufficient: any order that
//! they allow computes the same bytes; without one of them, the simulator
//! reports a fault, unless another lock enforces the same order.

use girih_npu::Target;
use girih_npu::form::PassForm as _;
use girih_npu::form::groups::{ArrayProgram, AttendSizes, ChunkHalf, Kernel, KernelLaunch, START_BYTES};
use girih_npu::form::schedule::{Argument, ArgumentRole, Schedule};
use girih_npu::form::weights::WeightLayout;
use girih_npu::memory::{Binding, Objects, SimMemory};
use girih_npu::pass::{
    ArrayMapping, ArrayWeights, AttentionPlacement, Grouping, NoDump, Policy, compile, groups,
};
use girih_npu::sim::{EventOrder, FaultKind, SimFault, SimUnwatched, Simulator};
use girih_tensor::DType;

use crate::llama::{LlamaSizes, SMALL, key, llama};

/// Programs of one launch, large enough to reuse every buffer.
fn programs() -> Vec<(&'static str, String)> {
    let attend = Kernel::Attend(AttendSizes {
        rows: 64,
        heads: 4,
        kv_heads: 2,
        size: 16,
        keys: 512,
        latest: 448,
        causal: true,
        window: 0,
        scale: 0.25,
    });
    let threes = Kernel::Attend(AttendSizes {
        rows: 32,
        heads: 6,
        kv_heads: 2,
        size: 24,
        keys: 384,
        latest: 352,
        causal: true,
        window: 40,
        scale: 0.2,
    });
    let wide = Kernel::Attend(AttendSizes {
        rows: 16,
        heads: 2,
        kv_heads: 1,
        size: 256,
        keys: 384,
        latest: 368,
        causal: true,
        window: 0,
        scale: 0.06,
    });
    let kernels = [
        ("add", Kernel::Add { n: 32768 }),
        ("gelu", Kernel::Gelu { n: 32768 }),
        ("layer_norm", Kernel::LayerNorm { rows: 64, n: 512, width: 500, epsilon: 1e-6 }),
        ("append", Kernel::Append { heads: 4, size: 64, half: ChunkHalf::Values }),
        ("bias", Kernel::Bias { rows: 64, n: 512 }),
        ("gemm", Kernel::Gemm { m: 128, n: 192, k: 256, weights: WeightLayout::Rows }),
        ("gemv", Kernel::Gemv { first: 0, n: 256, k: 256, weights: WeightLayout::Rows }),
        ("gemv_q4nx", Kernel::Gemv { first: 0, n: 256, k: 512, weights: WeightLayout::Q4nx }),
        ("gemm_q4nx", Kernel::Gemm { m: 64, n: 192, k: 512, weights: WeightLayout::Q4nx }),
        ("gemm_groups", Kernel::Gemm { m: 128, n: 192, k: 256, weights: WeightLayout::Groups }),
        ("dequant", Kernel::Dequant { n: 128, k: 512 }),
        ("attend", attend),
        ("attend_3", threes),
        ("attend_256", wide),
    ];
    kernels.into_iter().map(|(name, kernel)| (name, scheduled(name, kernel, "toy").to_string())).collect()
}

/// The schedule of one kernel for a target.
pub fn scheduled(name: &str, kernel: Kernel, target: &str) -> Schedule {
    let bytes = kernel.operand_bytes();
    let last = bytes.len() - 1;
    let role = |i| if i == last { ArgumentRole::Output } else { ArgumentRole::Input };
    let argument = |(i, bytes)| Argument { name: format!("a{i}"), role: role(i), bytes };
    let numbers = (0..bytes.len() as u32).collect();
    let arguments = bytes.into_iter().enumerate().map(argument);
    let launches = vec![KernelLaunch {
        name: name.to_owned(),
        kernel,
        arguments: numbers,
        tiling: None,
        resident: false,
    }];
    let program = ArrayProgram { name: name.to_owned(), arguments: arguments.collect(), launches };
    compile(&program, &Target::named(target).unwrap(), &mut NoDump).unwrap()
}

/// The bytes of all arguments after a run on small numbers.
fn run(schedule: &Schedule, order: EventOrder) -> Result<Vec<Vec<u8>>, SimFault> {
    let mut simulator = Simulator::new(&Target::named("toy").unwrap()).unwrap();
    let mut objects = Objects::new();
    let mut bindings = Vec::new();
    for argument in &schedule.arguments {
        let object = objects.add(argument.bytes).unwrap();
        let given = matches!(argument.role, ArgumentRole::Input | ArgumentRole::Static);
        let values =
            (0..argument.bytes / 2).map(|i| if given { (i * 37 % 64) as f32 / 32.0 - 1.0 } else { 0.0 });
        DType::BF16.pack(&values.collect::<Vec<f32>>(), objects.bytes_mut(object));
        if argument.bytes == u64::from(START_BYTES) {
            // The first row attends to more than half of the keys, which begin at position 0.
            objects.bytes_mut(object)[..8].copy_from_slice(&[300u32.to_le_bytes(), [0; 4]].concat());
        }
        bindings.push(Binding { object, offset: 0 });
    }
    simulator.run(schedule, &bindings, &mut SimMemory::Values(&mut objects), &mut SimUnwatched, order)?;
    Ok(bindings.iter().map(|binding| objects.bytes(binding.object).to_vec()).collect())
}

/// The fault of a run that only times, if it has one.
fn timed(schedule: &Schedule) -> Option<FaultKind> {
    let mut simulator = Simulator::new(&Target::named("toy").unwrap()).unwrap();
    let order = EventOrder::Earliest;
    let run = simulator.run(schedule, &[], &mut SimMemory::TimeOnly, &mut SimUnwatched, order);
    run.err().map(|fault| fault.kind)
}

/// Copies of the schedule, each without one acquire or release, and a
/// description of it.
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
fn any_order_that_the_locks_allow_gives_the_same_result() {
    for (name, text) in programs() {
        let schedule: Schedule = text.parse().unwrap();
        let want = run(&schedule, EventOrder::Earliest).unwrap();
        for seed in 0..30 {
            let found = run(&schedule, EventOrder::Seeded(seed));
            let found = found.unwrap_or_else(|fault| panic!("{name}, seed {seed}: {fault}"));
            assert!(found == want, "{name}, seed {seed}");
        }
    }
}

/// Leaves out each `step`th acquire or release of a program in turn and asserts
/// that none changes the numbers without a fault. Returns the number of faults,
/// and the redundant operations.
fn leave_out(name: &str, text: &str, step: usize) -> (usize, Vec<String>) {
    let want = run(&text.parse().unwrap(), EventOrder::Earliest).unwrap();
    let (mut faults, mut redundant) = (0, Vec::new());
    for (what, schedule) in without_one(text).into_iter().step_by(step) {
        let fault = [EventOrder::Earliest, EventOrder::Seeded(1)].into_iter().find_map(|order| {
            let found = run(&schedule, order);
            if order == EventOrder::Earliest {
                let kind = found.as_ref().err().map(|fault| fault.kind);
                assert_eq!(timed(&schedule), kind, "{name}, {what}: a run that only times");
            }
            let unnoticed = found.as_ref().is_ok_and(|found| *found != want);
            assert!(!unnoticed, "{name}, {what}, {order:?}: wrong numbers without a fault");
            found.err()
        });
        match fault {
            Some(fault) => {
                assert_ne!(fault.kind, FaultKind::Malformed, "{name}, {what}: {fault}");
                faults += 1;
            }
            None => redundant.push(what),
        }
    }
    println!("{name}: {faults} faults; redundant: {redundant:#?}");
    (faults, redundant)
}

/// Copies of the schedule, each with a lock of one unit more or less, and a description of it.
fn with_another_unit(text: &str) -> Vec<(String, Schedule)> {
    let mut all = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| line.starts_with("  lock ")) {
        let (lock, initial) = line.rsplit_once(' ').unwrap();
        let initial: i64 = initial.parse().unwrap();
        for other in [initial - 1, initial + 1].into_iter().filter(|other| *other >= 0) {
            let changed = format!("{lock} {other}");
            let lines = text.lines().enumerate().map(|(at, line)| if at == number { &changed } else { line });
            let lines: Vec<&str> = lines.collect();
            all.push((format!("{changed}, not {initial}"), lines.join("\n").parse().unwrap()));
        }
    }
    all
}

/// A run that only times refuses a program with a lock too many or too few as a run with values does.
#[test]
fn a_timed_run_reports_a_lock_of_another_value() {
    let mut others = 0;
    for (name, text) in programs() {
        let (mut races, all) = (0, with_another_unit(&text));
        // Two of three are one unit more, as most locks begin with 0 or with two.
        for (what, schedule) in all.iter().step_by(2) {
            let want = run(schedule, EventOrder::Earliest).err().map(|fault| fault.kind);
            assert_eq!(timed(schedule), want, "{name}, {what}");
            match want {
                Some(FaultKind::Race | FaultKind::Unwritten) => races += 1,
                Some(_) => others += 1,
                None => {}
            }
        }
        assert!(races > 0, "{name}: no race");
    }
    assert!(others > 0, "no other fault");
}

/// A stride of a descriptor that is off by a word is refused, by the checker and before a run.
#[test]
fn a_stride_that_is_off_by_a_word_is_refused() {
    let target = Target::named("toy").unwrap();
    let mut changed = 0;
    for (name, text) in programs() {
        let mut schedule: Schedule = text.parse().unwrap();
        assert_eq!(schedule.faults(&target), [], "{name}");
        for number in 0..schedule.launches[0].descriptors.len() {
            let before = schedule.launches[0].descriptors[number].dims.clone();
            let has_runs = before.last().is_some_and(|run| run.size > 1);
            for at in (0..before.len() - 1).filter(|at| has_runs && before[*at].size > 1) {
                for stride in [before[at].stride - 1, before[at].stride + 1] {
                    schedule.launches[0].descriptors[number].dims[at].stride = stride;
                    assert_ne!(schedule.faults(&target), [], "{name}, descriptor {number}, dimension {at}");
                    assert_eq!(timed(&schedule), Some(FaultKind::Malformed), "{name}, descriptor {number}");
                    changed += 1;
                }
                schedule.launches[0].descriptors[number].dims.clone_from(&before);
            }
        }
    }
    assert!(changed > 0, "no program has a stride between runs");
}

/// Leaving out every fourth operation takes seconds instead of a minute and
/// still covers each kind in each program.
#[test]
fn a_missing_lock_is_a_fault_or_redundant() {
    for (name, text) in programs() {
        let (faults, redundant) = leave_out(name, &text, 4);
        assert!(faults > redundant.len(), "{name}: {faults} faults, {} redundant", redundant.len());
    }
}

/// The programs of one layer of Llama for a step of `rows` rows.
fn layer(rows: u32, mapping: &ArrayMapping) -> Vec<(String, String)> {
    let target = Target::named("toy").unwrap();
    let graph = llama(&LlamaSizes { layers: 1, ..SMALL }, key(rows));
    let programs = groups(&graph, &target, mapping, &mut NoDump).unwrap().programs;
    let compiled = programs
        .iter()
        .map(|program| (program.name.clone(), compile(program, &target, &mut NoDump).unwrap().to_string()));
    compiled.collect()
}

fn a_layer_without_a_lock(step: usize) {
    let prompt = layer(16, &Policy::MLIR_AIR.into());
    let names: Vec<&str> = prompt.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["rms_gemms_rope", "flash_attn", "o_ffn", "lm_head_gemv"]);
    let policy = Policy { grouping: Grouping::Resident, attention: AttentionPlacement::Array };
    let token = layer(1, &ArrayMapping { weights: ArrayWeights::Q4nx, ..policy.into() });
    for programs in [prompt, token] {
        for (name, text) in programs {
            let (faults, _) = leave_out(&name, &text, step);
            assert!(faults > 0, "{name}");
        }
    }
}

#[test]
fn a_missing_lock_in_a_layer_is_a_fault_or_redundant() {
    a_layer_without_a_lock(19);
}

/// ```text
/// cargo test --release --locked -p girih-npu --test it locks -- --ignored
/// ```
#[test]
#[ignore = "leaves out every lock of a layer in turn and takes minutes"]
fn every_missing_lock_in_a_layer_is_a_fault_or_redundant() {
    a_layer_without_a_lock(1);
}
