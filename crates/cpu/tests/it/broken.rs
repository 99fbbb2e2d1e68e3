//! Kernels with one typical fault each: a missing last column, the scale of a neighbouring lane, a sum that
//! saturates, a wrong sign, a loop that starts or ends at the wrong index. The checks of
//! [`paths`](crate::paths) must detect each of them.

use std::ops::Range;

use girih_cpu::kernels::attend::{
    AttendKernels, Cells, ChunkWeights, Format, KEY_TILE, ValueBlock, WIDTHS, WeighKernel,
};
use girih_cpu::kernels::packed::{
    BAND, Band, DEPTH, FloatKernel, GROUP, LANES, LINE, Layout, MatmulKernels, MatmulTileOperands,
    PanelGroup, Panels, QuantizeRow, SignedPanels, Sums, TileKernel,
};
use girih_cpu::kernels::{Table, tables};
use girih_graph::BLOCK_POSITIONS;

use crate::fixture::{Random, changed, portable};
use crate::path::{KernelPath, Memory, Operands, Tally};
use crate::paths::paths;
use crate::rows;

/// Cases of each path: enough to detect every fault of this file.
const CASES: usize = 25;

/// Returns the fault that the check of a path finds in a table.
fn fault(table: &Table, path: &KernelPath) -> Option<String> {
    let mut operands = Operands { random: Random(51), memory: Memory::Plain };
    let mut tally = Tally::default();
    (0..CASES).for_each(|_| {
        if tally.fault.is_none() {
            (path.check)(table, &mut operands, &mut tally);
        }
    });
    tally.fault
}

/// Returns each path of a kernel and the fault that its check finds in a table.
fn faults(table: &Table, kernel: &str) -> Vec<(String, Option<String>)> {
    let paths = paths(table).into_iter().filter(|path| path.name.starts_with(kernel));
    paths.map(|path| (path.name.clone(), fault(table, &path))).collect()
}

/// Asserts that every path of a kernel detects each of its wrong twins.
fn assert_detected(kernel: &str, wrong: &[(&str, Table)]) {
    assert!(
        faults(&portable(), kernel).iter().all(|(_, fault)| fault.is_none()),
        "the portable '{kernel}' has a fault"
    );
    for (what, table) in wrong {
        let faults = faults(table, kernel);
        assert!(!faults.is_empty(), "'{kernel}' has no path");
        for (path, fault) in faults {
            assert!(fault.is_some(), "path '{path}' does not detect that {what}");
        }
    }
}

fn right() -> MatmulKernels {
    portable().matmul
}

fn narrowing(narrow: fn(Band<'_>, &[u32], &mut [Sums])) -> Table {
    changed(|table| table.matmul.narrow = narrow)
}

fn decoding(decode: fn(Band<'_>, usize, usize, &mut Panels)) -> Table {
    changed(|table| table.matmul.decode = decode)
}

fn tiling(tile: TileKernel) -> Table {
    changed(|table| table.matmul.tile = tile)
}

fn floating(floats: FloatKernel) -> Table {
    changed(|table| table.matmul.floats = floats)
}

fn with_bf16(bf16: FloatKernel) -> Table {
    changed(|table| table.matmul.bf16 = bf16)
}

fn with_fp16(fp16: FloatKernel) -> Table {
    changed(|table| table.matmul.fp16 = Some(fp16))
}

fn quantizing(quantize: QuantizeRow) -> Table {
    changed(|table| table.matmul.quantize = quantize)
}

fn attending(attend: AttendKernels) -> Table {
    changed(|table| table.attend = attend)
}

fn without_last_column(kernel: FloatKernel, band: Band<'_>, first: usize, x: &[u32], sums: &mut [Sums]) {
    let (last, kept) = (sums.len() - 1, sums[sums.len() - 1]);
    kernel(band, first, x, sums);
    sums[last] = kept;
}

fn from_zero(kernel: FloatKernel, band: Band<'_>, first: usize, x: &[u32], sums: &mut [Sums]) {
    sums.fill([0.0; BAND]);
    kernel(band, first, x, sums);
}

/// Computes what `narrow` does by decoding panels and calling a kernel for panels.
fn narrow_by(tile: TileKernel, band: Band<'_>, x: &[u32], sums: &mut [Sums]) {
    let coding = band.layout.coding().expect("it is a layout of integers");
    let words = coding.words() * sums.len();
    let mut panels = [[PanelGroup::ZERO; DEPTH]; 2];
    for (index, x) in x.chunks(DEPTH * words).enumerate() {
        (right().decode)(band, index * DEPTH, x.len() / words, &mut panels);
        let groups = x.len() / words;
        tile(MatmulTileOperands { coding, panels: &panels, signed: None, groups, x, next: &[] }, sums);
    }
}

/// Multiplies panels after `change` was applied to each group.
fn with_groups(change: impl Fn(&mut PanelGroup), operands: MatmulTileOperands<'_>, sums: &mut [Sums]) {
    let mut panels = *operands.panels;
    panels.as_flattened_mut().iter_mut().for_each(change);
    (right().tile)(MatmulTileOperands { panels: &panels, ..operands }, sums);
}

fn neighbours_scale(operands: MatmulTileOperands<'_>, sums: &mut [Sums]) {
    with_groups(|group| group.scales[0].swap(6, 7), operands, sums);
}

fn minimums_added(operands: MatmulTileOperands<'_>, sums: &mut [Sums]) {
    let negate = |group: &mut PanelGroup| group.minimums.as_flattened_mut().iter_mut().for_each(|m| *m = -*m);
    with_groups(negate, operands, sums);
}

fn one_scale_for_both_halves(operands: MatmulTileOperands<'_>, sums: &mut [Sums]) {
    with_groups(|group| group.scales[1] = group.scales[0], operands, sums);
}

fn codes_of_seven_bits(operands: MatmulTileOperands<'_>, sums: &mut [Sums]) {
    let cut = |group: &mut PanelGroup| group.codes.as_flattened_mut().iter_mut().for_each(|c| *c &= 0x7f);
    with_groups(cut, operands, sums);
}

fn last_column_missing(operands: MatmulTileOperands<'_>, sums: &mut [Sums]) {
    let last = sums.len() - 1;
    let kept = sums[last];
    (right().tile)(operands, sums);
    sums[last] = kept;
}

fn first_group_skipped(operands: MatmulTileOperands<'_>, sums: &mut [Sums]) {
    let MatmulTileOperands { coding, groups, x, .. } = operands;
    let (mut without, x) = (*operands.panels, &x[coding.words() * sums.len()..]);
    without.iter_mut().for_each(|panel| panel.rotate_left(1));
    (right().tile)(MatmulTileOperands { panels: &without, groups: groups - 1, x, ..operands }, sums);
}

fn last_group_skipped(operands: MatmulTileOperands<'_>, sums: &mut [Sums]) {
    (right().tile)(MatmulTileOperands { groups: operands.groups - 1, ..operands }, sums);
}

fn one_group_more(operands: MatmulTileOperands<'_>, sums: &mut [Sums]) {
    let MatmulTileOperands { coding, groups, x, .. } = operands;
    let words = coding.words() * sums.len();
    let again = [x, &x[x.len() - words..]].concat();
    let mut panels = *operands.panels;
    panels.iter_mut().filter(|_| groups < DEPTH).for_each(|panel| panel[groups] = panel[groups - 1]);
    (right().tile)(
        MatmulTileOperands { panels: &panels, groups: DEPTH.min(groups + 1), x: &again, ..operands },
        sums,
    );
}

/// Adds two products in 16 bits with saturation, as `vpmaddubsw` does.
fn saturating(operands: MatmulTileOperands<'_>, sums: &mut [Sums]) {
    (right().tile)(operands, sums);
    let MatmulTileOperands { coding, panels, groups, x, .. } = operands;
    let columns = sums.len();
    for (group, x) in x.chunks_exact(coding.words() * columns).take(groups).enumerate() {
        for (column, row) in (0..columns).flat_map(|column| (0..BAND).map(move |row| (column, row))) {
            let panel = &panels[row / LANES][group];
            for line in 0..GROUP / 4 {
                let codes = &panel.codes[line][row % LANES * 4..][..4];
                let x = x[line * columns + column].to_le_bytes();
                for pair in [0, 2] {
                    let product = |at: usize| i32::from(codes[at]) * i32::from(x[at] as i8);
                    let sum = product(pair) + product(pair + 1);
                    let lost = sum - sum.clamp(i32::from(i16::MIN), i32::from(i16::MAX));
                    let part = line * coding.sums() / (GROUP / 4);
                    sums[column][row] -= lost as f32 * panel.scales[part][row % LANES];
                }
            }
        }
    }
}

/// Makes signed numbers of codes, with sizes of at most 127: that of −128 is one too small.
fn sizes_of_seven_bits(panels: &Panels, groups: usize, signed: &mut SignedPanels) {
    for (panel, signed) in panels.iter().zip(signed) {
        for (group, signed) in panel[..groups].iter().zip(signed) {
            for (line, [codes, sizes]) in group.codes.iter().zip(&mut signed.lines) {
                *codes = line.map(|code| code ^ 0x80);
                *sizes = codes.map(|code| (code as i8).unsigned_abs().min(127));
            }
        }
    }
}

/// The first multiplication of the check reads no signed numbers, so it is the second one that detects them.
#[test]
fn wrong_signed_codes_are_detected() {
    for table in tables().iter().filter(|table| table.matmul.sign.is_some()) {
        let mut wrong = *table;
        wrong.matmul.sign = Some(sizes_of_seven_bits);
        assert_detected("tile Q8_0", &[("the size of −128 is 127", wrong)]);
    }
}

#[test]
fn wrong_tiles_are_detected() {
    assert_detected(
        "tile",
        &[
            ("the last column is missing", tiling(last_column_missing)),
            ("the scales of two lanes are swapped", tiling(neighbours_scale)),
            ("the first group is skipped", tiling(first_group_skipped)),
            ("the last group is skipped", tiling(last_group_skipped)),
            ("one group is added twice", tiling(one_group_more)),
        ],
    );
    assert_detected(
        "tile Q8_0",
        &[("sums saturate", tiling(saturating)), ("codes lose their last bit", tiling(codes_of_seven_bits))],
    );
    assert_detected("tile Q4K", &[("minimums are added", tiling(minimums_added))]);
    assert_detected("tile Q6K", &[("the second scale equals the first", tiling(one_scale_for_both_halves))]);
}

#[test]
fn wrong_matmuls_of_few_columns_are_detected() {
    assert_detected(
        "narrow",
        &[
            ("the last column is missing", narrowing(|b, x, s| narrow_by(last_column_missing, b, x, s))),
            (
                "the scales of two lanes are swapped",
                narrowing(|b, x, s| narrow_by(neighbours_scale, b, x, s)),
            ),
            ("the first group is skipped", narrowing(|b, x, s| narrow_by(first_group_skipped, b, x, s))),
            ("the last group is skipped", narrowing(|b, x, s| narrow_by(last_group_skipped, b, x, s))),
            ("one group is added twice", narrowing(|b, x, s| narrow_by(one_group_more, b, x, s))),
            (
                "the previous contents are lost",
                narrowing(|band, x, sums| {
                    sums.fill([0.0; BAND]);
                    (right().narrow)(band, x, sums);
                }),
            ),
        ],
    );
    let saturates = narrowing(|b, x, s| narrow_by(saturating, b, x, s));
    assert_detected("narrow Q8_0", &[("sums saturate", saturates)]);
    let minimums = narrowing(|b, x, s| narrow_by(minimums_added, b, x, s));
    assert_detected("narrow Q4K", &[("minimums are added", minimums)]);
    let halves = narrowing(|b, x, s| narrow_by(one_scale_for_both_halves, b, x, s));
    assert_detected("narrow Q6K", &[("the second scale equals the first", halves)]);
}

#[test]
fn wrong_panels_are_detected() {
    assert_detected(
        "decode",
        &[
            (
                "one bit is wrong",
                decoding(|band, first, count, panels| {
                    (right().decode)(band, first, count, panels);
                    panels[1][count.saturating_sub(1)].codes[7][63] ^= 1;
                }),
            ),
            (
                "the last group is missing",
                decoding(|band, first, count, panels| {
                    (right().decode)(band, first, count.saturating_sub(1), panels);
                }),
            ),
            (
                "decoding starts at the unit's first group",
                decoding(|band, first, count, panels| {
                    let each = band.layout.unit().0 / GROUP;
                    let first = if each > 1 { first / each * each } else { first.saturating_sub(1) };
                    (right().decode)(band, first, count, panels);
                }),
            ),
            (
                "the halves of a band are swapped",
                decoding(|band, first, count, panels| {
                    (right().decode)(band, first, count, panels);
                    panels.swap(0, 1);
                }),
            ),
        ],
    );
    let scale = decoding(|band, first, count, panels| {
        (right().decode)(band, first, count, panels);
        panels[0][0].scales[1][15] = panels[0][0].scales[0][15];
    });
    assert_detected("decode Q6K", &[("the second scale of a lane is its first", scale)]);
}

#[test]
fn wrong_float_matmuls_are_detected() {
    assert_detected(
        "floats",
        &[
            (
                "the last input is missing",
                floating(|band, first, x, sums| {
                    (right().floats)(Band { columns: band.columns - 1, ..band }, first, x, sums);
                }),
            ),
            (
                "the first input is always the band's first",
                floating(|b, _, x, sums| (right().floats)(b, 0, x, sums)),
            ),
            (
                "the last column is missing",
                floating(|band, first, x, sums| without_last_column(right().floats, band, first, x, sums)),
            ),
            (
                "sums begin at zero",
                floating(|band, first, x, sums| from_zero(right().floats, band, first, x, sums)),
            ),
        ],
    );
    let swapped = floating(|band, first, x, sums| {
        let mut bytes = band.bytes.to_vec();
        let pair = |bytes: &mut [u8]| bytes.chunks_exact_mut(4).for_each(|lane| lane.rotate_left(2));
        if band.layout == Layout::Bf16 {
            pair(&mut bytes);
        }
        (right().floats)(Band { bytes: &bytes, ..band }, first, x, sums);
    });
    assert_detected("floats Bf16", &[("the columns of a pair are swapped", swapped)]);
}

#[test]
fn wrong_bf16_matmuls_are_detected() {
    assert_detected(
        "bf16",
        &[
            (
                "the last pair is missing",
                with_bf16(|band, first, x, sums| {
                    (right().bf16)(band, first, &x[..x.len() - sums.len()], sums);
                }),
            ),
            (
                "the first input is always the band's first",
                with_bf16(|b, _, x, sums| (right().bf16)(b, 0, x, sums)),
            ),
            (
                "the last column is missing",
                with_bf16(|band, first, x, sums| without_last_column(right().bf16, band, first, x, sums)),
            ),
            (
                "sums begin at zero",
                with_bf16(|band, first, x, sums| from_zero(right().bf16, band, first, x, sums)),
            ),
            (
                "the inputs of a pair are swapped",
                with_bf16(|band, first, x, sums| {
                    let x: Vec<u32> = x.iter().map(|word| word.rotate_left(16)).collect();
                    (right().bf16)(band, first, &x, sums);
                }),
            ),
            (
                "the lower input of each pair is ignored",
                with_bf16(|band, first, x, sums| {
                    let x: Vec<u32> = x.iter().map(|word| word & 0xffff_0000).collect();
                    (right().bf16)(band, first, &x, sums);
                }),
            ),
        ],
    );
}

fn right_fp16(band: Band<'_>, first: usize, x: &[u32], sums: &mut [Sums]) {
    right().fp16.expect("the portable table has the kernel")(band, first, x, sums);
}

#[test]
fn wrong_fp16_matmuls_are_detected() {
    assert_detected(
        "fp16",
        &[
            (
                "the last group is missing",
                with_fp16(|band, first, x, sums| {
                    right_fp16(band, first, &x[..x.len() - (GROUP + 1) * sums.len()], sums);
                }),
            ),
            (
                "the last input is missing",
                with_fp16(|band, first, x, sums| {
                    let bytes = &band.bytes[..band.bytes.len() - LINE];
                    right_fp16(Band { bytes, ..band }, first, x, sums);
                }),
            ),
            (
                "the first input is always the band's first",
                with_fp16(|band, _, x, sums| right_fp16(band, 0, x, sums)),
            ),
            (
                "the last column is missing",
                with_fp16(|band, first, x, sums| without_last_column(right_fp16, band, first, x, sums)),
            ),
            (
                "sums begin at zero",
                with_fp16(|band, first, x, sums| from_zero(right_fp16, band, first, x, sums)),
            ),
            (
                "scales are all one",
                with_fp16(|band, first, x, sums| {
                    let mut x = x.to_vec();
                    for words in x.chunks_exact_mut((GROUP + 1) * sums.len()) {
                        words[GROUP * sums.len()..].fill(1f32.to_bits());
                    }
                    right_fp16(band, first, &x, sums);
                }),
            ),
        ],
    );
}

fn keys_of(cells: Cells<'_>) -> Vec<u8> {
    match cells {
        Cells::Stored(_, bytes) => bytes.to_vec(),
        Cells::Decoded(values) => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
    }
}

fn without_last_dim(q: &[f32], keys: Cells<'_>, next: &[u8], scores: &mut [ChunkWeights], at: usize) {
    let last = q.len() - scores.len();
    let q = [&q[..last], &vec![0.0; scores.len()]].concat();
    (portable().attend.score)(&q, keys, next, scores, at);
}

fn queries_in_the_wrong_order(
    q: &[f32],
    keys: Cells<'_>,
    next: &[u8],
    scores: &mut [ChunkWeights],
    at: usize,
) {
    (portable().attend.score)(q, keys, next, scores, at);
    scores.reverse();
}

fn without_last_position_of_tile(
    q: &[f32],
    keys: Cells<'_>,
    next: &[u8],
    scores: &mut [ChunkWeights],
    at: usize,
) {
    (portable().attend.score)(q, keys, next, scores, at);
    scores.iter_mut().for_each(|scores| scores[at + 31] = 0.0);
}

fn without_last_position_of_second_tile(
    q: &[f32],
    keys: Cells<'_>,
    next: &[u8],
    scores: &mut [ChunkWeights],
    at: usize,
) {
    (portable().attend.score)(q, keys, next, scores, at);
    let format = if let Cells::Stored(format, _) = keys { format } else { Format::F32 };
    if keys_of(keys).len() > format.bytes(KEY_TILE, q.len() / scores.len()) {
        scores.iter_mut().for_each(|scores| scores[at + KEY_TILE + 31] = 0.0);
    }
}

fn scales_of_the_first_group(
    q: &[f32],
    keys: Cells<'_>,
    next: &[u8],
    scores: &mut [ChunkWeights],
    at: usize,
) {
    let mut bytes = keys_of(keys);
    if let Cells::Stored(format @ (Format::Q8_0 | Format::Q4_0), _) = keys {
        let first = bytes[..64].to_vec();
        let groups = bytes.chunks_exact_mut(format.bytes(KEY_TILE, 32));
        groups.for_each(|group| group[..64].copy_from_slice(&first));
        (portable().attend.score)(q, Cells::Stored(format, &bytes), next, scores, at);
    } else {
        (portable().attend.score)(q, keys, next, scores, at);
    }
}

fn shortened(
    weights: &[ChunkWeights],
    at: usize,
    values: ValueBlock<'_>,
    sums: &mut [f32],
    [first, last]: [usize; 2],
) {
    let Range { start, end } = values.positions;
    (portable().attend.blend)(
        weights,
        at,
        ValueBlock { positions: start + first..end - last, ..values },
        sums,
    );
}

#[test]
fn wrong_attention_is_detected() {
    let attend = portable().attend;
    assert_detected(
        "score",
        &[
            ("the last dim is missing", attending(AttendKernels { score: without_last_dim, ..attend })),
            (
                "the last position is missing",
                attending(AttendKernels { score: without_last_position_of_tile, ..attend }),
            ),
            (
                "the last position of the second tile is missing",
                attending(AttendKernels { score: without_last_position_of_second_tile, ..attend }),
            ),
        ],
    );
    let scales = attending(AttendKernels { score: scales_of_the_first_group, ..attend });
    for width in WIDTHS.into_iter().filter(|&width| width > 1) {
        let order = attending(AttendKernels { score: queries_in_the_wrong_order, ..attend });
        assert_detected(&format!("score F16 x{width}"), &[("queries are in the wrong order", order)]);
    }
    for format in ["Q8_0", "Q4_0"] {
        assert_detected(&format!("score {format}"), &[("all scales are the first group's", scales)]);
    }
    assert_detected(
        "blend",
        &[
            (
                "the first position is skipped",
                attending(AttendKernels { blend: |w, at, v, s| shortened(w, at, v, s, [1, 0]), ..attend }),
            ),
            (
                "the last position is skipped",
                attending(AttendKernels { blend: |w, at, v, s| shortened(w, at, v, s, [0, 1]), ..attend }),
            ),
            (
                "the weights of another block are used",
                attending(AttendKernels {
                    blend: |w, at, v, s| {
                        let at = if at == 0 { BLOCK_POSITIONS } else { 0 };
                        (portable().attend.blend)(w, at, v, s);
                    },
                    ..attend
                }),
            ),
            (
                "the last column is missing",
                attending(AttendKernels {
                    blend: |w, at, v, s| {
                        let kept = s[s.len() - 1];
                        (portable().attend.blend)(w, at, v, s);
                        *s.last_mut().expect("there are sums") = kept;
                    },
                    ..attend
                }),
            ),
        ],
    );
}

fn weighing(weigh: WeighKernel) -> Table {
    attending(AttendKernels { weigh, ..portable().attend })
}

#[test]
fn wrong_weights_and_joins_are_detected() {
    let attend = portable().attend;
    assert_detected(
        "weigh",
        &[
            (
                "the sum is a little too large",
                weighing(|scores, seen, cap, ends| {
                    (portable().attend.weigh)(scores, seen, cap, ends);
                    ends.iter_mut().for_each(|[_, sum]| *sum *= 1.000_1);
                }),
            ),
            (
                "the last weight is not in the sum",
                weighing(|scores, seen, cap, ends| {
                    let last = seen.end - 1;
                    (portable().attend.weigh)(scores, seen, cap, ends);
                    scores.iter().zip(ends).for_each(|(weights, [_, sum])| *sum -= weights[last]);
                }),
            ),
            (
                "weights are powers of e",
                weighing(|scores, seen, cap, ends| {
                    (portable().attend.weigh)(scores, seen.clone(), cap, ends);
                    let weights = scores.iter_mut().flat_map(|scores| &mut scores[seen.clone()]);
                    weights.for_each(|weight| *weight = weight.powf(std::f32::consts::LOG2_E));
                }),
            ),
        ],
    );
    let uncapped = weighing(|scores, seen, _, ends| (portable().attend.weigh)(scores, seen, None, ends));
    assert_detected("weigh, cap Some", &[("the cap is ignored", uncapped)]);
    assert_detected(
        "join",
        &[
            ("nothing is joined", attending(AttendKernels { join: |_, _, _, _| {}, ..attend })),
            (
                "the partial sum is not scaled",
                attending(AttendKernels {
                    join: |running, result, [_, sum], sums| {
                        (portable().attend.join)(running, result, [running[0], sum], sums);
                    },
                    ..attend
                }),
            ),
            (
                "the last vector is missing",
                attending(AttendKernels {
                    join: |running, result, partial, sums| {
                        let less = result.len() - 16;
                        (portable().attend.join)(running, &mut result[..less], partial, &sums[..less]);
                    },
                    ..attend
                }),
            ),
        ],
    );
}

#[test]
fn wrong_decoding_of_state_is_detected() {
    let attend = portable().attend;
    let keys = attending(AttendKernels {
        widen_keys: |format, tile, next, into| {
            (portable().attend.widen_keys)(format, tile, next, into);
            into.swap(30, 31);
        },
        ..attend
    });
    assert_detected("widen_keys", &[("two positions are swapped", keys)]);
    let values = attending(AttendKernels {
        widen_values: |mut values, into| {
            values.positions.end -= 1;
            (portable().attend.widen_values)(values, into);
        },
        ..attend
    });
    assert_detected("widen_values", &[("the last position is missing", values)]);
    let halves = attending(AttendKernels {
        halve: |values, bytes| {
            // Rounds towards zero: one less where the kernel rounded up.
            (portable().attend.halve)(values, bytes);
            for (value, bytes) in values.iter().zip(bytes.as_chunks_mut().0) {
                let half = half::f16::from_le_bytes(*bytes);
                if half.to_f32().abs() > value.abs() {
                    *bytes = (half.to_bits() - 1).to_le_bytes();
                }
            }
        },
        ..attend
    });
    assert_detected("halve", &[("values are truncated", halves)]);
}

#[test]
fn wrong_codes_are_detected() {
    let quantize = quantizing(|x, codes, scales, sums| {
        (right().quantize)(x, codes, scales, sums);
        codes.iter_mut().filter(|code| **code == 127).for_each(|code| *code = 126);
    });
    assert_detected("quantize", &[("the largest code is 126", quantize)]);
}

/// Quantizes groups of normal numbers correctly, with the number of levels for which `left` is smallest.
/// `left` gets the squared rounding errors in steps of the scale, and the number of levels.
fn quantize_by(
    left: fn(&[f32], f32) -> f32,
    x: &[f32],
    codes: &mut [i8],
    scales: &mut [f32],
    sums: &mut [i32],
) {
    (right().quantize)(x, codes, scales, sums);
    let groups = x.chunks_exact(GROUP).zip(codes.chunks_exact_mut(GROUP)).zip(scales.iter_mut().zip(sums));
    for ((x, codes), (scale, sum)) in groups.filter(|(_, (scale, _))| **scale > 0.0 && scale.is_finite()) {
        let largest = x.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        let left = |levels: f32| {
            let scaled = x.iter().map(|x| x * (levels / largest));
            let squares: Vec<f32> = scaled.map(|x| (x - x.round_ties_even()).powi(2)).collect();
            left(&squares, levels)
        };
        let lefts = [127.0, 126.0, 125.0, 124.0].map(|levels| (left(levels), levels));
        // The first of equal ones.
        let (_, levels) = lefts.into_iter().reduce(|a, b| if b.0 < a.0 { b } else { a }).expect("four");
        codes
            .iter_mut()
            .zip(x)
            .for_each(|(code, x)| *code = (x * (levels / largest)).round_ties_even() as i8);
        (*scale, *sum) = (largest / levels, codes.iter().map(|&code| i32::from(code)).sum());
    }
}

/// Converts a squared error from steps of `levels` levels to steps of 127.
fn weight(levels: f32) -> f32 {
    127.0 * 127.0 / (levels * levels)
}

/// Adds halves, then quarters and so on, as the lanes of a vector are added.
fn by_halves(squares: &[f32], levels: f32) -> f32 {
    let mut sums = squares.to_vec();
    while sums.len() > 1 {
        let rest = sums.split_off(sums.len() / 2);
        sums.iter_mut().zip(rest).for_each(|(sum, more)| *sum += more);
    }
    sums[0] * weight(levels)
}

/// Adds one after another.
fn sequentially(squares: &[f32], levels: f32) -> f32 {
    squares.iter().fold(0.0, |sum, square| sum + square) * weight(levels)
}

#[test]
fn wrong_levels_are_detected() {
    let halves = quantizing(|x, c, s, n| quantize_by(by_halves, x, c, s, n));
    let sequential = quantizing(|x, c, s, n| quantize_by(sequentially, x, c, s, n));
    let always_127 = quantizing(|x, c, s, n| quantize_by(|_, levels| -levels, x, c, s, n));
    assert!(
        faults(&halves, "quantize").iter().all(|(_, fault)| fault.is_none()),
        "pairwise sums have no fault"
    );
    let wrong = [("levels are always 127", always_127), ("squares are added one after another", sequential)];
    assert_detected("quantize", &wrong);
    // Another order of additions is within the bound; only the comparison of bits detects it.
    let rows = rows::rows(&mut Random(6));
    assert!(
        rows.iter().all(|row| rows::wrong_code(&sequential, row, Memory::Plain).is_none()),
        "within the bound"
    );
    assert!(
        rows.iter().any(|row| rows::unequal_codes(&sequential, row, Memory::Plain).is_some()),
        "different bits"
    );
}
