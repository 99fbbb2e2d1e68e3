// Products of a few rows by integers: an invocation has a weight row, and no sum crosses them; LANES of the 32 rows of a band
// are in a workgroup. The columns are cut into slices of 256, which the teams of a workgroup take in turn; their sums are
// added in order. Codes of weights are on their way while the workgroup rounds what its teams multiply.

const GROUPS: u32 = TEAMS * 8u;
// What a team multiplies: its groups of the first row, then of the next ones. All but the first index of a team's reads are
// constant, as each other one costs a comparison with the bound.
var<workgroup> x_codes: array<array<array<vec4<u32>, 2>, ROWS * 8u>, TEAMS>;
var<workgroup> x_scales: array<array<f32, ROWS * 8u>, TEAMS>;
var<workgroup> x_sums: array<array<vec4<i32>, SUMS>, TEAMS>;
var<workgroup> parts: array<array<f32, ROWS * LANES>, TEAMS>;

// Rounds eight columns of the groups of a turn, the first one at `first`, and reads the whole group for its scale.
fn round_eight(i: u32, row: u32, head: u32, first: u32) {
    let slot = i / 4u;
    let part = i % 4u;
    let in_turn = slot % GROUPS;
    let g = first + in_turn;
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
        low = packed_codes(rounded(x[at + part * 2u], r.inverse));
        high = packed_codes(rounded(x[at + part * 2u + 1u], r.inverse));
        scale = r.scale;
    }
    let team = in_turn / 8u;
    let own_slot = slot / GROUPS * 8u + in_turn % 8u;
    x_codes[team][own_slot][part / 2u][part % 2u * 2u] = low;
    x_codes[team][own_slot][part / 2u][part % 2u * 2u + 1u] = high;
    if part == 0u { x_scales[team][own_slot] = scale; }
    if SUMS > 1u { x_sums[team][own_slot][part] = code_sum(low) + code_sum(high); }
}

// What scales the products of a group, from the scale and the sums of the codes of its quarters.
fn own_scales(scale: f32, s: vec4<i32>) -> RowScales {
    return row_scales(scale, s.x + s.y, s.z + s.w);
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
ROUND
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
ADD
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
