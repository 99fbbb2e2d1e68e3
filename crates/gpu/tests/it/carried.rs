//! Carried values are kept at the end of each block, whatever the steps: a prefix cache resumes there.

use girih_graph::backend::Block;
use girih_graph::testing::{Case, Cut, Roundoff, StepCuts, draw};
use girih_graph::{GroupId, OpName, Runner};

use crate::opened::{adapter, open};

/// One row in each step.
fn single_rows(case: &Case) -> StepCuts {
    let rows = case.sequences.iter().enumerate();
    rows.flat_map(|(sequence, s)| (0..s.rows).map(move |row| vec![Cut { sequence, rows: row..row + 1 }]))
        .collect()
}

/// All blocks of state after these steps.
fn blocks_after(name: &str, case: &Case, steps: &StepCuts) -> Vec<Vec<u8>> {
    let built = |key| Ok(case.graph_at(key));
    let mut runner: Box<dyn Runner> =
        open(name).load(&case.weights, case.graph.key, &case.blocks(), &built).expect("the op has a kernel");
    case.run(&mut *runner, steps).expect("the steps run");
    let mut all = Vec::new();
    for (group, count) in case.blocks().into_iter().enumerate() {
        let blocks = (0..count).map(|block| runner.state().export(GroupId(group as u32), Block(block)));
        all.extend(blocks.map(|block| block.expect("the device runs")));
    }
    all
}

#[test]
fn blocks_hold_the_same_values_after_one_step_and_after_single_rows() {
    let Some(name) = adapter() else {
        eprintln!("skipped: this machine has no adapter; Mesa's software Vulkan is one");
        return;
    };
    let _open = open(name);
    for op in [OpName::ShortConv, OpName::SsmScan, OpName::DeltaRule] {
        let mut cases = (0..60).map(|seed| draw(op, seed, Roundoff::SINGLE));
        let is_long =
            |case: &Case| case.sequences.iter().any(|s| s.position % 64 + s.rows > 70 && s.rows < 200);
        let case = cases.find(is_long).expect("some case ends a block within a step");
        let (whole, single) =
            (blocks_after(name, &case, &case.whole()), blocks_after(name, &case, &single_rows(&case)));
        let different = whole.iter().zip(&single).position(|(one, other)| one != other);
        assert_eq!(different, None, "{op:?}, {}", case.name);
    }
}
