//! The number of tasks in a step.

use girih_cpu::{Affinity, Cpu, CpuOptions};
use girih_graph::backend::{Block, Input, Range32, Unwatched};
use girih_graph::{BLOCK_POSITIONS, Backend, Outputs, Sequence, Step};

use crate::fixture::{Random, Source, cpu};
use crate::two_layers::{Model, model};

/// Five tasks in each layer (q, k and v; attention; o; gate and up; down) and one for the logits. Norms,
/// gates, residuals, rotations and state are parts of these, or are computed by the caller alone in a step
/// of one row. Beyond one chunk of attention, joining partial sums is one more.
#[test]
fn a_token_takes_five_tasks_a_layer() {
    const LAYERS: u64 = 2;
    let graph = model(Model { width: 128, ..Model::default() });
    let source = Source::random(&graph, &mut Random(3));
    let cpu = cpu(2);
    let weights = cpu.load(&graph, &source).unwrap();
    let mut state = cpu.state(&graph, &[8, 8]).unwrap();
    let mut output = cpu.output(&graph).unwrap();
    let program = cpu.compile(&graph, &weights).unwrap();
    let blocks: Vec<Block> = (0..8).map(Block).collect();
    let mut tasks = |position: u32, rows: u32| {
        let blocks = &blocks[..((position + rows) as usize).div_ceil(BLOCK_POSITIONS)];
        let rows = Range32 { start: 0, end: rows };
        let sequence =
            Sequence { blocks: &[blocks, blocks], position, rows, outputs: Outputs::Last, spans: &[] };
        let tokens = vec![7; rows.end as usize];
        let inputs = [Input::Ids(&tokens)];
        let before = cpu.tasks();
        let step = Step { inputs: &inputs, sequences: &[sequence], watch: &mut Unwatched };
        cpu.run(&program, &weights, &mut state, &mut output, step).unwrap();
        cpu.tasks() - before
    };
    assert!(tasks(0, 300) > 5 * LAYERS, "a prompt takes more: its rows are many");
    assert_eq!(tasks(20, 1), 5 * LAYERS + 1);
    // The layer with a window sees only one chunk.
    assert_eq!(tasks(300, 1), 5 * LAYERS + 1 + 1);
}

/// Each thread has at least one number, so this number of threads needs more bytes than there are.
#[test]
fn a_plan_of_too_many_threads_is_not_small() {
    let options = CpuOptions { threads: 1 << 62, affinity: Affinity::None, ..CpuOptions::default() };
    let plan = Cpu::new(options).unwrap().plan(&model(Model::default()), &[8, 8]);
    assert_eq!(plan.host.scratch, u64::MAX);
}
