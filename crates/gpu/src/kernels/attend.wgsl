// Attention of one head of one row to a chunk of 256 absolute positions: the largest score, the sum of weights and
// the weighted sum of values. The chunks are joined by join.wgsl, in order; if there is only one, here.

var<workgroup> weights: array<f32, 256>;
var<workgroup> tree: array<f32, 256>;
var<workgroup> parts: array<Numbers, 256>;

// Where the weighted sum goes: to the partial results, or to the result itself, with the factors and the divisor of a join.
struct Sums { is_whole: bool, at: u32, before: f32, own: f32, divisor: f32 }

fn keep(to: Sums, column: u32, sum: f32) {
    if to.is_whole {
        y[to.at + column] = quotient(fma(0.0, to.before, sum * to.own), to.divisor);
    } else {
        partial[to.at + column] = sum;
    }
}

fn store(to: Sums, word: u32, sum: Numbers) {
    for (var i = 0u; i < VALUES && word * VALUES + i < p.value_size; i += 1u) { keep(to, word * VALUES + i, sum[i]); }
}

// The result of a row with one chunk, as join.wgsl has it.
fn joined(at: u32, head: u32, most: f32, weight: f32) -> Sums {
    var first = LOWEST;
    var weights = 0.0;
    if p.has_sinks != 0u {
        first = sinks[head];
        weights = 1.0;
    }
    let next = max(first, most);
    let before = exponential(first - next);
    let own = exponential(most - next);
    return Sums(true, at, before, own, fma(weights, before, weight * own));
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
    let is_whole = groups.z == 1u;
    if start >= high && !is_whole { return; }
    let kv_head = head / (p.heads / p.kv_heads);
    let table = context[p.table] + context[context[3] + row] * context[p.table + 1u];
    for (var d = local; d < p.size; d += 256u) { query[d] = q[(row * p.heads + head) * p.size + d] * p.scale; }
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
        score = capped(product_with(key_word(block, p.kv_heads, kv_head, p.key_words, 0u, position % 64u)));
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
    var to = Sums(false, out + 2u, 0.0, 1.0, 1.0);
    if is_whole {
        to = joined((row * p.heads + head) * p.value_size, head, most, tree[0]);
    } else if local == 0u {
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
VALUES_IN_FLIGHT
            for (; k < end; k += 1u) {
                sum = with_value(sum, value_at(block, kv_head, word, k - base), weights[k - start]);
            }
        }
        parts[local] = sum;
        workgroupBarrier();
        if local < 64u && word < words {
            store(to, word, ((parts[local] + parts[local + 64u]) + parts[local + 128u]) + parts[local + 192u]);
        }
        workgroupBarrier();
    }
}
