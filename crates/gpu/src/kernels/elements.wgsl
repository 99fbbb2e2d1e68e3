// Ops of elements: each invocation computes one number of the result.

struct Params {
    count: u32, op: u32, width: u32, other: u32,
    act: u32, limits: u32, at: u32, spare: u32,
    p0: f32, p1: f32, p2: f32, p3: f32,
}
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read> context: array<u32>;
@group(0) @binding(1) var<storage, read> a: array<f32>;
@group(0) @binding(2) var<storage, read> b: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

fn pooled(row: u32, column: u32) -> f32 {
    let first = context[context[6] + row];
    let rows = context[context[7] + row];
    if p.other == 0u { return a[first * p.width + column]; }
    if p.other == 1u { return a[(first + rows - 1u) * p.width + column]; }
    var sum = 0.0;
    for (var r = 0u; r < rows; r += 1u) { sum += a[(first + r) * p.width + column]; }
    return quotient(sum, f32(rows));
}

fn mixed(row: u32, column: u32) -> f32 {
    var sum = 0.0;
    for (var h = 0u; h < p.other; h += 1u) {
        sum = fma(a[row * p.other + h], b[(row * p.other + h) * p.width + column], sum);
    }
    return sum;
}

fn xielu(x: f32) -> f32 {
    var curve = 0.0;
    // By its bits, as a device may compare subnormal numbers as zero, where the curve has a step.
    if bitcast<i32>(x) > 0 {
        curve = p.p0 * x * x;
    } else {
        let e = min(x, p.p3);
        var powers = 0.0;
        if e <= 0.0 { powers = exponential_less_one(e); } else { powers = exponential(e) - 1.0; }
        curve = (powers - x) * p.p1;
    }
    return select(fma(p.p2, x, curve), x, x != x);
}

fn result(i: u32) -> f32 {
    let row = i / p.width;
    let column = i % p.width;
    switch p.op {
        case 0u: { return a[i] + b[i]; }
        case 1u: { return a[i] * p.p0; }
        case 2u: { return p.p0 * hyperbolic_tangent(quotient(a[i], p.p0)); }
        case 3u: { return activated(p.act, a[i]); }
        case 4u: { return gated(p.act, p.limits, p.p0, p.p1, a[i], b[i]); }
        case 5u: { return activated(p.act, a[row]) * b[i]; }
        case 6u: { return a[i] * b[column]; }
        case 7u: { return xielu(a[i]); }
        case 8u: { return a[i] - b[column]; }
        // Two heads, one after the other.
        case 9u: {
            if column < p.other { return a[row * p.other + column]; }
            let rest = p.width - p.other;
            return b[row * rest + column - p.other];
        }
        case 10u: { return a[context[context[5] + row] * p.width + column]; }
        case 11u: { return a[i] * bitcast<f32>(context[context[p.at] + row]); }
        case 12u: { return mixed(row, column); }
        case 13u: { return pooled(row, column); }
        // Given rows replace others.
        case 14u: {
            let given = context[context[p.at] + row];
            if given == 0xffffffffu { return a[i]; }
            return b[given * p.width + column];
        }
        // Comparisons let NaN pass.
        case 16u: {
            if a[i] < p.p0 { return p.p0; }
            return select(a[i], p.p1, a[i] > p.p1);
        }
        // Rows padded with zeros.
        default: {
            if column < p.other { return a[row * p.other + column]; }
            return 0.0;
        }
    }
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = (group.y * groups.x + group.x) * 256u + local;
    if i < p.count { y[i] = result(i); }
}
