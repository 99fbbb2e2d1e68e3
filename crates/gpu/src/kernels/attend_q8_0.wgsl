// Values of attention in Q8_0, which lie as the keys of keys_q8_0.wgsl.

fn value_at(block: u32, kv_head: u32, word: u32, position: u32) -> Numbers {
    let group = word / 8u;
    // The first numbers of latents are their values.
    let codes = select(p.value_size, p.size, p.is_latent != 0u) / 4u;
    let scale = scale_in(held_value(block, kv_head, codes + group / 2u, position), group);
    return numbers(held_value(block, kv_head, word, position)) * scale;
}
