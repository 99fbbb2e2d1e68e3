//! All paths through the kernels, which the tests of outputs, guard pages and broken kernels share; and the
//! paths of matmuls.

use girih_cpu::kernels::packed::{
    BAND, Band, DEPTH, FloatKernel, GROUP, Layout, MatmulTileOperands, NARROW, PanelGroup, Sums, TILE,
};
use girih_cpu::kernels::prefetch::PrefetchChoice;
use girih_cpu::kernels::{QUANT_GROUP, Table};

use crate::bands::{
    self, CODES, INPUTS, IntegerBand, IntegerInputs, SCALES, below, bf16_dot_product, bf16_words, coding,
    decoded, float_band, float_dot_product, fp16_band, fp16_dot_product, fp16_words, mostly_first,
};
use crate::fixture::Random;
use crate::path::{KernelPath, Memory, Operands, Tally};
use crate::rows::{edge, unequal_codes, wrong_code};

/// Every path of every kernel of a table.
pub fn paths(table: &Table) -> Vec<KernelPath> {
    let mut paths = matmuls();
    paths.extend(table.matmul.fp16.into_iter().flat_map(fp16_paths));
    paths.extend(crate::attend_paths::paths());
    paths.push(KernelPath::new("quantize".into(), quantize));
    paths
}

/// The paths of the kernels for packed weights.
fn matmuls() -> Vec<KernelPath> {
    let mut paths = Vec::new();
    for layout in bands::integer_layouts() {
        for columns in 1..=NARROW {
            paths.push(KernelPath::new(
                format!("narrow {layout:?} x{columns}"),
                move |table, operands, tally| {
                    narrow(table, layout, columns, operands, tally);
                },
            ));
        }
        paths.push(KernelPath::new(format!("decode {layout:?}"), move |table, operands, tally| {
            decode(table, layout, operands, tally);
        }));
        for columns in [TILE / 3, 2 * TILE / 3, TILE] {
            paths.push(KernelPath::new(
                format!("tile {layout:?} x{columns}"),
                move |table, operands, tally| {
                    tile(table, layout, columns, operands, tally);
                },
            ));
        }
    }
    for layout in [Layout::Bf16, Layout::F16, Layout::F32] {
        for columns in (1..=NARROW).chain([TILE]) {
            paths.push(KernelPath::new(
                format!("floats {layout:?} x{columns}"),
                move |table, operands, tally| {
                    floats(table, layout, columns, operands, tally);
                },
            ));
        }
    }
    for columns in (1..=NARROW).chain([TILE]) {
        paths.push(KernelPath::new(format!("bf16 x{columns}"), move |table, operands, tally| {
            bf16(table, columns, operands, tally);
        }));
    }
    paths
}

/// The paths of a kernel with sums in half precision.
fn fp16_paths(kernel: FloatKernel) -> impl Iterator<Item = KernelPath> {
    (1..=NARROW).chain([TILE]).map(move |columns| {
        KernelPath::new(format!("fp16 x{columns}"), move |_, operands, tally| {
            fp16(kernel, columns, operands, tally);
        })
    })
}

/// A random band: up to 20 groups, or up to three units of eight groups.
fn random_band(layout: Layout, random: &mut Random) -> IntegerBand {
    let each = layout.unit().0 / GROUP;
    let groups = if each == 1 { 1 + below(20, random) } else { each * (1 + below(3, random)) };
    let (codes, scales) = (mostly_first(&CODES, random), mostly_first(&SCALES, random));
    IntegerBand::random(layout, groups, codes, scales, random)
}

fn narrow(table: &Table, layout: Layout, columns: usize, operands: &mut Operands, tally: &mut Tally) {
    let band = random_band(layout, operands);
    let kind = mostly_first(&INPUTS, operands);
    let x = IntegerInputs::random(coding(layout), band.groups, columns, kind, operands);
    check_narrow(table, &band, &x, operands.memory, tally);
}

/// Checks `narrow` on a whole band.
pub fn check_narrow(table: &Table, band: &IntegerBand, x: &IntegerInputs, memory: Memory, tally: &mut Tally) {
    let (bytes, words) = (memory.place(&band.bytes), memory.place(&x.words));
    let start = random_sums(x.columns, &mut Random(x.columns as u64));
    let mut sums = memory.place(&start);
    (table.matmul.narrow)(Band { bytes: &bytes, ..band.band() }, &words, &mut sums);
    record_sums(band, 0, x, &sums, |column, row| start[column][row], tally);
}

fn record_sums(
    band: &IntegerBand,
    first: usize,
    x: &IntegerInputs,
    sums: &[Sums],
    start: impl Fn(usize, usize) -> f32,
    tally: &mut Tally,
) {
    for (column, sums) in sums.iter().enumerate() {
        for (row, got) in sums.iter().enumerate() {
            let (expected, bound) = band.dot_product(row, column, first, x, start(column, row));
            tally
                .record(*got, expected, bound, || format!("row {row}, column {column}, {} groups", x.groups));
        }
    }
}

fn decode(table: &Table, layout: Layout, operands: &mut Operands, tally: &mut Tally) {
    let band = random_band(layout, operands);
    let first = below(band.groups, operands);
    let count = below(DEPTH.min(band.groups - first) + 1, operands);
    let bytes = operands.memory.place(&band.bytes);
    let mut panels = operands.memory.place(&[[[PanelGroup::ZERO; DEPTH]; 2]]);
    (table.matmul.decode)(Band { bytes: &bytes, ..band.band() }, first, count, &mut panels[0]);
    let what = band.wrong_panels(&panels[0], first, count);
    let what = what.map(|what| format!("{count} groups from {first} of {}: {what}", band.groups));
    tally.record_exact(count * GROUP * BAND, what);
}

fn tile(table: &Table, layout: Layout, columns: usize, operands: &mut Operands, tally: &mut Tally) {
    let band = random_band(layout, operands);
    let first = below(band.groups, operands);
    let groups = 1 + below(DEPTH.min(band.groups - first), operands);
    let kind = mostly_first(&INPUTS, operands);
    let x = IntegerInputs::random(coding(layout), groups, columns, kind, operands);
    check_tile(table, &band, first, &x, operands, tally);
}

/// Checks `tile` on the panels from group `first` of a band on.
pub fn check_tile(
    table: &Table,
    band: &IntegerBand,
    first: usize,
    x: &IntegerInputs,
    operands: &mut Operands,
    tally: &mut Tally,
) {
    let memory = operands.memory;
    let (panels, words) = (memory.place(&[decoded(band, first, x.groups)]), memory.place(&x.words));
    let start = random_sums(x.columns, operands);
    let coding = coding(band.layout);
    let operands = MatmulTileOperands {
        coding,
        panels: &panels[0],
        signed: None,
        groups: x.groups,
        x: &words,
        next: &[],
    };
    let mut check = |operands| {
        let mut sums = memory.place(&start);
        (table.matmul.tile)(operands, &mut sums);
        record_sums(band, first, x, &sums, |column, row| start[column][row], tally);
    };
    check(operands);
    let mut signed = None;
    if table.matmul.signed(coding, (&panels[0], x.groups), &mut signed).is_some() {
        let signed = memory.place(signed.as_slice());
        check(MatmulTileOperands { signed: Some(&signed[0]), ..operands });
    }
}

/// Sums that others are added to.
fn random_sums(columns: usize, random: &mut Random) -> Vec<Sums> {
    (0..columns).map(|_| random.numbers(BAND).try_into().expect("a band of numbers")).collect()
}

fn floats(table: &Table, layout: Layout, columns: usize, operands: &mut Operands, tally: &mut Tally) {
    // Any number of inputs, from any column at which a unit starts.
    let inputs = 1 + below(70, operands);
    let first = below(inputs, operands) / 2 * 2;
    let bytes = operands.memory.place(&float_band(layout, inputs, operands));
    let band = Band { layout, columns: inputs, bytes: &bytes, prefetch: PrefetchChoice::DEFAULT };
    let mut x = operands.random.numbers((inputs - first) * columns);
    x.resize((inputs - first).next_multiple_of(2) * columns, 0.0);
    let words = operands.memory.place(&x.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
    let start = random_sums(columns, operands);
    let mut sums = operands.memory.place(&start);
    (table.matmul.floats)(band, first, &words, &mut sums);
    for (column, row) in (0..columns).flat_map(|column| (0..BAND).map(move |row| (column, row))) {
        let (expected, bound) = float_dot_product(band, [row, column], first, &x, &start);
        let what = || format!("row {row}, column {column}, inputs {first}..{inputs}");
        tally.record(sums[column][row], expected, bound, what);
    }
}

fn bf16(table: &Table, columns: usize, operands: &mut Operands, tally: &mut Tally) {
    // Sometimes more than are widened at once.
    let inputs = 1 + below(if operands.bits().is_multiple_of(8) { 600 } else { 70 }, operands);
    let first = below(inputs, operands) / 2 * 2;
    let bytes = operands.memory.place(&float_band(Layout::Bf16, inputs, operands));
    let band =
        Band { layout: Layout::Bf16, columns: inputs, bytes: &bytes, prefetch: PrefetchChoice::DEFAULT };
    let words = operands.memory.place(&bf16_words(inputs - first, columns, operands));
    let start = random_sums(columns, operands);
    let mut sums = operands.memory.place(&start);
    (table.matmul.bf16)(band, first, &words, &mut sums);
    for (column, row) in (0..columns).flat_map(|column| (0..BAND).map(move |row| (column, row))) {
        let (expected, bound) = bf16_dot_product(band, [row, column], first, &words, &start);
        let what = || format!("row {row}, column {column}, inputs {first}..{inputs}");
        tally.record(sums[column][row], expected, bound, what);
    }
}

fn fp16(kernel: FloatKernel, columns: usize, operands: &mut Operands, tally: &mut Tally) {
    let inputs = 1 + below(150, operands);
    let first = below(inputs, operands) / GROUP * GROUP;
    let bytes = operands.memory.place(&fp16_band(inputs, operands));
    let band =
        Band { layout: Layout::F16, columns: inputs, bytes: &bytes, prefetch: PrefetchChoice::DEFAULT };
    let words = operands.memory.place(&fp16_words(inputs - first, columns, operands));
    let start = random_sums(columns, operands);
    let mut sums = operands.memory.place(&start);
    kernel(band, first, &words, &mut sums);
    for (column, row) in (0..columns).flat_map(|column| (0..BAND).map(move |row| (column, row))) {
        let (expected, bound) = fp16_dot_product(band, [row, column], first, &words, &start);
        let what = || format!("row {row}, column {column}, inputs {first}..{inputs}");
        tally.record(sums[column][row], expected, bound, what);
    }
}

fn quantize(table: &Table, operands: &mut Operands, tally: &mut Tally) {
    let memory = operands.memory;
    let groups = 1 + below(8, operands);
    for x in [memory.place(&of_many_sizes(QUANT_GROUP * groups, operands)), memory.place(&edge(operands))] {
        let fault = wrong_code(table, &x, memory).or_else(|| unequal_codes(table, &x, memory));
        tally.record_exact(x.len(), fault);
    }
}

/// Numbers of many sizes.
fn of_many_sizes(count: usize, random: &mut Random) -> Vec<f32> {
    (0..count).map(|_| random.number() * 2f32.powi((random.bits() % 40) as i32 - 30)).collect()
}
