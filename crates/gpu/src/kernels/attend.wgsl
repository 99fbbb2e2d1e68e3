// Attention of one head of one row to a chunk of 256 absolute positions: the largest score, the sum of weights and
// the weighted sum of values. The chunks are joined by join.wgsl, in order.

struct Params {
    count: u32, first: u32, heads: u32, kv_heads: u32,
    size: u32, value_size: u32, key_words: u32, value_words: u32,
    span: u32, table: u32, numbers: u32, is_latent: u32,
    has_cap: u32, scale: f32, cap: f32,
}
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read> context: array<u32>;
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(2) var<storage, read> keys: array<u32>;
@group(0) @binding(3) var<storage, read> values: array<u32>;
@group(0) @binding(4) var<storage, read> selected: array<f32>;
@group(0) @binding(5) var<storage, read_write> partial: array<f32>;

const LOWEST: f32 = -3.4028235e38;

var<workgroup> weights: array<f32, 256>;
var<workgroup> tree: array<f32, 256>;
var<workgroup> parts: array<Numbers, 256>;

fn held_value(block: u32, kv_head: u32, word: u32, position: u32) -> u32 {
    if p.is_latent != 0u { return keys[key_word(block, p.kv_heads, kv_head, p.key_words, word, position)]; }
    return values[value_word(block, p.kv_heads, kv_head, p.value_words, word, position)];
}

// A weight of zero hides its value, which may be no number.
fn with_value(sum: Numbers, value: Numbers, weight: f32) -> Numbers {
    if weight == 0.0 { return sum; }
    return fma(Numbers(weight), value, sum);
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let row = p.first + group.y;
    let head = group.x;
    let low = context[context[p.span] + 2u * row];
    let high = context[context[p.span] + 2u * row + 1u];
    let start = (low / 256u + group.z) * 256u;
    if start >= high { return; }
    let kv_head = head / (p.heads / p.kv_heads);
    let table = context[p.table] + context[context[3] + row] * context[p.table + 1u];
    for (var d = local; d < p.size; d += 256u) { query[d] = q[(row * p.heads + head) * p.size + d]; }
    workgroupBarrier();
    let position = start + local;
    var sees = position >= low && position < high;
    if sees && p.numbers > 0u {
        let number = u32(selected[row * p.numbers + position / 16u]);
        sees = ((number >> (position % 16u)) & 1u) == 1u;
    }
    var score = LOWEST;
    if sees {
        let block = context[table + position / 64u];
        let at = key_word(block, p.kv_heads, kv_head, p.key_words, 0u, position % 64u);
        score = product_with(at) * p.scale;
        if p.has_cap != 0u { score = p.cap * hyperbolic_tangent(quotient(score, p.cap)); }
    }
    tree[local] = score;
    workgroupBarrier();
    for (var half = 128u; half > 0u; half = half / 2u) {
        if local < half { tree[local] = max(tree[local], tree[local + half]); }
        workgroupBarrier();
    }
    let most = tree[0];
    workgroupBarrier();
    var weight = 0.0;
    if sees { weight = exponential(score - most); }
    weights[local] = weight;
    tree[local] = weight;
    workgroupBarrier();
    for (var half = 128u; half > 0u; half = half / 2u) {
        if local < half { tree[local] = tree[local] + tree[local + half]; }
        workgroupBarrier();
    }
    let out = ((group.y * p.heads + head) * groups.z + group.z) * (p.value_size + 2u);
    if local == 0u {
        partial[out] = most;
        partial[out + 1u] = tree[0];
    }
    // Four teams have a block of positions each.
    let team = local / 64u;
    let lane = local % 64u;
    let base = start + team * 64u;
    let begin = max(low, base);
    let end = min(high, base + 64u);
    var block = 0u;
    if begin < end { block = context[table + base / 64u]; }
    let words = (p.value_size + VALUES - 1u) / VALUES;
    for (var tile = 0u; tile < words; tile += 64u) {
        let word = tile + lane;
        var sum = Numbers(0.0);
        if word < words {
            var k = begin;
            for (; k + 4u <= end; k += 4u) {
                let v0 = value_at(block, kv_head, word, k - base);
                let v1 = value_at(block, kv_head, word, k + 1u - base);
                let v2 = value_at(block, kv_head, word, k + 2u - base);
                let v3 = value_at(block, kv_head, word, k + 3u - base);
                sum = with_value(sum, v0, weights[k - start]);
                sum = with_value(sum, v1, weights[k + 1u - start]);
                sum = with_value(sum, v2, weights[k + 2u - start]);
                sum = with_value(sum, v3, weights[k + 3u - start]);
            }
            for (; k < end; k += 1u) {
                sum = with_value(sum, value_at(block, kv_head, word, k - base), weights[k - start]);
            }
        }
        parts[local] = sum;
        workgroupBarrier();
        if local < 64u && word < words {
            store(out + 2u, word, ((parts[local] + parts[local + 64u]) + parts[local + 128u]) + parts[local + 192u]);
        }
        workgroupBarrier();
    }
}
