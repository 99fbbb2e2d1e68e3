// Products with matrices by integers: of up to eight rows by dot products of four bytes, of more by matrix units. Columns are cut
// into slices of 256: a chain over the groups of a slice, and slices one after another. The product of a group is exact, so both
// have the same bits.

#include "common.cuh"
#include "math.cuh"
#include "codes.cuh"
#include "rounding.cuh"

struct ProductParams {
    u32 count, groups, rows, first, x_stride, x_head, y_stride, y_head, bands, has_bias, per_row, end0, end1, has_residual;
};

// Where a column of the result goes, and what is added to it, as `put` of product.wgsl has it.
struct Column { float* y; const float* residual; u32 stride; float bias; bool is_bound; };

DEVICE Column column_of(const ProductParams& p, const Launch& launch, u32 head, u32 n) {
    Column to{nullptr, nullptr, 0, 0.0f, n < p.rows};
    if (!to.is_bound) return to;
    if (p.has_bias) to.bias = __ldg(&((const float*)launch.binds[3])[p.first + n]);
    if (n < p.end0) {
        u32 at = head * p.y_head + p.first + n;
        to.stride = p.y_stride;
        to.y = (float*)launch.binds[6] + at;
        if (p.has_residual) to.residual = (const float*)launch.binds[5] + at;
    } else if (n < p.end1) {
        to.stride = p.end1 - p.end0;
        to.y = (float*)launch.binds[7] + (n - p.end0);
    } else {
        to.stride = p.rows - p.end1;
        to.y = (float*)launch.binds[8] + (n - p.end1);
    }
    return to;
}

DEVICE void put(const ProductParams& p, const Column& to, u32 m, float sum) {
    if (m >= p.count || !to.is_bound) return;
    float v = sum;
    if (p.has_bias) v += to.bias;
    if (to.residual) v = to.residual[m * to.stride] + v;
    to.y[m * to.stride] = v;
}

// Rounds the groups of a turn, from group `first` of the rows on, into the block's memory. A thread has eight columns.
template <u32 ROWS> DEVICE void round_turn(const ProductParams& p, const float4* x, u32 row, u32 head, u32 first, uint2* codes, float* scales) {
    u32 in_turn = blockDim.x / 4;
    #pragma unroll
    for (u32 r = 0; r < ROWS; r += 1) {
        u32 slot = threadIdx.x / 4, part = threadIdx.x % 4, g = first + slot;
        float4 a = make_float4(0.0f, 0.0f, 0.0f, 0.0f), b = a;
        if (g < p.groups) {
            // Rows beyond the last one repeat it.
            u32 at = least(row + r, p.count - 1) * p.x_stride + head * p.x_head + g * 8 + part * 2;
            a = x[at];
            b = x[at + 1];
        }
        u32 largest = largest_of(magnitude(a), magnitude(b));
        largest = largest_of(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
        largest = largest_of(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
        Rounding own = rounding(largest);
        codes[(r * in_turn + slot) * 4 + part] = make_uint2(packed_codes(a, own.inverse), packed_codes(b, own.inverse));
        if (part == 0) scales[r * in_turn + slot] = own.scale;
    }
}

// The codes and scales of a lane's slice.
template <class Layout> struct Slice {
    typename Layout::Codes codes[8];
    typename Layout::SliceScales scales;

    DEVICE_IN void load(const ProductParams& p, const uint4* all, const u32* all_scales, u32 unit, u32 first) {
        #pragma unroll
        for (u32 k = 0; k < 8; k += 1) codes[k] = Layout::loaded(all, unit + least(first + k, p.groups - 1) * 32);
        scales.load(all_scales, unit, first, p.groups - 1);
    }
};

// A lane has a weight row of a band, a warp takes slices in turn. For one row, all codes of a slice are on their way while it is
// rounded.
template <class Layout, u32 ROWS, u32 MOST_TEAMS> DEVICE void few_rows(const Launch& launch) {
    const ProductParams& p = params<ProductParams>(launch);
    const uint4* codes = (const uint4*)launch.binds[0];
    const u32* scales = (const u32*)launch.binds[1];
    const float4* x = (const float4*)launch.binds[2];
    __shared__ uint4 x_codes[MOST_TEAMS * 8 * ROWS * 2];
    __shared__ float x_scales[MOST_TEAMS * 8 * ROWS];
    __shared__ float parts[MOST_TEAMS * ROWS * 32];
    u32 teams = blockDim.x / 32, team = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 band = blockIdx.x, row = blockIdx.y * ROWS;
    u32 unit = (blockIdx.z * p.bands + band) * p.groups * 32 + lane;
    u32 slices = (p.groups + 7) / 8;
    float sum = 0.0f;
    Slice<Layout> slice;
    if (ROWS == 1 && team < slices) slice.load(p, codes, scales, unit, team * 8);
    for (u32 turn = 0; turn < slices; turn += teams) {
        u32 first = (turn + team) * 8;
        u32 have = first < p.groups ? least(p.groups - first, 8) : 0;
        round_turn<ROWS>(p, x, row, blockIdx.z, turn * 8, (uint2*)x_codes, x_scales);
        __syncthreads();
        float sums[ROWS];
        #pragma unroll
        for (u32 r = 0; r < ROWS; r += 1) sums[r] = 0.0f;
        auto products = [&](u32 k, const typename Layout::Codes& own_codes, typename Layout::Scale scale) {
            uint4 w[2];
            Layout::bytes(own_codes, w);
            #pragma unroll
            for (u32 r = 0; r < ROWS; r += 1) {
                u32 slot = (r * teams + team) * 8 + k;
                uint4 own[2] = {x_codes[slot * 2], x_codes[slot * 2 + 1]};
                sums[r] = Layout::added(scale, x_scales[slot], w, own, sums[r]);
            }
        };
        if (ROWS == 1) {
            #pragma unroll
            for (u32 k = 0; k < 8; k += 1) {
                if (k < have) products(k, slice.codes[k], slice.scales.of(k));
            }
        } else {
            #pragma unroll 1
            for (u32 k = 0; k < have; k += 1) {
                u32 of_group = unit + (first + k) * 32;
                products(k, Layout::loaded(codes, of_group), Layout::scale(scales, of_group));
            }
        }
        #pragma unroll
        for (u32 r = 0; r < ROWS; r += 1) parts[(team * ROWS + r) * 32 + lane] = sums[r];
        u32 next = first + teams * 8;
        if (ROWS == 1 && next < p.groups) slice.load(p, codes, scales, unit, next);
        __syncthreads();
        // Warps without a slice add zeros, which change no sum that began with one.
        if (team < ROWS) {
            for (u32 other = 0; other < teams; other += 1) sum += parts[(other * ROWS + team) * 32 + lane];
        }
    }
    if (team < ROWS) put(p, column_of(p, launch, blockIdx.z, band * 32 + lane), row + team, sum);
}

KERNEL(gemv_int_q4_0_1, 512) { few_rows<Q4_0, 1, 16>(launch); }
KERNEL(gemv_int_q4_0_4, 256) { few_rows<Q4_0, 4, 8>(launch); }
KERNEL(gemv_int_q6_k_1, 512) { few_rows<Q6_K, 1, 16>(launch); }
KERNEL(gemv_int_q6_k_4, 256) { few_rows<Q6_K, 4, 8>(launch); }

// Words of a row of codes in the block's memory: two groups, and four words more, which spread the rows over the banks.
CONSTANT u32 ROW = 20;

// What a block has of two groups of its rows and weight rows.
template <class Layout, u32 TM> struct Tile {
    u32 x_codes[TM * ROW], w_codes[64 * ROW];
    float x_scales[2][TM];
    typename Layout::Scale w_scales[2][64];
};

// A tile of TM rows and 64 weight rows: four warps have a quarter each, in products of 16 rows and 8 weight rows.
template <class Layout, u32 TM> DEVICE void many_rows(const Launch& launch) {
    const ProductParams& p = params<ProductParams>(launch);
    const uint4* codes = (const uint4*)launch.binds[0];
    const u32* scales = (const u32*)launch.binds[1];
    const uint4* x = (const uint4*)launch.binds[2];
    const float* x_scales = (const float*)launch.binds[4];
    constexpr u32 MT = TM / 32, NT = 4;
    __shared__ __align__(16) Tile<Layout, TM> tiles[2];
    u32 local = threadIdx.x, lane = local % 32, warp = local / 32;
    u32 n0 = blockIdx.x * 64, m0 = blockIdx.y * TM;
    u32 own_m = warp / 2 * (TM / 2), own_n = warp % 2 * 32;
    // What this thread brings: a group of a weight row; quarters of rows; the scales of a row.
    u32 w_row = local % 64, w_group = local / 64;
    u32 band = least(n0 / 32 + w_row / 32, p.bands - 1);
    u32 unit = ((blockIdx.z * p.bands + band) * p.groups + w_group) * 32 + w_row % 32;
    u32 scaled = least(m0 + local % TM, p.count - 1);
    const float* own_scales = x_scales + (scaled * p.x_stride + blockIdx.z * p.x_head) / 8;
    float sums[MT][NT][4], totals[MT][NT][4];
    #pragma unroll
    for (u32 i = 0; i < MT; i += 1) {
        #pragma unroll
        for (u32 j = 0; j < NT; j += 1) {
            #pragma unroll
            for (u32 e = 0; e < 4; e += 1) sums[i][j][e] = totals[i][j][e] = 0.0f;
        }
    }
    // Two groups at a time: their number is even.
    u32 steps = p.groups / 2;
    typename Layout::Codes raw;
    typename Layout::Scale w_scale;
    float x_scale[2];
    auto fetch = [&](u32 step, Tile<Layout, TM>& to) {
        #pragma unroll
        for (u32 i = local; i < TM * 4; i += 128) {
            // Rows beyond the last one repeat it.
            u32 own = least(m0 + i / 4, p.count - 1);
            u32 from = (own * p.x_stride + blockIdx.z * p.x_head) / 8 * 2 + step * 4 + i % 4;
            copy_16(&to.x_codes[i / 4 * ROW + i % 4 * 4], &x[from]);
        }
        u32 of_step = unit + step * 64;
        raw = Layout::loaded(codes, of_step);
        w_scale = Layout::scale(scales, of_step);
        x_scale[0] = own_scales[step * 2];
        x_scale[1] = own_scales[step * 2 + 1];
    };
    auto keep = [&](Tile<Layout, TM>& to) {
        uint4 bytes[2];
        Layout::bytes(raw, bytes);
        uint4* words = (uint4*)&to.w_codes[w_row * ROW + w_group * 8];
        words[0] = bytes[0];
        words[1] = bytes[1];
        to.w_scales[w_group][w_row] = w_scale;
        if (local < TM) {
            to.x_scales[0][local] = x_scale[0];
            to.x_scales[1][local] = x_scale[1];
        }
        wait_for_copies();
    };
    fetch(0, tiles[0]);
    keep(tiles[0]);
    __syncthreads();
    for (u32 step = 0; step < steps; step += 1) {
        const Tile<Layout, TM>& tile = tiles[step % 2];
        if (step + 1 < steps) fetch(step + 1, tiles[(step + 1) % 2]);
        #pragma unroll
        for (u32 group = 0; group < 2; group += 1) {
            u32 b[NT][2];
            typename Layout::Scale w_scale_of[NT][2];
            #pragma unroll
            for (u32 j = 0; j < NT; j += 1) {
                // The halves of a group of 8 weight rows, then of the next 8.
                if (j % 2 == 0) {
                    u32 n = own_n + (j + lane / 16) * 8 + lane % 8;
                    load_four(b[j], &tile.w_codes[n * ROW + group * 8 + lane / 8 % 2 * 4]);
                }
                const typename Layout::Scale* own = &tile.w_scales[group][own_n + j * 8 + lane % 4 * 2];
                w_scale_of[j][0] = own[0];
                w_scale_of[j][1] = own[1];
            }
            #pragma unroll
            for (u32 i = 0; i < MT; i += 1) {
                u32 m = own_m + i * 16 + lane / 4;
                // Rows 0 to 7 and 8 to 15 of the first half of a group, then of the second one.
                u32 a[4], row = own_m + i * 16 + lane % 16;
                load_four(a, &tile.x_codes[row * ROW + group * 8 + lane / 16 * 4]);
                float first = tile.x_scales[group][m], second = tile.x_scales[group][m + 8];
                #pragma unroll
                for (u32 j = 0; j < NT; j += 1) Layout::add_tile(sums[i][j], a, b[j], w_scale_of[j], first, second);
            }
        }
        if (step % 4 == 3 || step + 1 == steps) {
            #pragma unroll
            for (u32 i = 0; i < MT; i += 1) {
                #pragma unroll
                for (u32 j = 0; j < NT; j += 1) {
                    #pragma unroll
                    for (u32 e = 0; e < 4; e += 1) {
                        totals[i][j][e] += sums[i][j][e];
                        sums[i][j][e] = 0.0f;
                    }
                }
            }
        }
        if (step + 1 < steps) keep(tiles[(step + 1) % 2]);
        __syncthreads();
    }
    // By way of the block's memory, so that neighbours write neighbours.
    float* results = (float*)tiles;
    #pragma unroll
    for (u32 i = 0; i < MT; i += 1) {
        #pragma unroll
        for (u32 j = 0; j < NT; j += 1) {
            float2* at = (float2*)&results[(own_m + i * 16 + lane / 4) * 64 + own_n + j * 8 + lane % 4 * 2];
            at[0] = make_float2(totals[i][j][0], totals[i][j][1]);
            at[8 * 32] = make_float2(totals[i][j][2], totals[i][j][3]);
        }
    }
    __syncthreads();
    Column to = column_of(p, launch, blockIdx.z, n0 + local % 64);
    #pragma unroll 4
    for (u32 m = local / 64; m < TM; m += 2) put(p, to, m0 + m, results[m * 64 + local % 64]);
}

KERNEL_BESIDE(gemm_int_q4_0_64, 128, 3) { many_rows<Q4_0, 64>(launch); }
KERNEL_BESIDE(gemm_int_q4_0_128, 128, 2) { many_rows<Q4_0, 128>(launch); }
KERNEL_BESIDE(gemm_int_q6_k_64, 128, 2) { many_rows<Q6_K, 64>(launch); }
