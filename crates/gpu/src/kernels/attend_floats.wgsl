// Values of attention in floats: one or two in a word.

fn value_at(block: u32, kv_head: u32, word: u32, position: u32) -> Numbers {
    return numbers(held_value(block, kv_head, word, position));
}
