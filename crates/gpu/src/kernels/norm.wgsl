// Norms: a workgroup reads one run of numbers, and sums them in a fixed tree. An invocation has every 256th number, and
// loads 16 of them before it uses the first one, as a store ends what a driver loads ahead.

struct Params { count: u32, mode: u32, width: u32, weights: u32, has_bias: u32, p0: f32, p1: f32 }
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> other: array<f32>;
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

// Numbers of an invocation: 256 apart, four in a vector.
struct Run { a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32> }
const NO_RUN: Run = Run(vec4<f32>(), vec4<f32>(), vec4<f32>(), vec4<f32>());

// The numbers of a run of the workgroup.
const RUN: u32 = 4096u;

// What is subtracted from a number, twice, and what divides it.
struct Moments { less: f32, rest: f32, factor: f32 }

var<workgroup> sums: array<vec2<f32>, 256>;

fn within(v: vec4<f32>, i: u32) -> vec4<f32> {
    return select(vec4<f32>(), v, vec4<u32>(i, i + 256u, i + 512u, i + 768u) < vec4<u32>(p.width));
}

LOADS
fn total(local: u32, part: vec2<f32>) -> vec2<f32> {
    workgroupBarrier();
    sums[local] = part;
    workgroupBarrier();
    for (var half = 128u; half > 0u; half = half / 2u) {
        if local < half { sums[local] = sums[local] + sums[local + half]; }
        workgroupBarrier();
    }
    return sums[0];
}

fn with_squares_of_four(sum: f32, v: vec4<f32>) -> f32 {
    return fma(v.w, v.w, fma(v.z, v.z, fma(v.y, v.y, fma(v.x, v.x, sum))));
}

fn with_squares(sum: f32, run: Run) -> f32 {
    let first = with_squares_of_four(sum, run.a);
    if p.width <= 1024u { return first; }
    return with_squares_of_four(with_squares_of_four(with_squares_of_four(first, run.b), run.c), run.d);
}

fn with_four(sum: f32, v: vec4<f32>) -> f32 { return (((sum + v.x) + v.y) + v.z) + v.w; }

fn with_all(sum: f32, run: Run) -> f32 {
    let first = with_four(sum, run.a);
    if p.width <= 1024u { return first; }
    return with_four(with_four(with_four(first, run.b), run.c), run.d);
}

fn less_mean(run: Run, mean: f32, i: u32) -> Run {
    return Run(
        within(run.a - mean, i), within(run.b - mean, i + 1024u),
        within(run.c - mean, i + 2048u), within(run.d - mean, i + 3072u));
}

// The moments of modes 0 and 2: by the mean of squares. `p0` of mode 2 is the root of the least mean square.
fn by_squares(at: u32, local: u32, own: Run) -> Moments {
    let n = f32(p.width);
    var squares = vec2<f32>();
    var run = own;
    for (var i = 0u; i < p.width; i += RUN) {
        if i > 0u { run = x_run(at, i + local); }
        squares.x = with_squares(squares.x, run);
        if p.mode == 2u { squares.y = with_squares(squares.y, other_run(at, i + local)); }
    }
    let sum = total(local, squares);
    if p.mode == 0u { return Moments(0.0, 0.0, root(quotient(sum.x, n) + p.p0)); }
    let root_of_x = root(quotient(sum.x, n));
    // A comparison that lets NaN pass.
    return Moments(0.0, 0.0, quotient(root(quotient(sum.y, n)), select(root_of_x, p.p0, root_of_x < p.p0)));
}

// The moments of modes 1 and 3: by the mean and the variance.
fn by_variance(at: u32, local: u32, own: Run) -> Moments {
    let n = f32(p.width);
    var sum = 0.0;
    var run = own;
    for (var i = 0u; i < p.width; i += RUN) {
        if i > 0u { run = x_run(at, i + local); }
        sum = with_all(sum, run);
    }
    let mean = quotient(total(local, vec2<f32>(sum, 0.0)).x, n);
    var squares = vec2<f32>();
    run = own;
    for (var i = 0u; i < p.width; i += RUN) {
        if i > 0u { run = x_run(at, i + local); }
        let less = less_mean(run, mean, i + local);
        squares = vec2<f32>(with_squares(squares.x, less), with_all(squares.y, less));
    }
    let sum_of_all = total(local, squares);
    // What the rounded mean lacks.
    let rest = quotient(sum_of_all.y, n);
    let variance = quotient(sum_of_all.x, n) - rest * rest;
    if p.mode == 1u { return Moments(mean, rest, root(variance + p.p0)); }
    return Moments(fma(p.p0, root(max(variance, 0.0)), mean), 0.0, 1.0);
}

fn quotients(v: vec4<f32>, by: f32) -> vec4<f32> {
    return vec4<f32>(quotient(v.x, by), quotient(v.y, by), quotient(v.z, by), quotient(v.w, by));
}

fn normed(v: vec4<f32>, weights: vec4<f32>, biases: vec4<f32>, m: Moments) -> vec4<f32> {
    switch p.mode {
        case 0u: {
            let normed = quotients(v, m.factor);
            if p.weights > 0u { return normed * weights; }
            return normed;
        }
        case 1u: {
            var result = quotients((v - m.less) - m.rest, m.factor);
            if p.weights > 0u { result = result * weights; }
            if p.has_bias != 0u { result = result + biases; }
            return result;
        }
        case 2u: { return v * m.factor; }
        default: {
            let above = v - m.less;
            return select(above, vec4<f32>(), above < vec4<f32>());
        }
    }
}

fn store(at: u32, i: u32, v: vec4<f32>) {
    if i < p.width { y[at + i] = v.x; }
    if i + 256u < p.width { y[at + i + 256u] = v.y; }
    if i + 512u < p.width { y[at + i + 512u] = v.z; }
    if i + 768u < p.width { y[at + i + 768u] = v.w; }
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let number = group.y * groups.x + group.x;
    if number >= p.count { return; }
    let at = number * p.width;
    let own = x_run(at, local);
    // The weight begins again where it ends.
    let first = select(0u, at % max(p.weights, 1u), p.weights > 0u);
    var weights = NO_RUN;
    if p.weights > 0u { weights = weight_run(first, local); }
    var m = Moments();
    if p.mode == 0u || p.mode == 2u { m = by_squares(at, local, own); } else { m = by_variance(at, local, own); }
    var run = own;
    for (var start = 0u; start < p.width; start += RUN) {
        let i = start + local;
        var biases = NO_RUN;
        if p.has_bias != 0u { biases = bias_run(0u, i); }
        if start > 0u {
            run = x_run(at, i);
            if p.weights > 0u { weights = weight_run(first, i); }
        }
        store(at, i, normed(run.a, weights.a, biases.a, m));
        if p.width > 1024u {
            store(at, i + 1024u, normed(run.b, weights.b, biases.b, m));
            store(at, i + 2048u, normed(run.c, weights.c, biases.c, m));
            store(at, i + 3072u, normed(run.d, weights.d, biases.d, m));
        }
    }
}
