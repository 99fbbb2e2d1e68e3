// CUDA's language for a host's compiler: what the kernels use of it, by its definition. A thread of a block is a fiber
// (emulation.cpp); threads of a warp exchange numbers when all of them have come.

#pragma once
#include <cmath>
#include <cstring>

#define EMULATED
#define __device__
#define __forceinline__ inline
#define __align__(bytes) __attribute__((aligned(bytes)))
// Blocks run one after another, so that one variable serves all.
#define __shared__ static
#define DEVICE [[maybe_unused]] static inline
#define DEVICE_IN inline
#define RARE [[maybe_unused]] static
#define CONSTANT [[maybe_unused]] static const
#define KERNEL(name, threads) extern "C" void girih_##name(const Launch launch)
#define KERNEL_BESIDE(name, threads, blocks) KERNEL(name, threads)

struct Index { unsigned x, y, z; };
struct uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };

inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// Set before a fiber goes on.
extern Index threadIdx, blockIdx, blockDim, gridDim;

void __syncthreads();
// Copies `words` words of each thread of the warp to all of them; returns the words of thread 0, then of thread 1, and so on.
const unsigned* exchanged(const unsigned* own, unsigned words);
void begin_copy(void* to, const void* from, unsigned bytes);
void wait_for_copies();

template <class T> T __ldg(const T* from) { return *from; }

inline unsigned __float_as_uint(float x) { unsigned bits; memcpy(&bits, &x, 4); return bits; }
inline float __uint_as_float(unsigned bits) { float x; memcpy(&x, &bits, 4); return x; }

inline float of_half(unsigned bits) {
    unsigned short low = (unsigned short)bits;
    _Float16 x;
    memcpy(&x, &low, 2);
    return (float)x;
}

inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i += 1) c += (int)(signed char)(a >> (8 * i)) * (int)(signed char)(b >> (8 * i));
    return c;
}

template <class T> T __shfl_xor_sync(unsigned, T own, unsigned lanes) {
    static_assert(sizeof(T) == 4);
    unsigned bits;
    memcpy(&bits, &own, 4);
    bits = exchanged(&bits, 1)[(threadIdx.x % 32) ^ lanes];
    memcpy(&own, &bits, 4);
    return own;
}

inline unsigned atomicAdd(unsigned* at, unsigned more) {
    unsigned before = *at;
    *at += more;
    return before;
}

// `ldmatrix` of four matrices of 8 rows of 16 bytes: thread t brings the row t % 8 of matrix t / 8, and gets the word t % 4 of the row
// t / 4 of each.
inline void load_four(unsigned to[4], const unsigned* row) {
    unsigned own[2], t = threadIdx.x % 32;
    memcpy(own, &row, 8);
    const unsigned* all = exchanged(own, 2);
    for (unsigned matrix = 0; matrix < 4; matrix += 1) {
        const unsigned* from;
        memcpy(&from, &all[(matrix * 8 + t / 4) * 2], 8);
        to[matrix] = from[t % 4];
    }
}

inline void copy_16(void* to, const void* from) { begin_copy(to, from, 16); }

// Products of 16 rows and 8 columns of this many bytes. By the PTX manual, thread t of a warp has of A the rows t/4 and t/4 + 8 and the
// columns 4·(t%4) to +3, then the same 16 columns beyond; of B the column t/4 and the same rows; of C the columns 2·(t%4) and the next.
inline void multiply_bytes(int c[4], const unsigned* own, unsigned bytes) {
    unsigned of_a = bytes / 8, words = bytes / 8 + bytes / 16;
    const unsigned* all = exchanged(own, words);
    auto byte = [&](unsigned thread, unsigned word, unsigned k) {
        return (int)(signed char)(all[thread * words + word] >> (8 * (k % 4)));
    };
    unsigned t = threadIdx.x % 32;
    for (unsigned e = 0; e < 4; e += 1) {
        unsigned row = t / 4 + e / 2 * 8, column = t % 4 * 2 + e % 2;
        for (unsigned k = 0; k < bytes; k += 1) {
            int a = byte(row % 8 * 4 + k % 16 / 4, row / 8 + k / 16 * 2, k);
            c[e] += a * byte(column * 4 + k % 16 / 4, of_a + k / 16, k);
        }
    }
}

// `mma.m16n8k32` and `mma.m16n8k16`.
inline void multiply_32(int c[4], const unsigned a[4], const unsigned b[2]) {
    unsigned own[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    multiply_bytes(c, own, 32);
}

inline void multiply_16(int c[4], unsigned a0, unsigned a1, unsigned b) {
    unsigned own[3] = {a0, a1, b};
    multiply_bytes(c, own, 16);
}
