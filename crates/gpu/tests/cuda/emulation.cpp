/* A CUDA driver without a GPU: the calls that the backend makes, and kernels as functions of this library, which a host's
   compiler made of their sources. Its name is that of the driver's library, so that a process finds it in the place of one.

   folder=crates/gpu/src/kernels/cuda
   g++ -std=c++17 -O2 -U_FORTIFY_SOURCE -ffp-contract=off -fno-strict-aliasing -march=native -shared -fPIC \
       -Wl,-soname,libcuda.so.1 -include crates/gpu/tests/cuda/emulation.h crates/gpu/tests/cuda/emulation.cpp \
       -x c++ $folder/{rows,products,attention}.cu -o libcuda.so.1
   LD_LIBRARY_PATH=. girih run MODEL --backend gpu:cuda

   Memory of the device ends at a page that nobody may touch, and begins with bytes that are no numbers. */

#include "emulation.h"

#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <dlfcn.h>
#include <map>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>

Index threadIdx, blockIdx, blockDim, gridDim;

namespace {

struct Launch { uint64_t binds[10]; unsigned words[16]; };
using Kernel = void (*)(const Launch);

constexpr unsigned MOST_THREADS = 1024, STACK = 64 << 10;
constexpr int INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_FOUND = 500;

[[noreturn]] void fail(const char* what) {
    fprintf(stderr, "emulated CUDA: thread %u of block %u %u %u %s\n", threadIdx.x, blockIdx.x, blockIdx.y, blockIdx.z, what);
    abort();
}

// Threads that wait for each other. A thread is at most one meeting ahead of another, so two buffers do.
struct Meeting {
    // Of all threads that have not ended; those that wait; the number of the meeting.
    unsigned members, arrived, number;
    std::vector<unsigned> words[2];

    void arrive() {
        arrived += 1;
        release();
    }
    void leave() {
        members -= 1;
        release();
    }
    void release() {
        if (arrived == members && members > 0) {
            arrived = 0;
            number += 1;
        }
    }
};

struct Copy { void* to; const void* from; unsigned bytes; };

struct Fiber {
    ucontext_t begin;
    jmp_buf place;
    bool is_started, is_done;
    std::vector<Copy> copies;
};

std::vector<Fiber> fibers(MOST_THREADS);
std::vector<Meeting> warps(MOST_THREADS / 32);
Meeting block;
jmp_buf scheduler;
unsigned current;
Kernel kernel;
Launch launch;
std::mutex running;

void pause_fiber() {
    if (_setjmp(fibers[current].place) == 0) _longjmp(scheduler, 1);
}

void meet(Meeting& meeting) {
    unsigned number = meeting.number;
    meeting.arrive();
    while (meeting.number == number) pause_fiber();
}

void fiber_main() {
    for (;;) {
        kernel(launch);
        Fiber& own = fibers[current];
        if (!own.copies.empty()) fail("ends before its copies");
        own.is_done = true;
        block.leave();
        warps[current / 32].leave();
        pause_fiber();
    }
}

void resume(unsigned index) {
    Fiber& fiber = fibers[index];
    current = index;
    threadIdx = {index, 0, 0};
    if (_setjmp(scheduler) != 0) return;
    if (fiber.is_started) _longjmp(fiber.place, 1);
    fiber.is_started = true;
    getcontext(&fiber.begin);
    fiber.begin.uc_stack.ss_sp = malloc(STACK);
    fiber.begin.uc_stack.ss_size = STACK;
    makecontext(&fiber.begin, fiber_main, 0);
    setcontext(&fiber.begin);
}

// Runs each thread of a warp up to where it waits; whether the warp came further.
bool run_warp(unsigned warp, bool is_backward) {
    unsigned meetings = warps[warp].number, ended = 0;
    for (unsigned i = 0; i < 32; i += 1) {
        unsigned own = warp * 32 + (is_backward ? 31 - i : i);
        if (fibers[own].is_done) continue;
        resume(own);
        ended += fibers[own].is_done ? 1 : 0;
    }
    return ended > 0 || warps[warp].number != meetings;
}

// Runs each warp up to a barrier of the block before the next one begins: the first warp first, or the last one, so that what a
// missing barrier allows happens in one of both orders.
void run_block(bool is_backward) {
    unsigned count = blockDim.x / 32;
    block = Meeting{blockDim.x, 0, 0, {}};
    for (unsigned warp = 0; warp < count; warp += 1) warps[warp] = Meeting{32, 0, 0, {}};
    for (unsigned i = 0; i < blockDim.x; i += 1) fibers[i].is_done = false;
    while (block.members > 0) {
        unsigned meetings = block.number;
        bool is_further = false;
        for (unsigned i = 0; i < count; i += 1) {
            while (run_warp(is_backward ? count - 1 - i : i, is_backward)) is_further = true;
        }
        if (!is_further && block.number == meetings) fail("waits for threads that do not come");
    }
}

struct Module { std::string ptx; };
struct Function { Kernel kernel; unsigned most_threads; };

std::map<uint64_t, size_t> memory;

size_t pages(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

}  // namespace

void __syncthreads() { meet(block); }

const unsigned* exchanged(const unsigned* own, unsigned words) {
    Meeting& warp = warps[current / 32];
    std::vector<unsigned>& all = warp.words[warp.number % 2];
    all.resize(32 * 8);
    for (unsigned i = 0; i < words; i += 1) all[current % 32 * words + i] = own[i];
    meet(warp);
    return all.data();
}

void begin_copy(void* to, const void* from, unsigned bytes) { fibers[current].copies.push_back({to, from, bytes}); }

void wait_for_copies() {
    for (const Copy& copy : fibers[current].copies) memcpy(copy.to, copy.from, copy.bytes);
    fibers[current].copies.clear();
}

extern "C" {

int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* version) { *version = 12080; return 0; }
int cuDeviceGetCount(int* count) { *count = 1; return 0; }
int cuDeviceGet(int* device, int ordinal) { *device = ordinal; return ordinal == 0 ? 0 : INVALID_VALUE; }

int cuDeviceGetName(char* name, int room, int) {
    snprintf(name, (size_t)room, "emulated CUDA");
    return 0;
}

// The compute capability is 8.0.
int cuDeviceGetAttribute(int* number, int attribute, int) { *number = attribute == 75 ? 8 : 0; return 0; }
int cuDevicePrimaryCtxRetain(void** context, int) { *context = &memory; return 0; }
int cuDevicePrimaryCtxRelease_v2(int) { return 0; }
int cuCtxSetCurrent(void*) { return 0; }
int cuMemGetInfo_v2(size_t* free, size_t* all) { *free = *all = (size_t)8 << 30; return 0; }

int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
    void* begin = mmap(nullptr, pages(bytes) + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (begin == MAP_FAILED) return OUT_OF_MEMORY;
    mprotect((char*)begin + pages(bytes), 4096, PROT_NONE);
    *address = (uint64_t)begin + pages(bytes) - bytes;
    memset((void*)*address, 0xff, bytes);
    std::lock_guard<std::mutex> guard(running);
    memory[*address] = bytes;
    return 0;
}

int cuMemFree_v2(uint64_t address) {
    std::lock_guard<std::mutex> guard(running);
    auto found = memory.find(address);
    if (found == memory.end()) return INVALID_VALUE;
    munmap((void*)(address + found->second - pages(found->second)), pages(found->second) + 4096);
    memory.erase(found);
    return 0;
}

int cuMemHostAlloc(void** address, size_t bytes, unsigned) { *address = malloc(bytes); return *address ? 0 : OUT_OF_MEMORY; }
int cuMemFreeHost(void* address) { free(address); return 0; }
int cuMemsetD8Async(uint64_t to, unsigned char byte, size_t bytes, void*) { memset((void*)to, byte, bytes); return 0; }
int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void*) { memcpy((void*)to, from, bytes); return 0; }
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void*) { memcpy(to, (void*)from, bytes); return 0; }
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void*) { memmove((void*)to, (void*)from, bytes); return 0; }
int cuStreamCreate(void** stream, unsigned) { *stream = &memory; return 0; }
int cuStreamDestroy_v2(void*) { return 0; }
int cuStreamQuery(void*) { return 0; }

int cuModuleLoadDataEx(Module** module, const char* text, unsigned, int*, void**) {
    *module = new Module{text};
    return 0;
}

int cuModuleUnload(Module* module) { delete module; return 0; }

// The function of this library that has the name of the kernel. The PTX must have it, too.
int cuModuleGetFunction(Function** function, Module* module, const char* name) {
    size_t at = module->ptx.find(".entry " + std::string(name) + "(");
    Dl_info own;
    if (at == std::string::npos || !dladdr((void*)cuInit, &own)) return NOT_FOUND;
    void* library = dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    void* found = library ? dlsym(library, name) : nullptr;
    if (!found) return NOT_FOUND;
    size_t most = module->ptx.find(".maxntid ", at);
    *function = new Function{(Kernel)found, (unsigned)atoi(module->ptx.c_str() + most + 9)};
    return 0;
}

int cuLaunchKernel(
    Function* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y, unsigned threads_z,
    unsigned shared, void*, void** arguments, void**) {
    bool is_valid = x > 0 && y > 0 && z > 0 && y < 65536 && z < 65536 && threads % 32 == 0 && threads > 0 &&
        threads <= function->most_threads && threads_y == 1 && threads_z == 1 && shared == 0;
    if (!is_valid) return INVALID_VALUE;
    std::lock_guard<std::mutex> guard(running);
    memcpy(&launch, arguments[0], sizeof launch);
    kernel = function->kernel;
    static unsigned launches = 0;
    launches += 1;
    gridDim = {x, y, z};
    blockDim = {threads, 1, 1};
    for (blockIdx.z = 0; blockIdx.z < z; blockIdx.z += 1) {
        for (blockIdx.y = 0; blockIdx.y < y; blockIdx.y += 1) {
            for (blockIdx.x = 0; blockIdx.x < x; blockIdx.x += 1) run_block(launches % 2 == 0);
        }
    }
    return 0;
}

int cuEventCreate(timespec** event, unsigned) { *event = new timespec{}; return 0; }
int cuEventDestroy_v2(timespec* event) { delete event; return 0; }
int cuEventRecord(timespec* event, void*) { return clock_gettime(CLOCK_MONOTONIC, event); }

int cuEventElapsedTime(float* milliseconds, const timespec* begin, const timespec* end) {
    *milliseconds = (float)(end->tv_sec - begin->tv_sec) * 1e3f + (float)(end->tv_nsec - begin->tv_nsec) * 1e-6f;
    return 0;
}

int cuGetErrorName(int, const char** name) { *name = "CUDA_ERROR_EMULATED"; return 0; }

}  // extern "C"
