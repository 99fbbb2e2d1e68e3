// The positions with the best scores: a workgroup for each row. The score of a position is the sum of its products with the
// heads, those above zero, by the weights of the heads.

struct Params {
    count: u32, heads: u32, size: u32, key_words: u32,
    span: u32, table: u32, numbers: u32, best: u32,
    context: u32,
}
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read> context: array<u32>;
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(2) var<storage, read> weights: array<f32>;
@group(0) @binding(3) var<storage, read> keys: array<u32>;
@group(0) @binding(4) var<storage, read_write> scores: array<f32>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

var<workgroup> tree: array<u32, 256>;

// The sum of a number of each invocation.
fn sum_of(own: u32, local: u32) -> u32 {
    workgroupBarrier();
    tree[local] = own;
    workgroupBarrier();
    for (var half = 128u; half > 0u; half = half / 2u) {
        if local < half { tree[local] = tree[local] + tree[local + half]; }
        workgroupBarrier();
    }
    return tree[0];
}

// Numbers in the order of floats.
fn order(score: f32) -> u32 {
    let bits = bitcast<u32>(score);
    return select(bits | 0x80000000u, ~bits, (bits >> 31u) == 1u);
}

// How many of these positions have at least this order.
fn count_from(least: u32, first: u32, begin: u32, end: u32) -> u32 {
    var count = 0u;
    for (var i = begin; i < end; i += 1u) { count += select(0u, 1u, order(scores[first + i]) >= least); }
    return count;
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let row = group.y * groups.x + group.x;
    if row >= p.count { return; }
    let low = context[context[p.span] + 2u * row];
    let high = context[context[p.span] + 2u * row + 1u];
    let table = context[p.table] + context[context[3] + row] * context[p.table + 1u];
    let first = row * p.context;
    for (var head = 0u; head < p.heads; head += 1u) {
        workgroupBarrier();
        for (var d = local; d < p.size; d += 256u) { query[d] = q[(row * p.heads + head) * p.size + d]; }
        workgroupBarrier();
        let weight = weights[row * p.heads + head];
        for (var position = low + local; position < high; position += 256u) {
            let block = context[table + position / 64u];
            let product = product_with(key_word(block, 1u, 0u, p.key_words, 0u, position % 64u));
            var sum = 0.0;
            if head > 0u { sum = scores[first + position]; }
            // A comparison that lets NaN pass.
            scores[first + position] = fma(weight, select(product, 0.0, product < 0.0), sum);
        }
    }
    storageBarrier();
    // Each invocation has the positions of consecutive numbers of the selection.
    let each = (p.numbers + 255u) / 256u;
    let end_of_numbers = min((local + 1u) * each, p.numbers);
    let begin = clamp(local * each * 16u, low, high);
    let end = clamp(end_of_numbers * 16u, begin, high);
    // The order of the last one that is chosen, bit by bit.
    var last = 0u;
    for (var bit = 0u; bit < 32u; bit += 1u) {
        let least = last | (0x80000000u >> bit);
        if sum_of(count_from(least, first, begin, end), local) >= p.best { last = least; }
    }
    // Of equal scores, the first positions are chosen.
    let at_least = count_from(last, first, begin, end);
    var above = 0u;
    if last < 0xffffffffu { above = count_from(last + 1u, first, begin, end); }
    let equal = at_least - above;
    let chosen_above = sum_of(above, local);
    workgroupBarrier();
    tree[local] = equal;
    workgroupBarrier();
    var rank = chosen_above;
    for (var other = 0u; other < local; other += 1u) { rank += tree[other]; }
    for (var number = local * each; number < end_of_numbers; number += 1u) {
        var bits = 0u;
        for (var bit = 0u; bit < 16u; bit += 1u) {
            let position = number * 16u + bit;
            if position < low || position >= high { continue; }
            let own = order(scores[first + position]);
            if own > last || (own == last && rank < p.best) { bits |= 1u << bit; }
            if own == last { rank += 1u; }
        }
        y[row * p.numbers + number] = f32(bits);
    }
}
