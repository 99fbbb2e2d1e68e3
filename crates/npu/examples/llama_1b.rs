//! How long Llama-3.2-1B takes: to compile, to take from the cache, to
//! simulate, and on the array, program by program and launch by launch.
//!
//! `cargo run --release -p girih-npu --example llama_1b -- [TARGET [POLICY [ROWS]]]`

#[path = "../tests/llama/mod.rs"]
mod llama;

use std::time::Instant;

use girih_npu::blob::Cache;
use girih_npu::driver::{Compiler, estimate};
use girih_npu::pass::{NoDump, Policy};
use girih_npu::{Error, Target};
use llama::{LLAMA_1B, key, llama};

fn main() -> Result<(), Error> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let word = |index: usize, default: &str| words.get(index).cloned().unwrap_or(default.to_owned());
    let target = Target::named(&word(0, "xdna2-strix"))?;
    let policy = word(1, "mlir-air");
    let policy = Policy::ALL.iter().find(|(name, _)| *name == policy);
    let policy = policy.ok_or_else(|| Error::new("no such policy"))?.1;
    let rows = word(2, "2048").parse().map_err(|_| Error::new("rows are a number"))?;
    let folder = std::env::temp_dir().join(format!("girih-llama-1b-{}", std::process::id()));
    let cache = Cache::open(&folder)?;
    for rows in [rows, 1] {
        let graph = llama(&LLAMA_1B, key(rows));
        let begun = Instant::now();
        Compiler::new(target.clone(), policy, Some(cache.clone())).compile(&graph, &mut NoDump)?;
        let cold = begun.elapsed().as_secs_f64();
        let begun = Instant::now();
        let compiled =
            Compiler::new(target.clone(), policy, Some(cache.clone())).compile(&graph, &mut NoDump)?;
        let warm = begun.elapsed().as_secs_f64();
        let begun = Instant::now();
        let estimate = estimate(&graph, &compiled, &target, 2048 - rows)?;
        let simulated = begun.elapsed().as_secs_f64();
        println!(
            "{rows} rows: compiled in {cold:.2} s, from the cache in {warm:.3} s, simulated in {simulated:.2} s"
        );
        for timed in &estimate.programs {
            let ms = |cycles: u64| target.seconds(cycles) * 1e3;
            println!("  {:<20} {:>9.3} ms x {}", timed.name, ms(timed.report.cycles), timed.runs);
            for launch in &timed.report.launches {
                let busy: u64 = launch.cores.iter().map(|core| core.busy).sum();
                let share = busy as f64 / (launch.cycles as f64 * launch.cores.len() as f64);
                let moved = (launch.totals.dram_read + launch.totals.dram_written) as f64;
                let rate = moved / target.seconds(launch.cycles) / 1e9;
                println!(
                    "    {:<18} {:>9.3} ms, cores busy {:>4.0} %, DRAM {rate:>5.1} GB/s",
                    launch.name,
                    ms(launch.cycles),
                    share * 100.0
                );
            }
        }
        let ledger = &estimate.ledger;
        println!(
            "  array {:.1} ms in {} submissions, host {:.1} ms, sync {:.1} ms",
            ledger.array_seconds(&target) * 1e3,
            ledger.submissions,
            ledger.host_seconds(&target) * 1e3,
            ledger.sync_seconds(&target) * 1e3
        );
    }
    std::fs::remove_dir_all(&folder).map_err(|error| Error::new(format!("{}: {error}", folder.display())))
}
