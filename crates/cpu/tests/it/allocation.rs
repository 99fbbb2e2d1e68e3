//! Steps allocate nothing, and loading allocates what was planned. A global allocator counts, in
//! threads that enable it.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use girih_cpu::kernels::Table;
use girih_graph::backend::{Block, GivenRows, Input, Range32, Unwatched};
use girih_graph::{Backend, Outputs, Sequence, Step};

use crate::encoder::{NARROW_HEADS, encoder, weights};
use crate::fixture::{Random, Source, changed, cpu, cpu_with, portable};
use crate::two_layers::{Model, model};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The system's allocator, with a count of calls and a sum of bytes in use.
struct Counting;

/// Allocations in counting threads.
static CALLS: AtomicUsize = AtomicUsize::new(0);
/// Bytes in use that counting threads allocated, modulo the size of `usize`.
static BYTES: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static COUNTS: Cell<bool> = const { Cell::new(false) };
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    // SAFETY: the caller keeps the contract of the trait.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: the caller keeps the contract of the trait.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    // SAFETY: the caller keeps the contract of the trait.
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if COUNTS.get() {
            BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        }
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

fn count(bytes: usize) {
    if COUNTS.get() {
        CALLS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Kernels that enable counting in each thread that runs them.
fn counting() -> Table {
    changed(|table| {
        table.matmul.floats = |band, first, x, sums| {
            COUNTS.set(true);
            (portable().matmul.floats)(band, first, x, sums);
        };
    })
}

/// Steps of a prompt and of single tokens, after one of each has run. Both tests use the counters, so
/// they are one.
#[test]
fn loading_allocates_the_plan_and_steps_allocate_nothing() {
    loading_allocates_what_was_planned();
    steps_allocate_nothing();
    steps_without_state_allocate_nothing();
}

fn steps_allocate_nothing() {
    let graph = model(Model::default());
    let source = Source::random(&graph, &mut Random(3));
    let cpu = cpu_with(counting(), 2);
    let weights = cpu.load(&graph, &source).unwrap();
    let mut state = cpu.state(&graph, &[16, 16]).unwrap();
    let program = cpu.compile(&graph, &weights).unwrap();
    let tokens: Vec<u32> = (0..40).map(|i| i % 50).collect();
    let mut output = cpu.output(&graph).unwrap();
    let (blocks, others) = ([Block(0)], [Block(1)]);
    let (blocks, others) = ([&blocks[..]; 2], [&others[..]; 2]);
    for round in 0..4 {
        for (rows, position) in [(20, 0), (1, 20)] {
            // So that every thread gets a piece and enables counting.
            thread::sleep(std::time::Duration::from_millis(1));
            let sequence = |index: u32, blocks| Sequence {
                blocks,
                position,
                rows: Range32 { start: index * rows, end: (index + 1) * rows },
                outputs: Outputs::Last,
                spans: &[],
            };
            let sequences = [sequence(0, &blocks), sequence(1, &others)];
            let inputs = [Input::Ids(&tokens[..2 * rows as usize])];
            CALLS.store(0, Ordering::Relaxed);
            let step = Step { inputs: &inputs, sequences: &sequences, watch: &mut Unwatched };
            cpu.run(&program, &weights, &mut state, &mut output, step).unwrap();
            let calls = CALLS.load(Ordering::Relaxed);
            assert!(round == 0 || calls == 0, "{calls} allocations in a step of 2 x {rows} rows");
        }
    }
    COUNTS.set(false);
}

/// As above, of an encoder, for batches of one and of several sequences.
fn steps_without_state_allocate_nothing() {
    let graph = encoder(NARROW_HEADS);
    let cpu = cpu_with(counting(), 2);
    let loaded = cpu.load(&graph, &weights(&graph)).unwrap();
    let mut state = cpu.state(&graph, &[]).unwrap();
    let program = cpu.compile(&graph, &loaded).unwrap();
    let mut output = cpu.output(&graph).unwrap();
    let ids = vec![1; 300];
    let given_values = [0.5; 36];
    let given = [GivenRows { first_row: 2, values: &given_values }];
    for round in 0..4 {
        for lengths in [&[300][..], &[3, 70, 1, 65]] {
            thread::sleep(std::time::Duration::from_millis(1));
            let mut next = 0;
            let sequences = lengths.iter().map(|length| {
                let rows = Range32 { start: next, end: next + length };
                next = rows.end;
                Sequence { blocks: &[], position: 0, rows, outputs: Outputs::None, spans: &[] }
            });
            let sequences: Vec<_> = sequences.collect();
            let ids = Input::Ids(&ids[..next as usize]);
            let inputs = [ids, ids, Input::Given(&given)];
            CALLS.store(0, Ordering::Relaxed);
            let step = Step { inputs: &inputs, sequences: &sequences, watch: &mut Unwatched };
            cpu.run(&program, &loaded, &mut state, &mut output, step).unwrap();
            let calls = CALLS.load(Ordering::Relaxed);
            assert!(round == 0 || calls == 0, "{calls} allocations in a step of {lengths:?} rows");
        }
    }
    COUNTS.set(false);
}

/// No tensor of the model fills a huge page: such tensors are mapped, without the allocator.
fn loading_allocates_what_was_planned() {
    let graph = model(Model { width: 128, ..Model::default() });
    let source = Source::random(&graph, &mut Random(3));
    let cpu = cpu(1);
    let plan = cpu.plan(&graph, &[16, 7]);
    let before = BYTES.load(Ordering::Relaxed);
    COUNTS.set(true);
    let weights = cpu.load(&graph, &source).unwrap();
    let state = cpu.state(&graph, &[16, 7]).unwrap();
    let program = cpu.compile(&graph, &weights).unwrap();
    let mut output = cpu.output(&graph).unwrap();
    output.begin(graph.key.output_rows as usize).unwrap();
    COUNTS.set(false);
    let taken = (BYTES.load(Ordering::Relaxed) - before) as u64;
    // Names, the two lists of instructions, and the work of each are beyond the plan.
    let rest = taken.checked_sub(plan.total()).expect("at least the plan");
    assert!(rest < 100 << 10, "{taken} bytes were allocated; {plan:?} is {}", plan.total());
    drop((weights, state, program, output));
}
