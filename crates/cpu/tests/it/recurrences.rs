//! How near the errors of recurrences come to their bounds, by the number of rows that went before.

use girih_cpu::kernels::tables;
use girih_cpu::{ActivationPrecision, Cpu, CpuOptions, PrecisionRule};
use girih_graph::OpName;
use girih_graph::testing::{Roundoff, draw, error_shares};

/// The first row behind each part of a sequence that the report tells apart.
const ENDS: [usize; 6] = [16, 64, 128, 256, 512, 1024];

/// The share of its bound that the largest error must reach within 64 rows.
const REACHED: f64 = 0.05;

/// The largest error of each part of a sequence, as a part of its bound, over cases of these seeds.
fn largest(op: OpName, seeds: u64) -> [f64; ENDS.len()] {
    let mut largest = [0.0; ENDS.len()];
    for table in tables() {
        for seed in 0..seeds {
            let case = draw(op, seed, Roundoff::SINGLE);
            let precision = PrecisionRule::Requested(ActivationPrecision::F32);
            let options = CpuOptions { threads: 2, precision, ..CpuOptions::default() };
            let cpu = Cpu::with_table(options, *table).expect("the options agree");
            let shares = error_shares(Box::new(cpu), &case, Roundoff::SINGLE).unwrap_or_else(|fault| {
                panic!("{op:?} of seed {seed}, {}, {}: {fault}", case.name, table.name)
            });
            let rows = case.sequences.iter().flat_map(|sequence| 0..sequence.rows as usize);
            let width = shares.len() / rows.clone().count();
            for (row, shares) in rows.zip(shares.chunks_exact(width)) {
                let part = ENDS.iter().position(|end| row < *end).expect("cases have fewer rows");
                largest[part] = shares.iter().copied().fold(largest[part], f64::max);
            }
        }
    }
    largest
}

/// A bound that no error comes near detects no fault. Beyond 64 rows the report has the ratio: a worst case adds up,
/// and random errors cancel.
#[test]
fn errors_of_recurrences_reach_a_twentieth_of_their_bounds_within_64_rows() {
    println!("rows below {ENDS:?}");
    for op in [OpName::DeltaRule, OpName::SsmScan, OpName::ShortConv] {
        let largest = largest(op, 48);
        println!("{:<11}{}", op.spec().name, largest.map(|share| format!(" {share:>7.4}")).concat());
        assert!(largest[0].max(largest[1]) >= REACHED, "{op:?}: {largest:?}");
    }
}
