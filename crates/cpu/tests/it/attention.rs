//! Test cases of attention, with the error bounds of their results.

use girih_cpu::kernels::{Table, tables};
use girih_graph::backend::{Input, Range32};
use girih_graph::{Builder, Graph, Op, Span};
use girih_tensor::{DType, Shape, reference};

use crate::case::{Case, TestInput, finish};
use crate::fixture::{Random, Source, TestSequence, U, cpu_with, gamma, key, on, step};

/// The sizes and constants of one case.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    /// Query heads, and KV heads.
    heads: usize,
    kv_heads: usize,
    /// Values in a key and in a value.
    size: usize,
    value_size: usize,
    scale: f32,
    span: Span,
    softcap: Option<f32>,
    dtype: DType,
    /// Whether heads have sinks: 0 for the first head, and more for each of the others.
    has_sinks: bool,
}

impl Sizes {
    /// The sink of a head.
    fn sink(&self, head: usize) -> Option<f32> {
        self.has_sinks.then_some(1.75 * head as f32)
    }

    /// Values in a row of queries, of keys and of values.
    fn parts(&self) -> [usize; 3] {
        [self.heads * self.size, self.kv_heads * self.size, self.kv_heads * self.value_size]
    }

    fn width(&self) -> usize {
        self.parts().iter().sum()
    }
}

/// A graph whose input has a row's query, key and value side by side. Matrices of zeros and ones split
/// them, which is exact.
fn graph(sizes: Sizes, rows: usize) -> (Graph, Source) {
    let mut builder = Builder::new(key(rows, 1024));
    let x = builder.input("x", &[sizes.width()], DType::F32);
    let mut source = Source::default();
    let shapes =
        [[sizes.heads, sizes.size], [sizes.kv_heads, sizes.size], [sizes.kv_heads, sizes.value_size]];
    let mut left = 0;
    let [q, k, v] = ["q", "k", "v"].map(|name| {
        let shape = shapes[["q", "k", "v"].iter().position(|&other| other == name).unwrap()];
        let outputs = shape[0] * shape[1];
        let mut matrix = vec![0.0; outputs * sizes.width()];
        (0..outputs).for_each(|row| matrix[row * sizes.width() + left + row] = 1.0);
        left += outputs;
        let pick = format!("{name}.weight");
        source.0.insert(pick.clone(), DType::I8.pack_matrix(outputs, sizes.width(), &matrix).unwrap());
        let weight = builder.weight(&pick, Shape::matrix(outputs, sizes.width()), DType::I8);
        let flat = builder.shaped(&format!("{name}.flat"), Op::Linear, &[x, weight], &[outputs]);
        builder.shaped(name, Op::Reshape, &[flat], &shape)
    });
    let [keys, values] = if sizes.span == Span::All {
        [k, v]
    } else {
        let group = builder.group(sizes.span);
        let keys = builder.state("keys", &shapes[1], sizes.dtype, group);
        let values = builder.state("values", &shapes[2], sizes.dtype, group);
        builder.write(k, keys);
        builder.write(v, values);
        [keys, values]
    };
    let Sizes { scale, span, softcap, .. } = sizes;
    let op = Op::Attend { scale, span, softcap };
    let mut operands = vec![q, keys, values];
    if sizes.has_sinks {
        let sinks: Vec<f32> = (0..sizes.heads).filter_map(|head| sizes.sink(head)).collect();
        source.0.insert("sinks".into(), DType::F32.pack_matrix(1, sizes.heads, &sinks).unwrap());
        operands.push(builder.weight("sinks", Shape::vector(sizes.heads), DType::F32));
    }
    let y = builder.shaped("y", op, &operands, &[sizes.heads, sizes.value_size]);
    (finish(builder, y), source)
}

/// Numbers after rounding to the state's type.
fn kept(numbers: &[f32], dtype: DType) -> Vec<f32> {
    let mut bytes = vec![0; numbers.len() / dtype.tile().1 * dtype.block_bytes()];
    dtype.pack(numbers, &mut bytes);
    let mut kept = vec![0.0; numbers.len()];
    dtype.unpack(&bytes, &mut kept);
    kept
}

/// The largest allowed difference of one head of one row from the interpreter.
///
/// A score has an error of gamma(size + 3) of its terms: products, sums, and the roundings of the constant
/// and of the query that it is multiplied by. A cap adds 2 u of its tanh from the power, 3 u from a sum, a
/// difference and a quotient, and 2 u from its own product: 8 u with the terms of second order. The
/// exponential turns that into a relative error of a weight. To it are added the roundings of its distance
/// from the largest score and of the exponential (at most 2 ulp, that is 4 u), and the same again for each
/// chunk to whose scale it is brought. The error of the largest score itself cancels. Sums of weights and
/// of weighted values then have an error of gamma of their terms, relative to the sum of sizes; the result
/// is their quotient. A weight below 2^-125 counts as zero. A sink is a score with one rounding, that of its unit,
/// and takes part in the sum of weights only.
fn bounds(sizes: Sizes, head: usize, q: &[f32], keys: &[&[f32]], values: &[&[f32]]) -> Vec<f64> {
    let mut worst: f64 = 0.0;
    let scores = keys.iter().map(|key| {
        let exact = reference::dot(q, key);
        let scale = f64::from(sizes.scale);
        let error = gamma(sizes.size + 4) * scale.abs() * exact.size;
        let capped = sizes.softcap.map(f64::from);
        worst = worst.max(error + capped.unwrap_or(0.0) * 8.0 * U);
        capped.map_or(scale * exact.sum, |cap| cap * (scale * exact.sum / cap).tanh())
    });
    let mut weights: Vec<f64> = scores.collect();
    if let Some(sink) = sizes.sink(head) {
        weights.push(f64::from(sink));
        worst = worst.max(2.0 * U * f64::from(sink.abs()));
    }
    let (least, most) = weights.iter().fold((f64::MAX, f64::MIN), |(a, b), &s| (a.min(s), b.max(s)));
    let reach = most - least + 2.0 * worst;
    reference::softmax(&mut weights);
    // One chunk more than the positions fill, as windows begin anywhere.
    let chunks = (keys.len() / 256 + 2) as f64;
    let weight = worst + U * reach + 4.0 * U + chunks * (U * reach + 5.0 * U);
    // For numerator and denominator; a tenth more for products of errors.
    let relative = 1.1 * 2.0 * (weight + gamma(keys.len() + chunks as usize + 2));
    let sizes_of =
        |column: usize| weights.iter().zip(values).map(move |(w, v)| w * f64::from(v[column].abs()));
    let none =
        |column: usize| values.iter().map(|v| 2f64.powi(-125) * f64::from(v[column].abs())).sum::<f64>();
    (0..sizes.value_size).map(|column| relative * sizes_of(column).sum::<f64>() + none(column)).collect()
}

fn case(sizes: Sizes, sequences: Vec<TestSequence>, random: &mut Random) -> Case {
    let rows: u32 = sequences.iter().map(|sequence| sequence.rows).sum();
    let (graph, source) = graph(sizes, rows as usize);
    let embeddings = random.numbers(rows as usize * sizes.width());
    let [q_part, k_part, _] = sizes.parts();
    let rows: Vec<&[f32]> = embeddings.chunks_exact(sizes.width()).collect();
    // Heads are whole blocks, so no block of Q8_0 spans two heads.
    let stored: Vec<Vec<f32>> = rows.iter().map(|row| kept(&row[q_part..], sizes.dtype)).collect();
    let mut all = Vec::new();
    let mut first = 0;
    for sequence in &sequences {
        for row in 0..sequence.rows as usize {
            let mutual = sequence.spans.iter().map(|span| span.indexes()).find(|span| span.contains(&row));
            let seen = match sizes.span {
                Span::All => 0..sequence.rows as usize,
                span => span.first(row)..mutual.map_or(row + 1, |span| span.end),
            };
            for head in 0..sizes.heads {
                let q = &rows[first + row][head * sizes.size..][..sizes.size];
                let group = head / (sizes.heads / sizes.kv_heads);
                let (key, value) = (group * sizes.size, k_part + group * sizes.value_size);
                let stored = &stored[first..];
                let keys: Vec<_> = seen.clone().map(|at| &stored[at][key..key + sizes.size]).collect();
                let values: Vec<_> =
                    seen.clone().map(|at| &stored[at][value..value + sizes.value_size]).collect();
                all.extend(bounds(sizes, head, q, &keys, &values));
            }
        }
        first += sequence.rows as usize;
    }
    let name = format!("attend {sizes:?} of {sequences:?}");
    Case { name, graph, source, inputs: vec![TestInput::Rows(embeddings)], sequences, bounds: all }
}

/// Sequences from their beginning; results of later steps are the same, as `invariance` tests.
pub fn cases(random: &mut Random) -> Vec<Case> {
    let plain = Sizes {
        heads: 4,
        kv_heads: 2,
        size: 9,
        value_size: 6,
        scale: 0.35,
        span: Span::Full,
        softcap: None,
        dtype: DType::F32,
        has_sinks: false,
    };
    let many = Sizes { heads: 1, kv_heads: 1, size: 4, value_size: 5, ..plain };
    let window = Span::Window(70);
    let sequences =
        || vec![TestSequence::new(0, 0, 5), TestSequence::new(2, 0, 1), TestSequence::new(4, 0, 21)];
    let image = |at: u32| TestSequence {
        spans: vec![Range32 { start: at, end: at + 9 }, Range32 { start: at + 9, end: at + 11 }],
        ..TestSequence::new(0, 0, at + 20)
    };
    let (quantized, wide) = (DType::Q8_0, Sizes { size: 32, value_size: 64, ..plain });
    let mut all = vec![
        case(plain, sequences(), random),
        case(Sizes { dtype: DType::F16, ..plain }, sequences(), random),
        case(Sizes { dtype: DType::BF16, softcap: Some(0.5), ..plain }, sequences(), random),
        case(Sizes { dtype: quantized, softcap: Some(0.5), ..wide }, sequences(), random),
        case(Sizes { dtype: quantized, ..wide }, vec![TestSequence::new(0, 0, 330)], random),
        case(Sizes { span: Span::Window(3), ..plain }, sequences(), random),
        case(Sizes { span: Span::Chunk(4), ..plain }, sequences(), random),
        case(Sizes { span: Span::Chunk(100), ..many }, vec![TestSequence::new(0, 0, 330)], random),
        case(Sizes { has_sinks: true, ..plain }, sequences(), random),
        case(Sizes { has_sinks: true, softcap: Some(0.5), dtype: quantized, ..wide }, sequences(), random),
        case(Sizes { has_sinks: true, span: window, ..plain }, vec![TestSequence::new(0, 0, 300)], random),
        case(Sizes { heads: 3, kv_heads: 3, scale: 20.0, ..plain }, sequences(), random),
        case(Sizes { scale: 20.0, ..many }, vec![TestSequence::new(0, 0, 600)], random),
        // Scores so far apart that all weights but one are zero.
        case(Sizes { scale: 2000.0, ..many }, vec![TestSequence::new(0, 0, 300)], random),
        // Equal scores.
        case(Sizes { scale: 0.0, ..many }, vec![TestSequence::new(0, 0, 300)], random),
        case(Sizes { span: window, dtype: DType::F16, ..many }, vec![TestSequence::new(3, 0, 400)], random),
        case(plain, vec![image(5), TestSequence::new(8, 0, 3)], random),
        case(Sizes { span: Span::Window(4), ..plain }, vec![image(7)], random),
        case(many, vec![image(250)], random),
    ];
    // Rows of the step, without state.
    let rows_of = |lengths: &[u32]| lengths.iter().map(|length| TestSequence::new(0, 0, *length)).collect();
    let bert = Sizes { heads: 2, kv_heads: 2, size: 12, value_size: 12, span: Span::All, ..plain };
    all.extend([
        case(bert, rows_of(&[1, 64, 65, 3, 63, 2, 1]), random),
        case(Sizes { size: 64, value_size: 64, scale: 0.125, ..bert }, rows_of(&[70, 300]), random),
        case(Sizes { scale: 20.0, size: 5, value_size: 7, ..bert }, rows_of(&[512]), random),
        case(Sizes { heads: 6, softcap: Some(0.5), ..bert }, rows_of(&[257, 255]), random),
    ]);
    for (index, size) in [1, 5, 16, 31, 48, 64, 80, 96, 128, 256].into_iter().enumerate() {
        let dtype = [DType::F32, DType::F16, DType::BF16][index % 3];
        let sizes = Sizes { size, value_size: size, heads: 2, kv_heads: 1, dtype, ..plain };
        all.push(case(sizes, vec![TestSequence::new(0, 0, 70)], random));
    }
    for shared in 1..=9 {
        let dtype = [DType::F16, DType::BF16, quantized][shared % 3];
        let sizes = Sizes { size: 32, value_size: 32, heads: 2 * shared, kv_heads: 2, dtype, ..plain };
        all.push(case(sizes, vec![TestSequence::new(0, 0, 40)], random));
    }
    all
}

/// A long context is cut by chunks in steps of few rows, and by rows in steps of many; windows begin
/// within a chunk.
#[test]
fn few_rows_and_many_yield_equal_bits() {
    const LENGTH: usize = 900;
    let mut random = Random(9);
    let plain = Sizes {
        heads: 6,
        kv_heads: 2,
        size: 32,
        value_size: 32,
        scale: 0.3,
        span: Span::Full,
        softcap: None,
        dtype: DType::F16,
        has_sinks: false,
    };
    let variants = [
        plain,
        Sizes { dtype: DType::Q8_0, ..plain },
        Sizes { has_sinks: true, ..plain },
        Sizes { span: Span::Chunk(300), has_sinks: true, ..plain },
        Sizes { dtype: DType::F32, heads: 1, kv_heads: 1, size: 5, value_size: 7, ..plain },
        Sizes { span: Span::Window(300), dtype: DType::BF16, softcap: Some(1.0), ..plain },
    ];
    for sizes in variants {
        let (graph, source) = graph(sizes, LENGTH);
        let embeddings = random.numbers(LENGTH * sizes.width());
        let run = |table: Table, cuts: &[usize], threads: usize| -> Vec<u32> {
            let mut runner = on(cpu_with(table, threads), &graph, &source, 16);
            let mut last = Vec::new();
            for cut in cuts.windows(2) {
                let part = &embeddings[cut[0] * sizes.width()..cut[1] * sizes.width()];
                let sequence = TestSequence::new(0, cut[0] as u32, (cut[1] - cut[0]) as u32);
                last.extend(step(&mut *runner, Input::Rows(part), &[sequence]));
            }
            let last = &last[last.len() - 20 * sizes.heads * sizes.value_size..];
            last.iter().map(|x| x.to_bits()).collect()
        };
        let fused = tables().iter().find(|table| table.name != "portable");
        for table in tables() {
            let want = run(*table, &[0, LENGTH], 1);
            for threads in 1..=3 {
                let cuts = [0, 880, 881, 882, 884, 887, 891, 898, 899, LENGTH];
                assert!(run(*table, &cuts, threads) == want, "{}, {sizes:?}", table.name);
            }
            if let Some(fused) = fused.filter(|_| table.name != "portable") {
                assert!(run(*fused, &[0, LENGTH], 2) == want, "{} and {}", table.name, fused.name);
            }
        }
    }
}
