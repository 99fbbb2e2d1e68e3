// Products of many rows by integers: a workgroup has a tile of 16 · EACH rows and 64 weight rows, an invocation EACH by 4 of
// it. The sums have the order of gemv_int.wgsl, and the dot products of groups are exact, so both have the same bits.

// Groups between two barriers.
const STEP: u32 = 2u;
var<workgroup> w_codes: array<array<array<vec4<u32>, 64>, 2>, STEP>;
var<workgroup> w_scales: array<array<Scales, 64>, STEP>;
var<workgroup> x_codes: array<array<array<vec4<u32>, EACH * 16u>, 2>, STEP>;
var<workgroup> x_scales: array<array<RowScales, EACH * 16u>, STEP>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let n0 = group.x * 64u;
    let m0 = group.y * EACH * 16u;
    let tn = local % 16u;
    let tm = local / 16u;
    // What this invocation brings: a group of a weight row, and one of a row.
    let w_row = local % 64u;
    let w_step = local / 64u;
    // The last band may be the first half of a tile.
    let band = min(n0 / 32u + w_row / 32u, p.bands - 1u);
    let unit = (group.z * p.bands + band) * p.groups * 32u + w_row % 32u;
    let brought = (local + 128u) % 256u;
    let x_row = brought % (EACH * 16u);
    let x_step = brought / (EACH * 16u);
    // Rows beyond the last one repeat it.
    let own = min(m0 + x_row, p.count - 1u);
    let x_at = (own * p.x_stride + group.z * p.x_head) / 8u;
    var c: Codes;
    var h: RawScales;
    var c_unit = 0u;
    var xa = vec4<u32>(0u);
    var xb = vec4<u32>(0u);
    var xc = vec4<u32>(0u);
DECLARE
    for (var next = 0u; next < p.groups + STEP; next += STEP) {
        if next > 0u {
            if w_step < STEP {
                let w = bytes(c);
                w_codes[w_step][0][w_row] = w.a;
                w_codes[w_step][1][w_row] = w.b;
                w_scales[w_step][w_row] = scales_of(h, c_unit);
            }
            if x_step < STEP {
                x_codes[x_step][0][x_row] = xa;
                x_codes[x_step][1][x_row] = xb;
                x_scales[x_step][x_row] =
                    row_scales(bitcast<f32>(xc.x), bitcast<i32>(xc.y), bitcast<i32>(xc.z));
            }
        }
        workgroupBarrier();
        if next < p.groups {
            // A group beyond the last one repeats it, and is not used.
            if w_step < STEP {
                c_unit = unit + min(next + w_step, p.groups - 1u) * 32u;
                c = loaded(c_unit);
                h = raw_scales(c_unit);
            }
            if x_step < STEP {
                let at = (x_at + min(next + x_step, p.groups - 1u)) * 3u;
                xa = x[at];
                xb = x[at + 1u];
                xc = x[at + 2u];
            }
        }
        if next > 0u {
            let here = next - STEP;
            for (var j = 0u; j < min(STEP, p.groups - here); j += 1u) {
PRODUCTS
            }
            if next % 8u == 0u || next >= p.groups {
SLICE
            }
        }
        workgroupBarrier();
    }
STORE
}

fn store(head: u32, m: u32, n: u32, sums: vec4<f32>) {
    put(head, m, n, sums.x);
    put(head, m, n + 16u, sums.y);
    put(head, m, n + 32u, sums.z);
    put(head, m, n + 48u, sums.w);
}
