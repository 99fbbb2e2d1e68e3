//! The work of a row of a prompt, counted on the graph.

use girih_engine::RowWork;
use girih_graph::backend::Range32;
use girih_graph::{Graph, Outputs, Sequence, sink_gather};

/// The time of a multiplication of attention, in those of a matmul. From the first table of `docs/performance.md` (Llama-3.2-1B
/// in Q4_0, Zen 4): at mean positions 256 and 1024 a row takes 3.58 and 4.30 ms, so 65,536 multiplications for each position take
/// 0.94 µs, and 973 million of matmuls 3.34 ms. The ratio of the two is 4.2.
const ATTEND_COST: u64 = 4;

/// The work of a row of a prompt: its multiplications, those of attention with their cost. Windows make what a position
/// adds a mean over the context.
pub(crate) fn row_work(graph: &Graph) -> RowWork {
    let early = sink_gather(graph).map(|early| early.graph);
    let graph = early.as_ref().unwrap_or(graph);
    let at = |position: u32| -> u64 {
        let rows = Range32 { start: 0, end: 1 };
        let row = Sequence { blocks: &[], position, rows, outputs: Outputs::None, spans: &[] };
        graph.nodes.iter().map(|node| graph.work(node, &[row]).multiply_adds).sum()
    };
    let (base, last) = (at(0), graph.key.context.saturating_sub(1));
    let attended = at(last).saturating_sub(base) / u64::from(last.max(1));
    RowWork { base: base.max(1), per_position: ATTEND_COST.saturating_mul(attended) }
}

#[cfg(test)]
mod tests {
    use crate::{Model, RunOptions};

    /// The built-in model has 5 layers of width 64 and feed-forward width 172, 8 heads and 4 of keys of size 8.
    #[test]
    fn the_work_of_a_row_is_counted() {
        let plan = Model::open("stories260k").and_then(|model| model.plan(RunOptions::default())).unwrap();
        let work = super::row_work(plan.graph());
        // Queries, keys and values of all layers; the output of attention and three matrices of the feed-forward part of all but
        // the last one, where rows without results end with attention.
        let (width, keys, feed) = (64, 32, 172);
        let attended = width * width + 2 * width * keys;
        let matmuls = 5 * attended + 4 * (width * width + 3 * width * feed);
        // A row attends to itself, too.
        let attention = 5 * 2 * width;
        assert_eq!((work.base, work.per_position), (matmuls + attention, 4 * attention));
    }
}
