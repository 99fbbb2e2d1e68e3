//! A tokenizer's vocabulary as llguidance reads it: the bytes of each token.

use std::sync::Arc;

use girih_words::Tokenizer;
use llguidance::toktrie::{INVALID_TOKEN, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};

/// The trie of the tokens' bytes.
struct TokenBytes(TokTrie);

impl TokenizerEnv for TokenBytes {
    fn tok_trie(&self) -> &TokTrie {
        &self.0
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.0.greedy_tokenize(bytes)
    }

    /// So the grammar forces no tokens: the model chooses among all spellings of a forced text.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

/// The vocabulary of a tokenizer. `stop_tokens` end a reply that is complete; those outside the
/// vocabulary are left out.
pub(crate) fn token_bytes(tokenizer: &Tokenizer, stop_tokens: &[u32]) -> TokEnv {
    let size = tokenizer.vocab_size();
    let words: Vec<Vec<u8>> = (0..size).map(|id| tokenizer.token_bytes(id)).collect();
    let stops: Vec<u32> = stop_tokens.iter().copied().filter(|id| *id < size).collect();
    let trie = TokTrie::from(&TokRxInfo::new(size, INVALID_TOKEN), &words);
    Arc::new(TokenBytes(if stops.is_empty() { trie } else { trie.with_eos_tokens(&stops) }))
}
