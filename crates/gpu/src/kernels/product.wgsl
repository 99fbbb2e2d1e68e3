// What products of few and of many rows share: operands, and how a sum becomes a result. Both must have the same bits.
// `Entering` is four numbers of a row, or rounded codes (round.wgsl), whose scales are in the place of a list of experts.

struct Params {
    count: u32, groups: u32, rows: u32, first: u32,
    x_stride: u32, x_head: u32, y_stride: u32, y_head: u32,
    bands: u32, has_bias: u32, per_row: u32,
    end0: u32, end1: u32, has_residual: u32,
}
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> scales: array<u32>;
@group(0) @binding(2) var<storage, read> x: array<Entering>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read> chosen: array<u32>;
@group(0) @binding(5) var<storage, read> residual: array<f32>;
@group(0) @binding(6) var<storage, read_write> y: array<f32>;
// The results of a second and of a third matrix, whose rows follow those of the first.
@group(0) @binding(7) var<storage, read_write> y1: array<f32>;
@group(0) @binding(8) var<storage, read_write> y2: array<f32>;

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
