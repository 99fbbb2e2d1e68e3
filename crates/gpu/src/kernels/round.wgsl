// Rounds rows before products of many: an invocation has a group of 32 columns, and writes its codes; then its scale and the
// sums of the codes of each half, four words a group.

struct Params { count: u32 }
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> y: array<Rounded>;
@group(0) @binding(2) var<storage, read_write> scales: array<vec4<u32>>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = (group.y * groups.x + group.x) * 256u + local;
    if i >= p.count { return; }
    let at = i * 8u;
    var largest = 0u;
    for (var k = 0u; k < 8u; k += 1u) { largest = max(largest, magnitude(x[at + k])); }
    let r = rounding(largest);
    var sums = vec2<i32>(0);
    for (var k = 0u; k < 8u; k += 1u) {
        let four = rounded(x[at + k], r.inverse);
        let packed = packed_codes(four);
        sums[k / 4u] += code_sum(packed);
PUT
    }
    scales[i] = vec4<u32>(bitcast<u32>(r.scale), bitcast<vec2<u32>>(sums), 0u);
}
