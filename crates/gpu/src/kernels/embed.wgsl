// Rows of a table: each invocation decodes eight columns.

struct Params { count: u32, groups: u32, width: u32, first: u32, rows: u32, parts: u32 }
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> scales: array<u32>;
@group(0) @binding(2) var<storage, read> ids: array<u32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = (group.y * groups.x + group.x) * 256u + local;
    if i >= p.count { return; }
    let row = i / p.parts;
    let part = i % p.parts;
    let id = ids[row];
    // A piece of the table holds some rows only.
    if id < p.first || id - p.first >= p.rows { return; }
    let own = id - p.first;
    let unit = ((own / 32u) * p.groups + part / 4u) * 32u + own % 32u;
    let w = decode8(unit, part % 4u);
    let at = row * p.width + part * 8u;
    let end = min(8u, p.width - part * 8u);
    for (var k = 0u; k < end; k += 1u) {
        if k < 4u { y[at + k] = w.a[k]; } else { y[at + k] = w.b[k - 4u]; }
    }
}
