//! Sequences that share blocks of state: their rows have the same bytes alone and in one step, which reads a shared
//! block once.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use girih_cpu::kernels::attend::{Cells, Format};
use girih_cpu::kernels::tables;
use girih_graph::backend::{Block, Input, Range32, Unwatched};
use girih_graph::{
    BLOCK_POSITIONS, Builder, Graph, GroupId, Op, Outputs, Runner, Sequence, Span, Step, ValueId,
};
use girih_tensor::DType;

use crate::fixture::{Random, Source, changed, cpu_with, finish, key, on, portable};

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const SIZE: usize = 32;
/// A prompt's rows, and blocks of state.
const ROWS: usize = 1024;
const BLOCKS: u32 = 64;

/// How a node attends.
#[derive(Clone, Copy)]
enum Attention {
    Of(Span),
    OfLatents,
}

const ALL: [Attention; 3] =
    [Attention::Of(Span::Full), Attention::Of(Span::Window(300)), Attention::OfLatents];

/// The heads of the results of nodes side by side, with queries, keys and values as inputs.
fn graph(state: DType, nodes: &[Attention]) -> Graph {
    let mut builder = Builder::new(key(ROWS, 2048));
    let q = builder.input("q", &[HEADS, SIZE], DType::F32);
    let [k, v] = ["k", "v"].map(|name| builder.input(name, &[KV_HEADS, SIZE], DType::F32));
    let scale = 0.3;
    let mut all: Option<(ValueId, usize)> = None;
    for (index, node) in nodes.iter().enumerate() {
        let held = |builder: &mut Builder, of, name: &str, group| {
            let held = builder.state(&format!("{index}.{name}"), &[KV_HEADS, SIZE], state, group);
            builder.write(of, held);
            held
        };
        let name = format!("{index}.y");
        let (y, size) = match *node {
            Attention::Of(span) => {
                let group = builder.group(span);
                let keys = held(&mut builder, k, "keys", group);
                let values = held(&mut builder, v, "values", group);
                let op = Op::Attend { scale, span, softcap: None };
                (builder.same(&name, op, &[q, keys, values]), SIZE)
            }
            // Partial sums of one value: those of the other nodes leave room for more of them.
            Attention::OfLatents => {
                let (span, values) = (Span::Full, 1);
                let group = builder.group(span);
                let latents = held(&mut builder, k, "latents", group);
                let op = Op::AttendLatent { scale, span, values };
                (builder.shaped(&name, op, &[q, latents], &[HEADS, 1]), 1)
            }
        };
        all = Some(all.map_or((y, size), |(all, width)| {
            let heads = [HEADS, width + size];
            (builder.shaped(&format!("{index}.all"), Op::Concat, &[all, y], &heads), width + size)
        }));
    }
    finish(builder, all.expect("there are nodes").0)
}

/// A sequence that has the first blocks of another one.
struct Fork {
    blocks: Vec<Block>,
    /// The position at which it goes on.
    from: usize,
    /// The position of its first row in the step that all sequences share.
    position: usize,
    rows: usize,
}

/// Rows of a sequence to be run. Their contents depend on the sequence and on the position.
#[derive(Clone, Copy)]
struct TestRows<'a> {
    blocks: &'a [Block],
    seed: usize,
    position: usize,
    rows: usize,
}

/// Runs one step; returns the bits of its results.
fn run(runner: &mut dyn Runner, all: &[TestRows<'_>]) -> Vec<u32> {
    let mut inputs = [Vec::new(), Vec::new(), Vec::new()];
    for TestRows { seed, position, rows, .. } in all {
        for position in *position..position + rows {
            let mut random = Random((seed * 10_000 + position) as u64);
            let heads = [HEADS, KV_HEADS, KV_HEADS];
            inputs
                .iter_mut()
                .zip(heads)
                .for_each(|(input, heads)| input.extend(random.numbers(heads * SIZE)));
        }
    }
    let groups: Vec<Vec<&[Block]>> = all
        .iter()
        .map(|rows| {
            let count = (rows.position + rows.rows).div_ceil(BLOCK_POSITIONS);
            vec![&rows.blocks[..count]; runner.blocks().len()]
        })
        .collect();
    let mut next = 0;
    let sequences = all.iter().zip(&groups).map(|(TestRows { position, rows, .. }, blocks)| {
        let rows = Range32 { start: next, end: next + *rows as u32 };
        next = rows.end;
        Sequence { blocks, position: *position as u32, rows, outputs: Outputs::All, spans: &[] }
    });
    let sequences: Vec<_> = sequences.collect();
    let inputs = inputs.each_ref().map(|input| Input::Rows(input));
    runner.step(Step { inputs: &inputs, sequences: &sequences, watch: &mut Unwatched }).unwrap();
    runner.output().rows(0..next as usize).unwrap().iter().map(|x| x.to_bits()).collect()
}

/// The blocks from `first` on, behind those of `shared`.
fn table(shared: &[Block], first: u32) -> Vec<Block> {
    shared.iter().copied().chain((first..first + 8).map(Block)).collect()
}

/// Runs a prompt of 900 positions, and the rows of sequences that share parts of it up to their last rows.
fn forks(runner: &mut dyn Runner) -> Vec<Fork> {
    let prompt: Vec<Block> = (0..15).map(Block).collect();
    run(runner, &[TestRows { blocks: &prompt, seed: 0, position: 0, rows: 900 }]);
    // The 15th block ends within the prompt: a sequence that writes to it has a copy.
    for group in (0..runner.blocks().len() as u32).map(GroupId) {
        for (from, to) in [(14, 15), (14, 23), (6, 47)] {
            runner.state().copy(group, Block(from), Block(to)).unwrap();
        }
    }
    let within_a_chunk = Fork { blocks: table(&prompt[..6], 47), from: 400, position: 620, rows: 6 };
    let forks = vec![
        Fork { blocks: table(&prompt[..14], 15), from: 900, position: 900, rows: 1 },
        Fork { blocks: table(&[], 31), from: 0, position: 300, rows: 1 },
        Fork { blocks: table(&prompt[..14], 23), from: 900, position: 960, rows: 3 },
        within_a_chunk,
        Fork { blocks: table(&prompt[..12], 39), from: 768, position: 1100, rows: 8 },
        Fork { blocks: table(&prompt[..8], 55), from: 512, position: 700, rows: 40 },
    ];
    for (seed, Fork { blocks, from, position, .. }) in forks.iter().enumerate() {
        let rows = position - from;
        if rows > 0 {
            run(runner, &[TestRows { blocks, seed: seed + 1, position: *from, rows }]);
        }
    }
    forks
}

fn last_rows(forks: &[Fork]) -> Vec<TestRows<'_>> {
    let all = forks.iter().enumerate();
    all.map(|(index, Fork { blocks, position, rows, .. })| TestRows {
        blocks,
        seed: index + 1,
        position: *position,
        rows: *rows,
    })
    .collect()
}

#[test]
fn rows_have_the_same_bytes_alone_and_beside_others_that_share_their_prefix() {
    for state in [DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0] {
        for table in tables() {
            let mut runner = on(cpu_with(*table, 3), &graph(state, &ALL), &Source::default(), BLOCKS);
            let forks = forks(&mut *runner);
            let rows = last_rows(&forks);
            let alone: Vec<u32> = rows.chunks(1).flat_map(|rows| run(&mut *runner, rows)).collect();
            assert!(run(&mut *runner, &rows) == alone, "{state}, {}", table.name);
            // Some of them, in another order.
            let width = alone.len() / rows.iter().map(|rows| rows.rows).sum::<usize>();
            let of = |rows: Range<usize>| &alone[rows.start * width..rows.end * width];
            let expected = [of(11..19), of(0..1), of(2..5)].concat();
            let some = [rows[4], rows[0], rows[2]];
            assert!(run(&mut *runner, &some) == expected, "{state}, {}, three of them", table.name);
        }
    }
}

/// Tiles of keys that are read.
static TILES: AtomicUsize = AtomicUsize::new(0);

/// Eight sequences, each with one row, share 16 blocks and have one of their own.
#[test]
fn a_shared_block_is_read_once_in_a_step() {
    let counting = changed(|table| {
        table.attend.score = |queries, keys, next, scores, at| {
            if let Cells::Stored(..) = keys {
                TILES.fetch_add(keys.key_tiles(SIZE).count(), Ordering::Relaxed);
            }
            (portable().attend.score)(queries, keys, next, scores, at);
        };
        table.attend.widen_keys = |format: Format, tile, next, into| {
            TILES.fetch_add(Cells::Stored(format, tile).key_tiles(SIZE).count(), Ordering::Relaxed);
            (portable().attend.widen_keys)(format, tile, next, into);
        };
    });
    let graph = graph(DType::F16, &[Attention::Of(Span::Full)]);
    let mut runner = on(cpu_with(counting, 2), &graph, &Source::default(), 24);
    let prompt: Vec<Block> = (0..16).map(Block).collect();
    let tables: Vec<Vec<Block>> =
        (16..24).map(|own| prompt.iter().copied().chain([Block(own)]).collect()).collect();
    let rows = |(seed, blocks)| TestRows { blocks, seed, position: 1024, rows: 1 };
    let rows: Vec<TestRows<'_>> = tables.iter().map(|blocks| &blocks[..]).enumerate().map(rows).collect();
    let mut tiles = |rows: &[TestRows<'_>]| {
        TILES.store(0, Ordering::Relaxed);
        run(&mut *runner, rows);
        TILES.load(Ordering::Relaxed)
    };
    // Two tiles a block; of a row's own block, the first one.
    assert_eq!(tiles(&rows[..1]), KV_HEADS * (2 * 16 + 1));
    assert_eq!(tiles(&rows), KV_HEADS * (2 * 16 + 8));
}
