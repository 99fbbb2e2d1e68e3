// Keys in Q8_0: four codes in a word, and behind the codes of a head the scales of 32 numbers each, two in a word.

fn scale_in(word: u32, group: u32) -> f32 {
    let pair = unpack2x16float(word);
    return select(pair.x, pair.y, group % 2u == 1u);
}

fn key_scale(at: u32, w: u32) -> f32 {
    let group = w / 8u;
    return scale_in(keys[at + (p.size / 4u + group / 2u) * 64u], group);
}

fn key_numbers(key: u32, scale: f32) -> vec4<f32> { return numbers(key) * scale; }
