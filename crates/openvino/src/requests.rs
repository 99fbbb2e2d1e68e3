//! The requests of a stateful model, and which of them continues which sequence.

use std::cmp::Reverse;
use std::sync::Arc;

use girih_graph::backend::{BLOCK_POSITIONS, Block};
use girih_tensor::Result;

use crate::ffi::{CompiledModel, InferRequest};
use crate::slots::RequestSlots;

/// A request and what its variables hold.
#[derive(Debug)]
pub(crate) struct HeldRequest {
    pub request: InferRequest,
    pub slots: RequestSlots,
    owner: Owner,
}

/// Who used a request last.
#[derive(Clone, Copy, Debug, Default)]
struct Owner {
    /// The number of the step.
    step: u64,
    /// The block that has the last row, and its index: it belongs to one sequence alone.
    last: Option<(usize, Block)>,
}

/// A sequence that a request is to continue.
#[derive(Clone, Debug)]
pub(crate) struct Continued<'a> {
    /// Its tokens before the rows of the step.
    pub history: Vec<u32>,
    /// Its blocks of tokens.
    pub blocks: &'a [Block],
    /// The rows of the step.
    pub rows: usize,
}

/// The requests of a model: at most one for each sequence.
#[derive(Debug)]
pub(crate) struct RequestPool {
    model: Arc<CompiledModel>,
    held: Vec<HeldRequest>,
    most: usize,
    step: u64,
}

impl RequestPool {
    /// No requests yet.
    pub fn new(model: Arc<CompiledModel>, most: usize) -> RequestPool {
        RequestPool { model, held: Vec::new(), most: most.max(1), step: 0 }
    }

    /// The request for steps that keep nothing in variables.
    ///
    /// # Errors
    /// When the library fails.
    pub fn only(&mut self) -> Result<&mut InferRequest> {
        if self.held.is_empty() {
            self.held.push(HeldRequest::new(&self.model)?);
        }
        Ok(&mut self.held[0].request)
    }

    /// Chooses the requests of the sequences of a step, and makes those that lack.
    ///
    /// # Errors
    /// When the library fails.
    pub fn assign(&mut self, sequences: &[Continued<'_>]) -> Result<Vec<usize>> {
        self.step += 1;
        let kept: Vec<KeptTokens<'_>> =
            self.held.iter().map(|held| KeptTokens { slots: &held.slots, owner: held.owner }).collect();
        let chosen = choose(&kept, sequences, self.most, self.step);
        for (index, sequence) in chosen.iter().zip(sequences) {
            if *index == self.held.len() {
                self.held.push(HeldRequest::new(&self.model)?);
            }
            let end = sequence.history.len() + sequence.rows;
            let last = end.checked_sub(1).map(|last| last / BLOCK_POSITIONS);
            let last = last.and_then(|index| Some((index, *sequence.blocks.get(index)?)));
            self.held[*index].owner = Owner { step: self.step, last };
        }
        Ok(chosen)
    }

    /// A request that has been assigned.
    pub fn at(&mut self, index: usize) -> &mut HeldRequest {
        &mut self.held[index]
    }

    /// Makes a request again, which then holds nothing.
    ///
    /// # Errors
    /// When the library fails.
    pub fn restart(&mut self, index: usize) -> Result<()> {
        let owner = self.held[index].owner;
        self.held[index] = HeldRequest { owner, ..HeldRequest::new(&self.model)? };
        Ok(())
    }
}

impl HeldRequest {
    fn new(model: &Arc<CompiledModel>) -> Result<HeldRequest> {
        Ok(HeldRequest { request: model.request()?, slots: RequestSlots::default(), owner: Owner::default() })
    }
}

/// What a request is chosen by.
#[derive(Clone, Copy)]
struct KeptTokens<'a> {
    slots: &'a RequestSlots,
    owner: Owner,
}

impl KeptTokens<'_> {
    /// Whether the request ends where a sequence does.
    fn continues(&self, sequence: &Continued<'_>) -> bool {
        let length = sequence.history.len();
        length > 0 && self.slots.live() == length && self.slots.common(&sequence.history) == length
    }

    /// Whether the sequence wrote the last row.
    fn is_own(&self, sequence: &Continued<'_>) -> bool {
        self.owner.last.is_some_and(|(index, block)| sequence.blocks.get(index) == Some(&block))
    }
}

/// The index of a request for each sequence; further ones are to be made. Each choice gives the right numbers, as tokens that a
/// request lacks are run again; this one avoids that. A request that ends where a sequence does is taken first, so that a
/// copy of a sequence does not take the request of the other.
fn choose(kept: &[KeptTokens<'_>], sequences: &[Continued<'_>], most: usize, step: u64) -> Vec<usize> {
    let mut is_taken = vec![false; kept.len()];
    let mut chosen: Vec<Option<usize>> = vec![None; sequences.len()];
    for (chosen, sequence) in chosen.iter_mut().zip(sequences) {
        *chosen = (0..kept.len()).find(|index| !is_taken[*index] && kept[*index].continues(sequence));
        if let Some(index) = *chosen {
            is_taken[index] = true;
        }
    }
    let mut next = kept.len();
    let pairs = chosen.into_iter().zip(sequences);
    let all = pairs.map(|(chosen, sequence)| {
        if let Some(index) = chosen {
            return index;
        }
        let free = || (0..kept.len()).filter(|index| !is_taken[*index]);
        let common = |index: &usize| kept[*index].slots.common(&sequence.history);
        let own = free().find(|index| kept[*index].is_own(sequence));
        let is_idle = |index: &usize| kept[*index].owner.step + 1 < step && common(index) > 0;
        let found = own.or_else(|| free().filter(is_idle).max_by_key(common));
        let found = match found {
            None if next < most => None,
            None => free().max_by_key(|index| (common(index), Reverse(kept[*index].owner.step))),
            found => found,
        };
        // There are as many requests as sequences, so one is free or may be made.
        let index = found.unwrap_or_else(|| {
            next += 1;
            next - 1
        });
        if let Some(taken) = is_taken.get_mut(index) {
            *taken = true;
        }
        index
    });
    all.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(tokens: &[u32]) -> RequestSlots {
        let mut slots = RequestSlots::default();
        slots.extend(tokens);
        slots
    }

    #[test]
    fn a_sequence_keeps_its_request_beside_its_copy() {
        let (first, second) = (slots(&[1, 2, 3]), slots(&[7, 8]));
        let owner = |step, block| Owner { step, last: Some((0, Block(block))) };
        let kept = [
            KeptTokens { slots: &first, owner: owner(4, 10) },
            KeptTokens { slots: &second, owner: owner(4, 11) },
        ];
        let (a, b, c) = ([Block(10)], [Block(11)], [Block(12)]);
        let sequence = |history: &[u32], blocks| Continued { history: history.to_vec(), blocks, rows: 1 };
        // The copy is first in the step, and takes the request that ends where it does; the other one is made.
        let copies = [sequence(&[1, 2, 3], &c[..]), sequence(&[1, 2, 3], &a[..])];
        assert_eq!(choose(&kept, &copies, 3, 5), [0, 2]);
        // A sequence that steps back has its request again.
        assert_eq!(choose(&kept, &[sequence(&[1, 2], &a)], 3, 5), [0]);
        // One with the same first tokens takes a request only if no sequence used it in the step before.
        assert_eq!(choose(&kept, &[sequence(&[1, 2], &c)], 3, 5), [2]);
        assert_eq!(choose(&kept, &[sequence(&[1, 2], &c)], 3, 6), [0]);
        // Without room for more, the request with most of the tokens is used.
        assert_eq!(choose(&kept, &[sequence(&[7, 9], &c), sequence(&[7, 8], &b)], 2, 5), [0, 1]);
        assert_eq!(choose(&kept, &[sequence(&[7, 9], &c)], 2, 5), [1]);
        assert_eq!(choose(&[], &[sequence(&[], &a), sequence(&[], &b)], 2, 1), [0, 1]);
    }
}
