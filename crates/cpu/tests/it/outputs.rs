//! Compares every path of every kernel of every table with `f64`: on random cases, and on the extreme values
//! of weights and activations.
//!
//! ```text
//! GIRIH_OUTPUTS=1000000 cargo test --release --locked -p girih-cpu --test it a_million_outputs -- \
//!     --ignored --nocapture
//! ```
//! checks `GIRIH_OUTPUTS` outputs of each path, by default a million, and prints the seed, the number of
//! outputs, and the largest error as a fraction of its bound. `GIRIH_SEED` sets the first seed.

use girih_cpu::kernels::packed::{NARROW, TILE};
use girih_cpu::kernels::tables;

use crate::bands::{
    CODES, INPUTS, IntegerBand, IntegerInputs, SCALES, WeightCodes, WeightScales, coding, integer_layouts,
};
use crate::fixture::Random;
use crate::path::{Memory, Operands, Tally};
use crate::paths::{check_narrow, check_tile, paths};

/// Outputs of each path in the test that always runs.
const USUAL_OUTPUTS: usize = 4000;

/// Checks `count` outputs of each path; `print` gets the table, name, seed and tally of each.
fn check_all(count: usize, seed: u64, print: impl Fn(&str, &str, u64, &Tally)) {
    for table in tables() {
        for (index, path) in paths(table).iter().enumerate() {
            let seed = seed + index as u64;
            let mut operands = Operands { random: Random(seed), memory: Memory::Plain };
            let mut tally = Tally::default();
            while tally.outputs < count && tally.fault.is_none() {
                (path.check)(table, &mut operands, &mut tally);
            }
            print(table.name, &path.name, seed, &tally);
            assert_eq!(tally.fault, None, "{} {}, seed {seed}", table.name, path.name);
        }
    }
}

fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable)
        .map_or(default, |text| text.parse().expect("GIRIH_OUTPUTS and GIRIH_SEED are whole numbers"))
}

#[test]
fn random_outputs_of_every_path_keep_their_bound() {
    check_all(USUAL_OUTPUTS, 1000, |_, _, _, _| {});
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

/// Calls `check` with weights and activations of each kind.
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
            check_narrow(table, band, x, Memory::Plain, &mut tally);
            assert_eq!(tally.fault, None, "{}: {what}", table.name);
        }
    });
}

#[test]
fn edge_values_keep_their_bound_in_tiles() {
    let mut operands = Operands { random: Random(32), memory: Memory::Plain };
    each_edge(&[TILE / 3, TILE], |band, x, what| {
        for table in tables() {
            let mut tally = Tally::default();
            check_tile(table, band, 0, x, &mut operands, &mut tally);
            assert_eq!(tally.fault, None, "{}: {what}", table.name);
        }
    });
}

/// A column with an infinity or NaN has no finite result, and its neighbours stay finite.
#[test]
fn columns_with_an_infinity_or_nan_have_no_finite_results() {
    let mut random = Random(33);
    for layout in integer_layouts() {
        let groups = if layout.unit().0 > 32 { layout.unit().0 / 32 } else { 3 };
        let band = IntegerBand::random(layout, groups, WeightCodes::Any, WeightScales::Moderate, &mut random);
        for (odd, columns) in
            [f32::INFINITY, f32::NEG_INFINITY, f32::NAN].into_iter().flat_map(|odd| [1, 8].map(|c| (odd, c)))
        {
            // Quantizing yields codes of zero, and the infinity or NaN as the scale.
            let mut x = IntegerInputs::random(coding(layout), groups, columns, INPUTS[3], &mut random);
            let last = x.words.len() - 1;
            x.words[last] = odd.to_bits();
            if coding(layout).minimums {
                x.words[last - columns] = f32::NAN.to_bits();
            }
            for table in tables() {
                let mut sums = vec![[0.0; 32]; columns];
                (table.matmul.narrow)(band.band(), &x.words, &mut sums);
                let right = sums[columns - 1].iter().all(|sum| !sum.is_finite());
                assert!(right, "{} {layout:?} x{columns}: {odd} yields {:?}", table.name, sums[columns - 1]);
                assert!(
                    sums[..columns - 1].iter().flatten().all(|sum| sum.is_finite()),
                    "{}: other columns are finite",
                    table.name
                );
            }
        }
    }
}
