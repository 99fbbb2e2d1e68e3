// A short convolution. Mode 0: each invocation has a number of the result. Mode 1: each has a column of a sequence,
// whose last rows it keeps at the ends of blocks.

struct Params { count: u32, mode: u32, width: u32, taps: u32, table: u32, has_bias: u32 }
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read> context: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> taps: array<f32>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read_write> carried: array<f32>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

fn block_of(sequence: u32, position: u32) -> u32 {
    return context[context[p.table] + sequence * context[p.table + 1u] + position / 64u];
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = (group.y * groups.x + group.x) * 64u + local;
    if i >= p.count { return; }
    let column = i % p.width;
    let kept = p.taps - 1u;
    if p.mode == 0u {
        let row = i / p.width;
        let sequence = context[context[3] + row];
        let own = row - context[context[6] + sequence];
        let begin = context[context[8] + sequence];
        var sum = 0.0;
        for (var k = 0u; k < p.taps; k += 1u) {
            // Counted from the first carried row.
            let at = own + k;
            var v = 0.0;
            if at >= kept {
                v = x[(row + k - kept) * p.width + column];
            } else if begin > 0u {
                v = carried[(block_of(sequence, begin - 1u) * kept + at) * p.width + column];
            }
            sum = fma(taps[k * p.width + column], v, sum);
        }
        if p.has_bias != 0u { sum += bias[column]; }
        y[i] = sum;
        return;
    }
    let sequence = i / p.width;
    let first = context[context[6] + sequence];
    let rows = context[context[7] + sequence];
    let begin = context[context[8] + sequence];
    var before = array<f32, 16>();
    if begin > 0u {
        let block = block_of(sequence, begin - 1u);
        for (var k = 0u; k < kept; k += 1u) { before[k] = carried[(block * kept + k) * p.width + column]; }
    }
    for (var r = 0u; r < rows; r += 1u) {
        if (begin + r) % 64u == 63u || r + 1u == rows {
            let block = block_of(sequence, begin + r);
            for (var k = 0u; k < kept; k += 1u) {
                let at = r + 1u + k;
                var v = 0.0;
                if at >= kept { v = x[(first + at - kept) * p.width + column]; } else { v = before[at]; }
                carried[(block * kept + k) * p.width + column] = v;
            }
        }
    }
}
