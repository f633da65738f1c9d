// How many elements of a result are not what they should be: phx_count_wrong_BYTES, by the bytes of an element.
#pragma once
#include "base.cuh"

struct CheckParameters {
    const void *result;
    const void *expected;
    u64 count;
    // One number for each block, which the caller adds up.
    u64 *wrong;
};

struct AddCounts {
    PHX_FN u64 operator()(u64 one, u64 other) const { return one + other; }
};

template <typename T> PHX_FN void count_wrong(const CheckParameters &p, u64 *room) {
    u64 wrong = 0;
    for (u64 at = thread_number(); at < p.count; at += thread_count()) {
        wrong += load_one((const T *)p.result + at) != load_one((const T *)p.expected + at);
    }
    wrong = over_block(wrong, room, AddCounts());
    if (threadIdx.x == 0) p.wrong[blockIdx.x] = wrong;
}

#define PHX_CHECK(BYTES, TYPE)                                                                             \
    PHX_BLOCK_KERNEL(phx_count_wrong_##BYTES, CheckParameters) {                                           \
        PHX_SHARED u64 room[PHX_THREADS];                                                                  \
        count_wrong<TYPE>(p, room);                                                                        \
    }

PHX_CHECK(1, u8)
PHX_CHECK(2, u16)
PHX_CHECK(4, u32)
PHX_CHECK(8, u64)
