// Rotary positions: each invocation rotates one pair, or copies one number that is not rotated. Sines and cosines
// come from the host.

struct Params { count: u32, heads: u32, size: u32, pairs: u32, is_neighbours: u32, table: u32, factor: f32 }
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read> context: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = (group.y * groups.x + group.x) * 256u + local;
    if i >= p.count { return; }
    let items = p.size - p.pairs;
    let run = i / items;
    let item = i % items;
    let at = run * p.size;
    if item >= p.pairs {
        y[at + p.pairs + item] = x[at + p.pairs + item];
        return;
    }
    let row = run / p.heads;
    let rotation = context[p.table] + (row * p.pairs + item) * 2u;
    let c = bitcast<f32>(context[rotation]);
    let s = bitcast<f32>(context[rotation + 1u]);
    var first = at + item;
    var second = first + p.pairs;
    if p.is_neighbours != 0u {
        first = at + 2u * item;
        second = first + 1u;
    }
    let a = x[first];
    let b = x[second];
    y[first] = p.factor * fma(a, c, -(b * s));
    y[second] = p.factor * fma(a, s, b * c);
}
