// What every kernel stands on: fixed-width types, bits of a value, and the way through an array.
//
// Nothing is included, so that nvcc, NVRTC and, by shim/cpu.cpp, a C++ compiler for the CPU take the same text.
#pragma once

// Threads of a block: what is meant for every kernel, and what those want whose threads meet.
#define PHX_THREADS 256

typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

#ifdef __CUDACC__
// A kernel with one parameter `p`, by value.
#define PHX_KERNEL(NAME, PARAMETERS) extern "C" __global__ void NAME(const PARAMETERS p)
// The same, where the threads of a block, PHX_THREADS of them, meet on the way.
#define PHX_BLOCK_KERNEL(NAME, PARAMETERS) \
    extern "C" __global__ void __launch_bounds__(PHX_THREADS, 1) NAME(const PARAMETERS p)
#define PHX_FN __device__ __forceinline__
#define PHX_SHARED __shared__
#define PHX_ON_DEVICE 1
PHX_FN void meet() { __syncthreads(); }
// A word that other devices and the host write or read meanwhile. What was written before `publish` is seen by who
// reads the word by `observe`, and by those who meet that thread afterwards.
PHX_FN u32 observe(const u32 *word) {
    u32 value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}
PHX_FN void publish(u32 *word, u32 value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" : : "l"(word), "r"(value) : "memory");
}
PHX_FN void wait_a_little() {}
#else
#define PHX_ON_DEVICE 0
#endif

// The most buffers that one launch combines or packs at once.
#define PHX_MOST_SOURCES 16

// Sixteen bytes, moved by one instruction.
struct alignas(16) Vector {
    u32 words[4];
};

template <typename To, typename From> PHX_FN To bits_of(From from) {
    static_assert(sizeof(To) == sizeof(From), "bits of as many bytes");
    union {
        From from;
        To to;
    } both;
    both.from = from;
    return both.to;
}

// This thread among all of the grid, and how many there are.
PHX_FN u64 thread_number() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
PHX_FN u64 thread_count() { return (u64)gridDim.x * blockDim.x; }

PHX_FN u64 address_of(const void *pointer) { return (u64)(unsigned long)pointer; }

// An element at any address.
template <typename T> PHX_FN T load_one(const T *source) {
    if constexpr (sizeof(T) == 1) {
        return *source;
    } else {
        if (address_of(source) % sizeof(T) == 0) return *source;
        union {
            u8 bytes[sizeof(T)];
            T value;
        } both;
#pragma unroll
        for (u32 at = 0; at < sizeof(T); ++at) both.bytes[at] = ((const u8 *)source)[at];
        return both.value;
    }
}

template <typename T> PHX_FN void store_one(T *target, T value) {
    if constexpr (sizeof(T) == 1) {
        *target = value;
    } else if (address_of(target) % sizeof(T) == 0) {
        *target = value;
    } else {
        union {
            T value;
            u8 bytes[sizeof(T)];
        } both;
        both.value = value;
#pragma unroll
        for (u32 at = 0; at < sizeof(T); ++at) ((u8 *)target)[at] = both.bytes[at];
    }
}

// How an array of `count` elements is gone through: `head` elements one by one, then `vectors` of sixteen bytes, then
// the rest one by one. Where the arrays of a launch do not lie alike, there are no vectors.
struct Way {
    u64 head, vectors;
};

// `offsets` has the low bits of all arrays' addresses that differ from each other's: 0 if they lie alike.
PHX_FN Way way_through(const void *first, u64 offsets, u64 count, u32 size) {
    Way way = {count, 0};
    u64 address = address_of(first);
    if (offsets % 16 == 0 && address % size == 0) {
        u64 head = (16 - address % 16) % 16 / size;
        way.head = head < count ? head : count;
        way.vectors = (count - way.head) / (16 / size);
    }
    return way;
}

// One value of each thread of a block become one: neighbours at half the distance, then at a quarter, and so on. The
// order is fixed, so that a sum has the same bits each time. All threads get it; `room` is used again only after they
// met.
template <typename T, typename Op> PHX_FN T over_block(T value, T *room, Op op) {
    const u32 own = threadIdx.x;
    room[own] = value;
    meet();
    for (u32 distance = PHX_THREADS / 2; distance > 0; distance /= 2) {
        if (own < distance) room[own] = op(room[own], room[own + distance]);
        meet();
    }
    const T result = room[0];
    meet();
    return result;
}
