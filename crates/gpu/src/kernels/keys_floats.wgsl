// Keys of keys.wgsl in floats: one or two in a word.

fn key_scale(at: u32, w: u32) -> f32 { return 1.0; }

fn with_key(product: f32, key: u32, w: u32, scale: f32) -> f32 {
    let k = numbers(key);
    let first = fma(query[w * VALUES], k.x, product);
    if VALUES == 2u && w * 2u + 1u < p.size { return fma(query[w * 2u + 1u], k.y, first); }
    return first;
}
