//! The kernels of rows and elements of every table, compared with each other and with themselves on one element; and
//! the quantizing of activations, compared with `f64`.

use girih_cpu::kernels::{QUANT_GROUP, Table, tables};
use girih_cpu::ops::{Activate, Add, Gate, LayerNorm, Norm, Rotate, Rotation, Scale, Softcap};
use girih_graph::{Act, GateLimit, GateRule, Pairing};

use crate::fixture::{Random, changed, gamma, portable};
use crate::path::Memory;

/// Lengths with any remainder of a vector, and long ones.
fn lengths() -> impl Iterator<Item = usize> {
    (0..=70).chain([127, 128, 129, 255, 1000])
}

/// Numbers of all sizes, and those around thresholds.
fn numbers(count: usize, random: &mut Random) -> Vec<f32> {
    let edges = [
        0.0,
        1e-45,
        1e-40,
        1e-38,
        1e-20,
        1e-7,
        0.1733,
        0.3466,
        1.0,
        8.66,
        9.01,
        10.1,
        86.0,
        86.5,
        87.4,
        88.0,
        88.72,
        88.73,
        89.0,
        100.0,
        1e4,
        1e19,
        1e30,
        f32::MAX,
    ];
    let edges = edges.into_iter().flat_map(|x| [x, -x]);
    let powers = (0..).map(|_| random.number() * f32::powi(2.0, (random.bits() % 24) as i32 - 16));
    edges.chain(powers).take(count).collect()
}

fn gated(table: &Table, rule: impl Into<GateRule>, gate: &[f32], up: &[f32]) -> Vec<f32> {
    let mut up = up.to_vec();
    table.run(Gate { rule: rule.into(), gate, up: &mut up });
    up
}

#[test]
fn a_gate_of_nan_is_nan() {
    for table in tables() {
        for &act in Act::ALL {
            for (gate, up) in [(f32::NAN, 2.0), (2.0, f32::NAN), (-2.0, -f32::NAN)] {
                assert!(
                    gated(table, act, &[gate], &[up])[0].is_nan(),
                    "{} {act:?} of {gate} and {up}",
                    table.name
                );
            }
        }
        let mut odd = [0.0; 3];
        table.run(Softcap { x: &[f32::INFINITY, f32::NEG_INFINITY, f32::NAN], cap: 30.0, y: &mut odd });
        assert!(odd[..2] == [30.0, -30.0] && odd[2].is_nan(), "{}: {odd:?}", table.name);
    }
}

type Kernel = Box<dyn Fn(&Table, &[f32], &[f32], &mut [f32])>;

/// The kernels that work element by element.
fn elementwise() -> Vec<(&'static str, Kernel)> {
    let mut kernels: Vec<(&'static str, Kernel)> = vec![
        ("activate", Box::new(|table, a, _, y| table.run(Activate { act: Act::Gelu, x: a, y }))),
        ("add", Box::new(|table, a, b, y| table.run(Add { a, b, y }))),
        ("scale", Box::new(|table, a, _, y| table.run(Scale { x: a, factor: 0.7, y }))),
        ("softcap", Box::new(|table, a, _, y| table.run(Softcap { x: a, cap: 2.0, y }))),
    ];
    for &act in Act::ALL {
        for rule in [act.into(), GateRule { act, limit: Some(GateLimit::Gate(0.5)), offset: Some(1.0) }] {
            let kernel: Kernel = Box::new(move |table, a, b, y| {
                y.copy_from_slice(b);
                table.run(Gate { rule, gate: a, up: y });
            });
            kernels.push((act.name(), kernel));
        }
    }
    kernels
}

#[test]
fn an_element_does_not_depend_on_its_neighbours() {
    let mut random = Random(3);
    for (name, kernel) in elementwise() {
        for len in lengths() {
            let [a, b] = [numbers(len, &mut random), random.numbers(len)];
            for table in tables() {
                let mut y = vec![f32::NAN; len];
                kernel(table, &a, &b, &mut y);
                for (index, y) in y.iter().enumerate() {
                    let mut alone = [f32::NAN];
                    kernel(table, &a[index..=index], &b[index..=index], &mut alone);
                    let what = format!("{name} of {}, value {index} of {len}", table.name);
                    assert_eq!(y.to_bits(), alone[0].to_bits(), "{what}");
                }
            }
        }
    }
}

/// Asserts that `f` yields the same bits with each table, with or without the portable one.
fn assert_equal(what: &str, portable_too: bool, f: impl Fn(&Table) -> Vec<f32>) {
    let tables = &tables()[..tables().len() - usize::from(!portable_too)];
    for pair in tables.windows(2) {
        let [a, b] =
            [&pair[0], &pair[1]].map(|table| f(table).iter().map(|x| x.to_bits()).collect::<Vec<_>>());
        assert!(a == b, "{what}: {} and {} differ", pair[0].name, pair[1].name);
    }
}

#[test]
fn tables_yield_equal_bits() {
    let mut random = Random(4);
    for len in lengths().skip(1) {
        let [a, b] = [numbers(len, &mut random), random.numbers(len)];
        for (name, kernel) in elementwise() {
            // The portable table has its own functions beyond arithmetic.
            assert_equal(name, matches!(name, "add" | "scale"), |table| {
                let mut y = vec![f32::NAN; len];
                kernel(table, &a, &b, &mut y);
                y
            });
        }
        let x: Vec<f32> = a.iter().map(|x| x.clamp(-1e9, 1e9)).collect();
        assert_equal("norm", true, |table| {
            let mut y = vec![f32::NAN; len];
            table.run(Norm { x: &x, weight: Some(&b), epsilon: 1e-5, y: &mut y });
            y
        });
        for bias in [None, Some(&a.iter().map(|x| x.clamp(-9.0, 9.0)).collect::<Vec<_>>()[..])] {
            assert_equal("layer_norm", true, |table| {
                let mut y = vec![f32::NAN; len];
                table.run(LayerNorm { x: &x, weight: Some(&b), bias, epsilon: 1e-5, y: &mut y });
                y
            });
        }
        for pairing in [Pairing::Halves, Pairing::Neighbours] {
            let x = random.numbers(2 * len * 3);
            let rotation = Rotation { cosines: &a, sines: &b };
            assert_equal("rotate", true, |table| {
                let mut y = vec![f32::NAN; x.len()];
                table.run(Rotate { x: &x, rotation, pairing, size: 2 * len, y: &mut y });
                y
            });
        }
    }
}

/// Codes, scales and sums of whole groups.
type Integers = (Vec<i8>, Vec<f32>, Vec<i32>);

fn quantized(table: &Table, x: &[f32], memory: Memory) -> Integers {
    let groups = x.len() / QUANT_GROUP;
    let (mut codes, mut scales) = (memory.place(&vec![99; x.len()]), memory.place(&vec![f32::NAN; groups]));
    let mut sums = memory.place(&vec![-1; groups]);
    (table.matmul.quantize)(x, &mut codes, &mut scales, &mut sums);
    (codes.to_vec(), scales.to_vec(), sums.to_vec())
}

/// A group that begins with these numbers and continues with zeros.
fn group(first: &[f32]) -> Vec<f32> {
    let mut group = first.to_vec();
    group.resize(QUANT_GROUP, 0.0);
    group
}

/// The numbers of levels on each side of zero that a group may have.
const LEVELS: [f32; 4] = [127.0, 126.0, 125.0, 124.0];

/// The sum of squared rounding errors of a group with `levels` levels.
fn squares_left(x: &[f32], levels: f32) -> f64 {
    let largest = x.iter().fold(0.0, |largest: f64, x| largest.max(f64::from(x.abs())));
    let step = largest / f64::from(levels);
    x.iter().map(|&x| (f64::from(x) - step * (f64::from(x) / step).round_ties_even()).powi(2)).sum()
}

/// The first fault of quantizing `x`: a value too far from its code times the scale, a wrong sum, or a
/// scale where another number of levels has smaller errors.
///
/// The scale is rounded once; levels / largest, the product and half a code are the errors of a code. The
/// choice of a scale has the same error for each of 32 distances of up to half a step, once more when
/// they are added up.
pub fn wrong_code(table: &Table, x: &[f32], memory: Memory) -> Option<String> {
    let (codes, scales, sums) = quantized(table, x, memory);
    let groups =
        x.chunks_exact(QUANT_GROUP).zip(codes.chunks_exact(QUANT_GROUP)).zip(scales.iter().zip(&sums));
    for ((x, codes), (&scale, &sum)) in groups {
        let largest = x.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        let some = largest >= 2f32.powi(-119);
        let levels = LEVELS.into_iter().find(|levels| some && scale == largest / levels);
        if levels.is_none() && (some || scale != 0.0) {
            return Some(format!("scale {scale} of numbers up to {largest}"));
        }
        if sum != codes.iter().map(|&code| i32::from(code)).sum::<i32>() {
            return Some(format!("sum {sum} of {codes:?}"));
        }
        if let Some(levels) = levels {
            let least = LEVELS.map(|levels| squares_left(x, levels)).into_iter().fold(f64::MAX, f64::min);
            let error = 32.0 * 127.0 * gamma(3 + QUANT_GROUP) * f64::from(scale).powi(2);
            if squares_left(x, levels) > least + 4.0 * error {
                return Some(format!("{levels} levels leave more than others of {x:?}"));
            }
        }
        for (&x, &code) in x.iter().zip(codes) {
            let distance = (f64::from(x) - f64::from(scale) * f64::from(code)).abs();
            let bound = f64::from(scale) * (0.5 + 127.0 * gamma(3)) + 2f64.powi(-119);
            if distance > bound || code == i8::MIN {
                return Some(format!("{x} is {code} times {scale}"));
            }
        }
    }
    None
}

/// Two groups that differ in the last bit of one number and get other levels: there one rounding decides
/// which levels have smaller errors, and so does the order in which squares are added.
pub fn edge(random: &mut Random) -> Vec<f32> {
    let edge = (0..10_000).find_map(|_| {
        let mut x = random.numbers(QUANT_GROUP);
        x[0] = 1.0;
        // A number of a few steps, so that its last bit is less than a sum's.
        let [mut low, mut high] = [0; 2].map(|_| (random.number().abs() / 16.0).to_bits());
        let mut scale = |last: u32| {
            x[QUANT_GROUP - 1] = f32::from_bits(last);
            quantized(&portable(), &x, Memory::Plain).1[0]
        };
        if scale(low) == scale(high) {
            return None;
        }
        while low.abs_diff(high) > 1 {
            let middle = low.midpoint(high);
            *(if scale(middle) == scale(low) { &mut low } else { &mut high }) = middle;
        }
        x[QUANT_GROUP - 1] = f32::from_bits(low);
        let mut both = x.repeat(2);
        both[2 * QUANT_GROUP - 1] = f32::from_bits(high);
        Some(both)
    });
    edge.expect("levels change somewhere")
}

/// The first difference between the integers of a table and those of the portable one.
pub fn unequal_codes(table: &Table, x: &[f32], memory: Memory) -> Option<String> {
    let unequal = quantized(table, x, memory) != quantized(&portable(), x, memory);
    unequal.then(|| format!("other bits than the portable ones of {x:?}"))
}

/// Rows of groups that are hard to quantize.
pub fn rows(random: &mut Random) -> Vec<Vec<f32>> {
    let mut rows: Vec<Vec<f32>> = (0..=9).map(|groups| random.numbers(groups * QUANT_GROUP)).collect();
    rows.push(random.numbers(300 * QUANT_GROUP));
    let sizes =
        (0..70 * QUANT_GROUP).map(|i| random.number() * f32::powi(2.0, (i / QUANT_GROUP) as i32 * 4 - 149));
    rows.push(sizes.collect());
    for edge in [0.0, 1e-45, 1e-38, 1.5e-36, 1.6e-36, f32::MIN_POSITIVE, 1.0, f32::MAX] {
        let first = [edge, -edge, edge / 2.0, -edge / 2.0, edge / 127.0, edge / 254.0];
        // Beside groups of other sizes, at each position among four.
        for position in 0..5 {
            let mut row = vec![0.5; 5 * QUANT_GROUP];
            row[position * QUANT_GROUP..][..QUANT_GROUP].copy_from_slice(&group(&first));
            rows.push(row);
        }
    }
    rows.extend((0..20).map(|_| edge(random)));
    rows
}

#[test]
fn quantized_values_are_near_and_equal_in_all_tables() {
    for row in rows(&mut Random(6)) {
        for table in tables() {
            assert_eq!(wrong_code(table, &row, Memory::Plain), None, "{}", table.name);
            assert_eq!(unequal_codes(table, &row, Memory::Plain), None, "{}", table.name);
        }
    }
}

/// Numbers of a normal distribution (Box and Muller 1958).
fn normal(count: usize, random: &mut Random) -> Vec<f32> {
    let mut number = || (1.0 - f64::from(random.number())) / 2.0;
    let numbers =
        (0..count).map(|_| (-2.0 * number().ln()).sqrt() * (std::f64::consts::TAU * number()).cos());
    numbers.map(|x| x as f32).collect()
}

/// The best of four numbers of levels has a mean squared error 14 % below that of 127 levels.
#[test]
fn the_best_levels_have_smaller_errors_on_normal_numbers() {
    let x = normal(20_000 * QUANT_GROUP, &mut Random(7));
    let by_127: f64 = x.chunks_exact(QUANT_GROUP).map(|x| squares_left(x, 127.0)).sum();
    for table in tables() {
        let (codes, scales, _) = quantized(table, &x, Memory::Plain);
        let values = codes.iter().zip(scales.iter().flat_map(|&scale| [scale; QUANT_GROUP]));
        let left = x.iter().zip(values);
        let left: f64 = left.map(|(&x, (&code, scale))| f64::from(x - scale * f32::from(code)).powi(2)).sum();
        let ratio = left / by_127;
        assert!((0.84..0.88).contains(&ratio), "{} leaves {ratio} of what 127 levels do", table.name);
    }
}

#[test]
fn truncated_codes_are_detected() {
    let cut = |x: &[f32], codes: &mut [i8], scales: &mut [f32], sums: &mut [i32]| {
        (tables()[0].matmul.quantize)(x, codes, scales, sums);
        for (index, code) in
            codes.iter_mut().enumerate().filter(|(index, _)| scales[index / QUANT_GROUP] > 0.0)
        {
            *code = (x[index] / scales[index / QUANT_GROUP]) as i8;
        }
        for (sum, codes) in sums.iter_mut().zip(codes.chunks_exact(QUANT_GROUP)) {
            *sum = codes.iter().map(|&code| i32::from(code)).sum();
        }
    };
    let table = changed(|table| table.matmul.quantize = cut);
    assert!(rows(&mut Random(6)).iter().any(|row| wrong_code(&table, row, Memory::Plain).is_some()));
}

#[test]
fn ties_go_to_even_codes() {
    // With whole numbers, of which other levels would make halves and quarters, these levels are the
    // best.
    let mut x = [64.0; QUANT_GROUP];
    x[21..].fill(32.0);
    x[..10].copy_from_slice(&[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 125.5, 126.5, -126.5]);
    let sum = 253 + 11 * 64 + 11 * 32;
    for table in tables() {
        for groups in [1, 4, 6] {
            let (codes, scales, sums) = quantized(table, &x.repeat(groups), Memory::Plain);
            assert_eq!((scales, sums), (vec![1.0; groups], vec![sum; groups]), "{}", table.name);
            for codes in codes.chunks_exact(QUANT_GROUP) {
                assert_eq!(codes[..10], [127, 0, 2, 2, 0, -2, -2, 126, 126, -126], "{}", table.name);
            }
        }
    }
}

/// Infinity and NaN are not quantized to finite numbers: the scale of their group reports them.
#[test]
fn groups_with_an_infinity_or_nan_have_it_as_their_scale() {
    for table in tables() {
        for (odd, position) in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN].into_iter().zip(0..) {
            for at in [0, 31, 17] {
                let mut x = vec![1.0; 5 * QUANT_GROUP];
                x[position * QUANT_GROUP + at] = odd;
                let (codes, scales, sums) = quantized(table, &x, Memory::Plain);
                for group in 0..5 {
                    let codes = &codes[group * QUANT_GROUP..][..QUANT_GROUP];
                    let expected = if group == position { 0 } else { 127 };
                    assert!(codes.iter().all(|&code| code == expected), "{} {odd}: {codes:?}", table.name);
                    assert_eq!(sums[group], expected as i32 * 32);
                    let scale = scales[group];
                    let right =
                        if group == position { scale.is_nan() == odd.is_nan() } else { scale == 1.0 / 127.0 };
                    assert!(
                        right && scale.is_finite() == (group != position),
                        "{} {odd}: {scale}",
                        table.name
                    );
                }
            }
        }
    }
}

#[test]
fn outputs_of_wrong_lengths_are_refused() {
    for table in tables() {
        for (values, codes, scales, sums) in
            [(33, 33, 1, 1), (64, 32, 2, 2), (64, 64, 1, 2), (64, 64, 2, 1), (31, 31, 0, 0)]
        {
            let call = || {
                let (mut scales, mut sums) = (vec![0.0; scales], vec![0; sums]);
                (table.matmul.quantize)(&vec![0.0; values], &mut vec![0; codes], &mut scales, &mut sums);
            };
            let what =
                format!("{}: {values} values, {codes} codes, {scales} scales, {sums} sums", table.name);
            assert!(std::panic::catch_unwind(call).is_err(), "{what}");
        }
    }
}
