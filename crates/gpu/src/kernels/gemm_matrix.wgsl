// Products of many rows by matrix units: a workgroup has a tile of 128 rows and 128 weight rows, each of its eight subgroups 64
// by 32 of it. Codes and their sums of a group are exact in half and in single precision, so that the sums have the bits of
// gemv_int.wgsl. A unit's tile of sums goes through the workgroup's memory, where each invocation scales eight of them.

// A row of 32 codes, and eight more, which spread the rows over the banks.
const ROW: u32 = 10u;
var<workgroup> x_codes: array<vec4<f16>, 128u * ROW>;
var<workgroup> w_codes: array<vec4<f16>, 128u * ROW>;
var<workgroup> x_scales: array<RowScales, 128>;
var<workgroup> w_scales: array<Scales, 128>;
// A tile of each subgroup, or one for each half of a group.
var<workgroup> tiles: array<f32, 2048u * HALVES>;

// Four signed bytes. 1,024 and a byte is a number of half precision with the byte as its last bits.
fn halves(w: u32) -> vec4<f16> {
    let u = w ^ 0x80808080u;
    let even = unpack2x16float((u & 0x00ff00ffu) | 0x64006400u);
    let odd = unpack2x16float(((u >> 8u) & 0x00ff00ffu) | 0x64006400u);
    return vec4<f16>(vec4<f32>(even.x, odd.x, even.y, odd.y) - vec4<f32>(1152.0));
}

// Writes eight results of an invocation, which it has put into the tile.
fn flush(head: u32, m: u32, n: u32, at: u32) {
    for (var e = 0u; e < 8u; e += 1u) { put(head, m + 2u * e, n, tiles[at + 32u * e]); }
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let n0 = group.x * 128u;
    let m0 = group.y * 128u;
    let lane = local % 32u;
    let sub_m = local / 128u * 64u;
    let sub_n = local / 32u % 4u * 32u;
    let tile = local / 32u * 256u * HALVES;
    // The elements of a tile that this invocation scales: one column, every second row.
    let own_m = sub_m + lane / 16u;
    let own_n = sub_n + lane % 16u;
    let own = tile + lane;
    // What this invocation brings: a half of a group of a weight row, its scales or those of a row, and two quarters of rows.
    let w_row = local % 128u;
    let w_half = local / 128u;
    // The last tile may have fewer bands.
    let band = min(n0 / 32u + w_row / 32u, p.bands - 1u);
    let unit = (group.z * p.bands + band) * p.groups * 32u + w_row % 32u;
    // Rows beyond the last one repeat it.
    let x_first = (min(m0 + local / 4u, p.count - 1u) * p.x_stride + group.z * p.x_head) / 8u;
    let x_last = (min(m0 + 64u + local / 4u, p.count - 1u) * p.x_stride + group.z * p.x_head) / 8u;
    let x_scaled = (min(m0 + w_row, p.count - 1u) * p.x_stride + group.z * p.x_head) / 8u;
    let x_part = local % 4u * 2u;
    let x_to = local / 4u * ROW + x_part;
    let w_to = w_row * ROW + w_half * 4u;
DECLARE
    for (var g = 0u; g < p.groups; g += 1u) {
        let c = loaded(unit + g * 32u);
        let first = (x_first + g) * 8u + x_part;
        let last = (x_last + g) * 8u + x_part;
        let xa = x[first];
        let xb = x[first + 1u];
        let xc = x[last];
        let xd = x[last + 1u];
        if w_half == 0u {
            w_scales[w_row] = scales_of(raw_scales(unit + g * 32u), unit + g * 32u);
        } else {
            x_scales[w_row] = rounded_scales(x_scaled + g);
        }
        let b = half_bytes(c, w_half);
        w_codes[w_to] = halves(b.x);
        w_codes[w_to + 1u] = halves(b.y);
        w_codes[w_to + 2u] = halves(b.z);
        w_codes[w_to + 3u] = halves(b.w);
        x_codes[x_to] = xa;
        x_codes[x_to + 1u] = xb;
        x_codes[x_to + 64u * ROW] = xc;
        x_codes[x_to + 64u * ROW + 1u] = xd;
        workgroupBarrier();
PRODUCTS
        workgroupBarrier();
        if g % 8u == 7u || g + 1u == p.groups {
SLICE
        }
    }
STORE
}
