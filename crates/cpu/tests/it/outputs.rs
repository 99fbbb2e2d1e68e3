//! Every path of every kernel of every table on random cases against `f64`, and
//! the edges of what weights and activations may hold.
//!
//! ```text
//! GIRIH_OUTPUTS=1000000 cargo test --release --locked -p girih-cpu --test it a_million_outputs -- \
//!     --ignored --nocapture
//! ```
//! checks so many outputs of each path, a million if nothing else is asked for,
//! and prints of each the seed, how many there were, and the largest error as a
//! fraction of its bound. `GIRIH_SEED` begins elsewhere.

use girih_cpu::kernels::packed::{NARROW, TILE};
use girih_cpu::kernels::tables;

use crate::bands::{
    CODES, Codes, INPUTS, IntegerBand, IntegerInputs, SCALES, Scales, coding, integer_layouts,
};
use crate::fixture::Random;
use crate::path::Tally;
use crate::paths::{check_narrow, check_tile, paths};

/// Outputs of each path that the suite checks each time.
const FEW: usize = 4000;

/// Checks so many outputs of each path; `print` is told each path's table,
/// name, seed and tally.
fn check_all(count: usize, seed: u64, print: impl Fn(&str, &str, u64, &Tally)) {
    for table in tables() {
        for (index, path) in paths().iter().enumerate() {
            let seed = seed + index as u64;
            let (mut random, mut tally) = (Random(seed), Tally::default());
            while tally.outputs < count && tally.fault.is_none() {
                (path.check)(table, &mut random, &mut tally);
            }
            print(table.name, &path.name, seed, &tally);
            assert_eq!(tally.fault, None, "{} {}, seed {seed}", table.name, path.name);
        }
    }
}

fn number(name: &str, otherwise: usize) -> usize {
    std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number of outputs, or a seed"))
}

#[test]
fn random_outputs_of_every_path_keep_their_bound() {
    check_all(FEW, 1000, |_, _, _, _| {});
}

#[test]
#[ignore = "checks a million outputs of each path, which takes minutes in a release build"]
fn a_million_outputs_of_every_path_keep_their_bound() {
    let (count, seed) = (number("GIRIH_OUTPUTS", 1_000_000), number("GIRIH_SEED", 1));
    println!("{:<10} {:<24} {:>6} {:>10} {:>10}", "table", "path", "seed", "outputs", "of bound");
    check_all(count, seed as u64, |table, path, seed, tally| {
        println!("{table:<10} {path:<24} {seed:>6} {:>10} {:>10.3}", tally.outputs, tally.worst);
    });
}

/// Calls `check` with a band and columns of each kind.
fn each_edge(columns: &[usize], mut check: impl FnMut(&IntegerBand, &IntegerInputs, &str)) {
    let mut random = Random(31);
    for layout in integer_layouts() {
        let groups = if layout.unit().0 > 32 { layout.unit().0 / 32 } else { 3 };
        for (codes, scales) in CODES.into_iter().flat_map(|codes| SCALES.map(|scales| (codes, scales))) {
            let band = IntegerBand::random(layout, groups, codes, scales, &mut random);
            for (kind, &columns) in INPUTS.into_iter().flat_map(|kind| columns.iter().map(move |c| (kind, c)))
            {
                let x = IntegerInputs::random(coding(layout), groups, columns, kind, &mut random);
                let what = format!("{layout:?}, {codes:?} codes, {scales:?} scales by {columns} of {kind:?}");
                check(&band, &x, &what);
            }
        }
    }
}

#[test]
fn edge_values_keep_their_bound_with_few_columns() {
    each_edge(&[1, NARROW], |band, x, what| {
        for table in tables() {
            let mut tally = Tally::default();
            check_narrow(table, band, x, &mut tally);
            assert_eq!(tally.fault, None, "{}: {what}", table.name);
        }
    });
}

#[test]
fn edge_values_keep_their_bound_in_tiles() {
    let mut random = Random(32);
    each_edge(&[TILE / 3, TILE], |band, x, what| {
        for table in tables() {
            let mut tally = Tally::default();
            check_tile(table, band, 0, x, &mut random, &mut tally);
            assert_eq!(tally.fault, None, "{}: {what}", table.name);
        }
    });
}

/// What is no number, in a file or among activations, does not come out as one.
#[test]
fn what_is_no_number_stays_none() {
    let mut random = Random(33);
    for layout in integer_layouts() {
        let groups = if layout.unit().0 > 32 { layout.unit().0 / 32 } else { 3 };
        let band = IntegerBand::random(layout, groups, Codes::Any, Scales::Moderate, &mut random);
        for (odd, columns) in
            [f32::INFINITY, f32::NEG_INFINITY, f32::NAN].into_iter().flat_map(|odd| [1, 8].map(|c| (odd, c)))
        {
            // As rounding leaves it: codes of zero under a scale that says so.
            let mut x = IntegerInputs::random(coding(layout), groups, columns, INPUTS[3], &mut random);
            let last = x.words.len() - 1;
            x.words[last] = odd.to_bits();
            if coding(layout).minimums {
                x.words[last - columns] = f32::NAN.to_bits();
            }
            for table in tables() {
                let mut sums = vec![[0.0; 32]; columns];
                (table.matmul.narrow)(band.band(), &x.words, &mut sums);
                let none = sums[columns - 1].iter().all(|sum| !sum.is_finite());
                assert!(none, "{} {layout:?} x{columns}: {odd} is {:?}", table.name, sums[columns - 1]);
                assert!(sums[..columns - 1].iter().flatten().all(|sum| sum.is_finite()), "its neighbours");
            }
        }
    }
}
