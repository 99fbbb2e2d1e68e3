//! Matmuls with activations rounded to int8 or bf16, from stored weights to results. All numbers of rows
//! of a step and of the weights up to one beyond a band are tested, so that tiles, bands and panels are
//! cut at every row; and matrices of several formats in one task.

use girih_cpu::kernels::packed::{BAND, Band, LINE, Layout};
use girih_cpu::kernels::{QUANT_GROUP, Table, tables};
use girih_cpu::{ActivationPrecision, Cpu, CpuOptions, PrecisionRule};
use girih_graph::backend::Input;
use girih_graph::{Backend, Builder, Graph, Op};
use girih_tensor::{DType, Shape, reference};
use half::{bf16, f16};

use crate::bands::below;
use crate::fixture::{Random, Source, TestSequence, cpu_with, finish, gamma, key, on, portable, step};

const FORMATS: [DType; 4] = [DType::Q4_0, DType::Q8_0, DType::Q4_K, DType::Q6_K];

fn graph(dtype: DType, inputs: usize, outputs: usize, rows: usize) -> Graph {
    let mut builder = Builder::new(key(rows, 64));
    let x = builder.input("x", &[inputs], DType::F32);
    let weight = builder.weight("weight", Shape::matrix(outputs, inputs), dtype);
    let y = builder.shaped("y", Op::Linear, &[x, weight], &[outputs]);
    finish(builder, y)
}

/// The formats of one row per block that are multiplied by integers.
fn integer_formats() -> impl Iterator<Item = DType> {
    let formats = DType::ALL.iter().copied().filter(|dtype| dtype.tile().0 == 1);
    formats.filter(|&dtype| Layout::of(dtype).coding().is_some())
}

/// A bound of the scaled code plus the minimum, whose difference is a weight, beyond the weight's own
/// size.
fn extra(dtype: DType, block: &[u8]) -> f64 {
    // The offset of the factor of minimums in a block, and the largest minimum.
    let (at, most) = match dtype {
        DType::Q4_1 | DType::Q5_1 => (2, 1.0),
        DType::Q4_K | DType::Q5_K => (2, 63.0),
        DType::Q2_K => (82, 15.0),
        _ => return 0.0,
    };
    2.0 * most * f16::from_le_bytes([block[at], block[at + 1]]).to_f64().abs()
}

/// The product of rounded activations with a row of weights, and its bound: decoding a weight takes at
/// most three roundings, and a group adds two to the chain for each of its scales or for a scale and a
/// minimum.
fn exact(dtype: DType, codes: &[i8], scales: &[f32], weights: &[f32], stored: &[u8]) -> (f64, f64) {
    let (mut sum, mut size) = (0.0, 0.0);
    let block = dtype.tile().1;
    for (index, (&code, &weight)) in codes.iter().zip(weights).enumerate() {
        let x = f64::from(scales[index / QUANT_GROUP]) * f64::from(code);
        let stored = &stored[index / block * dtype.block_bytes()..];
        sum += x * f64::from(weight);
        size += x.abs() * (f64::from(weight.abs()) + extra(dtype, stored));
    }
    (sum, gamma(4 + 2 * codes.len() / 16) * size)
}

/// The first result of a step beyond its bound.
fn wrong(
    table: &Table,
    dtype: DType,
    [inputs, outputs, rows]: [usize; 3],
    random: &mut Random,
) -> Option<String> {
    let graph = graph(dtype, inputs, outputs, rows);
    let source = Source::random(&graph, random);
    let x = random.numbers(rows * inputs);
    let sequences = [TestSequence::new(0, 0, rows as u32)];
    let mut runner = on(cpu_with(*table, 1 + below(2, random)), &graph, &source, 16);
    let got = step(&mut *runner, Input::Rows(&x), &sequences);
    let weights = source.numbers("weight", dtype, outputs, inputs);
    let row_bytes = inputs / dtype.tile().1 * dtype.block_bytes();
    let (mut codes, mut scales) = (vec![0; inputs], vec![0.0; inputs / QUANT_GROUP]);
    for (x, got) in x.chunks_exact(inputs).zip(got.chunks_exact(outputs)) {
        (portable().matmul.quantize)(x, &mut codes, &mut scales, &mut vec![0; inputs / QUANT_GROUP]);
        for (row, got) in got.iter().enumerate() {
            let stored = &source.0["weight"][row * row_bytes..][..row_bytes];
            let (want, bound) = exact(dtype, &codes, &scales, &weights[row * inputs..][..inputs], stored);
            let agrees = (f64::from(*got) - want).abs() <= bound;
            if !agrees {
                return Some(format!("row {row}: {got}, not {want} within {bound:e}"));
            }
        }
    }
    None
}

#[test]
fn steps_and_matrices_of_any_rows_keep_their_bound() {
    let mut random = Random(71);
    for (table, dtype) in tables().iter().flat_map(|table| FORMATS.map(|dtype| (table, dtype))) {
        let inputs = if dtype.tile().1 > QUANT_GROUP { 768 } else { 17 * QUANT_GROUP };
        let cuts = (1..=33).map(|rows| [inputs, 34 - rows, rows]);
        let bands = (1..=33).map(|outputs| [dtype.tile().1, outputs, 5]);
        for shape in cuts.chain(bands) {
            let wrong = wrong(table, dtype, shape, &mut random);
            assert_eq!(wrong, None, "{} {dtype}, inputs, outputs and rows {shape:?}", table.name);
        }
    }
}

/// The first result of a step with bf16 on both sides beyond its bound: products are exact, each
/// addition is rounded.
fn wrong_bf16(table: &Table, [inputs, outputs, rows]: [usize; 3], random: &mut Random) -> Option<String> {
    let graph = graph(DType::BF16, inputs, outputs, rows);
    let source = Source::random(&graph, random);
    let x = random.numbers(rows * inputs);
    let precision = PrecisionRule::Requested(ActivationPrecision::Bf16);
    let threads = 1 + below(2, random);
    let cpu = Cpu::with_table(CpuOptions { threads, precision, ..CpuOptions::default() }, *table).unwrap();
    let sequences = [TestSequence::new(0, 0, rows as u32)];
    let got = step(&mut *on(cpu, &graph, &source, 16), Input::Rows(&x), &sequences);
    let x: Vec<f32> = x.iter().map(|&x| bf16::from_f32(x).to_f32()).collect();
    let weights = source.numbers("weight", DType::BF16, outputs, inputs);
    first_beyond(&got, [&x, &weights], [inputs, outputs], |x, weights| {
        let exact = reference::dot(x, weights);
        (exact.sum, gamma(inputs) * exact.size)
    })
}

/// The first result beyond its bound. `exact` returns the sum of a row of activations and one of weights, and its bound.
fn first_beyond(
    got: &[f32],
    [x, weights]: [&[f32]; 2],
    [inputs, outputs]: [usize; 2],
    exact: impl Fn(&[f32], &[f32]) -> (f64, f64),
) -> Option<String> {
    for (x, got) in x.chunks_exact(inputs).zip(got.chunks_exact(outputs)) {
        for (row, (got, weights)) in got.iter().zip(weights.chunks_exact(inputs)).enumerate() {
            let (sum, bound) = exact(x, weights);
            let agrees = (f64::from(*got) - sum).abs() <= bound;
            if !agrees {
                return Some(format!("row {row}: {got}, not {sum} within {bound:e}"));
            }
        }
    }
    None
}

/// Inputs, outputs and rows: every cut of rows and of outputs, and widths around the ends of blocks.
fn shapes() -> impl Iterator<Item = [usize; 3]> {
    let cuts = (1..=33).map(|rows| [70, 34 - rows, rows]);
    cuts.chain([1, 2, 255, 256, 257, 769].map(|inputs| [inputs, 33, 13]))
}

#[test]
fn bf16_keeps_its_bound_in_steps_and_matrices_of_any_rows() {
    let mut random = Random(73);
    for table in tables() {
        for shape in shapes() {
            let wrong = wrong_bf16(table, shape, &mut random);
            assert_eq!(wrong, None, "{}, inputs, outputs and rows {shape:?}", table.name);
        }
    }
    let mut table = portable();
    // Omits the last pair of columns.
    table.matmul.bf16 = |band, first, x, sums| {
        (portable().matmul.bf16)(band, first, &x[..x.len() - sums.len()], sums);
    };
    for rows in [1, 8, 9, 33] {
        assert!(wrong_bf16(&table, [70, 33, rows], &mut random).is_some(), "{rows} rows");
    }
}

/// The first result of a step with half precision on both sides beyond its bound. A group's activations have an error of 2^-11 each, or
/// 2^-25 of the scale, a power of two of at most half of its largest one; its sum has a rounding for each input.
fn wrong_fp16(table: &Table, [inputs, outputs, rows]: [usize; 3], random: &mut Random) -> Option<String> {
    let graph = graph(DType::F16, inputs, outputs, rows);
    let source = Source::random(&graph, random);
    let x = random.numbers(rows * inputs);
    let got = results(table, ActivationPrecision::Fp16, &graph, &source, &x);
    let weights = source.numbers("weight", DType::F16, outputs, inputs);
    first_beyond(&got, [&x, &weights], [inputs, outputs], |x, weights| {
        let (mut sum, mut bound, mut size) = (0.0, 0.0, 0.0);
        for (x, weights) in x.chunks(QUANT_GROUP).zip(weights.chunks(QUANT_GROUP)) {
            let largest = x.iter().fold(0.0f64, |most, x| most.max(f64::from(x.abs())));
            let of_group = reference::dot(x, weights);
            let weight_size: f64 = weights.iter().map(|weight| f64::from(weight.abs())).sum();
            let roundings = (x.len() + 1) as f64;
            bound += roundings * 2f64.powi(-11) * 1.02 * of_group.size
                + (roundings + weight_size) * 2f64.powi(-25) * largest / 2.0;
            (sum, size) = (sum + of_group.sum, size + of_group.size);
        }
        (sum, bound + gamma(inputs.div_ceil(QUANT_GROUP) + 1) * (size + bound))
    })
}

#[test]
fn fp16_keeps_its_bound_in_steps_and_matrices_of_any_rows() {
    let mut random = Random(77);
    for table in tables() {
        for shape in shapes() {
            let wrong = wrong_fp16(table, shape, &mut random);
            assert_eq!(wrong, None, "{}, inputs, outputs and rows {shape:?}", table.name);
        }
    }
    let mut table = portable();
    // Omits the inputs of the last group.
    table.matmul.fp16 = Some(|band, first, x, sums| {
        let mut bytes = band.bytes.to_vec();
        let last = bytes.len() - 6 * LINE;
        bytes[last..].fill(0);
        (portable().matmul.fp16.expect("it is portable"))(Band { bytes: &bytes, ..band }, first, x, sums);
    });
    for rows in [1, 8, 9, 33] {
        assert!(wrong_fp16(&table, [70, 33, rows], &mut random).is_some(), "{rows} rows");
    }
}

/// A weight too large for sums in half precision is refused by name, where such sums are made.
#[test]
fn large_weights_are_refused_by_fp16_sums() {
    let graph = graph(DType::F16, 64, 33, 1);
    for (number, is_refused) in [(500.0, false), (501.0, true), (f32::NEG_INFINITY, true)] {
        let mut source = Source::random(&graph, &mut Random(78));
        let bytes = source.0.get_mut("weight").expect("the graph's weight");
        bytes[2 * 70..][..2].copy_from_slice(&f16::from_f32(number).to_le_bytes());
        let precision = PrecisionRule::Requested(ActivationPrecision::Fp16);
        let cpu = Cpu::with_table(CpuOptions { precision, ..CpuOptions::default() }, portable()).unwrap();
        let error = cpu.load(&graph, &source).err().map(|error| error.to_string());
        assert_eq!(error.is_some(), is_refused, "{number}: {error:?}");
        if let Some(error) = error {
            assert!(error.starts_with(&format!("the weight 'weight' has the number {number}; ")), "{error}");
        }
    }
}

#[test]
fn a_missing_group_is_detected() {
    let mut table = portable();
    // Omits the last group of every matrix if rows are few, and the last third of a tile if they are
    // many.
    table.matmul.narrow = |band, x, sums| {
        let coding = band.layout.coding().expect("it is a layout of integers");
        let less = x.len() - coding.words() * sums.len();
        (portable().matmul.narrow)(band, &x[..less], sums);
    };
    table.matmul.tile = |operands, sums| {
        let kept: Vec<_> = sums[sums.len() - 4..].to_vec();
        (portable().matmul.tile)(operands, sums);
        let less = sums.len() - 4;
        sums[less..].copy_from_slice(&kept);
    };
    for (dtype, rows) in FORMATS.into_iter().flat_map(|dtype| [1, 8, 9, 33].map(|rows| (dtype, rows))) {
        let inputs = dtype.tile().1 * 2;
        assert!(wrong(&table, dtype, [inputs, 33, rows], &mut Random(72)).is_some(), "{dtype}, {rows} rows");
    }
}

/// The results of a step with activations of a precision.
fn results(
    table: &Table,
    precision: ActivationPrecision,
    graph: &Graph,
    source: &Source,
    x: &[f32],
) -> Vec<f32> {
    let options =
        CpuOptions { threads: 2, precision: PrecisionRule::Requested(precision), ..CpuOptions::default() };
    let mut runner = on(Cpu::with_table(options, *table).unwrap(), graph, source, 16);
    step(&mut *runner, Input::Rows(x), &[TestSequence::new(0, 0, graph.key.rows)])
}

/// The nonnegative numbers of a type of floats, by its definition: a significand of `digits` stored bits, and these exponents.
fn numbers_of(digits: i32, exponents: std::ops::RangeInclusive<i32>, largest: f64) -> Vec<f64> {
    let steps = 2i32.pow(digits as u32);
    let subnormal = (0..steps).map(|code| f64::from(code) * 2f64.powi(exponents.start() - digits));
    let normal = exponents.clone().flat_map(|exponent| {
        (steps..2 * steps).map(move |code| f64::from(code) * 2f64.powi(exponent - digits))
    });
    subnormal.chain(normal).filter(|number| *number <= largest).collect()
}

/// Rounds each group to the nearest of these numbers, ties to the even one, under the smallest power of two that makes
/// them large enough.
fn rounded_to(numbers: &[f64], x: &[f32]) -> Vec<f32> {
    let largest = numbers[numbers.len() - 1];
    let mut all = Vec::new();
    for group in x.chunks(QUANT_GROUP) {
        let most = group.iter().fold(0.0f64, |most, x| most.max(f64::from(x.abs())));
        let scale = (-200..).map(|power| 2f64.powi(power)).find(|scale| most <= largest * scale).unwrap();
        all.extend(group.iter().map(|x| {
            let size = f64::from(x.abs()) / scale;
            let above = numbers.partition_point(|number| *number < size);
            let below = above.saturating_sub(1);
            let (down, up) = (size - numbers[below], numbers[above] - size);
            let nearest = if down < up || (down == up && below % 2 == 0) { below } else { above };
            ((numbers[nearest] * scale) as f32).copysign(*x)
        }));
    }
    all
}

/// Results have the bits of rows that were rounded by the definition before, and are not rounded again.
#[test]
fn floats_of_fewer_bits_are_those_of_their_definition() {
    let types = [
        (ActivationPrecision::Fp16, numbers_of(10, -14..=15, 65504.0)),
        (ActivationPrecision::Fp8E4M3, numbers_of(3, -6..=8, 448.0)),
        (ActivationPrecision::Fp8E5M2, numbers_of(2, -14..=15, 57344.0)),
    ];
    let (mut random, table) = (Random(75), &portable());
    for dtype in [DType::Q4_0, DType::Q6_K, DType::BF16, DType::F32] {
        for rows in [1, 13] {
            let graph = graph(dtype, 768, 33, rows);
            let source = Source::random(&graph, &mut random);
            let mut x = random.numbers(rows * 768);
            // Groups of very different sizes.
            x.chunks_mut(QUANT_GROUP).enumerate().for_each(|(at, group)| {
                group.iter_mut().for_each(|x| *x *= 2f32.powi(at as i32 % 40 - 20));
            });
            for (precision, numbers) in &types {
                let got = results(table, *precision, &graph, &source, &x);
                let want =
                    results(table, ActivationPrecision::F32, &graph, &source, &rounded_to(numbers, &x));
                assert!(bits(&got) == bits(&want), "{precision:?} {dtype}, {rows} rows");
            }
        }
    }
}

/// The rounding errors of int8 activations, in single precision.
fn rest(x: &[f32]) -> Vec<f32> {
    let (mut codes, mut scales) = (vec![0; x.len()], vec![0.0; x.len() / QUANT_GROUP]);
    (portable().matmul.quantize)(x, &mut codes, &mut scales, &mut vec![0; x.len() / QUANT_GROUP]);
    let numbers = x.iter().zip(codes).enumerate();
    numbers.map(|(index, (x, code))| x - scales[index / QUANT_GROUP] * f32::from(code)).collect()
}

/// The product with a row of weights, and the bound for two terms: the first leaves half a step of the
/// group's scale, the second at most half a 124th of that, and their difference rounds twice.
fn exact_of_two(dtype: DType, x: &[f32], weights: &[f32], stored: &[u8]) -> (f64, f64) {
    let (mut sum, mut size, mut left) = (0.0, 0.0, 0.0);
    let block = dtype.tile().1;
    for (index, (group, weights)) in x.chunks(QUANT_GROUP).zip(weights.chunks(QUANT_GROUP)).enumerate() {
        let extra = extra(dtype, &stored[index * QUANT_GROUP / block * dtype.block_bytes()..]);
        let largest = group.iter().fold(0.0f64, |most, x| most.max(f64::from(x.abs())));
        for (x, weight) in group.iter().zip(weights) {
            sum += f64::from(*x) * f64::from(*weight);
            size += largest * (f64::from(weight.abs()) + extra);
            left += largest * f64::from(weight.abs());
        }
    }
    (sum, left / (4.0 * 124.0 * 124.0) * 1.01 + gamma(8 + 2 * x.len() / 16) * size)
}

#[test]
fn two_terms_add_up_and_are_more_precise_than_one() {
    let mut random = Random(73);
    for (table, dtype) in tables().iter().flat_map(|table| integer_formats().map(move |dtype| (table, dtype)))
    {
        let (inputs, outputs) = (768, 33);
        for rows in [1, 4, 5, 13] {
            let what = format!("{} {dtype}, {rows} rows", table.name);
            let graph = graph(dtype, inputs, outputs, rows);
            let source = Source::random(&graph, &mut random);
            let x = random.numbers(rows * inputs);
            let [first, second] =
                [&x, &rest(&x)].map(|x| results(table, ActivationPrecision::Int8, &graph, &source, x));
            let got = results(table, ActivationPrecision::Int8x2, &graph, &source, &x);
            let sums = first.iter().zip(&second).map(|(first, second)| first + second);
            assert!(got.iter().map(|y| y.to_bits()).eq(sums.map(f32::to_bits)), "{what}");
            let weights = source.numbers("weight", dtype, outputs, inputs);
            let row_bytes = inputs / dtype.tile().1 * dtype.block_bytes();
            let (mut far, mut near) = (0.0f64, 0.0f64);
            for (index, got) in got.iter().enumerate() {
                let (x, row) = (&x[index / outputs * inputs..][..inputs], index % outputs);
                let stored = &source.0["weight"][row * row_bytes..][..row_bytes];
                let (want, bound) = exact_of_two(dtype, x, &weights[row * inputs..][..inputs], stored);
                let off = (f64::from(*got) - want).abs();
                assert!(off <= bound, "{what}: {got}, not {want} within {bound:e}");
                (near, far) = (near.max(off), far.max((f64::from(first[index]) - want).abs()));
            }
            assert!(far > 50.0 * near, "{what}: off by {near:e}, and by {far:e} with one term");
        }
    }
}

/// The bits of a row's results, with one NaN for all.
fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }).collect()
}

/// A row of infinities, NaN or subnormal numbers does not change the bits of other rows. Its own results
/// are not finite, or, with subnormal numbers, those of zeros.
#[test]
fn odd_rows_in_two_terms_change_no_other_row() {
    const SMALL: [f32; 3] = [1e-39, -1e-42, f32::from_bits(1)];
    const INFINITE: f32 = f32::INFINITY;
    let all = [&SMALL[..], &[INFINITE, f32::NAN, -INFINITE]].concat();
    let kinds = [&SMALL[..], &[INFINITE], &[-INFINITE], &[f32::NAN], &all];
    let (inputs, outputs, mut random) = (768, 33, Random(75));
    for (table, dtype) in tables().iter().flat_map(|table| integer_formats().map(move |dtype| (table, dtype)))
    {
        let source = Source::random(&graph(dtype, inputs, outputs, 1), &mut random);
        let run = |x: &[f32]| {
            let graph = graph(dtype, inputs, outputs, x.len() / inputs);
            bits(&results(table, ActivationPrecision::Int8x2, &graph, &source, x))
        };
        // With few columns, and with a tile.
        for (rows, kind) in [4, 7].into_iter().flat_map(|rows| kinds.map(|kind| (rows, kind))) {
            let mut x = random.numbers(rows * inputs);
            let odd = below(rows, &mut random);
            let row = &mut x[odd * inputs..][..inputs];
            // In every third group: one value, or all.
            let whole = kind.iter().all(|x| x.is_finite());
            for (group, odd) in row.chunks_exact_mut(QUANT_GROUP).step_by(3).zip(kind.iter().cycle()) {
                if whole {
                    group.fill(*odd);
                }
                group[below(QUANT_GROUP, &mut random)] = *odd;
            }
            let what = format!("{} {dtype}, row {odd} of {rows} with {kind:?}", table.name);
            let got = run(&x);
            for (row, (x, got)) in x.chunks_exact(inputs).zip(got.chunks_exact(outputs)).enumerate() {
                assert!(run(x) == got, "{what}: row {row} has other bits alone");
                let numbers = got.iter().filter(|bits| f32::from_bits(**bits).is_finite()).count();
                let some = row != odd || whole;
                assert_eq!(numbers, if some { outputs } else { 0 }, "{what}: numbers in row {row}");
            }
            if whole {
                let zeros: Vec<f32> = x.iter().map(|&x| if x.is_subnormal() { 0.0 } else { x }).collect();
                assert!(run(&zeros) == got, "{what}: they count as zeros");
            }
        }
    }
}

/// The sum of two matmuls of one input, with integers and with floats.
fn mixed(rows: usize, floats: DType) -> Graph {
    const OUTPUTS: usize = 41 * BAND - 5;
    let mut builder = Builder::new(key(rows, 64));
    let x = builder.input("x", &[64], DType::F32);
    let [integers, floats] = [("integers", DType::Q4_0), ("floats", floats)].map(|(name, dtype)| {
        let weight = builder.weight(&format!("{name}.weight"), Shape::matrix(OUTPUTS, 64), dtype);
        builder.shaped(name, Op::Linear, &[x, weight], &[OUTPUTS])
    });
    let sum = builder.same("sum", Op::Add, &[integers, floats]);
    finish(builder, sum)
}

/// One of the two may have twice as many columns of activations as the other, so that one uses the
/// kernel for few columns and the other that for many. A row's results have the bits that it has alone,
/// for any cut.
#[test]
fn matrices_of_integers_and_floats_share_a_task() {
    const ROWS: usize = 9;
    for floats in [DType::F16, DType::BF16] {
        let mut random = Random(74);
        let source = Source::random(&mixed(ROWS, floats), &mut random);
        let x = random.numbers(ROWS * 64);
        let precisions = [
            PrecisionRule::Fixed,
            PrecisionRule::Bf16Products { processor: "" },
            PrecisionRule::Requested(ActivationPrecision::F32),
            PrecisionRule::Requested(ActivationPrecision::Bf16),
            PrecisionRule::Requested(ActivationPrecision::Int8x2),
            PrecisionRule::Requested(ActivationPrecision::Fp16),
            PrecisionRule::Requested(ActivationPrecision::Fp8E4M3),
        ];
        for (table, precision) in tables().iter().flat_map(|table| precisions.map(|it| (*table, it))) {
            let results = |threads: usize, x: &[f32]| {
                let options = CpuOptions { threads, precision, ..CpuOptions::default() };
                let graph = mixed(x.len() / 64, floats);
                let mut runner = on(Cpu::with_table(options, table).unwrap(), &graph, &source, 16);
                step(&mut *runner, Input::Rows(x), &[TestSequence::new(0, 0, graph.key.rows)])
            };
            let want = bits(&x.chunks_exact(64).flat_map(|x| results(1, x)).collect::<Vec<_>>());
            for (threads, rows) in
                [1, 2, 3].into_iter().flat_map(|threads| [4, 5, 8, 9].map(|rows| (threads, rows)))
            {
                let got = bits(&results(threads, &x[..rows * 64]));
                let what = format!("{}, {precision:?}, {threads} threads, {rows} rows", table.name);
                assert!(got == want[..got.len()], "{what}");
            }
        }
    }
}
