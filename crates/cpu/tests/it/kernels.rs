//! Every kernel of every table that vector instructions shape, at every length
//! around their steps, against the references.

use girih_cpu::kernels::{QUAD, Table, by_name, names, tables};
use girih_tensor::{DType, reference};

use crate::fixture::{Random, gamma};

/// Lengths that end anywhere in a step, and long ones.
fn lengths() -> impl Iterator<Item = usize> {
    (0..=70).chain([127, 128, 129, 255, 1000, 4099])
}

/// Rows that are hard to add up, besides random ones.
fn rows(len: usize, random: &mut Random) -> Vec<Vec<f32>> {
    let plain = random.numbers(len);
    let powers = (0..len).map(|_| random.number() * f32::powi(2.0, (random.bits() % 60) as i32 - 30));
    let powers = powers.collect();
    let cancelling = (0..len).map(|i| if i % 2 == 0 { 1e6 + plain[i] } else { -1e6 }).collect();
    let zeros = (0..len).map(|i| if i % 2 == 0 { 0.0 } else { -0.0 }).collect();
    vec![plain, powers, cancelling, zeros, vec![1.0; len]]
}

/// A copy of the numbers that begins one number beyond where memory does.
fn shifted(numbers: &[f32]) -> Vec<f32> {
    [&[f32::NAN], numbers].concat()
}

fn agrees(got: f32, want: f64, bound: f64) -> bool {
    (f64::from(got) - want).abs() <= bound
}

/// The table's first dot product that lies further off than its bound.
fn wrong_dot(table: &Table) -> Option<String> {
    let mut random = Random(1);
    for len in lengths() {
        for a in rows(len, &mut random) {
            for b in rows(len, &mut random) {
                let exact = reference::dot(&a, &b);
                let got = (table.dot)(&shifted(&a)[1..], &b);
                if !agrees(got, exact.sum, exact.bound(len)) {
                    return Some(format!("{len} terms: {got}, not {exact:?}"));
                }
            }
        }
    }
    None
}

#[test]
fn dot_products_keep_their_bound() {
    for table in tables() {
        assert_eq!(wrong_dot(table), None, "{}", table.name);
    }
}

#[test]
fn a_dot_product_without_its_last_term_is_caught() {
    let broken = |a: &[f32], b: &[f32]| match a.len() {
        0 => 0.0,
        len => (tables()[0].dot)(&a[..len - 1], &b[..len - 1]),
    };
    assert!(wrong_dot(&Table { dot: broken, ..tables()[0] }).is_some());
}

#[test]
fn four_dot_products_are_those_of_each_row() {
    let mut random = Random(2);
    for len in lengths() {
        let rows = rows(len, &mut random);
        let x = random.numbers(len);
        for first in 0..=rows.len() - QUAD {
            let four = rows[first..first + QUAD].concat();
            for table in tables() {
                let got = (table.dots)(&shifted(&four)[1..], &x).map(f32::to_bits);
                for (row, got) in rows[first..].iter().zip(got) {
                    assert_eq!(got, (table.dot)(row, &x).to_bits(), "{}, {len} terms", table.name);
                }
            }
        }
    }
}

/// Blocks of any bytes, of equal bytes, and of bytes that are numbers' limits.
fn blocks(dtype: DType, count: usize, random: &mut Random) -> Vec<Vec<u8>> {
    let len = count * dtype.block_bytes();
    let mut all = vec![(0..len).map(|_| random.bits() as u8).collect::<Vec<_>>()];
    all.extend([0x00, 0x7f, 0x80, 0xff].map(|byte| vec![byte; len]));
    all
}

fn assert_unpacks(table: &Table, dtype: DType, bytes: &[u8]) {
    let (rows, columns) = dtype.tile();
    let count = bytes.len() / dtype.block_bytes() * rows * columns;
    let mut want = vec![0.0; count];
    dtype.unpack(bytes, &mut want);
    let mut got = vec![0.0; count + 1];
    table.unpack(dtype, &[&[0xaa], bytes].concat()[1..], &mut got[1..]);
    for (index, (got, want)) in got[1..].iter().zip(&want).enumerate() {
        let equal = got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan());
        assert!(equal, "{} {dtype}, value {index} of {count}: {got} is not {want}", table.name);
    }
}

#[test]
fn stored_values_are_decoded_as_defined() {
    let mut random = Random(3);
    for &dtype in DType::ALL {
        let counts = if dtype.tile() == (1, 1) { (0..=70).chain([1000]) } else { (0..=5).chain([40]) };
        for count in counts {
            for bytes in blocks(dtype, count, &mut random) {
                tables().iter().for_each(|table| assert_unpacks(table, dtype, &bytes));
            }
        }
    }
}

#[test]
fn all_halves_are_decoded_as_defined() {
    let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for table in tables() {
        for dtype in [DType::F16, DType::BF16] {
            assert_unpacks(table, dtype, &bytes);
        }
    }
}

#[test]
fn lengths_that_are_no_blocks_are_refused() {
    for table in tables() {
        for &dtype in DType::ALL {
            let (rows, columns) = dtype.tile();
            let (bytes, values) = (2 * dtype.block_bytes(), 2 * rows * columns);
            for (bytes, values) in [(bytes, values + 1), (bytes, values / 2), (bytes - 1, values)] {
                let call = || table.unpack(dtype, &vec![0; bytes], &mut vec![0.0; values]);
                let what = format!("{} {dtype}: {bytes} bytes for {values} values", table.name);
                assert!(std::panic::catch_unwind(call).is_err(), "{what}");
            }
        }
    }
}

#[test]
fn normalised_rows_keep_their_bound() {
    let (mut random, epsilon) = (Random(5), 1e-5);
    for len in lengths().skip(1) {
        for x in rows(len, &mut random) {
            let weight = random.numbers(len);
            let root = reference::root_mean_square(&x, f64::from(epsilon));
            // As in the tests of the operator, but for the interpreter's rounding.
            let relative = gamma(len + 1) / 2.0 + gamma(7);
            for table in tables() {
                let mut y = vec![f32::NAN; len];
                (table.norm)(&x, &weight, epsilon, &mut y);
                for (index, y) in y.iter().enumerate() {
                    let want = f64::from(x[index]) / root * f64::from(weight[index]);
                    let right = agrees(*y, want, relative * want.abs());
                    assert!(right, "{}, value {index} of {len}: {y}, not {want}", table.name);
                }
            }
        }
    }
}

#[test]
fn tables_go_by_their_names() {
    let have: Vec<_> = tables().iter().map(|table| table.name).collect();
    let known: Vec<_> = names().iter().filter(|name| have.contains(name)).collect();
    assert_eq!(known, have.iter().collect::<Vec<_>>(), "best first, as the names are listed");
    for name in names() {
        match by_name(name) {
            Ok(table) => assert_eq!(table.name, *name),
            Err(_) => assert!(!have.contains(name)),
        }
    }
    let error = by_name("abacus").unwrap_err().to_string();
    assert!(error.contains("'abacus'") && error.ends_with(&have.join(", ")), "{error}");
}
