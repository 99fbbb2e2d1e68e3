//! Graphs with a sunk gather: they have no faults, and their results have the same bits.

use girih_graph::backend::{Block, Input};
use girih_graph::{Graph, Outputs, SunkGather, faults, sink_gather};

use crate::forms::{TOKENS, parse};
use crate::random;
use crate::session::{TestSequence, open_random, run_once, step};

#[test]
fn rewritten_random_graphs_have_no_faults_and_parse_back() {
    let mut rewritten = 0;
    for seed in 0..2000 {
        let Some(SunkGather { graph, .. }) = sink_gather(&random::graph(seed)) else { continue };
        assert_eq!(faults(&graph), [], "seed {seed}");
        assert_eq!(graph.to_string().parse::<Graph>().unwrap(), graph, "seed {seed}");
        if seed < 100 {
            run_once(&graph);
        }
        rewritten += 1;
    }
    assert!(rewritten > 200, "only {rewritten} graphs were rewritten");
}

/// Two sequences in one step, with different numbers of output rows.
#[test]
fn output_rows_have_the_same_bits_after_the_rewrite() {
    let original = parse(&TOKENS.replace("output_rows 4", "output_rows 8"));
    let SunkGather { graph, names } = sink_gather(&original).unwrap();
    assert!(names.iter().any(|name| name == "layers.1.down"), "{names:?}");
    let tokens = [3, 1, 4, 1, 5, 9, 2, 6];
    for (left, right) in
        [(Outputs::None, Outputs::Last), (Outputs::LastN(2), Outputs::None), (Outputs::All, Outputs::All)]
    {
        let sequences = [(&[Block(2)], 3, left), (&[Block(0)], 5, right)]
            .map(|(blocks, rows, outputs)| TestSequence { blocks, outputs, ..TestSequence::whole(rows) });
        let bits = |graph: &Graph| {
            let output = step(open_random(&graph.to_string()).as_mut(), Input::Ids(&tokens), &sequences);
            output.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        assert_eq!(bits(&graph), bits(&original), "{left:?} and {right:?}");
    }
}
