//! The times of nodes: a step that is timed computes the same bytes, and tells of the nodes that took time.

use girih_graph::OpName;
use girih_graph::backend::{NodeTime, Watch};
use girih_graph::testing::{Roundoff, draw};
use girih_tensor::Shape;

use crate::opened::{fixed, open, processor};

/// The ops that took time, with their bytes and operations.
#[derive(Default)]
struct Clock(Vec<(&'static str, u64, u64)>);

impl Watch for Clock {
    fn wants(&self, _: &str) -> bool {
        false
    }

    fn value(&mut self, _: &str, _: &Shape, _: &[f32]) {}

    fn clocks(&self) -> bool {
        true
    }

    fn took(&mut self, node: &NodeTime<'_>) {
        self.0.push((node.op, node.bytes, node.operations));
    }
}

#[test]
fn a_timed_step_tells_of_its_matmul() {
    for choice in [processor(), fixed()].into_iter().flatten() {
        let case = draw(OpName::Linear, 1, Roundoff::SINGLE);
        let build = |key| Ok(case.graph_at(key));
        let mut runner = open(&choice)
            .load(&case.weights, case.graph.key, &case.blocks(), &build)
            .expect("the case loads");
        let plain = case.run(&mut *runner, &case.whole()).expect("the case runs");
        let mut clock = Clock::default();
        let timed = case.run_watched(&mut *runner, &case.whole(), &mut clock).expect("the case runs");
        assert_eq!(plain, timed);
        let matmul = clock.0.iter().find(|(op, ..)| *op == "linear").expect("the matmul took time");
        assert!(matmul.1 > 0 && matmul.2 > 0, "{matmul:?}");
    }
}
