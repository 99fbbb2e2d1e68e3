// Keys and values of attend.wgsl in Q8_0: four codes in a word, and behind the codes of a head the scales of 32 numbers
// each, two in a word.

fn scale_in(word: u32, group: u32) -> f32 {
    let pair = unpack2x16float(word);
    return select(pair.x, pair.y, group % 2u == 1u);
}

fn key_scale(at: u32, w: u32) -> f32 {
    let group = w / 8u;
    return scale_in(keys[at + (p.size / 4u + group / 2u) * 64u], group);
}

fn with_key(product: f32, key: u32, w: u32, scale: f32) -> f32 {
    let k = numbers(key) * scale;
    var sum = fma(query[w * 4u], k.x, product);
    sum = fma(query[w * 4u + 1u], k.y, sum);
    sum = fma(query[w * 4u + 2u], k.z, sum);
    return fma(query[w * 4u + 3u], k.w, sum);
}

fn value_at(block: u32, kv_head: u32, word: u32, position: u32) -> Numbers {
    let group = word / 8u;
    // The first numbers of latents are their values.
    let codes = select(p.value_size, p.size, p.is_latent != 0u) / 4u;
    let scale = scale_in(held_value(block, kv_head, codes + group / 2u, position), group);
    return numbers(held_value(block, kv_head, word, position)) * scale;
}

fn store(first: u32, word: u32, sum: Numbers) {
    for (var i = 0u; i < 4u && word * 4u + i < p.value_size; i += 1u) { partial[first + word * 4u + i] = sum[i]; }
}
