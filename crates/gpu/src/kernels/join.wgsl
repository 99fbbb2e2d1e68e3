// Joins the chunks of attention in order: each invocation has one number of the result.

struct Params { count: u32, first: u32, heads: u32, value_size: u32, span: u32, has_sinks: u32, chunks: u32 }
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read> context: array<u32>;
@group(0) @binding(1) var<storage, read> partial: array<f32>;
@group(0) @binding(2) var<storage, read> sinks: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = (group.y * groups.x + group.x) * 256u + local;
    if i >= p.count { return; }
    let column = i % p.value_size;
    let head = i / p.value_size % p.heads;
    let row = i / p.value_size / p.heads;
    let low = context[context[p.span] + 2u * (p.first + row)];
    let high = context[context[p.span] + 2u * (p.first + row) + 1u];
    let count = (high + 255u) / 256u - low / 256u;
    var most = -3.4028235e38;
    var weights = 0.0;
    var sum = 0.0;
    if p.has_sinks != 0u {
        most = sinks[head];
        weights = 1.0;
    }
    for (var c = 0u; c < count; c += 1u) {
        let at = ((row * p.heads + head) * p.chunks + c) * (p.value_size + 2u);
        let next = max(most, partial[at]);
        let before = exponential(most - next);
        let own = exponential(partial[at] - next);
        weights = fma(weights, before, partial[at + 1u] * own);
        sum = fma(sum, before, partial[at + 2u + column] * own);
        most = next;
    }
    y[p.first * p.heads * p.value_size + i] = quotient(sum, weights);
}
