// The scan of Mamba-2: a workgroup has a row of the state of a head, over all rows of a sequence.

struct Params {
    count: u32, heads: u32, size: u32, columns: u32,
    groups: u32, table: u32, has_most: u32, least: f32, most: f32,
}
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read> context: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> dt: array<f32>;
@group(0) @binding(3) var<storage, read> b: array<f32>;
@group(0) @binding(4) var<storage, read> c: array<f32>;
@group(0) @binding(5) var<storage, read> a: array<f32>;
@group(0) @binding(6) var<storage, read> d: array<f32>;
@group(0) @binding(7) var<storage, read> bias: array<f32>;
@group(0) @binding(8) var<storage, read_write> carried: array<f32>;
@group(0) @binding(9) var<storage, read_write> y: array<f32>;

var<workgroup> tree: array<f32, 64>;

fn block_of(sequence: u32, position: u32) -> u32 {
    return context[context[p.table] + sequence * context[p.table + 1u] + position / 64u];
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let row_of_head = group.x;
    let sequence = group.y;
    let head = row_of_head / p.size;
    let first = context[context[6] + sequence];
    let rows = context[context[7] + sequence];
    let begin = context[context[8] + sequence];
    var state = array<f32, 8>();
    if begin > 0u {
        let source = (block_of(sequence, begin - 1u) * p.heads * p.size + row_of_head) * p.columns;
        for (var k = 0u; k < 8u; k += 1u) {
            let n = local + k * 64u;
            if n < p.columns { state[k] = carried[source + n]; }
        }
    }
    let sharing = p.heads / p.groups;
    for (var r = 0u; r < rows; r += 1u) {
        let row = first + r;
        let v = x[row * p.heads * p.size + row_of_head];
        var delta = softplus(dt[row * p.heads + head] + bias[head]);
        delta = select(delta, p.least, delta < p.least);
        if p.has_most != 0u { delta = select(delta, p.most, delta > p.most); }
        let decay = exponential(delta * a[head]);
        let of_group = (row * p.groups + head / sharing) * p.columns;
        let input = delta * v;
        var sum = 0.0;
        for (var k = 0u; k < 8u; k += 1u) {
            let n = local + k * 64u;
            if n < p.columns {
                state[k] = fma(decay, state[k], input * b[of_group + n]);
                sum = fma(state[k], c[of_group + n], sum);
            }
        }
        tree[local] = sum;
        workgroupBarrier();
        for (var half = 32u; half > 0u; half = half / 2u) {
            if local < half { tree[local] = tree[local] + tree[local + half]; }
            workgroupBarrier();
        }
        if local == 0u { y[row * p.heads * p.size + row_of_head] = fma(d[head], v, tree[0]); }
        workgroupBarrier();
        if (begin + r) % 64u == 63u || r + 1u == rows {
            let to = (block_of(sequence, begin + r) * p.heads * p.size + row_of_head) * p.columns;
            for (var k = 0u; k < 8u; k += 1u) {
                let n = local + k * 64u;
                if n < p.columns { carried[to + n] = state[k]; }
            }
        }
    }
}
