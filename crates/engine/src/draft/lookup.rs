//! Prompt lookup: drafts what followed the last tokens when they occurred before.

use girih_tensor::random::mix;

use super::acceptance::AcceptanceRate;
use super::budget::DraftBudget;
use crate::{DraftQuery, Drafter};

/// The lengths of the n-grams that are looked up, the longest first, each with the first estimate of
/// its acceptance. A longer one is less likely to recur by chance.
const NGRAMS: [(usize, f32); 3] = [(8, 0.75), (4, 0.5), (2, 0.25)];

/// The minimum and maximum number of slots of a table. At the maximum, a table has 256 KiB.
const SLOTS: (usize, usize) = (1 << 10, 1 << 16);

/// Drafts without a model: finds the last n-gram that equals the end of the tokens, the longest of 8,
/// 4 and 2 tokens, and proposes the tokens that followed it (Saxena, "Prompt Lookup Decoding", 2023).
/// This pays off when a reply repeats parts of its prompt or of itself.
///
/// It guesses in each step, and compares its guess with the reply even if it proposed nothing. So
/// it stops when guesses are wrong, and resumes when they would have been right, at no cost.
#[derive(Debug)]
pub struct PromptLookup {
    max: u32,
    /// For each length, the positions after n-grams, by their hash; 0 if there is none. Of several
    /// n-grams with the same slot the last one stays, so a lookup compares tokens.
    tables: [Vec<u32>; NGRAMS.len()],
    /// N-grams before this position are in the tables.
    indexed: usize,
    rates: [AcceptanceRate; NGRAMS.len()],
    budget: DraftBudget,
    guess: Guess,
}

/// The tokens that were expected to follow.
#[derive(Debug, Default)]
struct Guess {
    /// The index of the n-gram's length.
    length: usize,
    /// The number of tokens before the guess.
    position: usize,
    tokens: Vec<u32>,
}

impl PromptLookup {
    /// Returns a drafter for one request that drafts at most `max` tokens at once.
    pub fn new(max: u32) -> PromptLookup {
        PromptLookup {
            max,
            tables: [const { Vec::new() }; NGRAMS.len()],
            indexed: 0,
            rates: NGRAMS.map(|(_, share)| AcceptanceRate::new(share)),
            budget: DraftBudget::default(),
            guess: Guess::default(),
        }
    }

    /// Adds the n-grams that end before the last token.
    fn index(&mut self, tokens: &[u32]) {
        let (least, most) = SLOTS;
        let slots = tokens.len().saturating_mul(4).next_power_of_two().clamp(least, most);
        // Fewer tokens than before are a piece after truncation.
        if slots > self.tables[0].len() || tokens.len() < self.indexed {
            self.tables.iter_mut().for_each(|table| *table = vec![0; slots]);
            self.indexed = 0;
        }
        for position in self.indexed..tokens.len() {
            for ((length, _), table) in NGRAMS.iter().zip(&mut self.tables) {
                if let Some(start) = position.checked_sub(*length) {
                    let slot = slot(&tokens[start..position], table.len());
                    table[slot] = position as u32;
                }
            }
        }
        self.indexed = tokens.len();
    }

    /// Finds the last occurrence of the longest n-gram that ends the tokens; returns the index of its
    /// length, and the position after it.
    fn find(&self, tokens: &[u32]) -> Option<(usize, usize)> {
        let mut tables = NGRAMS.iter().zip(&self.tables).enumerate();
        tables.find_map(|(index, ((length, _), table))| {
            let end = &tokens[tokens.len().checked_sub(*length)?..];
            let position = table[slot(end, table.len())] as usize;
            let start = position.checked_sub(*length)?;
            (tokens.get(start..position) == Some(end)).then_some((index, position))
        })
    }
}

impl Drafter for PromptLookup {
    fn draft(&mut self, query: DraftQuery<'_>) -> Vec<u32> {
        let tokens = query.tokens;
        let Guess { length, position, tokens: guess } = &self.guess;
        self.rates[*length].count(guess, tokens.get(*position..).unwrap_or_default());
        self.budget.settle(tokens);
        self.index(tokens);
        self.guess = Guess::default();
        let Some((length, position)) = self.find(tokens) else { return Vec::new() };
        let mut guess: Vec<u32> = tokens[position..].iter().take(self.max as usize).copied().collect();
        // What follows the last token is the guess itself: the reply may be in a loop.
        let mut next = 0;
        while guess.len() < self.max as usize && !guess.is_empty() {
            guess.push(guess[next]);
            next += 1;
        }
        let most = self.budget.most(&query, 0.0, self.max.min(query.max));
        let count = self.rates[length].best_length(query.costs, 0.0, query.other_rows, most);
        let draft = guess[..guess.len().min(count as usize)].to_vec();
        self.budget.open(&query, 0.0, &draft);
        self.guess = Guess { length, position: tokens.len(), tokens: guess };
        draft
    }
}

/// The slot of an n-gram in a table of `slots`, a power of two.
fn slot(ngram: &[u32], slots: usize) -> usize {
    ngram.iter().fold(0, |hash, token| mix(hash ^ u64::from(*token))) as usize & (slots - 1)
}

#[cfg(test)]
mod tests {
    use girih_tensor::Random;

    use super::*;
    use crate::{Sampling, StepCosts};

    fn draft(lookup: &mut PromptLookup, tokens: &[u32], max: u32) -> Vec<u32> {
        let (sampling, costs) = (&Sampling::greedy(), &StepCosts::default());
        lookup.draft(DraftQuery { tokens, replied: 0, sampling, max, other_rows: 0, costs })
    }

    /// Continues `tokens` by `reply`, as far as drafts are right in one step; returns the number of
    /// steps, and of drafted and accepted tokens.
    fn steps(lookup: &mut PromptLookup, tokens: &[u32], reply: &[u32]) -> (usize, usize, usize) {
        let (mut tokens, mut left) = (tokens.to_vec(), reply);
        let (mut steps, mut drafted, mut accepted) = (0, 0, 0);
        while !left.is_empty() {
            let draft = draft(lookup, &tokens, 15);
            let right = draft.iter().zip(left).take_while(|(guess, token)| guess == token).count();
            (steps, drafted, accepted) = (steps + 1, drafted + draft.len(), accepted + right);
            let (kept, rest) = left.split_at(left.len().min(right + 1));
            tokens.extend_from_slice(kept);
            left = rest;
        }
        (steps, drafted, accepted)
    }

    fn random_tokens(seed: u64, count: usize, vocabulary: usize) -> Vec<u32> {
        let mut random = Random(seed);
        (0..count).map(|_| random.below(vocabulary) as u32).collect()
    }

    #[test]
    fn it_proposes_what_followed_the_longest_ngram() {
        // 3 4 was last followed by 9, but 1 2 3 4 by 5.
        let tokens = [1, 2, 3, 4, 5, 6, 7, 3, 4, 9, 8, 1, 2, 3, 4];
        assert_eq!(PromptLookup::new(1).find(&[]), None);
        let mut lookup = PromptLookup::new(4);
        let draft = draft(&mut lookup, &tokens, 4);
        assert_eq!(draft, [5, 6][..draft.len()]);
        assert_eq!(lookup.guess.tokens, [5, 6, 7, 3]);
        assert_eq!(self::draft(&mut PromptLookup::new(4), &[1, 2, 3, 4, 5], 4), [] as [u32; 0]);
    }

    #[test]
    fn a_loop_is_continued_beyond_its_end() {
        let mut lookup = PromptLookup::new(7);
        draft(&mut lookup, &[8, 8, 8, 8, 8], 7);
        assert_eq!(lookup.guess.tokens, [8; 7]);
        draft(&mut lookup, &[8, 8, 8, 8, 8, 1, 2, 1, 2, 1, 2], 7);
        assert_eq!(lookup.guess.tokens, [1, 2, 1, 2, 1, 2, 1]);
    }

    #[test]
    fn a_reply_that_repeats_its_prompt_takes_few_steps() {
        let prompt = random_tokens(1, 600, 30_000);
        let (steps, ..) = steps(&mut PromptLookup::new(15), &prompt, &prompt[100..400]);
        assert!(steps < 300 / 8, "{steps} steps");
    }

    #[test]
    fn a_reply_of_chance_costs_few_rows() {
        // Of 64 tokens, most pairs occurred before, and one guess in 64 is right.
        for seed in 0..4 {
            let tokens = random_tokens(seed, 4096, 64);
            let (steps, drafted, accepted) =
                steps(&mut PromptLookup::new(15), &tokens[..2048], &tokens[2048..]);
            assert_eq!(steps + accepted, 2048);
            assert!(drafted * 8 < steps, "{drafted} tokens drafted in {steps} steps, seed {seed}");
        }
    }

    #[test]
    fn it_resumes_when_the_reply_begins_to_repeat() {
        let prompt = random_tokens(5, 400, 1000);
        let chance = random_tokens(6, 400, 8);
        let mut lookup = PromptLookup::new(15);
        steps(&mut lookup, &prompt, &chance);
        let tokens = [&prompt[..], &chance].concat();
        let (steps, ..) = steps(&mut lookup, &tokens, &prompt[..300]);
        assert!(steps < 300 / 6, "{steps} steps");
    }

    #[test]
    fn truncated_tokens_are_indexed_again_and_memory_is_bounded() {
        let tokens = random_tokens(9, 200_000, 50);
        let mut lookup = PromptLookup::new(3);
        for end in [100, 150_000, 200_000, 90, 91] {
            let draft = draft(&mut lookup, &tokens[..end], 3);
            assert!(draft.len() <= 3 && lookup.tables.iter().all(|table| table.len() <= SLOTS.1));
        }
    }
}
