// The largest number of each row of results: first of runs of 4,096 numbers, then of the row. Of equal numbers that with the
// lowest id is the largest.

struct Params { count: u32, is_second: u32, width: u32, runs: u32 }
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read> x: array<u32>;
// For each run: the order of its largest number, its id, and whether some number is NaN.
@group(0) @binding(1) var<storage, read_write> found: array<u32>;
// For each row: the bits of its largest number, its id, and whether some number is NaN.
@group(0) @binding(2) var<storage, read_write> picks: array<u32>;

struct Best { order: u32, id: u32, has_nan: u32 }

var<workgroup> tree: array<Best, 256>;

// Numbers in the order of floats; both zeros are equal.
fn order(bits: u32) -> u32 {
    if (bits & 0x7fffffffu) == 0u { return 0x80000000u; }
    return select(bits | 0x80000000u, ~bits, (bits >> 31u) == 1u);
}

fn better(a: Best, b: Best) -> Best {
    var best = a;
    if b.order > a.order || (b.order == a.order && b.id < a.id) { best = b; }
    best.has_nan = a.has_nan | b.has_nan;
    return best;
}

fn with_number(best: Best, bits: u32, id: u32) -> Best {
    let is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return better(best, Best(order(bits), id, select(0u, 1u, is_nan)));
}

// The best of four numbers 256 apart; the last number of the row stands for those beyond it.
fn with_four(best: Best, row: u32, i: u32) -> Best {
    let id = min(vec4<u32>(i, i + 256u, i + 512u, i + 768u), vec4<u32>(p.width - 1u));
    let at = vec4<u32>(row * p.width) + id;
    let bits = vec4<u32>(x[at.x], x[at.y], x[at.z], x[at.w]);
    return with_number(with_number(with_number(with_number(best, bits.x, id.x), bits.y, id.y), bits.z, id.z), bits.w, id.w);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let row = group.y;
    var best = Best(0u, 0xffffffffu, 0u);
    if p.is_second == 0u {
        let first = group.x * 4096u + local;
        for (var i = 0u; i < 4096u; i += 1024u) { best = with_four(best, row, first + i); }
    } else {
        for (var run = local; run < p.runs; run += 256u) {
            let at = (row * p.runs + run) * 3u;
            best = better(best, Best(found[at], found[at + 1u], found[at + 2u]));
        }
    }
    tree[local] = best;
    workgroupBarrier();
    for (var half = 128u; half > 0u; half = half / 2u) {
        if local < half { tree[local] = better(tree[local], tree[local + half]); }
        workgroupBarrier();
    }
    if local > 0u { return; }
    best = tree[0];
    if p.is_second == 0u {
        let at = (row * p.runs + group.x) * 3u;
        found[at] = best.order;
        found[at + 1u] = best.id;
        found[at + 2u] = best.has_nan;
    } else {
        picks[row * 3u] = x[row * p.width + best.id];
        picks[row * 3u + 1u] = best.id;
        picks[row * 3u + 2u] = best.has_nan;
    }
}
