// Products of a few rows by integers: an invocation has a weight row, and no sum crosses them; LANES of the 32 rows of a band
// are in a workgroup. The columns are cut into slices of 256, which the teams of a workgroup take in turn; their sums are
// added in order. Codes of weights are on their way while the workgroup rounds what its teams multiply.

const GROUPS: u32 = TEAMS * 8u;
var<workgroup> x_codes: array<array<vec4<u32>, 2>, ROWS * GROUPS>;
var<workgroup> x_scales: array<f32, ROWS * GROUPS>;
var<workgroup> x_sums: array<vec4<i32>, SUMS>;
var<workgroup> parts: array<f32, TEAMS * ROWS * LANES>;

// Rounds the groups of a turn, the first one at `first`. An invocation rounds eight columns at a time, whose group it reads.
fn round_rows(local: u32, row: u32, head: u32, first: u32) {
    for (var i = local; i < ROWS * GROUPS * 4u; i += TEAMS * LANES) {
        let slot = i / 4u;
        let part = i % 4u;
        let g = first + slot % GROUPS;
        var low = 0u;
        var high = 0u;
        var scale = 0.0;
        if g < p.groups {
            var own = row + slot / GROUPS;
            // Rows beyond the last one repeat it.
            if !EXPERTS { own = min(own, p.count - 1u); }
            let at = own * p.x_stride + head * p.x_head + g * 8u;
            let a = max(magnitude(x[at]), magnitude(x[at + 1u]));
            let b = max(magnitude(x[at + 2u]), magnitude(x[at + 3u]));
            let c = max(magnitude(x[at + 4u]), magnitude(x[at + 5u]));
            let d = max(magnitude(x[at + 6u]), magnitude(x[at + 7u]));
            let r = rounding(max(max(a, b), max(c, d)));
            low = rounded_codes(x[at + part * 2u], r.inverse);
            high = rounded_codes(x[at + part * 2u + 1u], r.inverse);
            scale = r.scale;
        }
        x_codes[slot][part / 2u][part % 2u * 2u] = low;
        x_codes[slot][part / 2u][part % 2u * 2u + 1u] = high;
        if part == 0u { x_scales[slot] = scale; }
        if SUMS > 1u { x_sums[slot][part] = code_sum(low) + code_sum(high); }
    }
}

fn row_scales_at(slot: u32) -> RowScales {
    if SUMS == 1u { return row_scales(x_scales[slot], 0, 0); }
    let s = x_sums[slot];
    return row_scales(x_scales[slot], s.x + s.y, s.z + s.w);
}

@compute @workgroup_size(TEAMS * LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let lane = local % LANES;
    let team = local / LANES;
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
    let band = group.x / (32u / LANES);
    let in_band = group.x % (32u / LANES) * LANES + lane;
    let unit = (matrix * p.bands + band) * p.groups * 32u + in_band;
    let slices = (p.groups + 7u) / 8u;
    var sum = 0.0;
DECLARE
    var first = team * 8u;
AHEAD
    for (var turn = 0u; turn < slices; turn += TEAMS) {
        round_rows(local, x_row, group.z, turn * 8u);
        workgroupBarrier();
SUMS_OF_ROWS
        let have = min(max(p.groups, first) - first, 8u);
PRODUCTS
STORE
        first += GROUPS;
AHEAD
        workgroupBarrier();
        // Teams without a slice add zeros, which change no sum that began with one.
        if local < ROWS * LANES {
            for (var t = 0u; t < TEAMS; t += 1u) { sum += parts[(t * ROWS + team) * LANES + lane]; }
        }
    }
    let n = band * 32u + in_band;
    let m = row + team;
    if EXPERTS {
        if local < LANES && n < p.y_head {
            if p.has_bias != 0u { sum += bias[chosen[row] * p.y_head + n]; }
            y[m * p.y_stride + n] = sum;
        }
        return;
    }
    if local < ROWS * LANES { put(group.z, m, n, sum); }
}
