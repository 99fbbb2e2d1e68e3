// The weights of a row's experts: an invocation has a row.

struct Params {
    count: u32, experts: u32, used: u32, is_sigmoid: u32,
    has_bias: u32, groups: u32, groups_used: u32, group_best: u32,
    is_normalized: u32, has_near: u32, epsilon: f32, factor: f32, near: f32,
}
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read> scores: array<f32>;
@group(0) @binding(1) var<storage, read> bias: array<f32>;
// For each row: the numbers by which experts are chosen, then what scores became.
@group(0) @binding(2) var<storage, read_write> ranks: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

// Whether `a` comes before `b` where the first of equal ones, and NaN before all, comes first.
fn precedes(a: f32, b: f32) -> bool {
    if a != a { return b == b; }
    return a > b;
}

// Removes experts of groups that are not used: their results become -1.
fn choose_groups(source: u32, to: u32) {
    let size = p.experts / p.groups;
    // The ranks of groups lie behind those of experts.
    let own = source + 2u * p.experts;
    for (var g = 0u; g < p.groups; g += 1u) {
        var rank = 0.0;
        var last = 0xffffffffu;
        var last_rank = 0.0;
        for (var k = 0u; k < p.group_best; k += 1u) {
            var best = 0xffffffffu;
            for (var e = 0u; e < size; e += 1u) {
                let r = ranks[source + g * size + e];
                let after = last == 0xffffffffu || precedes(last_rank, r) || (!precedes(r, last_rank) && e > last);
                if after && (best == 0xffffffffu || precedes(r, ranks[source + g * size + best])) { best = e; }
            }
            last = best;
            last_rank = ranks[source + g * size + best];
            rank += last_rank;
        }
        ranks[own + g] = rank;
    }
    for (var e = 0u; e < p.experts; e += 1u) { y[to + e] = -1.0; }
    var last = 0xffffffffu;
    for (var k = 0u; k < p.groups_used; k += 1u) {
        var best = 0xffffffffu;
        for (var g = 0u; g < p.groups; g += 1u) {
            let r = ranks[own + g];
            var after = last == 0xffffffffu;
            if !after {
                let l = ranks[own + last];
                after = precedes(l, r) || (!precedes(r, l) && g > last);
            }
            if after && (best == 0xffffffffu || precedes(r, ranks[own + best])) { best = g; }
        }
        last = best;
        for (var e = 0u; e < size; e += 1u) { y[to + best * size + e] = 0.0; }
    }
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let row = group.x * 64u + local;
    if row >= p.count { return; }
    let at = row * p.experts;
    let source = row * (2u * p.experts + p.groups);
    let became = source + p.experts;
    var most = scores[at];
    for (var e = 1u; e < p.experts; e += 1u) { most = max(most, scores[at + e]); }
    var sum = 0.0;
    for (var e = 0u; e < p.experts; e += 1u) {
        let s = scores[at + e];
        var v = 0.0;
        if p.is_sigmoid != 0u { v = sigmoid(s); } else { v = exponential(s - most); sum += v; }
        ranks[became + e] = v;
    }
    for (var e = 0u; e < p.experts; e += 1u) {
        if p.is_sigmoid == 0u { ranks[became + e] = quotient(ranks[became + e], sum); }
        if p.has_bias != 0u { ranks[source + e] = ranks[became + e] + bias[e]; }
        else if p.groups > 0u { ranks[source + e] = ranks[became + e]; }
        else { ranks[source + e] = scores[at + e]; }
        y[at + e] = 0.0;
    }
    if p.groups > 0u { choose_groups(source, at); }
    // Results of chosen experts are marked by 2 plus their probability; no probability exceeds 1.
    var sum_of_all = 0.0;
    for (var k = 0u; k < p.used; k += 1u) {
        var best = 0xffffffffu;
        for (var e = 0u; e < p.experts; e += 1u) {
            if y[at + e] == 0.0 && (best == 0xffffffffu || precedes(ranks[source + e], ranks[source + best])) { best = e; }
        }
        if best == 0xffffffffu { break; }
        var probability = ranks[became + best];
        if p.has_near != 0u {
            let own = scores[at + best];
            var near = 0.0;
            for (var e = 0u; e < p.experts; e += 1u) {
                let s = scores[at + e];
                if y[at + e] != 2.0 && own - s - p.near * max(abs(s), own) <= 0.0 { near += exponential(s - own); }
            }
            probability = quotient(1.0, near);
            ranks[became + best] = probability;
        }
        y[at + best] = 2.0;
        sum_of_all += probability;
    }
    var divisor = 1.0;
    if p.is_normalized != 0u { divisor = sum_of_all + p.epsilon; }
    for (var e = 0u; e < p.experts; e += 1u) {
        if y[at + e] == 2.0 {
            var weight = ranks[became + e];
            if p.is_normalized != 0u { weight = quotient(weight, divisor); }
            y[at + e] = weight * p.factor;
        } else {
            y[at + e] = 0.0;
        }
    }
}
