// Around the products of experts. Mode 0 lists the experts of each row whose weight is not 0, in order; mode 1
// gates their inner rows; mode 2 adds their results; mode 3 multiplies a row by the weight of each of its experts.

struct Params {
    count: u32, mode: u32, used: u32, width: u32,
    act: u32, limits: u32, has_gate: u32, experts: u32,
    p0: f32, p1: f32, inner: u32,
}
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read> weights: array<f32>;
@group(0) @binding(1) var<storage, read> a: array<f32>;
@group(0) @binding(2) var<storage, read> b: array<f32>;
@group(0) @binding(3) var<storage, read_write> chosen: array<u32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

fn list(row: u32) {
    var count = 0u;
    for (var e = 0u; e < p.experts; e += 1u) {
        if weights[row * p.experts + e] != 0.0 && count < p.used {
            chosen[row * p.used + count] = e;
            count += 1u;
        }
    }
    for (; count < p.used; count += 1u) { chosen[row * p.used + count] = 0xffffffffu; }
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = (group.y * groups.x + group.x) * 256u + local;
    if i >= p.count { return; }
    if p.mode == 0u {
        list(i);
        return;
    }
    let row = i / p.width;
    let column = i % p.width;
    if p.mode == 1u {
        if chosen[row] == 0xffffffffu { return; }
        // Rows are padded with zeros to `width`.
        if column >= p.inner {
            y[i] = 0.0;
            return;
        }
        let at = row * p.inner + column;
        if p.has_gate != 0u { y[i] = gated(p.act, p.limits, p.p0, p.p1, a[at], b[at]); }
        else { y[i] = activated(p.act, b[at]); }
    } else if p.mode == 2u {
        var sum = 0.0;
        for (var k = 0u; k < p.used; k += 1u) {
            let e = chosen[row * p.used + k];
            if e != 0xffffffffu {
                var weight = 1.0;
                if p.has_gate == 0u { weight = weights[row * p.experts + e]; }
                sum = fma(weight, a[(row * p.used + k) * p.width + column], sum);
            }
        }
        y[i] = sum;
    } else {
        let e = chosen[row];
        if e == 0xffffffffu { return; }
        let owner = row / p.used;
        var v = 0.0;
        if column < p.inner { v = weights[owner * p.experts + e] * a[owner * p.inner + column]; }
        y[i] = v;
    }
}
