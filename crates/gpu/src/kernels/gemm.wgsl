// Products of many rows: a workgroup has a tile of 16 · EACH rows and 64 weight rows, an invocation EACH by 4 of it. Sums
// have the order of gemv.wgsl: columns in order within a slice of 256, slices in order.

struct Params {
    count: u32, groups: u32, rows: u32, first: u32,
    x_stride: u32, x_head: u32, y_stride: u32, y_head: u32,
    bands: u32, has_bias: u32, per_row: u32,
    end0: u32, end1: u32, has_residual: u32,
}
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> scales: array<u32>;
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read> chosen: array<u32>;
@group(0) @binding(5) var<storage, read> residual: array<f32>;
@group(0) @binding(6) var<storage, read_write> y: array<f32>;
// The results of a second and of a third matrix, whose rows follow those of the first.
@group(0) @binding(7) var<storage, read_write> y1: array<f32>;
@group(0) @binding(8) var<storage, read_write> y2: array<f32>;

// Column by column of a group, four rows in a vector.
var<workgroup> weights: array<array<vec4<f32>, 16>, 32>;
var<workgroup> rows: array<array<vec4<f32>, EACH * 4>, 32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let n0 = group.x * 64u;
    let m0 = group.y * EACH * 16u;
    let r = local % 64u;
    let part = local / 64u;
    // The last band may be the first half of a tile.
    let band = min(n0 / 32u + r / 32u, p.bands - 1u);
    let unit = (group.z * p.bands + band) * p.groups * 32u + r % 32u;
    let x_head = group.z * p.x_head + part * 2u;
    let tn = local % 16u;
    let tm = local / 16u;
    let k0 = part * 8u;
DECLARE
    for (var g = 0u; g < p.groups; g += 1u) {
        let w = decode8(unit + g * 32u, part);
        weights[k0][r / 4u][r % 4u] = w.a.x;
        weights[k0 + 1u][r / 4u][r % 4u] = w.a.y;
        weights[k0 + 2u][r / 4u][r % 4u] = w.a.z;
        weights[k0 + 3u][r / 4u][r % 4u] = w.a.w;
        weights[k0 + 4u][r / 4u][r % 4u] = w.b.x;
        weights[k0 + 5u][r / 4u][r % 4u] = w.b.y;
        weights[k0 + 6u][r / 4u][r % 4u] = w.b.z;
        weights[k0 + 7u][r / 4u][r % 4u] = w.b.w;
        // Rows beyond the last one repeat it.
        for (var q = r; q < EACH * 16u; q += 64u) {
            let at = min(m0 + q, p.count - 1u) * p.x_stride + x_head + g * 8u;
            let a = x[at];
            let b = x[at + 1u];
            rows[k0][q / 4u][q % 4u] = a.x;
            rows[k0 + 1u][q / 4u][q % 4u] = a.y;
            rows[k0 + 2u][q / 4u][q % 4u] = a.z;
            rows[k0 + 3u][q / 4u][q % 4u] = a.w;
            rows[k0 + 4u][q / 4u][q % 4u] = b.x;
            rows[k0 + 5u][q / 4u][q % 4u] = b.y;
            rows[k0 + 6u][q / 4u][q % 4u] = b.z;
            rows[k0 + 7u][q / 4u][q % 4u] = b.w;
        }
        workgroupBarrier();
        for (var k = 0u; k < 32u; k += 1u) {
            let w4 = weights[k][tn];
PRODUCTS
        }
        workgroupBarrier();
        if g % 8u == 7u || g + 1u == p.groups {
SLICE
        }
    }
STORE
}

fn store(head: u32, m: u32, n: u32, sums: vec4<f32>) {
    put(head, m, n, sums.x);
    put(head, m, n + 1u, sums.y);
    put(head, m, n + 2u, sums.z);
    put(head, m, n + 3u, sums.w);
}

fn put(head: u32, m: u32, n: u32, sum: f32) {
    if m >= p.count || n >= p.rows { return; }
    var v = sum;
    if p.has_bias != 0u { v += bias[p.first + n]; }
    if n < p.end0 {
        let at = m * p.y_stride + head * p.y_head + p.first + n;
        if p.has_residual != 0u { v = residual[at] + v; }
        y[at] = v;
    } else if n < p.end1 {
        y1[m * (p.end1 - p.end0) + n - p.end0] = v;
    } else {
        y2[m * (p.rows - p.end1) + n - p.end1] = v;
    }
}
