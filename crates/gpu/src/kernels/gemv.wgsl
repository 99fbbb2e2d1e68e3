// Products of a few rows: 32 invocations have a band of 32 weight rows, a row each, and no sum crosses them. The
// columns are cut into slices of 256, which the teams of a workgroup take in turn; their sums are added in order.

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
