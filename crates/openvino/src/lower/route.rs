//! The choice of experts.

use girih_graph::{ExpertGroups, Router, RouterScore, ValueId};
use girih_tensor::Result;

use super::lowering::{DIVIDE, GraphLowering};
use crate::ir::{Port, Precision, layer};

/// The axis of experts in `[n, r, experts]`.
const EXPERTS: i64 = 2;

impl GraphLowering<'_> {
    /// Weights of experts, 0 for those that a row does not choose. A probability that is NaN is the largest.
    pub(super) fn route(
        &mut self,
        router: Router,
        scores: ValueId,
        bias: Option<ValueId>,
        y: ValueId,
    ) -> Result<()> {
        let experts = self.inner(scores)[0];
        let scores = self.rows(scores)?;
        let probabilities = match router.score {
            RouterScore::Softmax => self.layer(layer("Softmax", 8), "axis=\"-1\"", &[scores]),
            RouterScore::Sigmoid => self.layer(layer("Sigmoid", 1), "", &[scores]),
        };
        // Scores order experts like probabilities, without the ties that come from rounding.
        let is_plain = bias.is_none() && router.groups.is_none();
        let mut ranks = if is_plain { scores } else { probabilities };
        if let Some(bias) = bias {
            let bias = self.vector(bias, &[experts])?;
            ranks = self.binary("Add", ranks, bias);
        }
        ranks = self.with_largest_nan(ranks);
        if let Some(groups) = router.groups {
            ranks = self.in_best_groups(ranks, experts, groups);
        }
        let [_, chosen] = self.largest(ranks, router.used);
        let mut weights = self.picked(probabilities, chosen, EXPERTS);
        if let Some(epsilon) = router.normalized {
            let sum = self.sum_of_last(weights, true);
            let epsilon = self.model.float(epsilon);
            let divisor = self.binary("Add", sum, epsilon);
            weights = self.layer(layer("Divide", 1), DIVIDE, &[weights, divisor]);
        }
        if let Some(factor) = router.factor {
            weights = self.scaled(weights, factor);
        }
        let port = self.spread(weights, chosen, scores, EXPERTS);
        self.set_rows(y, port);
        Ok(())
    }

    /// Ranks of the experts in the groups whose best ones have the largest sums, −∞ for others.
    fn in_best_groups(&mut self, ranks: Port, experts: usize, groups: ExpertGroups) -> Port {
        let ExpertGroups { count, used, best } = groups;
        let (count, experts) = (i64::from(count), experts as i64);
        let ranks = self.shaped(ranks, &[0, 0, count, experts / count]);
        let [best, _] = self.largest(ranks, best);
        let sums = self.sum_of_last(best, false);
        let [_, chosen] = self.largest(sums, used);
        let one = self.model.float(1.0);
        let ones = self.filled(one, chosen);
        let marks = self.spread(ones, chosen, sums, EXPERTS);
        let marks = self.shaped(marks, &[0, 0, count, 1]);
        let one = self.model.float(1.0);
        let is_used = self.compared("Equal", marks, one);
        let none = self.model.float(f32::NEG_INFINITY);
        let ranks = self.chosen_where(is_used, ranks, none);
        self.shaped(ranks, &[0, 0, experts])
    }

    /// The largest numbers of the innermost dimension and their indexes, the largest first; of equal ones the first.
    pub(super) fn largest(&mut self, x: Port, count: u32) -> [Port; 2] {
        let count = self.model.integer(i64::from(count));
        let attributes = "axis=\"-1\" mode=\"max\" sort=\"value\" index_element_type=\"i32\" stable=\"true\"";
        let results = [Precision::F32, Precision::I32];
        let ports = self.model.layers(layer("TopK", 11), attributes, &[x, count], &results);
        [ports[0], ports[1]]
    }

    /// Numbers with infinity in the place of NaN.
    pub(super) fn with_largest_nan(&mut self, x: Port) -> Port {
        let is_nan = self.model.layer(layer("IsNaN", 10), "", &[x], Precision::Boolean);
        let most = self.model.float(f32::INFINITY);
        self.chosen_where(is_nan, most, x)
    }

    /// The numbers at some indexes of an axis.
    pub(super) fn picked(&mut self, x: Port, indexes: Port, axis: i64) -> Port {
        self.layer(layer("GatherElements", 6), &format!("axis=\"{axis}\""), &[x, indexes])
    }

    /// Numbers at their indexes of an axis of what is like another value, and 0 elsewhere.
    pub(super) fn spread(&mut self, numbers: Port, indexes: Port, like: Port, axis: i64) -> Port {
        let zero = self.model.float(0.0);
        let zeros = self.filled(zero, like);
        let axis = self.model.integer(axis);
        self.layer(layer("ScatterElementsUpdate", 3), "", &[zeros, indexes, numbers, axis])
    }

    /// A number in the shape of another value.
    fn filled(&mut self, number: Port, like: Port) -> Port {
        let shape = self.shape_of(like);
        self.layer(layer("Broadcast", 3), "mode=\"numpy\"", &[number, shape])
    }

    /// The extents of a value.
    pub(super) fn shape_of(&mut self, x: Port) -> Port {
        self.model.layer(layer("ShapeOf", 3), "output_type=\"i64\"", &[x], Precision::I64)
    }

    fn sum_of_last(&mut self, x: Port, keeps: bool) -> Port {
        let last = self.model.integers(&[-1]);
        self.layer(layer("ReduceSum", 1), &format!("keep_dims=\"{keeps}\""), &[x, last])
    }
}
