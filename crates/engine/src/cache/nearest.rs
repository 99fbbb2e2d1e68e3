//! How far a prompt is that of an earlier one of its tenant, so that a miss of the prefix cache can be explained.

use std::collections::VecDeque;

use crate::service::Tenant;

/// The maximum number of evicted sequences whose tokens are remembered.
const MAX_SEQUENCES: usize = 16;

/// The maximum number of their tokens together.
const MAX_TOKENS: usize = 131_072;

/// How many first tokens a prompt shares with earlier sequences of its tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NearestPrompt {
    /// With one that the cache holds, whether or not its state can be used up to there.
    pub held: u32,
    /// With one that was evicted lately, at most 16 sequences and 131,072 tokens ago.
    pub evicted: u32,
}

/// The tokens of sequences that were evicted lately, the oldest first.
#[derive(Debug)]
pub(super) struct EvictedPrompts<K> {
    sequences: VecDeque<(Tenant, Vec<K>)>,
    tokens: usize,
}

impl<K: PartialEq> EvictedPrompts<K> {
    pub fn new() -> EvictedPrompts<K> {
        EvictedPrompts { sequences: VecDeque::new(), tokens: 0 }
    }

    /// Remembers a sequence.
    pub fn add(&mut self, tenant: Tenant, tokens: Vec<K>) {
        if tokens.len() > MAX_TOKENS {
            return;
        }
        self.tokens += tokens.len();
        self.sequences.push_back((tenant, tokens));
        while self.sequences.len() > MAX_SEQUENCES || self.tokens > MAX_TOKENS {
            let Some((_, tokens)) = self.sequences.pop_front() else { return };
            self.tokens -= tokens.len();
        }
    }

    /// The number of first tokens that a prompt shares with one of the tenant's.
    pub fn shared(&self, tenant: &Tenant, prompt: &[K]) -> usize {
        let own = self.sequences.iter().filter(|(owner, _)| owner == tenant);
        own.map(|(_, tokens)| shared(tokens, prompt)).max().unwrap_or(0)
    }
}

/// The number of first tokens that two sequences share.
pub(super) fn shared<K: PartialEq>(held: &[K], new: &[K]) -> usize {
    held.iter().zip(new).take_while(|(held, new)| held == new).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evicted_prompts_are_remembered_within_bounds_and_for_their_tenant() {
        let (one, two) = (Tenant::new("one"), Tenant::new("two"));
        let mut evicted = EvictedPrompts::new();
        evicted.add(one.clone(), vec![1, 2, 3, 4]);
        assert_eq!((evicted.shared(&one, &[1, 2, 9]), evicted.shared(&two, &[1, 2, 9])), (2, 0));
        (0..16).for_each(|_| evicted.add(two.clone(), vec![7]));
        assert_eq!(evicted.shared(&one, &[1, 2, 9]), 0);
        evicted.add(one.clone(), vec![5; MAX_TOKENS]);
        assert_eq!((evicted.sequences.len(), evicted.tokens), (1, MAX_TOKENS));
        evicted.add(one.clone(), vec![6; MAX_TOKENS + 1]);
        assert_eq!(evicted.shared(&one, &[5, 5]), 2);
    }
}
