// Attention of one head of up to eight rows of a sequence: a workgroup takes their chunks of 256 absolute positions one
// after another, and reads keys and values once for all rows. The sums are those of attend.wgsl and of join.wgsl.

struct Eight { a: vec4<f32>, b: vec4<f32> }
struct Seen { a: vec4<bool>, b: vec4<bool> }
struct Bounds { a: vec4<u32>, b: vec4<u32> }
// What an invocation has of two rows.
struct Two { x: Numbers, y: Numbers }
// What it has of eight rows.
struct Rows { s01: Two, s23: Two, s45: Two, s67: Two }
// How a chunk joins those before it: the factors of both, for rows that see it.
struct Join { before: Eight, own: Eight, sees: Seen }

// Number by number, position by position: two vectors for eight rows.
var<workgroup> queries: array<vec4<f32>, 512>;
var<workgroup> weights: array<vec4<f32>, 512>;
var<workgroup> tree: array<vec4<f32>, 512>;
var<workgroup> parts: array<Two, 256>;

// The first position of a row, or that behind its last one; `other` for rows that are none.
fn bound(first: u32, rows: u32, row: u32, which: u32, other: u32) -> u32 {
    return select(other, context[context[p.span] + 2u * (first + min(row, rows - 1u)) + which], row < rows);
}

fn bounds(first: u32, rows: u32, which: u32, other: u32) -> Bounds {
    return Bounds(
        vec4<u32>(
            bound(first, rows, 0u, which, other), bound(first, rows, 1u, which, other),
            bound(first, rows, 2u, which, other), bound(first, rows, 3u, which, other)),
        vec4<u32>(
            bound(first, rows, 4u, which, other), bound(first, rows, 5u, which, other),
            bound(first, rows, 6u, which, other), bound(first, rows, 7u, which, other)));
}

fn exponentials(x: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(exponential(x.x), exponential(x.y), exponential(x.z), exponential(x.w));
}

fn capped_four(x: vec4<f32>) -> vec4<f32> {
    if p.has_cap == 0u { return x; }
    return vec4<f32>(capped(x.x), capped(x.y), capped(x.z), capped(x.w));
}

fn with_number(sums: Eight, d: u32, number: f32) -> Eight {
    let k = vec4<f32>(number);
    return Eight(fma(queries[2u * d], k, sums.a), fma(queries[2u * d + 1u], k, sums.b));
}

fn with_key(products: Eight, key: u32, w: u32, scale: f32) -> Eight {
    let k = key_numbers(key, scale);
    let d = w * VALUES;
    var sums = with_number(products, d, k.x);
    if VALUES > 1u && d + 1u < p.size { sums = with_number(sums, d + 1u, k.y); }
    if VALUES > 2u { sums = with_number(with_number(sums, d + 2u, k.z), d + 3u, k.w); }
    return sums;
}

fn products_with(at: u32) -> Eight {
    var products = Eight();
    var w = 0u;
    let words = (p.size + VALUES - 1u) / VALUES;
    for (; w + 4u <= words; w += 4u) {
        let k = vec4<u32>(keys[at + w * 64u], keys[at + (w + 1u) * 64u], keys[at + (w + 2u) * 64u], keys[at + (w + 3u) * 64u]);
        let scale = key_scale(at, w);
        products = with_key(products, k.x, w, scale);
        products = with_key(products, k.y, w + 1u, scale);
        products = with_key(products, k.z, w + 2u, scale);
        products = with_key(products, k.w, w + 3u, scale);
    }
    for (; w < words; w += 1u) { products = with_key(products, keys[at + w * 64u], w, key_scale(at, w)); }
    return products;
}

fn put(local: u32, own: Eight) {
    tree[2u * local] = own.a;
    tree[2u * local + 1u] = own.b;
    workgroupBarrier();
}

fn top() -> Eight {
    workgroupBarrier();
    let result = Eight(tree[0], tree[1]);
    workgroupBarrier();
    return result;
}

fn largest(local: u32, own: Eight) -> Eight {
    put(local, own);
    for (var half = 128u; half > 0u; half = half / 2u) {
        if local < half {
            tree[2u * local] = max(tree[2u * local], tree[2u * (local + half)]);
            tree[2u * local + 1u] = max(tree[2u * local + 1u], tree[2u * (local + half) + 1u]);
        }
        workgroupBarrier();
    }
    return top();
}

fn total(local: u32, own: Eight) -> Eight {
    put(local, own);
    for (var half = 128u; half > 0u; half = half / 2u) {
        if local < half {
            tree[2u * local] = tree[2u * local] + tree[2u * (local + half)];
            tree[2u * local + 1u] = tree[2u * local + 1u] + tree[2u * (local + half) + 1u];
        }
        workgroupBarrier();
    }
    return top();
}

// The numbers of rows `2 * pair` and `2 * pair + 1`.
fn two_of(eight: Eight, pair: u32) -> vec2<f32> {
    let four = select(eight.a, eight.b, pair > 1u);
    return select(four.xy, four.zw, pair % 2u == 1u);
}

fn two_seen(seen: Seen, pair: u32) -> vec2<bool> {
    let four = select(seen.a, seen.b, pair > 1u);
    return select(four.xy, four.zw, pair % 2u == 1u);
}

fn joined(sums: Two, more: Two, join: Join, pair: u32) -> Two {
    let before = two_of(join.before, pair);
    let own = two_of(join.own, pair);
    let sees = two_seen(join.sees, pair);
    var result = sums;
    if sees.x { result.x = fma(sums.x, Numbers(before.x), more.x * own.x); }
    if sees.y { result.y = fma(sums.y, Numbers(before.y), more.y * own.y); }
    return result;
}

// The four teams' sums of two rows, for the team whose rows they are.
fn of_teams(local: u32, own: Two) -> Two {
    workgroupBarrier();
    parts[local] = own;
    workgroupBarrier();
    let lane = local % 64u;
    return Two(
        ((parts[lane].x + parts[lane + 64u].x) + parts[lane + 128u].x) + parts[lane + 192u].x,
        ((parts[lane].y + parts[lane + 64u].y) + parts[lane + 128u].y) + parts[lane + 192u].y);
}

// The sums of eight rows with the value of the position at `at` of the chunk.
fn with_position(sums: Rows, value: Numbers, at: u32) -> Rows {
    let a = weights[2u * at];
    let b = weights[2u * at + 1u];
    return Rows(
        Two(with_value(sums.s01.x, value, a.x), with_value(sums.s01.y, value, a.y)),
        Two(with_value(sums.s23.x, value, a.z), with_value(sums.s23.y, value, a.w)),
        Two(with_value(sums.s45.x, value, b.x), with_value(sums.s45.y, value, b.y)),
        Two(with_value(sums.s67.x, value, b.z), with_value(sums.s67.y, value, b.w)));
}

// The weighted sums of a word of values of a chunk; a team gets those of its two rows. Four loads are under way at once.
fn weighted(local: u32, word: u32, words: u32, kv_head: u32, block: u32, start: u32, begin: u32, end: u32) -> Two {
    var sums = Rows();
    if word < words {
        var k = begin;
        for (; k + 4u <= end; k += 4u) {
            let v0 = value_at(block, kv_head, word, k % 64u);
            let v1 = value_at(block, kv_head, word, (k + 1u) % 64u);
            let v2 = value_at(block, kv_head, word, (k + 2u) % 64u);
            let v3 = value_at(block, kv_head, word, (k + 3u) % 64u);
            sums = with_position(sums, v0, k - start);
            sums = with_position(sums, v1, k + 1u - start);
            sums = with_position(sums, v2, k + 2u - start);
            sums = with_position(sums, v3, k + 3u - start);
        }
        for (; k < end; k += 1u) {
            sums = with_position(sums, value_at(block, kv_head, word, k % 64u), k - start);
        }
    }
    let team = local / 64u;
    var result = of_teams(local, sums.s01);
    let second = of_teams(local, sums.s23);
    let third = of_teams(local, sums.s45);
    let fourth = of_teams(local, sums.s67);
    if team == 1u { result = second; }
    if team == 2u { result = third; }
    if team == 3u { result = fourth; }
    return result;
}

fn store(at: u32, word: u32, sum: Numbers, divisor: f32) {
    for (var i = 0u; i < VALUES && word * VALUES + i < p.value_size; i += 1u) {
        y[at + word * VALUES + i] = quotient(sum[i], divisor);
    }
}

fn store_two(first: u32, rows: u32, head: u32, pair: u32, word: u32, sums: Two, divisors: vec2<f32>) {
    let at = ((first + 2u * pair) * p.heads + head) * p.value_size;
    if 2u * pair < rows { store(at, word, sums.x, divisors.x); }
    if 2u * pair + 1u < rows { store(at + p.heads * p.value_size, word, sums.y, divisors.y); }
}

fn within(position: u32, low: Bounds, high: Bounds) -> Seen {
    let at = vec4<u32>(position);
    return Seen((at >= low.a) & (at < high.a), (at >= low.b) & (at < high.b));
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let head = group.x;
    let first = context[context[9] + 2u * group.y];
    let rows = context[context[9] + 2u * group.y + 1u];
    let low = bounds(first, rows, 0u, 0xffffffffu);
    let high = bounds(first, rows, 1u, 0u);
    let lowest = min(low.a, low.b);
    let highest = max(high.a, high.b);
    let begin_of_all = min(min(lowest.x, lowest.y), min(lowest.z, lowest.w));
    let end_of_all = max(max(highest.x, highest.y), max(highest.z, highest.w));
    let kv_head = head / (p.heads / p.kv_heads);
    let table = context[p.table] + context[context[3] + first] * context[p.table + 1u];
    for (var i = local; i < p.size * 8u; i += 256u) {
        let row = i / p.size;
        let d = i % p.size;
        var number = 0.0;
        if row < rows { number = q[((first + row) * p.heads + head) * p.size + d] * p.scale; }
        queries[2u * d + row / 4u][row % 4u] = number;
    }
    var most = Eight(vec4<f32>(LOWEST), vec4<f32>(LOWEST));
    var divisors = Eight();
    if p.has_sinks != 0u {
        most = Eight(vec4<f32>(sinks[head]), vec4<f32>(sinks[head]));
        divisors = Eight(vec4<f32>(1.0), vec4<f32>(1.0));
    }
    let pair = local / 64u;
    let word = local % 64u;
    let words = (p.value_size + VALUES - 1u) / VALUES;
    // Of two tiles of 64 words.
    var sums = Two();
    var sums_beyond = Two();
    workgroupBarrier();
    for (var start = begin_of_all / 256u * 256u; start < end_of_all; start += 256u) {
        let position = start + local;
        let sees = within(position, low, high);
        var score = Eight(vec4<f32>(LOWEST), vec4<f32>(LOWEST));
        if any(sees.a) || any(sees.b) {
            let at = key_word(context[table + position / 64u], p.kv_heads, kv_head, p.key_words, 0u, position % 64u);
            let products = products_with(at);
            score.a = select(score.a, capped_four(products.a), sees.a);
            score.b = select(score.b, capped_four(products.b), sees.b);
        }
        let best = largest(local, score);
        let weight = Eight(
            select(vec4<f32>(), exponentials(score.a - best.a), sees.a),
            select(vec4<f32>(), exponentials(score.b - best.b), sees.b));
        weights[2u * local] = weight.a;
        weights[2u * local + 1u] = weight.b;
        let sum = total(local, weight);
        let next = Eight(max(most.a, best.a), max(most.b, best.b));
        var join: Join;
        join.before = Eight(exponentials(most.a - next.a), exponentials(most.b - next.b));
        join.own = Eight(exponentials(best.a - next.a), exponentials(best.b - next.b));
        join.sees = Seen(
            (vec4<u32>(start) < high.a) & (vec4<u32>(start + 255u) >= low.a),
            (vec4<u32>(start) < high.b) & (vec4<u32>(start + 255u) >= low.b));
        divisors.a = select(divisors.a, fma(divisors.a, join.before.a, sum.a * join.own.a), join.sees.a);
        divisors.b = select(divisors.b, fma(divisors.b, join.before.b, sum.b * join.own.b), join.sees.b);
        most = Eight(select(most.a, next.a, join.sees.a), select(most.b, next.b, join.sees.b));
        // Four teams have a block of positions each.
        let base = start + pair * 64u;
        let begin = max(begin_of_all, base);
        let end = min(end_of_all, base + 64u);
        var block = 0u;
        if begin < end { block = context[table + base / 64u]; }
        sums = joined(sums, weighted(local, word, words, kv_head, block, start, begin, end), join, pair);
        if words > 64u {
            let more = weighted(local, word + 64u, words, kv_head, block, start, begin, end);
            sums_beyond = joined(sums_beyond, more, join, pair);
        }
    }
    let own = two_of(divisors, pair);
    if word < words { store_two(first, rows, head, pair, word, sums, own); }
    if word + 64u < words { store_two(first, rows, head, pair, word + 64u, sums_beyond, own); }
}
