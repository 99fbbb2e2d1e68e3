// Values of attend.wgsl in floats: one or two in a word.

fn value_at(block: u32, kv_head: u32, word: u32, position: u32) -> Numbers {
    return numbers(held_value(block, kv_head, word, position));
}

fn store(to: Sums, word: u32, sum: Numbers) {
    keep(to, word * VALUES, sum.x);
    if VALUES == 2u && word * 2u + 1u < p.value_size { keep(to, word * 2u + 1u, sum.y); }
}
