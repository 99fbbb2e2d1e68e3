//! Whole runs of small schedules, written by hand.

use girih_tensor::DType;

use super::*;
use crate::form::schedule::Schedule;
use crate::kernel::KernelTimes;
use crate::memory::{Binding, ObjectId, Objects, SimMemory};
use crate::target::Target;

/// Two matmuls of 8 × 32 by 32 × 8 on one core, with double-buffered operands.
const MATMUL: &str = "\
schedule product target toy
argument 0 a input 1024
argument 1 b static 1024
argument 2 y output 256
launch product
  buffer 0 a.0 0,2 0x400 128
  buffer 1 a.1 0,2 0x480 128
  buffer 2 b.0 0,2 0x1000 128
  buffer 3 b.1 0,2 0x1080 128
  buffer 4 c 0,2 0x2000 256
  buffer 5 y 0,2 0x3000 128
  lock 0 0,2 0 2
  lock 1 0,2 1 0
  lock 2 0,2 2 2
  lock 3 0,2 3 0
  lock 4 0,2 4 1
  lock 5 0,2 5 0
  descriptor 0,0 0 a0+0 256x1
  descriptor 0,0 1 a1+0 256x1
  descriptor 0,0 2 a2+0 64x1
  descriptor 0,2 0 b0+0 32x1 acquire l0 1 release l1 1 next 1
  descriptor 0,2 1 b1+0 32x1 acquire l0 1 release l1 1 next 0
  descriptor 0,2 2 b2+0 32x1 acquire l2 1 release l3 1 next 3
  descriptor 0,2 3 b3+0 32x1 acquire l2 1 release l3 1 next 2
  descriptor 0,2 4 b5+0 32x1 acquire l5 1 release l4 1 next 4
  start 0,2:s2mm:0 0 1
  start 0,2:s2mm:1 2 1
  start 0,2:mm2s:0 4 1
  route 0,0:mm2s:0 0,2:s2mm:0@2
  route 0,0:mm2s:1 0,2:s2mm:1@2
  route 0,2:mm2s:0 0,0:s2mm:0@2
  core 0,2 {
    loop 2 {
      acquire l4 1
      call zero_f32 b4@0 : n=64
      loop 4 {
        acquire l1 1
        acquire l3 1
        call gemm_bf16 b0|b1[0+1*i1]@0 b2|b3[0+1*i1]@0 b4@0 : m=8 n=8 k=8
        release l0 1
        release l2 1
      }
      call store_bf16 b4@0 b5@0 : n=64
      release l5 1
    }
  }
  run {
    push 0,0:s2mm:0 2 0 1 token
    push 0,0:mm2s:0 0 0 1
    push 0,0:mm2s:1 1 0 1
    wait 0,0:s2mm:0
  }
";

fn schedule(text: &str) -> Schedule {
    text.parse().unwrap()
}

fn pack(values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; values.len() * 2];
    DType::BF16.pack(values, &mut bytes);
    bytes
}

/// Small integers, whose sums are exact in any order.
fn values(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7 + seed * 5) % 11) as f32 - 5.0).collect()
}

/// Objects for the arguments, with inputs filled.
fn objects(schedule: &Schedule) -> (Objects, Vec<Binding>) {
    let mut objects = Objects::new();
    let mut bindings = Vec::new();
    for (number, argument) in schedule.arguments.iter().enumerate() {
        let object = objects.add(argument.bytes).unwrap();
        let filled = pack(&values(argument.bytes as usize / 2, number));
        if argument.role != crate::form::schedule::ArgumentRole::Output {
            objects.bytes_mut(object).copy_from_slice(&filled);
        }
        bindings.push(Binding { object, offset: 0 });
    }
    (objects, bindings)
}

/// Runs on toy values. Returns the bytes of the last argument and the report.
fn run(text: &str, order: EventOrder) -> Result<(Vec<u8>, SimReport), SimFault> {
    let schedule = schedule(text);
    let (mut objects, bindings) = objects(&schedule);
    let mut simulator = Simulator::new(&Target::named("toy").unwrap()).unwrap();
    let mut memory = SimMemory::Values(&mut objects);
    let report = simulator.run(&schedule, &bindings, &mut memory, &mut SimUnwatched, order)?;
    let last = ObjectId(schedule.arguments.len() as u32 - 1);
    Ok((objects.bytes(last).to_vec(), report))
}

fn fault(text: &str) -> SimFault {
    run(text, EventOrder::Earliest).unwrap_err()
}

/// The matmuls by plain loops. Tiles lie one after another in the order of the
/// kernel: eight rows of eight columns are two blocks of `a` and of the result.
fn matmuls() -> Vec<u8> {
    let (a, b) = (values(512, 0), values(512, 1));
    let mut y = Vec::new();
    for tile in 0..2 {
        for row in 0..8 {
            for column in 0..8 {
                let step = |k: usize| {
                    let at = (tile * 4 + k / 8) * 64;
                    a[at + row * 8 + k % 8] * b[at + column * 8 + k % 8]
                };
                y.push((0..32).map(step).sum::<f32>());
            }
        }
    }
    pack(&y)
}

#[test]
fn a_double_buffered_matmul_equals_plain_loops() {
    let (y, report) = run(MATMUL, EventOrder::Earliest).unwrap();
    assert_eq!(y, matmuls());
    assert_eq!(report.totals.macs, 2 * 8 * 8 * 32);
    assert_eq!((report.totals.dram_read, report.totals.dram_written), (2048, 256));
    assert_eq!(report.launches[0].cores[0].calls, 12);
    assert_eq!(report.totals.pushes, 3);
}

#[test]
fn every_order_that_the_locks_allow_gives_the_same_result() {
    for seed in 0..1000 {
        let (y, _) =
            run(MATMUL, EventOrder::Seeded(seed)).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
        assert_eq!(y, matmuls(), "seed {seed}");
    }
}

#[test]
fn a_run_without_values_takes_the_same_time() {
    let schedule = schedule(MATMUL);
    let mut simulator = Simulator::new(&Target::named("toy").unwrap()).unwrap();
    let mut time = || {
        simulator.forget();
        simulator
            .run(&schedule, &[], &mut SimMemory::TimeOnly, &mut SimUnwatched, EventOrder::Earliest)
            .unwrap()
    };
    let (first, again) = (time(), time());
    assert_eq!(first, run(MATMUL, EventOrder::Earliest).unwrap().1);
    assert_eq!(first, again, "a timed launch");
}

#[test]
fn a_missing_lock_operation_is_a_race_or_a_deadlock() {
    // Each acquire and release of the core, with the fault it prevents.
    let cases = [
        ("        acquire l1 1\n", FaultKind::Race),
        ("        acquire l3 1\n", FaultKind::Race),
        ("        release l0 1\n", FaultKind::Deadlock),
        ("        release l2 1\n", FaultKind::Deadlock),
        ("      acquire l4 1\n", FaultKind::Race),
        ("      release l5 1\n", FaultKind::Deadlock),
    ];
    for (line, kind) in cases {
        assert_eq!(MATMUL.matches(line).count(), 1, "{line}");
        let fault = fault(&MATMUL.replace(line, ""));
        let early = kind == FaultKind::Race && fault.kind == FaultKind::Unwritten;
        assert!(fault.kind == kind || early, "{line}: {fault}");
        assert!(fault.sentence.contains("0,2"), "{line}: {fault}");
    }
    for (from, to) in [
        ("b0+0 32x1 acquire l0 1 release l1 1", "b0+0 32x1 release l1 1"),
        ("b5+0 32x1 acquire l5 1 release l4 1", "b5+0 32x1 release l4 1"),
        ("b5+0 32x1 acquire l5 1 release l4 1", "b5+0 32x1 acquire l5 1"),
    ] {
        assert_eq!(MATMUL.matches(from).count(), 1, "{from}");
        let fault = fault(&MATMUL.replace(from, to));
        assert!(fault.kind != FaultKind::Malformed && fault.kind != FaultKind::Unfinished, "{from}: {fault}");
    }
}

#[test]
fn a_fault_names_the_tile_the_buffer_and_the_cycle() {
    let race = fault(&MATMUL.replace("b0+0 32x1 acquire l0 1 release l1 1", "b0+0 32x1 release l1 1"));
    assert_eq!(race.kind, FaultKind::Race);
    for part in ["a.0 of tile 0,2 at 0x400", "channel 0,2:s2mm:0", "core 0,2"] {
        assert!(race.sentence.contains(part), "{race}");
    }
    let dead = fault(&MATMUL.replace("        release l0 1\n", ""));
    assert!(
        dead.sentence.contains("core 0,2 waits for lock l1 of tile 0,2, which is 0 and must be 1"),
        "{dead}"
    );
    assert!(dead.sentence.contains("the command processor waits for a token of 0,0:s2mm:0"), "{dead}");
    assert!(dead.cycle > 0);
}

#[test]
fn a_lock_above_its_maximum_is_an_overrun() {
    let text = MATMUL
        .replace("  lock 5 0,2 5 0\n", "  lock 5 0,2 5 0\n  lock 6 0,2 6 0\n")
        .replace("        release l2 1\n", "        release l2 1\n        release l6 60\n");
    let fault = fault(&text);
    assert_eq!(fault.kind, FaultKind::Overrun, "{fault}");
    assert!(
        fault.sentence.contains("core 0,2 releases 60 of lock l6 of tile 0,2, which is 60 already"),
        "{fault}"
    );
}

#[test]
fn an_access_beyond_its_buffer_is_an_overrun() {
    let shim = fault(&MATMUL.replace("push 0,0:mm2s:0 0 0 1", "push 0,0:mm2s:0 0 4 1"));
    assert_eq!(shim.kind, FaultKind::Overrun, "{shim}");
    let core = fault(&MATMUL.replace("b4@0 b5@0 : n=64", "b4@0 b5@4 : n=64"));
    assert_eq!(core.kind, FaultKind::Overrun, "{core}");
    assert!(core.sentence.contains("y at 4 of y"), "{core}");
}

#[test]
fn a_transfer_without_a_wait_is_unfinished() {
    let fault = fault(&MATMUL.replace("    wait 0,0:s2mm:0\n", ""));
    assert_eq!(fault.kind, FaultKind::Unfinished, "{fault}");
    assert!(fault.sentence.contains("when the commands end: wait for it"), "{fault}");
}

#[test]
fn a_schedule_that_cannot_run_is_refused() {
    for (from, to, part) in [
        ("target toy", "target xdna2-strix", "made for xdna2-strix"),
        ("store_bf16 b4@0 b5@0", "stare_bf16 b4@0 b5@0", "no kernel has this name"),
        (": n=64\n      loop", ": m=64\n      loop", "parameters are not"),
        (": m=8 n=8 k=8", ": m=8 n=8 k=9", "k is 9"),
        ("route 0,2:mm2s:0 0,0:s2mm:0@2", "route 0,2:mm2s:1 0,0:s2mm:0@2", "has no route"),
        ("push 0,0:s2mm:0 2", "push 0,0:s2mm:0 7", "no descriptor 7"),
    ] {
        assert_eq!(MATMUL.matches(from).count(), 1, "{from}");
        let fault = fault(&MATMUL.replace(from, to));
        assert_eq!(fault.kind, FaultKind::Malformed);
        assert!(fault.sentence.contains(part), "{from}: {fault}");
    }
}

/// Two cores in a cascade: the upper core sends what it has received.
const CASCADE: &str = "\
schedule pass target toy
argument 0 x input 64
argument 1 y output 64
launch pass
  buffer 0 x 0,2 0x400 64
  buffer 1 y 0,3 0x400 64
  lock 0 0,2 0 0
  lock 1 0,3 0 0
  descriptor 0,0 0 a0+0 16x1
  descriptor 0,0 1 a1+0 16x1
  descriptor 0,2 0 b0+0 16x1 release l0 1
  descriptor 0,3 0 b1+0 16x1 acquire l1 1
  start 0,2:s2mm:0 0 1
  start 0,3:mm2s:0 0 1
  route 0,0:mm2s:0 0,2:s2mm:0@2
  route 0,3:mm2s:0 0,0:s2mm:0@3
  cascade 0,2 0,3
  core 0,2 {
    acquire l0 1
    call send b0@0 : n=16
  }
  core 0,3 {
    call receive b1@0 : n=16
    release l1 1
  }
  run {
    push 0,0:s2mm:0 1 0 1 token
    push 0,0:mm2s:0 0 0 1
    wait 0,0:s2mm:0
  }
";

#[test]
fn the_cascade_hands_over_when_both_cores_have_arrived() {
    for order in [EventOrder::Earliest, EventOrder::Seeded(1), EventOrder::Seeded(2), EventOrder::Seeded(3)] {
        assert_eq!(run(CASCADE, order).unwrap().0, pack(&values(32, 0)));
    }
    let alone = fault(&CASCADE.replace("    call receive b1@0 : n=16\n", ""));
    assert!(alone.kind == FaultKind::Deadlock || alone.kind == FaultKind::Unwritten, "{alone}");
    let unlike = fault(&CASCADE.replace("receive b1@0 : n=16", "receive b1@0 : n=8"));
    assert!(unlike.sentence.contains("send and receive with different parameters"), "{unlike}");
}

/// One transfer from DRAM to a tile and back, of `words` in runs of `run`.
fn copy(words: u32, run: u32) -> String {
    let (bytes, rows) = (words * 4, words / run);
    format!(
        "schedule copy target toy\nargument 0 x input {}\nargument 1 y output {bytes}\nlaunch copy\n  \
         buffer 0 x 0,1 0x0 {bytes}\n  lock 0 0,1 0 0\n  \
         descriptor 0,0 0 a0+0 {rows}x{},{run}x1\n  descriptor 0,0 1 a1+0 {words}x1\n  \
         descriptor 0,1 0 b0+0 {words}x1 release l0 1\n  descriptor 0,1 1 b0+0 {words}x1 acquire l0 1\n  \
         start 0,1:s2mm:0 0 1\n  start 0,1:mm2s:0 1 1\n  route 0,0:mm2s:0 0,1:s2mm:0@1\n  \
         route 0,1:mm2s:0 0,0:s2mm:0@1\n  run {{\n    push 0,0:s2mm:0 1 0 1 token\n    \
         push 0,0:mm2s:0 0 0 1\n    wait 0,0:s2mm:0\n  }}\n",
        2 * bytes,
        2 * run
    )
}

#[test]
fn a_transfer_moves_words_at_the_rate_of_the_stream() {
    // Long runs: DRAM gives 8 bytes per cycle, a stream takes 4. Each further word takes one cycle
    // in and one out.
    let cycles = |words| run(&copy(words, words), EventOrder::Earliest).unwrap().1.cycles;
    assert_eq!(cycles(8192) - cycles(4096), 2 * 4096);
}

#[test]
fn short_runs_take_longer_than_the_stream() {
    // Runs of 4 bytes: 4 / (4 + 64) of 8 bytes a cycle is 8/17, so a word takes 8.5 cycles.
    let cycles = |words| run(&copy(words, 1), EventOrder::Earliest).unwrap().1.cycles;
    let grown = cycles(4096) - cycles(2048);
    assert!(grown.abs_diff(2048 + 2048 * 17 / 2) <= 2, "{grown}");
}

/// Events as text, with their time from the start of the launch.
#[derive(Default)]
struct Notes(Vec<(Cycle, String)>);

impl SimWatch for Notes {
    fn event(&mut self, at: Cycle, event: &SimEvent<'_>) {
        let text = match event {
            SimEvent::Launch { .. } => return,
            SimEvent::Call { entry, begin, .. } => format!("call {entry} since {begin}"),
            SimEvent::Wait { cause, begin, .. } => format!("wait for {cause:?} since {begin}"),
            SimEvent::Move { from, bytes, begin, .. } => format!("move {bytes} from {from} since {begin}"),
            SimEvent::Push { channel } => format!("push {channel}"),
            SimEvent::Token { channel } => format!("token {channel}"),
        };
        self.0.push((at, text));
    }
}

/// Notes of a run without dispatch and configuration.
fn notes(text: &str) -> Vec<(Cycle, String)> {
    let free = "[control]\ndispatch_us = Z\nconfigure_us = Z\nconfigure_tile_us = Z\nconfigure_byte_ns = Z\n";
    let zero = "{ value = 0.0, grade = \"guessed\", source = \"test\" }";
    let file = format!("name = \"toy\"\ntitle = \"test\"\nextends = \"toy\"\n{}", free.replace('Z', zero));
    let target = Target::parse(&file, None).unwrap();
    let mut notes = Notes::default();
    let mut simulator = Simulator::new(&target).unwrap();
    simulator.run(&schedule(text), &[], &mut SimMemory::TimeOnly, &mut notes, EventOrder::Earliest).unwrap();
    notes.0
}

/// Start and end of the first note with this prefix.
fn when(notes: &[(Cycle, String)], start: &str) -> (Cycle, Cycle) {
    let (at, text) = notes.iter().find(|(_, text)| text.starts_with(start)).unwrap();
    let since = text.rsplit(' ').next().and_then(|word| word.parse().ok()).unwrap_or(*at);
    (since, *at)
}

#[test]
fn a_dram_read_starts_after_its_latency_and_moves_a_word_per_cycle() {
    let target = Target::named("toy").unwrap();
    let notes = notes(&copy(1024, 1024));
    let (_, pushed) = when(&notes, "push 0,0:mm2s:0");
    let (begin, end) = when(&notes, "move 4096 from 0,0:mm2s:0");
    assert_eq!(begin, pushed + u64::from(target.dram.read_cycles));
    assert_eq!(end, begin + 1024);
    // The way back through two switches has no DRAM latency before the first word.
    let (back, over) = when(&notes, "move 4096 from 0,1:mm2s:0");
    assert_eq!(back, end + u64::from(target.dma.start_cycles + target.stream.hop_cycles));
    let (_, token) = when(&notes, "token 0,0:s2mm:0");
    assert_eq!(token, over + u64::from(target.dram.write_cycles), "when DRAM has acknowledged");
}

#[test]
fn the_command_processor_writes_one_task_after_another() {
    let target = Target::named("toy").unwrap();
    let push = target.cycles((target.control.block_write_ns + target.control.write_ns) * 1e-9);
    let notes = notes(MATMUL);
    let pushes: Vec<Cycle> =
        notes.iter().filter(|(_, text)| text.starts_with("push")).map(|(at, _)| *at).collect();
    assert_eq!(pushes, [push, 2 * push, 3 * push]);
}

#[test]
fn a_core_continues_when_the_lock_is_released_and_not_before() {
    let target = Target::named("toy").unwrap();
    let table = KernelTimes::of(&target).unwrap();
    let unit = &target.core_unit;
    let notes = notes(MATMUL);
    let (_, zeroed) = when(&notes, "call zero_f32");
    let (begin, at) = when(&notes, "call gemm_bf16");
    let (_, a) = when(&notes, "move 128 from 0,0:mm2s:0");
    let (_, b) = when(&notes, "move 128 from 0,0:mm2s:1");
    assert!(zeroed < a && a < b, "it waits for its operands, and a arrives first");
    // The core handles its lock and its loop before it reaches the next lock.
    let (since, over) = when(&notes, "wait for Lock");
    assert!((zeroed..a).contains(&since) && over == a, "the first wait is for a: {since} {over}");
    // The event is reported when the call begins; the lock of b is acquired first.
    assert_eq!((at, begin), (b, b + u64::from(unit.lock_cycles)));
    let entry = crate::kernel::ENTRIES.iter().position(|entry| entry.name == "gemm_bf16").unwrap();
    let operand = |address| crate::kernel::OperandExtent { tile: 2, address, bytes: 128 };
    let cycles = table.cycles(entry, &[8, 8, 8], &[operand(0x400), operand(0x1000), operand(0x2000)]);
    let calls: Vec<&(Cycle, String)> =
        notes.iter().filter(|(_, text)| text.starts_with("call gemm_bf16")).collect();
    assert_eq!(calls[1].0, begin + cycles, "the operands of the second call have already arrived");
}

/// Ten cores and the command processor wait; the message names only some of
/// them, because a whole array would fill a page.
#[test]
fn a_deadlock_names_eight_waiting_agents_and_counts_the_others() {
    let mut text = "schedule stuck target xdna2-strix\nlaunch stuck\n".to_owned();
    let tiles: Vec<String> = (0..10).map(|at| format!("{},{}", at % 8, 2 + at / 8)).collect();
    tiles.iter().enumerate().for_each(|(lock, tile)| text += &format!("lock {lock} {tile} 0 0\n"));
    text += "route 0,0:mm2s:0 0,2:s2mm:0@2\n";
    for (lock, tile) in tiles.iter().enumerate() {
        text += &format!("core {tile} {{\nacquire l{lock} 1\n}}\n");
    }
    text += "run {\nwait 0,0:mm2s:0\n}\n";
    let mut simulator = Simulator::new(&Target::named("xdna2-strix").unwrap()).unwrap();
    let run = simulator.run(
        &schedule(&text),
        &[],
        &mut SimMemory::TimeOnly,
        &mut SimUnwatched,
        EventOrder::Earliest,
    );
    let fault = run.unwrap_err();
    assert_eq!(fault.kind, FaultKind::Deadlock, "{fault}");
    assert_eq!(fault.sentence.matches("waits for").count(), 8, "{fault}");
    assert!(fault.sentence.contains("the command processor waits for a token"), "{fault}");
    assert!(fault.sentence.ends_with("; 3 more wait"), "{fault}");
}

#[test]
fn a_queue_holds_four_tasks_and_the_fifth_waits() {
    let five = "    push 0,0:mm2s:0 0 0 1\n".repeat(6);
    let text = MATMUL.replace("    push 0,0:mm2s:0 0 0 1\n", &five).replace("        acquire l3 1\n", "");
    // Without words of b the first task of a stops, four wait in the queue, and the sixth has no
    // slot.
    let text = text.replace("    push 0,0:mm2s:1 1 0 1\n", "").replace("acquire l1 1", "acquire l3 1");
    let fault = fault(&text);
    assert_eq!(fault.kind, FaultKind::Deadlock, "{fault}");
    assert!(fault.sentence.contains("waits for a slot in the queue of 0,0:mm2s:0"), "{fault}");
}

#[test]
fn a_configured_array_is_not_configured_again() {
    let target = Target::named("toy").unwrap();
    let mut simulator = Simulator::new(&target).unwrap();
    let schedule = schedule(MATMUL);
    let mut configure = || {
        let run =
            simulator.run(&schedule, &[], &mut SimMemory::TimeOnly, &mut SimUnwatched, EventOrder::Earliest);
        run.unwrap().configure
    };
    assert!(configure() > 0);
    assert_eq!(configure(), 0);
}

/// One command waits for a channel of neighbouring columns, from left to right, in launches that stay configured.
#[test]
fn waits_for_neighbouring_columns_are_one_command() {
    let text = |resident: &str, [first, second]: [u32; 2]| {
        let of = |column: u32| {
            format!(
                "  descriptor {column},0 0 a0+{at} 32x1\n  descriptor {column},0 1 a1+{at} 32x1\n",
                at = column * 128
            )
        };
        let route = |column: u32| format!("  route {column},0:mm2s:0 {column},0:s2mm:0@0\n");
        let pushes = |column: u32| {
            format!("    push {column},0:s2mm:0 1 0 1 token\n    push {column},0:mm2s:0 0 0 1\n")
        };
        format!(
            "schedule pair target toy\nargument 0 a input 256\nargument 1 y output 256\nlaunch pair{resident}\n\
             {}{}{}{}  run {{\n{}{}    wait {first},0:s2mm:0\n    wait {second},0:s2mm:0\n  }}\n",
            of(0),
            of(1),
            route(0),
            route(1),
            pushes(0),
            pushes(1)
        )
    };
    let cycles = |resident: &str, order: [u32; 2]| {
        let (bytes, report) = run(&text(resident, order), EventOrder::Earliest).unwrap();
        assert_eq!(bytes, pack(&values(128, 0)));
        report.launches[0].cycles
    };
    assert!(cycles(" resident", [0, 1]) < cycles("", [0, 1]));
    assert_eq!(cycles(" resident", [1, 0]), cycles("", [1, 0]), "from right to left they are two commands");
}
