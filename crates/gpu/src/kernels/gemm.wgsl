// Products of many rows: a workgroup has a tile of 16 · EACH rows and 64 weight rows, an invocation EACH by 4 of it. Sums
// have the order of gemv.wgsl: columns in order within a slice of 256, slices in order.

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
