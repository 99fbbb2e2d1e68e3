// How keys and values lie in a block of 64 positions: VALUES numbers in a word. Keys are transposed, word by word of a
// head with the 64 positions side by side; values lie position by position.

fn key_word(block: u32, heads: u32, head: u32, words: u32, word: u32, at: u32) -> u32 {
    return ((block * heads + head) * words + word) * 64u + at;
}

fn value_word(block: u32, heads: u32, head: u32, words: u32, word: u32, at: u32) -> u32 {
    return ((block * heads + head) * 64u + at) * words + word;
}
