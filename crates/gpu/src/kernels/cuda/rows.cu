// Kernels of rows: embeddings, norms, elements, rotations, heads, writes of state, and the largest result. Each has the numbers of
// the WGSL kernel of its name.

#include "common.cuh"
#include "math.cuh"
#include "state.cuh"
#include "codes.cuh"
#include "rounding.cuh"

struct EmbedParams { u32 count, groups, width, first, rows, parts; };

// Each thread decodes eight columns.
template <class Layout> DEVICE void embed(const Launch& launch) {
    const EmbedParams& p = params<EmbedParams>(launch);
    const uint4* codes = (const uint4*)launch.binds[0];
    const u32* scales = (const u32*)launch.binds[1];
    const u32* ids = (const u32*)launch.binds[2];
    float* y = (float*)launch.binds[3];
    u32 i = block_number() * 256 + threadIdx.x;
    if (i >= p.count) return;
    u32 row = i / p.parts, part = i % p.parts, id = ids[row];
    // A piece of the table holds some rows only.
    if (id < p.first || id - p.first >= p.rows) return;
    u32 own = id - p.first;
    u32 unit = ((own / 32) * p.groups + part / 4) * 32 + own % 32;
    float numbers[8];
    Layout::numbers(codes, scales, unit, part % 4, numbers);
    u32 end = least(8, p.width - part * 8);
    for (u32 k = 0; k < 8; k += 1) {
        if (k < end) y[row * p.width + part * 8 + k] = numbers[k];
    }
}

KERNEL(embed_q4_0, 256) { embed<Q4_0>(launch); }
KERNEL(embed_q6_k, 256) { embed<Q6_K>(launch); }

struct NormParams { u32 count, mode, width, weights, has_bias; float p0, p1; };

// A block has a run of numbers, a thread every 256th of them. Only the mode of root mean squares.
KERNEL(norm, 256) {
    const NormParams& p = params<NormParams>(launch);
    const float* x = (const float*)launch.binds[0];
    const float* weight = (const float*)launch.binds[2];
    float* y = (float*)launch.binds[4];
    __shared__ float room[256];
    u32 number = block_number();
    if (number >= p.count) return;
    u32 at = number * p.width, local = threadIdx.x;
    // The weight begins again where it ends.
    u32 first = p.weights > 0 ? at % p.weights : 0;
    float own[16], weights[16];
    #pragma unroll
    for (u32 k = 0; k < 16; k += 1) {
        u32 i = local + 256 * k;
        own[k] = i < p.width ? x[at + i] : 0.0f;
    }
    #pragma unroll
    for (u32 k = 0; k < 16; k += 1) {
        u32 i = local + 256 * k;
        weights[k] = i < p.width && p.weights > 0 ? __ldg(&weight[first + i]) : 1.0f;
    }
    float squares = 0.0f;
    #pragma unroll
    for (u32 k = 0; k < 16; k += 1) squares = fmaf(own[k], own[k], squares);
    for (u32 i = local + 4096; i < p.width; i += 256) squares = fmaf(x[at + i], x[at + i], squares);
    float factor = sqrtf(sum_of_256(squares, room) / (float)p.width + p.p0);
    #pragma unroll
    for (u32 k = 0; k < 16; k += 1) {
        u32 i = local + 256 * k;
        if (i < p.width) y[at + i] = own[k] / factor * weights[k];
    }
    for (u32 i = local + 4096; i < p.width; i += 256) {
        float weight_of_i = p.weights > 0 ? weight[first + i] : 1.0f;
        y[at + i] = x[at + i] / factor * weight_of_i;
    }
}

struct ElementParams { u32 count, op, width, other, act, limits, at, spare; float p0, p1, p2, p3; };
struct ElementOperands { const u32* context; const float *a, *b; };

DEVICE float pooled(const ElementParams& p, const ElementOperands& of, u32 row, u32 column) {
    u32 first = of.context[of.context[6] + row], rows = of.context[of.context[7] + row];
    if (p.other == 0) return of.a[first * p.width + column];
    if (p.other == 1) return of.a[(first + rows - 1) * p.width + column];
    float sum = 0.0f;
    for (u32 r = 0; r < rows; r += 1) sum += of.a[(first + r) * p.width + column];
    return sum / (float)rows;
}

DEVICE float mixed(const ElementParams& p, const ElementOperands& of, u32 row, u32 column) {
    float sum = 0.0f;
    for (u32 h = 0; h < p.other; h += 1) {
        sum = fmaf(of.a[row * p.other + h], of.b[(row * p.other + h) * p.width + column], sum);
    }
    return sum;
}

DEVICE float xielu(const ElementParams& p, float x) {
    float curve;
    if (x > 0.0f) {
        curve = p.p0 * x * x;
    } else {
        float e = fminf(x, p.p3);
        float powers = e <= 0.0f ? exponential_less_one(e) : exponential(e) - 1.0f;
        curve = (powers - x) * p.p1;
    }
    return x != x ? x : fmaf(p.p2, x, curve);
}

DEVICE float element(const ElementParams& p, const ElementOperands& of, u32 i) {
    u32 row = i / p.width, column = i % p.width;
    const float *a = of.a, *b = of.b;
    switch (p.op) {
        case 0: return a[i] + b[i];
        case 1: return a[i] * p.p0;
        case 2: return p.p0 * hyperbolic_tangent(a[i] / p.p0);
        // An activation; a gate; a gate of heads. One place has the code of activations.
        case 3: case 4: case 5: {
            u32 limits = p.op == 4 ? p.limits : 0;
            float up = p.op == 3 ? 1.0f : b[i];
            return gated(p.act, limits, p.p0, p.p1, a[p.op == 5 ? row : i], up);
        }
        case 6: return a[i] * b[column];
        case 7: return xielu(p, a[i]);
        case 8: return a[i] - b[column];
        // Two heads, one after the other.
        case 9: return column < p.other ? a[row * p.other + column] : b[row * (p.width - p.other) + column - p.other];
        case 10: return a[of.context[of.context[5] + row] * p.width + column];
        case 11: return a[i] * __uint_as_float(of.context[of.context[p.at] + row]);
        case 12: return mixed(p, of, row, column);
        case 13: return pooled(p, of, row, column);
        // Given rows replace others.
        case 14: {
            u32 given = of.context[of.context[p.at] + row];
            return given == 0xffffffffu ? a[i] : b[given * p.width + column];
        }
        // Comparisons let NaN pass.
        case 16: return a[i] < p.p0 ? p.p0 : (a[i] > p.p1 ? p.p1 : a[i]);
        // Rows padded with zeros.
        default: return column < p.other ? a[row * p.other + column] : 0.0f;
    }
}

KERNEL(elements, 256) {
    const ElementParams& p = params<ElementParams>(launch);
    ElementOperands of{(const u32*)launch.binds[0], (const float*)launch.binds[1], (const float*)launch.binds[2]};
    float* y = (float*)launch.binds[3];
    u32 i = block_number() * 256 + threadIdx.x;
    if (i < p.count) y[i] = element(p, of, i);
}

struct RopeParams { u32 count, heads, size, pairs, is_neighbours, table; float factor; };

// Each thread rotates a pair, or copies a number that is not rotated.
KERNEL(rope, 256) {
    const RopeParams& p = params<RopeParams>(launch);
    const u32* context = (const u32*)launch.binds[0];
    const float* x = (const float*)launch.binds[1];
    float* y = (float*)launch.binds[2];
    u32 i = block_number() * 256 + threadIdx.x;
    if (i >= p.count) return;
    u32 items = p.size - p.pairs, run = i / items, item = i % items, at = run * p.size;
    if (item >= p.pairs) {
        y[at + p.pairs + item] = x[at + p.pairs + item];
        return;
    }
    u32 rotation = context[p.table] + (run / p.heads * p.pairs + item) * 2;
    float c = __uint_as_float(context[rotation]), s = __uint_as_float(context[rotation + 1]);
    u32 first = at + (p.is_neighbours ? 2 * item : item);
    u32 second = first + (p.is_neighbours ? 1 : p.pairs);
    float a = x[first], b = x[second];
    y[first] = p.factor * fmaf(a, c, -(b * s));
    y[second] = p.factor * fmaf(a, s, b * c);
}

struct WriteParams { u32 count, heads, size, words, is_transposed, table, id, units; };

// Each thread writes a word of a head.
KERNEL(write, 256) {
    const WriteParams& p = params<WriteParams>(launch);
    const u32* context = (const u32*)launch.binds[0];
    const float* x = (const float*)launch.binds[1];
    u32* to = (u32*)launch.binds[2];
    u32* faults = (u32*)launch.binds[3];
    u32 i = block_number() * 256 + threadIdx.x;
    if (i >= p.count) return;
    u32 row = i / (p.heads * p.units), head = i / p.units % p.heads, word = i % p.units;
    u32 position = context[context[4] + row];
    u32 block = own_block(context, p.table, row, position);
    u32 from = (row * p.heads + head) * p.size + word * 2;
    u32 bits = held(faults, p.id, row, x[from]);
    if (word * 2 + 1 < p.size) bits |= held(faults, p.id, row, x[from + 1]) << 16;
    if (p.is_transposed) to[key_word(block, p.heads, head, p.words, word, position % 64)] = bits;
    else to[value_word(block, p.heads, head, p.words, word, position % 64)] = bits;
}

struct HeadParams {
    u32 count, heads, kv_heads, size, value_size, flags, pairs, rotation;
    float factor;
    u32 key_words, value_words, table, ids;
    float epsilon;
    u32 q_weights, k_weights;
};

enum HeadKind { QUERY = 0, KEY = 1, VALUE = 2 };

DEVICE bool is_set(const HeadParams& p, u32 bit) { return ((p.flags >> bit) & 1u) != 0; }

// The norm of a head in `numbers`, with the tree of 256 sums of `norm`: a thread has two of them.
DEVICE void norm_head(const HeadParams& p, u32 kind, u32 size, u32 at, const float* weight, float* numbers, float* sums) {
    u32 local = threadIdx.x;
    float first = 0.0f, second = 0.0f;
    for (u32 i = local; i < size; i += 256) {
        first = fmaf(numbers[i], numbers[i], first);
        if (i + 128 < size) second = fmaf(numbers[i + 128], numbers[i + 128], second);
    }
    sums[local] = first + second;
    __syncthreads();
    u32 lane = local % 32;
    float sum = (sums[lane] + sums[lane + 64]) + (sums[lane + 32] + sums[lane + 96]);
    for (u32 half = 16; half > 0; half /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, half);
    float factor = sqrtf(sum / (float)size + p.epsilon);
    u32 weights = kind == QUERY ? p.q_weights : kind == KEY ? p.k_weights : 0;
    for (u32 i = local; i < size; i += 128) {
        float normed = numbers[i] / factor;
        numbers[i] = weights > 0 ? normed * weight[(at + i) % weights] : normed;
    }
}

DEVICE void rotate_head(const HeadParams& p, const u32* context, u32 row, float* numbers) {
    for (u32 item = threadIdx.x; item < p.pairs; item += 128) {
        u32 rotation = context[p.rotation] + (row * p.pairs + item) * 2;
        float c = __uint_as_float(context[rotation]), s = __uint_as_float(context[rotation + 1]);
        u32 first = is_set(p, 5) ? 2 * item : item;
        u32 second = is_set(p, 5) ? first + 1 : item + p.pairs;
        float a = numbers[first], b = numbers[second];
        numbers[first] = p.factor * fmaf(a, c, -(b * s));
        numbers[second] = p.factor * fmaf(a, s, b * c);
    }
}

// A block norms and rotates one head of a row, and keeps a query, or writes a key or a value to the state.
KERNEL(heads, 128) {
    const HeadParams& p = params<HeadParams>(launch);
    const u32* context = (const u32*)launch.binds[0];
    u32* faults = (u32*)launch.binds[9];
    __shared__ float numbers[1024];
    __shared__ float sums[128];
    u32 item = block_number(), local = threadIdx.x;
    if (item >= p.count) return;
    u32 each = p.heads + 2 * p.kv_heads;
    u32 row = item / each, head = item % each, kind = QUERY, count = p.heads;
    if (head >= p.heads) {
        head -= p.heads;
        count = p.kv_heads;
        kind = head >= count ? VALUE : KEY;
        head = head % count;
    }
    u32 size = kind == VALUE ? p.value_size : p.size;
    u32 at = (row * count + head) * size;
    const float* x = (const float*)(kind == QUERY ? launch.binds[1] : kind == KEY ? launch.binds[2] : launch.binds[3]);
    const float* weight = (const float*)(kind == QUERY ? launch.binds[4] : launch.binds[5]);
    for (u32 i = local; i < size; i += 128) numbers[i] = x[at + i];
    __syncthreads();
    if (is_set(p, kind)) {
        norm_head(p, kind, size, at, weight, numbers, sums);
        __syncthreads();
    }
    if (kind != VALUE && is_set(p, 3 + kind)) {
        rotate_head(p, context, row, numbers);
        __syncthreads();
    }
    if (kind == QUERY) {
        float* y = (float*)launch.binds[6];
        for (u32 i = local; i < size; i += 128) y[at + i] = numbers[i];
        return;
    }
    u32 position = context[context[4] + row];
    u32 block = own_block(context, p.table, row, position);
    u32 id = kind == VALUE ? p.ids >> 16 : p.ids & 0xffffu;
    for (u32 word = local; word < (size + 1) / 2; word += 128) {
        u32 bits = held(faults, id, row, numbers[word * 2]);
        if (word * 2 + 1 < size) bits |= held(faults, id, row, numbers[word * 2 + 1]) << 16;
        if (kind == KEY) {
            ((u32*)launch.binds[7])[key_word(block, count, head, p.key_words, word, position % 64)] = bits;
        } else {
            ((u32*)launch.binds[8])[value_word(block, count, head, p.value_words, word, position % 64)] = bits;
        }
    }
}

struct RoundParams { u32 count; };

// Each thread rounds a group of 32 columns, and writes its codes and its scale.
KERNEL(round_rows, 256) {
    const RoundParams& p = params<RoundParams>(launch);
    const float4* x = (const float4*)launch.binds[0];
    uint4* y = (uint4*)launch.binds[1];
    float* scales = (float*)launch.binds[2];
    u32 i = block_number() * 256 + threadIdx.x;
    if (i >= p.count) return;
    float4 own[8];
    u32 largest = 0;
    for (u32 k = 0; k < 8; k += 1) {
        own[k] = x[i * 8 + k];
        largest = largest_of(largest, magnitude(own[k]));
    }
    Rounding r = rounding(largest);
    u32 codes[8];
    for (u32 k = 0; k < 8; k += 1) codes[k] = packed_codes(own[k], r.inverse);
    y[i * 2] = make_uint4(codes[0], codes[1], codes[2], codes[3]);
    y[i * 2 + 1] = make_uint4(codes[4], codes[5], codes[6], codes[7]);
    scales[i] = r.scale;
}

struct PickParams { u32 count, is_second, width, runs; };
struct Best { u32 order, id, has_nan; };

// Numbers in the order of floats; both zeros are equal.
DEVICE u32 order_of(u32 bits) {
    if ((bits & 0x7fffffffu) == 0) return 0x80000000u;
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

DEVICE Best better(Best a, Best b) {
    bool takes = b.order > a.order || (b.order == a.order && b.id < a.id);
    return Best{takes ? b.order : a.order, takes ? b.id : a.id, a.has_nan | b.has_nan};
}

// The largest number of each row: of runs of 4,096 numbers, then of the row. The lowest id wins among equal numbers.
KERNEL(pick, 256) {
    const PickParams& p = params<PickParams>(launch);
    const u32* x = (const u32*)launch.binds[0];
    u32* found = (u32*)launch.binds[1];
    u32* picks = (u32*)launch.binds[2];
    __shared__ Best room[8];
    u32 row = blockIdx.y, local = threadIdx.x;
    Best best{0u, 0xffffffffu, 0u};
    if (!p.is_second) {
        u32 end = least(p.width, blockIdx.x * 4096 + 4096);
        for (u32 id = blockIdx.x * 4096 + local; id < end; id += 256) {
            u32 bits = x[row * p.width + id];
            best = better(best, Best{order_of(bits), id, (bits & 0x7fffffffu) > 0x7f800000u ? 1u : 0u});
        }
    } else {
        for (u32 run = local; run < p.runs; run += 256) {
            u32 at = (row * p.runs + run) * 3;
            best = better(best, Best{found[at], found[at + 1], found[at + 2]});
        }
    }
    for (u32 half = 16; half > 0; half /= 2) {
        Best other{
            __shfl_xor_sync(0xffffffffu, best.order, half), __shfl_xor_sync(0xffffffffu, best.id, half),
            __shfl_xor_sync(0xffffffffu, best.has_nan, half)};
        best = better(best, other);
    }
    if (local % 32 == 0) room[local / 32] = best;
    __syncthreads();
    if (local > 0) return;
    for (u32 warp = 1; warp < 8; warp += 1) best = better(best, room[warp]);
    if (!p.is_second) {
        u32 at = (row * p.runs + blockIdx.x) * 3;
        found[at] = best.order;
        found[at + 1] = best.id;
        found[at + 2] = best.has_nan;
    } else {
        picks[row * 3] = x[row * p.width + least(best.id, p.width - 1)];
        picks[row * 3 + 1] = best.id;
        picks[row * 3 + 2] = best.has_nan;
    }
}
