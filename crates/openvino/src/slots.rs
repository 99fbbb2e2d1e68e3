//! What a request of a model holds: slots of keys and values, in the order in which rows were run.
//!
//! A slot counts or is dead. Those that count have the positions 0, 1, 2, …, in order. Taking positions back makes their
//! slots dead, as nothing can be removed from a variable; the mask hides them.

use girih_graph::backend::Sequence;
use girih_graph::{Graph, Span};

/// The most slots of a request, before it is made again without those that are dead: a quarter more than the context.
pub(crate) fn most_slots(graph: &Graph) -> usize {
    let context = graph.key.context as usize;
    context.saturating_add((context / 4).max(64))
}

/// The slots of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestSlots {
    /// The position of each slot; `None` of dead ones.
    positions: Vec<Option<usize>>,
    /// The tokens of the slots that count.
    tokens: Vec<u32>,
}

impl RequestSlots {
    /// The number of slots.
    pub fn len(&self) -> usize {
        self.positions.len()
    }

    /// The number of slots that count.
    pub fn live(&self) -> usize {
        self.tokens.len()
    }

    /// The number of first tokens that are those of a sequence.
    pub fn common(&self, history: &[u32]) -> usize {
        self.tokens.iter().zip(history).take_while(|(own, other)| own == other).count()
    }

    /// Takes all positions from this one on back.
    pub fn take_back(&mut self, position: usize) {
        self.tokens.truncate(position);
        for slot in self.positions.iter_mut().rev() {
            match slot {
                Some(own) if *own < position => return,
                slot => *slot = None,
            }
        }
    }

    /// Adds the slots of new rows.
    pub fn extend(&mut self, tokens: &[u32]) {
        let first = self.live();
        self.positions.extend((first..).take(tokens.len()).map(Some));
        self.tokens.extend(tokens);
    }

    /// The mask of the rows of a sequence, `[1, 1, rows, slots]`: 0 where a row attends, else −∞. The last slots are those of
    /// the rows.
    pub fn mask(&self, lane: &Sequence<'_>, span: Span) -> (Vec<f32>, [usize; 4]) {
        let rows = lane.rows.indexes().len();
        let mut mask = Vec::with_capacity(rows * self.len());
        for position in (lane.position as usize..).take(rows) {
            let seen = lane.sees(span, position);
            let open = |slot: &Option<usize>| match slot {
                Some(own) if seen.contains(own) => 0.0,
                _ => f32::NEG_INFINITY,
            };
            mask.extend(self.positions.iter().map(open));
        }
        (mask, [1, 1, rows, self.len()])
    }
}

#[cfg(test)]
mod tests {
    use girih_graph::Outputs;
    use girih_graph::backend::Range32;

    use super::*;

    #[test]
    fn positions_that_are_taken_back_are_hidden() {
        let mut slots = RequestSlots::default();
        slots.extend(&[5, 6, 7]);
        assert_eq!((slots.common(&[5, 6, 9, 7]), slots.common(&[]), slots.common(&[5, 6, 7, 8])), (2, 0, 3));
        slots.take_back(1);
        slots.extend(&[8, 9]);
        assert_eq!((slots.len(), slots.live()), (5, 3));
        let rows = Range32 { start: 4, end: 6 };
        let lane = Sequence { blocks: &[], position: 1, rows, outputs: Outputs::None, spans: &[] };
        let shown = |span| {
            let (mask, shape) = slots.mask(&lane, span);
            assert_eq!(shape, [1, 1, 2, 5]);
            mask.iter().map(|number| if *number == 0.0 { 'x' } else { '.' }).collect::<String>()
        };
        assert_eq!(
            (shown(Span::Full), shown(Span::Window(1))),
            ("x..x.x..xx".to_owned(), "...x.....x".to_owned())
        );
        slots.take_back(0);
        assert_eq!((slots.len(), slots.live(), slots.common(&[5])), (5, 0, 0));
    }
}
