// What all kernels share: the argument of a launch, words and their bits, and the instructions that C++ has no name for.
// On a host, `emulation.h` (tests/cuda) has these instructions by their definitions.

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;

// The addresses of what a kernel binds, in the order of its WGSL twin, and its words (`LaunchData` of cuda/driver.rs).
struct Launch { void* binds[10]; u32 words[16]; };

#ifndef EMULATED
#define DEVICE static __device__ __forceinline__
// Not inlined, as it is long and rarely used.
#define RARE static __device__ __noinline__
// The same within a structure.
#define DEVICE_IN __device__ __forceinline__
#define CONSTANT static __device__ const
#define KERNEL(name, threads) KERNEL_BESIDE(name, threads, 1)
// A kernel whose registers leave room for this number of blocks at once.
#define KERNEL_BESIDE(name, threads, blocks) \
    extern "C" __global__ void __launch_bounds__(threads, blocks) girih_##name(const __grid_constant__ Launch launch)

// The number in half precision of these bits.
DEVICE float of_half(u32 bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"((u16)bits));
    return x;
}

// c += a · b of 16 rows and 8 columns, 32 bytes each: `mma.m16n8k32`, with the layout of fragments of the PTX manual.
DEVICE void multiply_32(int c[4], const u32 a[4], const u32 b[2]) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// The same of 16 bytes each: `mma.m16n8k16`.
DEVICE void multiply_16(int c[4], u32 a0, u32 a1, u32 b) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
}

// Four matrices of 8 rows of 16 bytes of the block's memory: `ldmatrix`. Thread t brings the row t % 8 of matrix t / 8, and gets
// the word t % 4 of the row t / 4 of each. It stays between the barriers of the block, as both are volatile.
DEVICE void load_four(u32 to[4], const u32* row) {
    u32 at = (u32)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at));
}

// Begins to copy 16 bytes to the block's memory.
DEVICE void copy_16(void* to, const void* from) {
    u32 at = (u32)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(at), "l"(from) : "memory");
}

// Waits for the copies of this thread.
DEVICE void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
#endif

template <class Params> DEVICE const Params& params(const Launch& launch) { return *(const Params*)launch.words; }

DEVICE u32 least(u32 a, u32 b) { return a < b ? a : b; }
DEVICE u32 largest_of(u32 a, u32 b) { return a > b ? a : b; }

// The number of a block in two dimensions.
DEVICE u32 block_number() { return blockIdx.y * gridDim.x + blockIdx.x; }

// The sum of 256 numbers, by a warp, in the order of a tree of halves: 128 apart, then 64, down to 1.
DEVICE float tree_of_warp(const float* numbers) {
    u32 lane = threadIdx.x % 32;
    float v[8];
    for (u32 j = 0; j < 8; j += 1) v[j] = numbers[lane + 32 * j];
    float sum = ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
    for (u32 half = 16; half > 0; half /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, half);
    return sum;
}

// The sum of the numbers of 256 threads, in this order. Each warp computes it.
DEVICE float sum_of_256(float part, float* room) {
    room[threadIdx.x] = part;
    __syncthreads();
    return tree_of_warp(room);
}
