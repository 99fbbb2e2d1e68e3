// The gated delta rule: a workgroup has a column of the matrix of a head, over all rows of a sequence.

struct Params {
    count: u32, heads: u32, size: u32, width: u32,
    groups: u32, table: u32, turns: u32, steps: u32,
}
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read> context: array<u32>;
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(2) var<storage, read> k: array<f32>;
@group(0) @binding(3) var<storage, read> v: array<f32>;
@group(0) @binding(4) var<storage, read> beta: array<f32>;
@group(0) @binding(5) var<storage, read> dt: array<f32>;
@group(0) @binding(6) var<storage, read> a: array<f32>;
@group(0) @binding(7) var<storage, read_write> carried: array<f32>;
@group(0) @binding(8) var<storage, read_write> y: array<f32>;

var<workgroup> tree: array<f32, 64>;

fn block_of(sequence: u32, position: u32) -> u32 {
    return context[context[p.table] + sequence * context[p.table + 1u] + position / 64u];
}

fn total(local: u32, part: f32) -> f32 {
    workgroupBarrier();
    tree[local] = part;
    workgroupBarrier();
    for (var half = 32u; half > 0u; half = half / 2u) {
        if local < half { tree[local] = tree[local] + tree[local + half]; }
        workgroupBarrier();
    }
    return tree[0];
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let column = group.x % p.width;
    let head = group.x / p.width;
    let sequence = group.y;
    var owner = head / (p.heads / p.groups);
    if p.turns != 0u { owner = head % p.groups; }
    let first = context[context[6] + sequence];
    let rows = context[context[7] + sequence];
    let begin = context[context[8] + sequence];
    var state = array<f32, 8>();
    if begin > 0u {
        let source = (block_of(sequence, begin - 1u) * p.heads + head) * p.size;
        for (var i = 0u; i < 8u; i += 1u) {
            let d = local + i * 64u;
            if d < p.size { state[i] = carried[(source + d) * p.width + column]; }
        }
    }
    for (var r = 0u; r < rows; r += 1u) {
        let row = first + r;
        let keys = (row * p.groups + owner) * p.size;
        var sum = 0.0;
        for (var i = 0u; i < 8u; i += 1u) {
            let d = local + i * 64u;
            if d < p.size {
                var s = dt[row * p.heads + head];
                if p.steps > 1u { s = dt[(row * p.heads + head) * p.size + d]; }
                state[i] = exponential(s * a[head]) * state[i];
                sum = fma(state[i], k[keys + d], sum);
            }
        }
        let predicted = total(local, sum);
        let change = beta[row * p.heads + head] * (v[(row * p.heads + head) * p.width + column] - predicted);
        sum = 0.0;
        for (var i = 0u; i < 8u; i += 1u) {
            let d = local + i * 64u;
            if d < p.size {
                state[i] = fma(k[keys + d], change, state[i]);
                sum = fma(state[i], q[keys + d], sum);
            }
        }
        let result = total(local, sum);
        if local == 0u { y[(row * p.heads + head) * p.width + column] = result; }
        if (begin + r) % 64u == 63u || r + 1u == rows {
            let to = (block_of(sequence, begin + r) * p.heads + head) * p.size;
            for (var i = 0u; i < 8u; i += 1u) {
                let d = local + i * 64u;
                if d < p.size { carried[(to + d) * p.width + column] = state[i]; }
            }
        }
    }
}
