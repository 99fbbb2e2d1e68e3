// Attention to keys and values in half precision: of one row and a chunk of 256 positions, or of up to eight rows of a sequence
// and all chunks, with the same bits; and the join of chunks. The sums have the order of attend.wgsl and of join.wgsl.

#include "common.cuh"
#include "math.cuh"
#include "state.cuh"

struct AttendParams {
    u32 count, first, heads, kv_heads, size, value_size, key_words, value_words, span, table, numbers, is_latent, has_cap;
    float scale, cap;
    u32 has_sinks;
};

CONSTANT float LOWEST = -3.4028235e38f;

DEVICE float capped(const AttendParams& p, float score) {
    return p.has_cap ? p.cap * hyperbolic_tangent(score / p.cap) : score;
}

// The two numbers of a word.
DEVICE float2 numbers(u32 word) { return make_float2(of_half(word & 0xffffu), of_half(word >> 16)); }

// A weight of zero hides its value, which may be no number.
DEVICE void add_value(float2& sum, float2 value, float weight) {
    float x = fmaf(weight, value.x, sum.x), y = fmaf(weight, value.y, sum.y);
    sum.x = weight != 0.0f ? x : sum.x;
    sum.y = weight != 0.0f ? y : sum.y;
}

// The product of a query in the block's memory and a key, whose words are 64 apart; 16 of them are under way at once.
DEVICE float product_with(const AttendParams& p, const float* query, const u32* keys, u32 at) {
    float product = 0.0f;
    u32 w = 0, whole = p.size / 2;
    for (; w + 16 <= whole; w += 16) {
        u32 k[16];
        #pragma unroll
        for (u32 i = 0; i < 16; i += 1) k[i] = keys[at + (w + i) * 64];
        #pragma unroll
        for (u32 i = 0; i < 16; i += 1) {
            product = fmaf(query[2 * (w + i)], of_half(k[i] & 0xffffu), product);
            product = fmaf(query[2 * (w + i) + 1], of_half(k[i] >> 16), product);
        }
    }
    for (; w < whole; w += 1) {
        u32 k = keys[at + w * 64];
        product = fmaf(query[2 * w], of_half(k & 0xffffu), product);
        product = fmaf(query[2 * w + 1], of_half(k >> 16), product);
    }
    if (p.size % 2 == 1) product = fmaf(query[2 * w], of_half(keys[at + w * 64] & 0xffffu), product);
    return product;
}

// The largest number of 256 threads.
DEVICE float largest_of_256(float own, float* room) {
    for (u32 half = 16; half > 0; half /= 2) own = fmaxf(own, __shfl_xor_sync(0xffffffffu, own, half));
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = own;
    __syncthreads();
    float best = room[0];
    for (u32 warp = 1; warp < 8; warp += 1) best = fmaxf(best, room[warp]);
    return best;
}

// The factors of a join of a chunk with those before it.
struct Join { float most, before, own; };

DEVICE Join joined(float most, float best) {
    float next = fmaxf(most, best);
    return Join{next, exponential(most - next), exponential(best - next)};
}

// One head of one row and a chunk of 256 absolute positions.
KERNEL(attend_f16, 256) {
    const AttendParams& p = params<AttendParams>(launch);
    const u32* context = (const u32*)launch.binds[0];
    const float* q = (const float*)launch.binds[1];
    const u32* keys = (const u32*)launch.binds[2];
    const u32* values = (const u32*)launch.binds[3];
    const float* sinks = (const float*)launch.binds[5];
    float* partial = (float*)launch.binds[6];
    float* y = (float*)launch.binds[7];
    __shared__ float query[1024];
    __shared__ float weights[256];
    __shared__ float2 parts[256];
    __shared__ float tops[8];
    u32 local = threadIdx.x, row = p.first + blockIdx.y, head = blockIdx.x;
    u32 low = context[context[p.span] + 2 * row], high = context[context[p.span] + 2 * row + 1];
    u32 start = (low / 256 + blockIdx.z) * 256;
    bool is_whole = gridDim.z == 1;
    if (start >= high && !is_whole) return;
    u32 kv_head = head / (p.heads / p.kv_heads);
    u32 table = context[p.table] + context[context[3] + row] * context[p.table + 1];
    for (u32 d = local; d < p.size; d += 256) query[d] = q[(row * p.heads + head) * p.size + d] * p.scale;
    __syncthreads();
    u32 position = start + local;
    bool sees = position >= low && position < high;
    float score = LOWEST;
    if (sees) {
        u32 block = context[table + position / 64];
        score = capped(p, product_with(p, query, keys, key_word(block, p.kv_heads, kv_head, p.key_words, 0, position % 64)));
    }
    float most = largest_of_256(score, tops);
    float weight_sum = sum_of_256(sees ? exponential(score - most) : 0.0f, weights);
    u32 out = ((blockIdx.y * p.heads + head) * gridDim.z + blockIdx.z) * (p.value_size + 2);
    Join join = joined(p.has_sinks ? sinks[head] : LOWEST, most);
    float divisor = fmaf(p.has_sinks ? 1.0f : 0.0f, join.before, weight_sum * join.own);
    if (!is_whole && local == 0) {
        partial[out] = most;
        partial[out + 1] = weight_sum;
    }
    // Four teams have a block of positions each.
    u32 team = local / 64, lane = local % 64, base = start + team * 64;
    u32 begin = largest_of(low, base), end = least(high, base + 64);
    u32 block = begin < end ? context[table + base / 64] : 0;
    u32 words = (p.value_size + 1) / 2;
    for (u32 tile = 0; tile < words; tile += 64) {
        u32 word = tile + lane;
        float2 sum = make_float2(0.0f, 0.0f);
        if (word < words) {
            const u32* from = values + value_word(block, p.kv_heads, kv_head, p.value_words, word, 0);
            u32 k = begin;
            for (; k + 16 <= end; k += 16) {
                u32 v[16];
                #pragma unroll
                for (u32 i = 0; i < 16; i += 1) v[i] = from[(k + i - base) * p.value_words];
                #pragma unroll
                for (u32 i = 0; i < 16; i += 1) add_value(sum, numbers(v[i]), weights[k + i - start]);
            }
            for (; k < end; k += 1) add_value(sum, numbers(from[(k - base) * p.value_words]), weights[k - start]);
        }
        parts[local] = sum;
        __syncthreads();
        if (local < 64 && word < words) {
            float2 a = parts[local], b = parts[local + 64], c = parts[local + 128], d = parts[local + 192];
            float of_word[2] = {((a.x + b.x) + c.x) + d.x, ((a.y + b.y) + c.y) + d.y};
            for (u32 i = 0; i < 2 && word * 2 + i < p.value_size; i += 1) {
                u32 column = word * 2 + i;
                if (is_whole) {
                    y[(row * p.heads + head) * p.value_size + column] = fmaf(0.0f, join.before, of_word[i] * join.own) / divisor;
                } else {
                    partial[out + 2 + column] = of_word[i];
                }
            }
        }
        __syncthreads();
    }
}

struct JoinParams { u32 count, first, heads, value_size, span, has_sinks, chunks; };

// The chunks of a head of a row, in order: each thread has a column.
KERNEL(join, 256) {
    const JoinParams& p = params<JoinParams>(launch);
    const u32* context = (const u32*)launch.binds[0];
    const float* partial = (const float*)launch.binds[1];
    const float* sinks = (const float*)launch.binds[2];
    float* y = (float*)launch.binds[3];
    u32 i = block_number() * 256 + threadIdx.x;
    if (i >= p.count) return;
    u32 column = i % p.value_size, head = i / p.value_size % p.heads, row = i / p.value_size / p.heads;
    u32 low = context[context[p.span] + 2 * (p.first + row)], high = context[context[p.span] + 2 * (p.first + row) + 1];
    u32 count = (high + 255) / 256 - low / 256;
    float most = p.has_sinks ? sinks[head] : LOWEST, weights = p.has_sinks ? 1.0f : 0.0f, sum = 0.0f;
    for (u32 c = 0; c < count; c += 1) {
        u32 at = ((row * p.heads + head) * p.chunks + c) * (p.value_size + 2);
        Join join = joined(most, partial[at]);
        weights = fmaf(weights, join.before, partial[at + 1] * join.own);
        sum = fmaf(sum, join.before, partial[at + 2 + column] * join.own);
        most = join.most;
    }
    y[p.first * p.heads * p.value_size + i] = sum / weights;
}

// What the warp of a row says of a chunk.
struct RowJoin { float before, own; u32 sees; };

// The products of eight queries and a key. The queries lie number by number, eight rows side by side.
DEVICE void eight_products(const AttendParams& p, const float4* queries, const u32* keys, u32 at, float products[8]) {
    #pragma unroll
    for (u32 r = 0; r < 8; r += 1) products[r] = 0.0f;
    u32 words = (p.size + 1) / 2;
    for (u32 first = 0; first < words; first += 4) {
        u32 k[4];
        #pragma unroll
        for (u32 i = 0; i < 4; i += 1) k[i] = keys[at + least(first + i, words - 1) * 64];
        #pragma unroll
        for (u32 i = 0; i < 4; i += 1) {
            #pragma unroll
            for (u32 half = 0; half < 2; half += 1) {
                u32 d = 2 * (first + i) + half;
                if (d >= p.size) continue;
                float key = of_half(half ? k[i] >> 16 : k[i] & 0xffffu);
                float4 a = queries[2 * d], b = queries[2 * d + 1];
                products[0] = fmaf(a.x, key, products[0]);
                products[1] = fmaf(a.y, key, products[1]);
                products[2] = fmaf(a.z, key, products[2]);
                products[3] = fmaf(a.w, key, products[3]);
                products[4] = fmaf(b.x, key, products[4]);
                products[5] = fmaf(b.y, key, products[5]);
                products[6] = fmaf(b.z, key, products[6]);
                products[7] = fmaf(b.w, key, products[7]);
            }
        }
    }
}

// One head of up to eight rows of a sequence, and all chunks in order: keys and values are read once for all rows. A warp keeps
// the join of a row; a team of 64 threads has a block of positions, and keeps the sums of two rows.
KERNEL(attend_rows_f16, 256) {
    const AttendParams& p = params<AttendParams>(launch);
    const u32* context = (const u32*)launch.binds[0];
    const float* q = (const float*)launch.binds[1];
    const u32* keys = (const u32*)launch.binds[2];
    const u32* values = (const u32*)launch.binds[3];
    const float* sinks = (const float*)launch.binds[5];
    float* y = (float*)launch.binds[7];
    __shared__ __align__(16) float queries[256 * 8];
    __shared__ __align__(16) float weights[256 * 8];
    __shared__ float2 parts[256 * 8];
    // Scores, then weights, row by row, before the sums of teams have this memory.
    float* by_row = (float*)parts;
    __shared__ float tops[8];
    __shared__ RowJoin joins[8];
    __shared__ u32 lows[8], highs[8];
    u32 local = threadIdx.x, warp = local / 32, lane = local % 32, head = blockIdx.x;
    u32 first = context[context[9] + 2 * blockIdx.y], rows = context[context[9] + 2 * blockIdx.y + 1];
    u32 kv_head = head / (p.heads / p.kv_heads);
    u32 table = context[p.table] + context[context[3] + first] * context[p.table + 1];
    if (local < 8) {
        u32 row = first + least(local, rows - 1);
        lows[local] = local < rows ? context[context[p.span] + 2 * row] : 0xffffffffu;
        highs[local] = local < rows ? context[context[p.span] + 2 * row + 1] : 0;
    }
    for (u32 i = local; i < p.size * 8; i += 256) {
        u32 row = first + least(i % 8, rows - 1);
        queries[i] = q[(row * p.heads + head) * p.size + i / 8] * p.scale;
    }
    __syncthreads();
    u32 begin_of_all = lows[0], end_of_all = highs[0];
    for (u32 r = 1; r < 8; r += 1) {
        begin_of_all = least(begin_of_all, lows[r]);
        end_of_all = largest_of(end_of_all, highs[r]);
    }
    float most = p.has_sinks ? sinks[head] : LOWEST, divisor = p.has_sinks ? 1.0f : 0.0f;
    u32 team = local / 64, column = local % 64, words = (p.value_size + 1) / 2;
    // Of two rows, and of two tiles of 64 words.
    float2 sums[2][2];
    sums[0][0] = sums[0][1] = sums[1][0] = sums[1][1] = make_float2(0.0f, 0.0f);
    for (u32 start = begin_of_all / 256 * 256; start < end_of_all; start += 256) {
        u32 position = start + local;
        float score[8];
        bool is_seen = position >= begin_of_all && position < end_of_all;
        if (is_seen) {
            u32 block = context[table + position / 64];
            eight_products(
                p, (const float4*)queries, keys, key_word(block, p.kv_heads, kv_head, p.key_words, 0, position % 64), score);
        }
        #pragma unroll
        for (u32 r = 0; r < 8; r += 1) {
            bool sees = position >= lows[r] && position < highs[r];
            score[r] = sees ? capped(p, score[r]) : LOWEST;
            by_row[r * 256 + local] = score[r];
        }
        __syncthreads();
        // The warp's own row.
        float best = LOWEST;
        for (u32 j = 0; j < 8; j += 1) best = fmaxf(best, by_row[warp * 256 + lane + 32 * j]);
        for (u32 half = 16; half > 0; half /= 2) best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, half));
        if (lane == 0) tops[warp] = best;
        __syncthreads();
        #pragma unroll
        for (u32 r = 0; r < 8; r += 1) {
            bool sees = position >= lows[r] && position < highs[r];
            float weight = sees ? exponential(score[r] - tops[r]) : 0.0f;
            weights[local * 8 + r] = weight;
            by_row[r * 256 + local] = weight;
        }
        __syncthreads();
        float sum = tree_of_warp(&by_row[warp * 256]);
        bool sees_chunk = start < highs[warp] && start + 255 >= lows[warp];
        Join join = joined(most, best);
        if (sees_chunk) {
            divisor = fmaf(divisor, join.before, sum * join.own);
            most = join.most;
        }
        if (lane == 0) joins[warp] = RowJoin{join.before, join.own, sees_chunk ? 1u : 0u};
        __syncthreads();
        u32 base = start + team * 64;
        u32 begin = largest_of(begin_of_all, base), end = least(end_of_all, base + 64);
        u32 block = begin < end ? context[table + base / 64] : 0;
        #pragma unroll
        for (u32 tile = 0; tile < 2; tile += 1) {
            if (tile * 64 >= words) continue;
            u32 word = tile * 64 + column;
            float2 own[8];
            #pragma unroll
            for (u32 r = 0; r < 8; r += 1) own[r] = make_float2(0.0f, 0.0f);
            if (word < words) {
                const u32* from = values + value_word(block, p.kv_heads, kv_head, p.value_words, word, 0);
                for (u32 four = begin; four < end; four += 4) {
                    u32 v[4];
                    #pragma unroll
                    for (u32 i = 0; i < 4; i += 1) v[i] = from[(least(four + i, end - 1) - base) * p.value_words];
                    #pragma unroll
                    for (u32 i = 0; i < 4; i += 1) {
                        if (four + i >= end) continue;
                        const float4* of_position = (const float4*)&weights[(four + i - start) * 8];
                        float4 a = of_position[0], b = of_position[1];
                        float2 value = numbers(v[i]);
                        add_value(own[0], value, a.x);
                        add_value(own[1], value, a.y);
                        add_value(own[2], value, a.z);
                        add_value(own[3], value, a.w);
                        add_value(own[4], value, b.x);
                        add_value(own[5], value, b.y);
                        add_value(own[6], value, b.z);
                        add_value(own[7], value, b.w);
                    }
                }
            }
            #pragma unroll
            for (u32 r = 0; r < 8; r += 1) parts[(r * 4 + team) * 64 + column] = own[r];
            __syncthreads();
            #pragma unroll
            for (u32 of_two = 0; of_two < 2; of_two += 1) {
                u32 r = team * 2 + of_two;
                const float2* from = &parts[r * 256 + column];
                float2 a = from[0], b = from[64], c = from[128], d = from[192];
                float2 more = make_float2(((a.x + b.x) + c.x) + d.x, ((a.y + b.y) + c.y) + d.y);
                RowJoin join = joins[r];
                if (join.sees) {
                    float2& sum = sums[tile][of_two];
                    sum.x = fmaf(sum.x, join.before, more.x * join.own);
                    sum.y = fmaf(sum.y, join.before, more.y * join.own);
                }
            }
            __syncthreads();
        }
    }
    __syncthreads();
    if (lane == 0) tops[warp] = divisor;
    __syncthreads();
    for (u32 of_two = 0; of_two < 2; of_two += 1) {
        u32 r = team * 2 + of_two;
        if (r >= rows) continue;
        u32 at = ((first + r) * p.heads + head) * p.value_size;
        for (u32 tile = 0; tile < 2; tile += 1) {
            u32 word = tile * 64 + column;
            float2 sum = sums[tile][of_two];
            if (word * 2 < p.value_size) y[at + word * 2] = sum.x / tops[r];
            if (word * 2 + 1 < p.value_size) y[at + word * 2 + 1] = sum.y / tops[r];
        }
    }
}
