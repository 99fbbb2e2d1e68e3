// Functions whose errors are bounded on every device: WGSL leaves those of its own open.
// They use multiplication, addition, fma, and quotients and roots that are corrected once.

// A quotient, corrected by its remainder. Infinite results have no remainder.
fn quotient(a: f32, b: f32) -> f32 {
    let q = a / b;
    let corrected = q + fma(-q, b, a) / b;
    return select(q, corrected, abs(corrected) < 3.0e38);
}

// A root, corrected by its remainder.
fn root(x: f32) -> f32 {
    let s = sqrt(x);
    let corrected = fma(fma(-s, s, x), 0.5 / s, s);
    return select(s, corrected, abs(corrected) < 3.0e38);
}

// e^r - 1 of the rest, and the power of two: x = n * ln 2 + r. The coefficients are those of the CPU's kernels
// (Remez' exchange over |r| <= ln 2 / 2).
fn reduced(x: f32) -> vec2<f32> {
    let n = round(x * 1.44269504);
    // The first part of ln 2 has 15 bits, so that its product is exact also where `fma` rounds twice.
    let r = (x - n * 0.693145751953125) - n * 1.42860677e-6;
    var sum = fma(r, 0.001381461326, 0.00836870982);
    sum = fma(r, sum, 0.0416683873);
    sum = fma(r, sum, 0.166665206898);
    sum = fma(r, sum, 0.499999934517);
    return vec2<f32>(fma(r * r, sum, r), n);
}

// 2^n for n from -126 to 127.
fn power(n: f32) -> f32 {
    return bitcast<f32>(u32(i32(n) + 127) << 23u);
}

// e^x; zero below -86.
fn exponential(x: f32) -> f32 {
    let within = clamp(x, -86.0, 89.0);
    let parts = reduced(within);
    let e = (1.0 + parts.x) * power(parts.y - 1.0) * 2.0;
    let bounded = select(e, 0.0, x < -86.0);
    return select(bounded, x, x != x);
}

fn hyperbolic_tangent(x: f32) -> f32 {
    let parts = reduced(min(2.0 * abs(x), 20.0));
    let p = power(parts.y);
    let beyond = fma(p, parts.x, p - 1.0);
    let t = quotient(beyond, beyond + 2.0);
    let signed = select(t, -t, x < 0.0);
    return select(signed, x, x != x);
}

// e^x - 1 for x <= 0.
fn exponential_less_one(x: f32) -> f32 {
    let parts = reduced(max(x, -20.0));
    let p = power(parts.y);
    return select(fma(p, parts.x, p - 1.0), x, x != x);
}

fn sigmoid(x: f32) -> f32 {
    return quotient(1.0, 1.0 + exponential(-x));
}

fn softplus(x: f32) -> f32 {
    let t = exponential(-abs(x));
    let s = quotient(t, 2.0 + t);
    let square = s * s;
    var sum = 0.0666666667;
    sum = fma(square, sum, 0.0769230769);
    sum = fma(square, sum, 0.0909090909);
    sum = fma(square, sum, 0.1111111111);
    sum = fma(square, sum, 0.1428571429);
    sum = fma(square, sum, 0.2);
    sum = fma(square, sum, 0.3333333333);
    sum = fma(square, sum, 1.0);
    return fma(2.0 * s, sum, select(x, 0.0, x < 0.0));
}

// x times the probability that a normal number is below x; the coefficients are those of the CPU's kernels.
fn gelu(x: f32) -> f32 {
    let t = min(abs(x), 14.0);
    let over = quotient(1.0, t + 4.0);
    let u = (t - 4.0) * over;
    var sum = -0.000125097874022;
    sum = fma(sum, u, 0.000194499308);
    sum = fma(sum, u, 0.00157607648);
    sum = fma(sum, u, -0.00351897793);
    sum = fma(sum, u, -0.00752950603);
    sum = fma(sum, u, 0.0604045480);
    sum = fma(sum, u, -0.186522787);
    sum = fma(sum, u, 0.387136883);
    sum = fma(sum, u, -0.607896612);
    sum = fma(sum, u, 0.755285135);
    // t^2 in two parts, of which the first one is exact.
    let t1 = bitcast<f32>(bitcast<u32>(t) & 0xfffff000u);
    let p = exponential(-0.5 * t1 * t1) * exponential(-0.5 * (t - t1) * (t + t1));
    let q = p * over * sum;
    let value = select(x - t * q, x * q, x < 0.0);
    return select(value, x, x != x);
}

// The activations, in the order of `Act::ALL`.
fn activated(act: u32, x: f32) -> f32 {
    switch act {
        case 0u: { return quotient(x, 1.0 + exponential(-x)); }
        case 1u: {
            let twice = x * fma(x * x, 0.0713548163, 1.59576912);
            return quotient(x, 1.0 + exponential(-twice));
        }
        case 2u: { return gelu(x); }
        case 3u: { return quotient(x, 1.0 + exponential(-1.702 * x)); }
        case 4u: { return sigmoid(x); }
        case 5u: { return softplus(x); }
        case 6u: { return select(x, 0.0, x < 0.0); }
        case 7u: { let r = select(x, 0.0, x < 0.0); return r * r; }
        default: { return x; }
    }
}

// A gate and the value that it gates, as `GateRule` has them; bit 0 of `limits` bounds the gate, bit 1 the activated
// gate, bit 2 says that there is an offset.
fn gated(act: u32, limits: u32, bound: f32, offset: f32, gate: f32, up: f32) -> f32 {
    var g = gate;
    var u = up;
    if (limits & 1u) != 0u { g = select(g, bound, g > bound); }
    g = activated(act, g);
    if (limits & 2u) != 0u { g = select(g, bound, g > bound); }
    if (limits & 3u) != 0u {
        u = select(u, bound, u > bound);
        u = select(u, -bound, u < -bound);
    }
    if (limits & 4u) != 0u { u = u + offset; }
    return g * u;
}
