// Between the products and attention: a workgroup norms and rotates one head of a row, as norm.wgsl and rope.wgsl do, and
// keeps a query, or writes a key or a value to the state.

struct Params {
    count: u32, heads: u32, kv_heads: u32, size: u32,
    value_size: u32, flags: u32, pairs: u32, rotation: u32,
    factor: f32, key_words: u32, value_words: u32, table: u32,
    ids: u32, epsilon: f32, q_weights: u32, k_weights: u32,
}
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read> context: array<u32>;
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(2) var<storage, read> k: array<f32>;
@group(0) @binding(3) var<storage, read> v: array<f32>;
@group(0) @binding(4) var<storage, read> q_weight: array<f32>;
@group(0) @binding(5) var<storage, read> k_weight: array<f32>;
@group(0) @binding(6) var<storage, read_write> y: array<f32>;
@group(0) @binding(7) var<storage, read_write> keys: array<u32>;
@group(0) @binding(8) var<storage, read_write> values: array<u32>;
// As in write.wgsl.
@group(0) @binding(9) var<storage, read_write> faults: array<atomic<u32>>;

// What a head is: the bits of `flags` have the norms of the three, the rotations of two, and the pairing.
const QUERY: u32 = 0u;
const KEY: u32 = 1u;
const VALUE: u32 = 2u;

var<workgroup> numbers_of_head: array<f32, 1024>;
var<workgroup> sums: array<f32, 128>;

fn number(i: u32) -> f32 { return numbers_of_head[i]; }

fn hold(to: Held, word: u32, bits: u32) {
    if to.is_transposed {
        keys[key_word(to.block, p.kv_heads, to.head, p.key_words, word, to.at)] = bits;
    } else {
        values[value_word(to.block, p.kv_heads, to.head, p.value_words, word, to.at)] = bits;
    }
}

fn is_set(bit: u32) -> bool { return ((p.flags >> bit) & 1u) != 0u; }

fn load(kind: u32, i: u32) -> f32 {
    switch kind {
        case QUERY: { return q[i]; }
        case KEY: { return k[i]; }
        default: { return v[i]; }
    }
}

fn weighed(kind: u32, normed: f32, i: u32) -> f32 {
    if kind == QUERY && p.q_weights > 0u { return normed * q_weight[i % p.q_weights]; }
    if kind == KEY && p.k_weights > 0u { return normed * k_weight[i % p.k_weights]; }
    return normed;
}

// Each invocation has the sums of two of norm.wgsl, so that the tree is the same.
fn norm(kind: u32, size: u32, at: u32, local: u32) {
    var squares = vec2<f32>(0.0);
    for (var i = local; i < size; i += 256u) {
        let a = numbers_of_head[i];
        squares.x = fma(a, a, squares.x);
        if i + 128u < size {
            let b = numbers_of_head[i + 128u];
            squares.y = fma(b, b, squares.y);
        }
    }
    sums[local] = squares.x + squares.y;
    workgroupBarrier();
    for (var half = 64u; half > 0u; half = half / 2u) {
        if local < half { sums[local] = sums[local] + sums[local + half]; }
        workgroupBarrier();
    }
    let factor = root(quotient(sums[0], f32(size)) + p.epsilon);
    for (var i = local; i < size; i += 128u) {
        numbers_of_head[i] = weighed(kind, quotient(numbers_of_head[i], factor), at + i);
    }
}

fn rotate(row: u32, local: u32) {
    for (var item = local; item < p.pairs; item += 128u) {
        let rotation = context[p.rotation] + (row * p.pairs + item) * 2u;
        let c = bitcast<f32>(context[rotation]);
        let s = bitcast<f32>(context[rotation + 1u]);
        let first = select(item, 2u * item, is_set(5u));
        let second = select(item + p.pairs, first + 1u, is_set(5u));
        let a = numbers_of_head[first];
        let b = numbers_of_head[second];
        numbers_of_head[first] = p.factor * fma(a, c, -(b * s));
        numbers_of_head[second] = p.factor * fma(a, s, b * c);
    }
}

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let item = group.y * groups.x + group.x;
    if item >= p.count { return; }
    let each = p.heads + 2u * p.kv_heads;
    let row = item / each;
    var head = item % each;
    var kind = QUERY;
    var heads = p.heads;
    if head >= p.heads {
        head -= p.heads;
        heads = p.kv_heads;
        kind = select(KEY, VALUE, head >= heads);
        head = head % heads;
    }
    let size = select(p.size, p.value_size, kind == VALUE);
    let at = (row * heads + head) * size;
    for (var i = local; i < size; i += 128u) { numbers_of_head[i] = load(kind, at + i); }
    if is_set(kind) { norm(kind, size, at, local); }
    workgroupBarrier();
    if kind != VALUE && is_set(3u + kind) {
        rotate(row, local);
        workgroupBarrier();
    }
    if kind == QUERY {
        for (var i = local; i < size; i += 128u) { y[at + i] = numbers_of_head[i]; }
        return;
    }
    let sequence = context[context[3] + row];
    let position = context[context[4] + row];
    let block = context[context[p.table] + sequence * context[p.table + 1u] + position / 64u];
    let id = select(p.ids & 0xffffu, p.ids >> 16u, kind == VALUE);
    let to = Held(id, row, block, head, position % 64u, size, 0u, kind == KEY);
    for (var unit = local; unit < units(size); unit += 128u) { write(to, unit); }
}
