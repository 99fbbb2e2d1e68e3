//! Norms of every table at lengths around the sizes of vectors, compared with the reference; and the names
//! of tables.

use girih_cpu::kernels::{by_name, names, tables};
use girih_cpu::ops::{LayerNorm, Norm};
use girih_tensor::reference;

use crate::fixture::{Random, gamma};
use crate::rows::exact_layer_norm;

/// Lengths with any remainder of a vector, and long ones.
fn lengths() -> impl Iterator<Item = usize> {
    (0..=70).chain([127, 128, 129, 255, 1000, 4099])
}

/// Rows whose sums are sensitive to rounding, and random ones.
fn rows(len: usize, random: &mut Random) -> Vec<Vec<f32>> {
    let plain = random.numbers(len);
    let powers = (0..len).map(|_| random.number() * f32::powi(2.0, (random.bits() % 60) as i32 - 30));
    let powers = powers.collect();
    let cancelling = (0..len).map(|i| if i % 2 == 0 { 1e6 + plain[i] } else { -1e6 }).collect();
    let zeros = (0..len).map(|i| if i % 2 == 0 { 0.0 } else { -0.0 }).collect();
    vec![plain, powers, cancelling, zeros, vec![1.0; len]]
}

fn agrees(got: f32, expected: f64, bound: f64) -> bool {
    (f64::from(got) - expected).abs() <= bound
}

#[test]
fn normalised_rows_keep_their_bound() {
    let (mut random, epsilon) = (Random(5), 1e-5);
    for len in lengths().skip(1) {
        for x in rows(len, &mut random) {
            let weight = random.numbers(len);
            let root = reference::root_mean_square(&x, f64::from(epsilon));
            // As in the tests of the op, without the interpreter's rounding.
            let relative = gamma(len + 1) / 2.0 + gamma(7);
            for table in tables() {
                let mut y = vec![f32::NAN; len];
                table.run(Norm { x: &x, weight: Some(&weight), epsilon, y: &mut y });
                for (index, y) in y.iter().enumerate() {
                    let expected = f64::from(x[index]) / root * f64::from(weight[index]);
                    let right = agrees(*y, expected, relative * expected.abs());
                    assert!(right, "{}, value {index} of {len}: {y}, not {expected}", table.name);
                }
            }
        }
    }
}

#[test]
fn rows_normalised_by_mean_and_variance_keep_their_bound() {
    let (mut random, epsilon) = (Random(6), 1e-5);
    for len in lengths().skip(1) {
        for x in rows(len, &mut random) {
            let (weight, bias) = (random.numbers(len), random.numbers(len));
            for (table, bias) in tables().iter().flat_map(|table| [(table, None), (table, Some(&bias[..]))]) {
                let mut y = vec![f32::NAN; len];
                table.run(LayerNorm { x: &x, weight: Some(&weight), bias, epsilon, y: &mut y });
                for (y, (expected, bound)) in
                    y.iter().zip(exact_layer_norm(&x, [Some(&weight[..]), bias], epsilon))
                {
                    let right = agrees(*y, expected, bound);
                    assert!(right, "{}, of {len}: {y}, not {expected} within {bound:e}", table.name);
                }
            }
        }
    }
}

#[test]
fn tables_are_found_by_name() {
    let have: Vec<_> = tables().iter().map(|table| table.name).collect();
    let known: Vec<_> = names().iter().filter(|name| have.contains(name)).collect();
    assert_eq!(known, have.iter().collect::<Vec<_>>(), "tables and names have one order, best first");
    for name in names() {
        match by_name(name) {
            Ok(table) => assert_eq!(table.name, *name),
            Err(_) => assert!(!have.contains(name)),
        }
    }
    let error = by_name("abacus").unwrap_err().to_string();
    assert!(error.contains("'abacus'") && error.ends_with(&have.join(", ")), "{error}");
}
