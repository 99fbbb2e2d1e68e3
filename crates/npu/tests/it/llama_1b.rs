//! The times of Llama-3.2-1B: to compile, to load from the cache, to simulate,
//! and on the array by program and launch. Also a benchmark: `--nocapture`
//! shows the table.

use std::path::Path;
use std::time::Instant;

use girih_graph::Key;
use girih_npu::Target;
use girih_npu::blob::BlobCache;
use girih_npu::driver::{Compiler, Estimate, TimedProgram, estimate};
use girih_npu::pass::{AttentionPlacement, Grouping, NoDump, Policy};

use crate::llama::{LLAMA_1B, key, llama};

/// Times a step of `rows` rows, whose last position is 2047.
fn time(target: &Target, policy: Policy, rows: u32, folder: &Path) -> Estimate {
    let cache = BlobCache::open(folder).unwrap();
    let graph = llama(&LLAMA_1B, key(rows));
    let compile = || {
        let begun = Instant::now();
        let compiler = Compiler::new(target.clone(), policy, Some(cache.clone()));
        (compiler.compile(&graph, &mut NoDump).unwrap(), begun.elapsed().as_secs_f64())
    };
    let (_, cold) = compile();
    let (compiled, warm) = compile();
    assert_eq!(compiled.fresh, 0, "all programs are cached");
    let begun = Instant::now();
    let estimate = estimate(&graph, &compiled, target, 2048 - rows).unwrap();
    let simulated = begun.elapsed().as_secs_f64();
    println!(
        "{}, {rows} rows: compiled in {cold:.2} s, from the cache in {warm:.3} s, simulated in {simulated:.2} s",
        policy.name()
    );
    estimate.programs.iter().for_each(|timed| print(timed, target));
    let ledger = &estimate.ledger;
    println!(
        "  array {:.1} ms in {} submissions, host {:.1} ms, sync {:.1} ms",
        ledger.array_seconds(target) * 1e3,
        ledger.submissions,
        ledger.host_seconds(target) * 1e3,
        ledger.sync_seconds(target) * 1e3
    );
    estimate
}

fn print(timed: &TimedProgram, target: &Target) {
    let ms = |cycles: u64| target.seconds(cycles) * 1e3;
    println!("  {:<40} {:>9.3} ms x {}", timed.name, ms(timed.report.cycles), timed.runs);
    for launch in &timed.report.launches {
        let busy: u64 = launch.cores.iter().map(|core| core.busy).sum();
        let share = busy as f64 / (launch.cycles as f64 * launch.cores.len() as f64) * 100.0;
        let moved = (launch.totals.dram_read + launch.totals.dram_written) as f64;
        let rate = moved / target.seconds(launch.cycles) / 1e9;
        let (name, time) = (&launch.name, ms(launch.cycles));
        println!("    {name:<18} {time:>9.3} ms, cores busy {share:>4.0} %, DRAM {rate:>5.1} GB/s");
    }
}

#[test]
fn stitching_saves_submissions_and_their_dispatch_time() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("llama-1b");
    let _ = std::fs::remove_dir_all(&folder);
    let target = Target::named("xdna2-strix").unwrap();
    let unstitched = Policy { grouping: Grouping::Unstitched, ..Policy::MLIR_AIR };
    for (rows, submissions) in [(2048, [49, 241]), (1, [33, 225])] {
        let stitched = time(&target, Policy::MLIR_AIR, rows, &folder).ledger;
        let unstitched = time(&target, unstitched, rows, &folder).ledger;
        assert_eq!([stitched.submissions, unstitched.submissions], submissions);
        assert!(stitched.array_cycles < unstitched.array_cycles);
        // Only dispatches are saved; the work is the same.
        let saved = target.seconds(unstitched.array_cycles - stitched.array_cycles) * 1e6;
        let dispatches = (submissions[1] - submissions[0]) as f64 * target.control.dispatch_us;
        assert!(saved <= dispatches * 1.01, "{saved} us saved, {dispatches} us of dispatches");
    }
}

/// A token of each of eight sequences at the end of these positions takes less time with attention on the array.
#[test]
fn tokens_of_eight_sequences_take_less_time_with_attention_on_the_array() {
    let target = Target::named("xdna2-strix").unwrap();
    for context in [1024, 4096] {
        let several = Key { rows: 64, sequences: 8, output_rows: 8, context, ..key(64) };
        let seconds = [AttentionPlacement::Host, AttentionPlacement::Array].map(|attention| {
            let policy = Policy { attention, ..Policy::BY_COST };
            let graph = llama(&LLAMA_1B, several);
            let compiled =
                Compiler::new(target.clone(), policy, None).compile(&graph, &mut NoDump).unwrap();
            let ledger = estimate(&graph, &compiled, &target, context - 1).unwrap().ledger;
            let millis = [ledger.array_seconds(&target), ledger.host_seconds(&target)];
            let [array, host] = millis.map(|seconds| seconds * 1e3);
            let (sync, submissions) = (ledger.sync_seconds(&target) * 1e3, ledger.submissions);
            println!(
                "{context} positions, {attention:?}: array {array:.1} ms in {submissions} submissions, host {host:.1}, sync {sync:.1}"
            );
            ledger.seconds(&target)
        });
        assert!(seconds[1] < seconds[0], "{seconds:?} at {context}");
        let compiler = Compiler::new(target.clone(), Policy::BY_COST, None);
        let cost = compiler.attention_cost(&llama(&LLAMA_1B, several)).unwrap();
        println!("{cost}");
        assert_eq!(cost.placement(), AttentionPlacement::Array);
    }
}
