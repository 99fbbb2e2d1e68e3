// Products of many rows by integers: a workgroup has a tile of 16 · EACH rows and 64 weight rows, an invocation EACH by 4 of
// it. The sums have the order of gemv_int.wgsl, and the dot products of groups are exact, so both have the same bits.

// Groups between two barriers.
const STEP: u32 = 2u;
// What the invocations of a column of the tile read: the halves of a group of their four weight rows, then of the next
// group; and what those of a row read. All but the first index of reads are constant, as each other one costs a comparison
// with the bound; an element more spreads the rows over the banks.
var<workgroup> w_codes: array<array<vec4<u32>, STEP * 8u + 1u>, 16>;
var<workgroup> w_scales: array<array<Scales, STEP * 4u + 1u>, 16>;
var<workgroup> x_codes: array<array<vec4<u32>, STEP * 2u * EACH + 1u>, 16>;
var<workgroup> x_scales: array<array<RowScales, STEP * EACH + 1u>, 16>;

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
    var k: RowScales;
    var c: Codes;
    var h: RawScales;
    var c_unit = 0u;
    var xa = vec4<u32>(0u);
    var xb = vec4<u32>(0u);
DECLARE
    for (var next = 0u; next < p.groups + STEP; next += STEP) {
        if next > 0u {
            if w_step < STEP {
                let w = bytes(c);
                let at = w_row / 16u;
                w_codes[w_row % 16u][w_step * 8u + at] = w.a;
                w_codes[w_row % 16u][w_step * 8u + at + 4u] = w.b;
                w_scales[w_row % 16u][w_step * 4u + at] = scales_of(h, c_unit);
            }
            if x_step < STEP {
                let at = x_row / 16u;
                x_codes[x_row % 16u][x_step * 2u * EACH + at] = xa;
                x_codes[x_row % 16u][x_step * 2u * EACH + at + EACH] = xb;
                x_scales[x_row % 16u][x_step * EACH + at] = k;
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
                let g = x_at + min(next + x_step, p.groups - 1u);
                xa = x[g * 2u];
                xb = x[g * 2u + 1u];
                k = rounded_scales(g);
            }
        }
        if next > 0u {
PRODUCTS
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
