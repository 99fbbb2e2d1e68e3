//! Compares the entries with plain loops.

use girih_tensor::{DType, Random};

use super::entry::{round, unpack};
use super::*;

fn values(n: usize, seed: u64) -> Vec<f32> {
    Random(seed).numbers(n).into_iter().map(round).collect()
}

fn pack(dtype: DType, values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; values.len() * dtype.block_bytes()];
    dtype.pack(values, &mut bytes);
    bytes
}

/// Reorders a row-major matrix to a layout in memory.
fn lay(layout: &[Axis], columns: usize, matrix: &[f32]) -> Vec<f32> {
    walk(layout).map(|(row, column)| matrix[row * columns + column]).collect()
}

/// Reorders memory in a layout to a row-major matrix.
fn unlay(layout: &[Axis], columns: usize, memory: &[f32]) -> Vec<f32> {
    let mut matrix = vec![f32::NAN; memory.len()];
    walk(layout).zip(memory).for_each(|((row, column), value)| matrix[row * columns + column] = *value);
    matrix
}

/// Row and column of each element, in memory order.
fn walk(layout: &[Axis]) -> impl Iterator<Item = (usize, usize)> + '_ {
    let count: u32 = layout.iter().map(|axis| axis.extent).product();
    (0..count).map(|mut at| {
        let (mut row, mut column) = (0, 0);
        for axis in layout.iter().rev() {
            let step = at % axis.extent;
            at /= axis.extent;
            row += step * axis.rows;
            column += step * axis.columns;
        }
        (row as usize, column as usize)
    })
}

fn call(name: &str, params: &[u32], reads: &[Vec<u8>], writes: &mut [Vec<u8>]) {
    let entry = entry(name).unwrap();
    entry.check(params).unwrap();
    let reads: Vec<&[u8]> = reads.iter().map(Vec::as_slice).collect();
    let lengths: Vec<u64> = entry.bytes(params);
    let given = reads.iter().map(|bytes| bytes.len()).chain(writes.iter().map(Vec::len));
    let mut sorted: Vec<u64> = given.map(|length| length as u64).collect();
    let mut expected = lengths;
    sorted.sort_unstable();
    expected.sort_unstable();
    assert_eq!(sorted, expected, "{name}");
    let mut writes: Vec<&mut [u8]> = writes.iter_mut().map(Vec::as_mut_slice).collect();
    entry.compute(params, &mut KernelValues { reads: &reads, writes: &mut writes });
}

#[test]
fn names_are_unique_and_found() {
    for entry in ENTRIES {
        assert_eq!(super::entry(entry.name).unwrap().name, entry.name);
        assert_eq!(ENTRIES.iter().filter(|other| other.name == entry.name).count(), 1);
    }
    assert!(entry("gemm").is_none());
}

#[test]
fn wrong_parameters_are_refused_by_name() {
    let gemm = entry("gemm_bf16").unwrap();
    for (params, part) in [
        (&[4, 8][..], "2 parameters given, 3 needed"),
        (&[4, 8, 0], "k is 0"),
        (&[6, 8, 8], "m is 6: it must be a multiple of 4"),
        (&[4, 8, 12], "k is 12: it must be a multiple of 8"),
        (&[u32::MAX, 8, 8], "m is 4294967295"),
    ] {
        assert!(gemm.check(params).unwrap_err().to_string().contains(part), "{params:?}");
    }
    assert!(entry("attend").unwrap().check(&[1, 1, 1, 1, 1, 0, 0, 2, 0, 0]).is_err());
    assert!(entry("rope_halves").unwrap().check(&[1, 1, 3]).is_err());
    assert!(entry("rms_norm").unwrap().check(&[1, 8, 9, 0]).is_err());
}

#[test]
fn a_matmul_continues_its_sums_in_ascending_order() {
    let [m, n, k] = [8usize, 16, 24];
    let (a, b, c) = (values(m * k, 1), values(n * k, 2), values(m * n, 3));
    let params = [m as u32, n as u32, k as u32];
    let entry = entry("gemm_bf16").unwrap();
    let layouts: Vec<Vec<Axis>> = entry.operands.iter().map(|operand| (operand.layout)(&params)).collect();
    let reads = [pack(DType::BF16, &lay(&layouts[0], k, &a)), pack(DType::BF16, &lay(&layouts[1], k, &b))];
    let mut writes = [pack(DType::F32, &lay(&layouts[2], n, &c))];
    call("gemm_bf16", &params, &reads, &mut writes);
    let got = unlay(&layouts[2], n, &unpack(DType::F32, &writes[0]));
    for row in 0..m {
        for column in 0..n {
            let mut sum = c[row * n + column];
            for step in 0..k {
                sum += a[row * k + step] * b[column * k + step];
            }
            assert_eq!(got[row * n + column].to_bits(), sum.to_bits(), "{row},{column}");
        }
    }
}

#[test]
fn an_int8_matmul_wraps() {
    let params = [4, 8, 8];
    let reads = [vec![0x80; 32], vec![0x80; 64]];
    let mut writes = [pack_i32(&[i32::MAX; 32])];
    call("gemm_int8", &params, &reads, &mut writes);
    assert_eq!(writes[0], pack_i32(&[i32::MAX.wrapping_add(8 * 128 * 128); 32]));
}

/// Sums that leave the range of the stored type saturate; others are exact, and continue `c`.
#[test]
fn an_int8_matmul_with_short_results_saturates() {
    let params = [4, 8, 8];
    // Each sum is 8 * a * b: of 1 and 1 it is 8, of 100 and 100 it is 80000, of -100 and 100 -80000.
    let product = |name: &str, a: i8, b: i8, c: Vec<u8>| {
        let reads = [vec![a.cast_unsigned(); 32], vec![b.cast_unsigned(); 64]];
        let mut writes = [c];
        call(name, &params, &reads, &mut writes);
        writes[0].clone()
    };
    let i8s = |value: i8| vec![value.cast_unsigned(); 32];
    let i16s = |value: i16| value.to_le_bytes().repeat(32);
    assert_eq!(product("gemm_int8_i8", 1, 1, i8s(-10)), i8s(-2));
    assert_eq!(product("gemm_int8_i8", 100, 100, i8s(0)), i8s(127));
    assert_eq!(product("gemm_int8_i8", -100, 100, i8s(0)), i8s(-128));
    assert_eq!(product("gemm_int8_i16", 10, 10, i16s(-1000)), i16s(-200));
    assert_eq!(product("gemm_int8_i16", 100, 100, i16s(0)), i16s(i16::MAX));
    assert_eq!(product("gemm_int8_i16", -100, 100, i16s(5)), i16s(i16::MIN));
}

fn pack_i32(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[test]
fn low_precision_rounds_its_sums_and_bfp16_its_operands() {
    let params = [4, 8, 8];
    let (a, b) = (values(32, 5), values(64, 6));
    let reads = [pack(DType::BF16, &a), pack(DType::BF16, &b)];
    let mut low = [pack(DType::BF16, &[0.0; 32])];
    call("gemm_bf16_low", &params, &reads, &mut low);
    let mut full = [pack(DType::F32, &[0.0; 32])];
    call("gemm_bf16", &params, &reads, &mut full);
    assert_eq!(low[0], pack(DType::BF16, &unpack(DType::F32, &full[0])));
    let mut blocks = [pack(DType::F32, &[0.0; 32])];
    call("gemm_bfp16", &params, &reads, &mut blocks);
    for ((got, exact), row) in
        unpack(DType::F32, &blocks[0]).iter().zip(unpack(DType::F32, &full[0])).zip(0..)
    {
        // An operand changes by at most 2^-7 of the largest in its block, which is below 1.
        let bound = 8.0 * (2.0 / 128.0 + 1.0 / 16384.0);
        assert!((got - exact).abs() <= bound, "{row}: {got} {exact}");
    }
}

#[test]
fn bfp16_shares_the_largest_exponent() {
    let mut block = [1.0, 0.5, 1.0 / 64.0, 1.0 / 128.0, 3.0 / 128.0, 0.0, -1.0, -1.984375];
    bfp16_quantize(&mut block);
    // Ties go to the even mantissa: 1/128 to 0, 3/128 to 2/64.
    assert_eq!(block, [1.0, 0.5, 1.0 / 64.0, 0.0, 2.0 / 64.0, 0.0, -1.0, -1.984375]);
    let mut bumped = [1.996_093_8, 1.0 / 64.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
    bfp16_quantize(&mut bumped);
    assert_eq!(bumped, [2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], "127.75 raises the exponent");
    let mut tiny = [f32::MIN_POSITIVE / 2.0; 8];
    bfp16_quantize(&mut tiny);
    assert_eq!(tiny, [0.0; 8], "subnormals flush");
}

#[test]
fn a_matrix_vector_product_is_a_dot_product_per_row() {
    let [m, k] = [3usize, 100];
    let (w, x) = (values(m * k, 7), values(k, 8));
    let mut writes = [vec![0; m * 2]];
    call("gemv_bf16", &[3, 100], &[pack(DType::BF16, &w), pack(DType::BF16, &x)], &mut writes);
    for (row, got) in w.chunks_exact(k).zip(unpack(DType::BF16, &writes[0])) {
        let exact = girih_tensor::reference::dot(row, &x);
        let bound = exact.bound(k) + exact.sum.abs() / 256.0;
        assert!((f64::from(got) - exact.sum).abs() <= bound);
    }
}

/// Random tiles of Q4NX, and their weights as the kernels define them, row by row: unpacked with
/// plain arithmetic on the stored bytes and rounded to bf16.
fn tiles_of(rows: usize, k: usize, seed: u64) -> (Vec<u8>, Vec<f32>) {
    let numbers: Vec<f32> = values(rows * k, seed).iter().map(|value| value * 0.3 + 0.01).collect();
    let bytes = DType::Q4NX.pack_matrix(rows, k, &numbers).unwrap();
    let bf16 = |bytes: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16);
    let weight = |row: usize, column: usize| {
        let tile = &bytes[(row / 32 * (k / 256) + column / 256) * 5120..][..5120];
        let (row, column) = (row % 32, column % 256);
        let byte = tile[1024 + row / 16 * 2048 + column * 8 + row % 16 / 2];
        let q = if row % 2 == 0 { byte & 15 } else { byte >> 4 };
        let at = 2 * (column / 32 * 32 + row);
        let (d, m) = (bf16(&tile[at..]), bf16(&tile[512 + at..]));
        round(d * f32::from(q) + m)
    };
    let weights = (0..rows * k).map(|at| weight(at / k, at % k)).collect();
    (bytes, weights)
}

/// The slow twin of both products: one sum per row, term by term.
fn in_order(weights: &[f32], x: &[f32], from: f32) -> u32 {
    weights.iter().zip(x).fold(from, |sum, (w, x)| sum + w * x).to_bits()
}

#[test]
fn a_product_with_q4nx_weights_sums_in_the_order_of_the_matrix_unit() {
    let [n, m, k] = [64usize, 4, 512];
    let (tiles, weights) = tiles_of(n, k, 14);
    let x = values(m * k, 15);
    let params = [m as u32, n as u32, k as u32];
    let layouts: Vec<Vec<Axis>> =
        entry("gemm_bf16").unwrap().operands.iter().map(|operand| (operand.layout)(&params)).collect();
    let reads =
        [pack(DType::BF16, &lay(&layouts[0], k, &x)), pack(DType::BF16, &lay(&layouts[1], k, &weights))];
    let mut many = [pack(DType::F32, &vec![0.25; m * n])];
    call("gemm_bf16", &params, &reads, &mut many);
    let many = unlay(&layouts[2], n, &unpack(DType::F32, &many[0]));
    for (x, many) in x.chunks_exact(k).zip(many.chunks_exact(n)) {
        let mut alone = [pack(DType::F32, &[0.25; 64])];
        call("gemv_q4nx", &[64, 512], &[tiles.clone(), pack(DType::BF16, x)], &mut alone);
        for ((alone, many), row) in
            unpack(DType::F32, &alone[0]).iter().zip(many).zip(weights.chunks_exact(k))
        {
            assert_eq!(alone.to_bits(), in_order(row, x, 0.25), "the twin");
            assert_eq!(alone.to_bits(), many.to_bits(), "the row among others");
        }
    }
    assert!(entry("gemv_q4nx").unwrap().check(&[16, 256]).is_err());
    assert!(entry("gemv_q4nx").unwrap().check(&[32, 128]).is_err());
}

#[test]
fn parts_of_a_product_with_q4nx_weights_continue_its_sums() {
    let (tiles, _) = tiles_of(32, 512, 16);
    let x = pack(DType::BF16, &values(512, 17));
    let mut whole = [pack(DType::F32, &[0.0; 32])];
    call("gemv_q4nx", &[32, 512], &[tiles.clone(), x.clone()], &mut whole);
    let mut parts = [pack(DType::F32, &[0.0; 32])];
    for (tile, x) in tiles.chunks_exact(5120).zip(x.chunks_exact(512)) {
        call("gemv_q4nx", &[32, 256], &[tile.to_vec(), x.to_vec()], &mut parts);
    }
    assert_eq!(whole, parts);
}

#[test]
fn unpacked_groups_hold_the_weights_of_the_product() {
    let (tile, weights) = tiles_of(32, 256, 18);
    for (first, groups) in [(0, 8), (3, 1), (4, 4)] {
        let mut y = [vec![0; groups as usize * 2048]];
        let y = ["dequant_q4nx", "unpack_q4nx"].map(|name| {
            call(name, &[first, groups], std::slice::from_ref(&tile), &mut y);
            let layout = (entry(name).unwrap().operands[1].layout)(&[first, groups]);
            unlay(&layout, groups as usize * 32, &unpack(DType::BF16, &y[0]))
        });
        for (row, weights) in weights.chunks_exact(256).enumerate() {
            let weights = &weights[first as usize * 32..][..groups as usize * 32];
            let found = |y: &[f32]| y[row * weights.len()..][..weights.len()] == *weights;
            assert!(found(&y[0]) && found(&y[1]), "row {row}");
        }
    }
    assert!(entry("dequant_q4nx").unwrap().check(&[4, 5]).is_err());
}

#[test]
fn a_norm_averages_over_its_width() {
    let x: Vec<f32> = [3.0, 4.0].into_iter().chain([0.0; 14]).collect();
    let reads = [pack(DType::BF16, &x), pack(DType::BF16, &[2.0; 16])];
    let mut writes = [vec![0; 32]];
    call("rms_norm", &[1, 16, 2, 0], &reads, &mut writes);
    let scale = 2.0 / 12.5f32.sqrt();
    let y = unpack(DType::BF16, &writes[0]);
    assert_eq!((y[0], y[1], y[2]), (round(3.0 * scale), round(4.0 * scale), 0.0));
    let reads = [reads[0].clone(), reads[1].clone(), pack(DType::BF16, &[1.0; 16])];
    call("layer_norm", &[1, 16, 2, 0], &reads, &mut writes);
    assert_eq!(unpack(DType::BF16, &writes[0])[..3], [-1.0, 3.0, 0.0]);
}

#[test]
fn rotations_pair_the_right_components() {
    let x = pack(DType::BF16, &[1.0, 2.0, 3.0, 4.0]);
    let table = pack(DType::BF16, &[0.0, 1.0, 1.0, 0.0]); // cosines 0 and 1, sines 1 and 0
    let mut y = [vec![0; 8]];
    call("rope_halves", &[1, 1, 4], &[x.clone(), table.clone()], &mut y);
    assert_eq!(unpack(DType::BF16, &y[0]), [-3.0, 2.0, 1.0, 4.0]);
    call("rope_neighbours", &[1, 1, 4], &[x, table], &mut y);
    assert_eq!(unpack(DType::BF16, &y[0]), [-2.0, 1.0, 3.0, 4.0]);
}

#[test]
fn elements_are_rounded_once() {
    let (a, b) = (values(32, 9), values(32, 10));
    let reads = [pack(DType::BF16, &a), pack(DType::BF16, &b)];
    type Case = (&'static str, fn(f32, f32) -> f32);
    let cases: [Case; 2] = [("add", |a, b| a + b), ("silu_mul", |a, b| a / (1.0 + (-a).exp()) * b)];
    for (name, f) in cases {
        let mut y = [vec![0; 64]];
        call(name, &[32], &reads, &mut y);
        let want: Vec<f32> = a.iter().zip(&b).map(|(a, b)| round(f(*a, *b))).collect();
        assert_eq!(unpack(DType::BF16, &y[0]), want, "{name}");
    }
    let mut y = [vec![0; 64]];
    call("gelu_mul", &[32], &[pack(DType::BF16, &[1.0; 32]), pack(DType::BF16, &[1.0; 32])], &mut y);
    assert_eq!(unpack(DType::BF16, &y[0])[0], round(0.841_192));
    call("store_bf16", &[32], &[pack(DType::F32, &[1.0 + 1.0 / 256.0; 32])], &mut y);
    assert_eq!(unpack(DType::BF16, &y[0])[0], 1.0, "a tie goes to even");
}

/// The attention of all rows over all keys, in f64.
fn attention(q: &[f32], k: &[f32], v: &[f32], size: usize, seen: impl Fn(usize, usize) -> bool) -> Vec<f64> {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
    let mut all = Vec::new();
    for (row, q) in q.chunks_exact(size).enumerate() {
        let mut scores: Vec<f64> = (k.chunks_exact(size).enumerate())
            .map(|(key, k)| if seen(row, key) { dot(q, k) / 4.0 } else { f64::NEG_INFINITY })
            .collect();
        girih_tensor::reference::softmax(&mut scores);
        for column in 0..size {
            let terms =
                scores.iter().enumerate().map(|(key, weight)| weight * f64::from(v[key * size + column]));
            all.push(terms.sum());
        }
    }
    all
}

/// The words of a start for attention that is causal, or has mutual spans.
fn start_words(row: i32, key: i32, spans: &[i32]) -> Vec<u8> {
    let mut words = [&[row, key], spans].concat();
    words.resize(if spans.is_empty() { 2 } else { 16 }, 0);
    pack_i32(&words)
}

#[test]
fn chunks_and_stages_of_attention_combine_to_the_whole() {
    let [rows, size, keys] = [4usize, 8, 8];
    let (q, k, v) = (values(rows * size, 11), values(2 * keys * size, 12), values(2 * keys * size, 13));
    let state = [rows as u32, size as u32];
    let bytes = rows * (size + 2) * 4;
    let pass = |chunk: usize, spans: &[i32], window: u32, state: &mut [Vec<u8>]| {
        let part = |x: &[f32]| pack(DType::BF16, &x[chunk * keys * size..][..keys * size]);
        let causal = u32::from(spans.is_empty());
        let reads = [pack(DType::BF16, &q), part(&k), part(&v), start_words(109, 100, spans)];
        let key = (chunk * keys) as u32;
        let numbers = [4, 8, 8, 8, 2, 1, key, causal, window, 0.25f32.to_bits()];
        call("attend", &numbers, &reads, state);
    };
    type Case = (&'static [i32], u32, fn(usize, usize) -> bool);
    // Rows 0 and 1 are at position 110, rows 2 and 3 at 111; the first key is at 100.
    let cases: [Case; 6] = [
        (&[100, 116], 0, |_, _| true),
        (&[], 0, |row, key| key <= 10 + row / 2),
        (&[], 3, |row, key| key <= 10 + row / 2 && key + 3 > 10 + row / 2),
        (&[102, 110, 110, 111, 111, 114], 0, |row, key| key < [11, 14][row / 2]),
        (&[111, 115], 2, |row, key| (9 + row / 2..[11, 15][row / 2]).contains(&key)),
        (&[104, 113], 2, |_, key| (4..13).contains(&key)),
    ];
    for (spans, window, seen) in cases {
        let mut one = [vec![0; bytes]];
        call("attend_clear", &state, &[], &mut one);
        let mut two = one.clone();
        pass(0, spans, window, &mut one);
        pass(1, spans, window, &mut two);
        let [other] = two;
        call("attend_merge", &state, &[other], &mut one);
        let mut y = [vec![0; rows * size * 2]];
        let [one] = one;
        call("attend_store", &state, &[one], &mut y);
        let want = attention(&q, &k, &v, size, seen);
        for (got, want) in unpack(DType::BF16, &y[0]).iter().zip(want) {
            // Weights and result are rounded to bf16, values are at most 1.
            assert!((f64::from(*got) - want).abs() <= 3.0 / 256.0, "{spans:?} {window}: {got} {want}");
        }
    }
}

/// The scores and the values of each chunk in calls of their own, as in a pair of cores.
#[test]
fn scores_and_values_apart_give_the_bits_of_attention() {
    let [rows, size, keys, chunks] = [6usize, 8, 8, 3];
    let (q, k, v) =
        (values(rows * size, 14), values(chunks * keys * size, 15), values(chunks * keys * size, 16));
    let shape = [rows as u32, size as u32];
    // No row sees the first chunk if the window is 3, and only some rows all of the others.
    let spans: &[i32] = &[0, 24];
    for (spans, window, start) in [(spans, 0, 0), (&[], 0, 9), (&[], 3, 17), (&[], 0, 2), (&[3, 20], 4, 17)] {
        let mut whole = [vec![0; rows * (size + 2) * 4]];
        call("attend_clear", &shape, &[], &mut whole);
        let mut apart = whole.clone();
        let mut weights = [vec![0; rows * (keys + 3) * 4]];
        call("attend_clear", &[shape[0], keys as u32 + 1], &[], &mut weights);
        for chunk in 0..chunks {
            let part = |x: &[f32]| pack(DType::BF16, &x[chunk * keys * size..][..keys * size]);
            let (q, k, v, start) = (pack(DType::BF16, &q), part(&k), part(&v), start_words(start, 0, spans));
            let sight = [2, 1, (chunk * keys) as u32, u32::from(spans.is_empty()), window, 0.25f32.to_bits()];
            let numbers = [&[6, 8, 8, 8], &sight[..]].concat();
            call("attend", &numbers, &[q.clone(), k.clone(), v.clone(), start.clone()], &mut whole);
            call("attend_scores", &[&[6, 8, 8], &sight[..]].concat(), &[q, k, start], &mut weights);
            call("attend_values", &[6, 8, 8], &[v, weights[0].clone()], &mut apart);
            assert_eq!(whole, apart, "{spans:?} {window}, chunk {chunk}");
        }
    }
}

#[test]
fn a_row_that_sees_no_key_yields_zeros() {
    let mut state = [vec![0; 2 * 10 * 4]];
    call("attend_clear", &[2, 8], &[], &mut state);
    let [state] = state;
    let mut y = [vec![1; 32]];
    call("attend_store", &[2, 8], &[state], &mut y);
    assert_eq!(unpack(DType::BF16, &y[0]), [0.0; 16]);
}

/// All upper halves, with lower halves around the tie; NaN and infinities
/// included.
#[test]
fn rounding_equals_packing_as_bf16() {
    for upper in 0..=u16::MAX {
        for lower in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
            let value = f32::from_bits(u32::from(upper) << 16 | lower);
            let mut bytes = [0; 2];
            DType::BF16.pack(&[value], &mut bytes);
            let mut packed = [0.0];
            DType::BF16.unpack(&bytes, &mut packed);
            assert_eq!(round(value).to_bits(), packed[0].to_bits(), "{:#x}", value.to_bits());
        }
    }
}
