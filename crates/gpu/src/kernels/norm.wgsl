// Norms: a workgroup reads one run of numbers, and sums them in a fixed tree.

struct Params { count: u32, mode: u32, width: u32, weights: u32, has_bias: u32, p0: f32, p1: f32 }
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> other: array<f32>;
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

var<workgroup> sums: array<vec2<f32>, 256>;

fn total(local: u32, part: vec2<f32>) -> vec2<f32> {
    workgroupBarrier();
    sums[local] = part;
    workgroupBarrier();
    for (var half = 128u; half > 0u; half = half / 2u) {
        if local < half { sums[local] = sums[local] + sums[local + half]; }
        workgroupBarrier();
    }
    return sums[0];
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let run = group.y * groups.x + group.x;
    if run >= p.count { return; }
    let at = run * p.width;
    let n = f32(p.width);
    var factor = 1.0;
    var less = 0.0;
    if p.mode == 0u || p.mode == 2u {
        var squares = vec2<f32>(0.0);
        for (var i = local; i < p.width; i += 256u) {
            let v = x[at + i];
            squares.x = fma(v, v, squares.x);
            if p.mode == 2u {
                let o = other[at + i];
                squares.y = fma(o, o, squares.y);
            }
        }
        let sum_of_all = total(local, squares);
        if p.mode == 0u {
            factor = root(quotient(sum_of_all.x, n) + p.p0);
        } else {
            let own = root(quotient(sum_of_all.x, n));
            // `p0` is the root of the least mean square. A comparison that lets NaN pass.
            factor = quotient(root(quotient(sum_of_all.y, n)), select(own, p.p0, own < p.p0));
        }
    } else {
        var sum = vec2<f32>(0.0);
        for (var i = local; i < p.width; i += 256u) { sum.x += x[at + i]; }
        let mean = quotient(total(local, sum).x, n);
        var squares = vec2<f32>(0.0);
        for (var i = local; i < p.width; i += 256u) {
            let d = x[at + i] - mean;
            squares.x = fma(d, d, squares.x);
            squares.y += d;
        }
        let sum_of_all = total(local, squares);
        // What the rounded mean lacks.
        let rest = quotient(sum_of_all.y, n);
        let variance = quotient(sum_of_all.x, n) - rest * rest;
        if p.mode == 1u {
            less = mean;
            factor = root(variance + p.p0);
        } else {
            less = fma(p.p0, root(max(variance, 0.0)), mean);
        }
        if p.mode == 1u {
            for (var i = local; i < p.width; i += 256u) {
                var v = quotient((x[at + i] - mean) - rest, factor);
                if p.weights > 0u { v = v * weight[i]; }
                if p.has_bias != 0u { v = v + bias[i]; }
                y[at + i] = v;
            }
            return;
        }
    }
    let first = select(0u, at % p.weights, p.weights > 0u);
    for (var i = local; i < p.width; i += 256u) {
        let v = x[at + i];
        if p.mode == 0u {
            let normed = quotient(v, factor);
            if p.weights > 0u { y[at + i] = normed * weight[first + i]; } else { y[at + i] = normed; }
        } else if p.mode == 2u {
            y[at + i] = v * factor;
        } else {
            let above = v - less;
            y[at + i] = select(above, 0.0, above < 0.0);
        }
    }
}
