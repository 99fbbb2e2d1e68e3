// What attention of one row and of several rows share: both have the same bits.

struct Params {
    count: u32, first: u32, heads: u32, kv_heads: u32,
    size: u32, value_size: u32, key_words: u32, value_words: u32,
    span: u32, table: u32, numbers: u32, is_latent: u32,
    has_cap: u32, scale: f32, cap: f32, has_sinks: u32,
}
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read> context: array<u32>;
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(2) var<storage, read> keys: array<u32>;
@group(0) @binding(3) var<storage, read> values: array<u32>;
@group(0) @binding(4) var<storage, read> selected: array<f32>;
@group(0) @binding(5) var<storage, read> sinks: array<f32>;
@group(0) @binding(6) var<storage, read_write> partial: array<f32>;
@group(0) @binding(7) var<storage, read_write> y: array<f32>;

const LOWEST: f32 = -3.4028235e38;

fn held_value(block: u32, kv_head: u32, word: u32, position: u32) -> u32 {
    if p.is_latent != 0u { return keys[key_word(block, p.kv_heads, kv_head, p.key_words, word, position)]; }
    return values[value_word(block, p.kv_heads, kv_head, p.value_words, word, position)];
}

// A weight of zero hides its value, which may be no number.
fn with_value(sum: Numbers, value: Numbers, weight: f32) -> Numbers {
    return select(fma(Numbers(weight), value, sum), sum, weight == 0.0);
}

// The scale is in the query. The bounds of a cap change no number, and keep a driver from joining its product with a
// difference.
fn capped(score: f32) -> f32 {
    if p.has_cap == 0u { return score; }
    let scaled = p.cap * hyperbolic_tangent(quotient(score, p.cap));
    return select(clamp(scaled, -p.cap, p.cap), scaled, scaled != scaled);
}
