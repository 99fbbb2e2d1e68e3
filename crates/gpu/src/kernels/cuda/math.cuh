// Functions with the bits of math.wgsl. Quotients and roots of this device are the nearest numbers, so they need no correction.
// The kernels are compiled without contraction: only `fmaf` is one rounding.

struct Reduced { float rest, n; };

// As in math.wgsl, which has the sources of the coefficients.
DEVICE Reduced reduced(float x) {
    float n = rintf(x * 1.44269504f);
    float r = (x - n * 0.693145751953125f) - n * 1.42860677e-6f;
    float sum = fmaf(r, 0.001381461326f, 0.00836870982f);
    sum = fmaf(r, sum, 0.0416683873f);
    sum = fmaf(r, sum, 0.166665206898f);
    sum = fmaf(r, sum, 0.499999934517f);
    return Reduced{fmaf(r * r, sum, r), n};
}

// 2^n for n from -126 to 127.
DEVICE float power(float n) { return __uint_as_float((u32)((int)n + 127) << 23); }

// e^x; zero below -86.
DEVICE float exponential(float x) {
    Reduced parts = reduced(fminf(fmaxf(x, -86.0f), 89.0f));
    float e = (1.0f + parts.rest) * power(parts.n - 1.0f) * 2.0f;
    float bounded = x < -86.0f ? 0.0f : e;
    return x != x ? x : bounded;
}

RARE float hyperbolic_tangent(float x) {
    Reduced parts = reduced(fminf(2.0f * fabsf(x), 20.0f));
    float p = power(parts.n);
    float beyond = fmaf(p, parts.rest, p - 1.0f);
    float t = beyond / (beyond + 2.0f);
    float with_sign = x < 0.0f ? -t : t;
    return x != x ? x : with_sign;
}

// e^x - 1 for x <= 0.
DEVICE float exponential_less_one(float x) {
    Reduced parts = reduced(fmaxf(x, -20.0f));
    float p = power(parts.n);
    return x != x ? x : fmaf(p, parts.rest, p - 1.0f);
}

DEVICE float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

DEVICE float softplus(float x) {
    float t = exponential(-fabsf(x));
    float s = t / (2.0f + t);
    float square = s * s;
    float sum = 0.0666666667f;
    sum = fmaf(square, sum, 0.0769230769f);
    sum = fmaf(square, sum, 0.0909090909f);
    sum = fmaf(square, sum, 0.1111111111f);
    sum = fmaf(square, sum, 0.1428571429f);
    sum = fmaf(square, sum, 0.2f);
    sum = fmaf(square, sum, 0.3333333333f);
    sum = fmaf(square, sum, 1.0f);
    return fmaf(2.0f * s, sum, x < 0.0f ? 0.0f : x);
}

DEVICE float gelu(float x) {
    float t = fminf(fabsf(x), 14.0f);
    float over = 1.0f / (t + 4.0f);
    float u = (t - 4.0f) * over;
    float sum = -0.000125097874022f;
    sum = fmaf(sum, u, 0.000194499308f);
    sum = fmaf(sum, u, 0.00157607648f);
    sum = fmaf(sum, u, -0.00351897793f);
    sum = fmaf(sum, u, -0.00752950603f);
    sum = fmaf(sum, u, 0.0604045480f);
    sum = fmaf(sum, u, -0.186522787f);
    sum = fmaf(sum, u, 0.387136883f);
    sum = fmaf(sum, u, -0.607896612f);
    sum = fmaf(sum, u, 0.755285135f);
    float t1 = __uint_as_float(__float_as_uint(t) & 0xfffff000u);
    float p = exponential(-0.5f * t1 * t1) * exponential(-0.5f * (t - t1) * (t + t1));
    float q = p * over * sum;
    float value = x < 0.0f ? x * q : x - t * q;
    return x != x ? x : value;
}

// The activations, in the order of `Act::ALL`.
DEVICE float activated(u32 act, float x) {
    switch (act) {
        case 0: return x / (1.0f + exponential(-x));
        case 1: {
            float twice = x * fmaf(x * x, 0.0713548163f, 1.59576912f);
            return x / (1.0f + exponential(-twice));
        }
        case 2: return gelu(x);
        case 3: return x / (1.0f + exponential(-1.702f * x));
        case 4: return sigmoid(x);
        case 5: return softplus(x);
        case 6: return x < 0.0f ? 0.0f : x;
        case 7: { float r = x < 0.0f ? 0.0f : x; return r * r; }
        default: return x;
    }
}

// As `gated` of math.wgsl.
DEVICE float gated(u32 act, u32 limits, float bound, float offset, float gate, float up) {
    float g = gate, u = up;
    if (limits & 1u) g = g > bound ? bound : g;
    g = activated(act, g);
    if (limits & 2u) g = g > bound ? bound : g;
    if (limits & 3u) {
        u = u > bound ? bound : u;
        u = u < -bound ? -bound : u;
    }
    if (limits & 4u) u = u + offset;
    return g * u;
}
