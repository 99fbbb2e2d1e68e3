// Products of a few rows: 32 invocations have a band of 32 weight rows, a row each, and no sum crosses them. The
// columns are cut into slices of 256, which the teams of a workgroup take in turn; their sums are added in order.

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

var<workgroup> parts: array<f32, TEAMS * ROWS * 32>;

@compute @workgroup_size(TEAMS * 32)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let lane = local % 32u;
    let team = local / 32u;
    let row = group.y * ROWS;
    var matrix = group.z;
    var x_row = row;
    if EXPERTS {
        // A row of the result is one choice of a row; empty choices have no expert.
        matrix = chosen[row];
        x_row = row / p.per_row;
        if matrix == 0xffffffffu { return; }
        if matrix < p.first || matrix - p.first >= p.rows { return; }
        matrix -= p.first;
    }
    let unit = (matrix * p.bands + group.x) * p.groups * 32u + lane;
    let slices = (p.groups + 7u) / 8u;
    // Rows beyond the last one repeat it.
DECLARE
    for (var turn = 0u; turn < slices; turn += TEAMS) {
        let slice = turn + team;
SUMS
        if slice < slices {
            let end = min(slice * 8u + 8u, p.groups);
            var g = slice * 8u;
PRODUCTS
        }
STORE
        workgroupBarrier();
        if local < ROWS * 32u {
            for (var t = 0u; t < min(TEAMS, slices - turn); t += 1u) {
                sum += parts[(t * ROWS + team) * 32u + lane];
            }
        }
        workgroupBarrier();
    }
    let n = group.x * 32u + lane;
    let m = row + team;
    if EXPERTS {
        if local < 32u && n < p.y_head {
            if p.has_bias != 0u { sum += bias[chosen[row] * p.y_head + n]; }
            y[m * p.y_stride + n] = sum;
        }
        return;
    }
    if local < ROWS * 32u { put(group.z, m, n, sum); }
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
