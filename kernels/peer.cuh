// Allreduce over memory of peers that is mapped here: of other devices of the host, by CUDA IPC or peer access.
//
// Nobody writes another's memory: each rank has a row of flags that it alone writes, and the others watch, one flag for
// each block. A flag grows with every meeting and never goes back, so that a late look at it is as good as an early
// one. Block b waits for the blocks b of the others and for no other, and all ranks launch the same grid. The grid must
// fit on every device at once: a block that has no place yet would be waited for, and those that wait would keep its
// place.
//
// A rank that does not come is no reason to wait for ever: whoever watches a flag watches the abort word too, which the
// host can write at any time. A kernel that was told to give up says so in its status word, and leaves its target
// spoilt.
//
// phx_peer_meet is a meeting and nothing else; with phx_reduce_OP_TYPE between two of them any operation goes over
// mapped memory. phx_peer_one_shot_TYPE and phx_peer_two_shot_TYPE are sums in one launch. They add in rank order. For
// two-shot, all arrays must begin at a multiple of sixteen bytes: then a block copies what the same block of the peer
// has written.
#pragma once
#include "reduce.cuh"
#include "scale.cuh"

#define PHX_MOST_PEERS PHX_MOST_SOURCES

struct PeerParameters {
    // The result, of `count` elements, which is this rank's own and apart from all inputs and stages.
    void *target;
    // Every rank's input, in rank order.
    const void *inputs[PHX_MOST_PEERS];
    // For two-shot, every rank's place for its shard; this rank writes its own.
    void *stages[PHX_MOST_PEERS];
    // Every rank's flags, one for each block; this rank writes its own.
    u32 *flags[PHX_MOST_PEERS];
    // Not zero: give up.
    const u32 *abort;
    // Set to 1 by a kernel that gave up: it and those after it take part in nothing any more.
    u32 *status;
    u64 count;
    Finish finish;
    u32 rank, ranks;
    // What flags stand at before; a meeting adds one to it. The same on all ranks.
    u32 meetings;
};

// Whether the flag has come to `wanted`, over the turn of the numbers, too.
PHX_FN bool has_come(u32 flag, u32 wanted) { return (i32)(flag - wanted) >= 0; }

// Waits until all ranks' blocks of this number have come here `wanted` times. What they wrote before can be read then.
// False, to all threads, if this was given up.
PHX_FN bool meet_peers(const PeerParameters &p, u32 wanted, u32 *given_up) {
    // A flag says that all before it was done. So whoever gave up raises none: what the others read may be spoilt.
    if (threadIdx.x == 0) *given_up = observe(p.status) != 0;
    // Everybody is through with what came before, and knows of the word.
    meet();
    const bool is_out = *given_up != 0;
    // Read by all before it is set again.
    meet();
    if (is_out) return false;
    if (threadIdx.x == 0) publish(p.flags[p.rank] + blockIdx.x, wanted);
    if (threadIdx.x < p.ranks) {
        const u32 *flag = p.flags[threadIdx.x] + blockIdx.x;
        while (!has_come(observe(flag), wanted)) {
            if (observe(p.abort) != 0) {
                *given_up = 1;
                break;
            }
            wait_a_little();
        }
    }
    meet();
    const bool all_came = *given_up == 0;
    if (!all_came && threadIdx.x == 0) publish(p.status, 1);
    // Read by all before it is set again.
    meet();
    return all_came;
}

PHX_BLOCK_KERNEL(phx_peer_meet, PeerParameters) {
    PHX_SHARED u32 given_up;
    meet_peers(p, p.meetings + 1, &given_up);
}

// Elements of a shard: so many that each begins at sixteen bytes where the whole does.
PHX_FN u64 shard_elements(const PeerParameters &p, u32 size) {
    const u64 lanes = 16 / size;
    return ((p.count + p.ranks - 1) / p.ranks + lanes - 1) / lanes * lanes;
}

template <typename Element> struct Peers {
    typedef typename Element::Stored Stored;

    static PHX_FN void one_shot(const PeerParameters &p, u32 *given_up) {
        if (!meet_peers(p, p.meetings + 1, given_up)) return;
        // Each block has the same elements on all ranks.
        Reducer<Element, Sum>::run(p.target, p.inputs, p.ranks, 0, p.count, p.finish);
        // Inputs may change when all have read them.
        meet_peers(p, p.meetings + 2, given_up);
    }

    static PHX_FN void two_shot(const PeerParameters &p, u32 *given_up) {
        if (!meet_peers(p, p.meetings + 1, given_up)) return;
        const u64 shard = shard_elements(p, sizeof(Stored));
        const u64 begin = shard * p.rank < p.count ? shard * p.rank : p.count;
        const u64 own = begin + shard < p.count ? shard : p.count - begin;
        Reducer<Element, Sum>::run(p.stages[p.rank], p.inputs, p.ranks, begin, own, p.finish);
        if (!meet_peers(p, p.meetings + 2, given_up)) return;
        for (u32 next = 0; next < p.ranks; ++next) {
            // Each begins with another one.
            const u32 peer = (p.rank + next) % p.ranks;
            const u64 first = shard * peer < p.count ? shard * peer : p.count;
            const u64 count = first + shard < p.count ? shard : p.count - first;
            // What this block copies, the same block of the peer has written.
            const Finish nothing = {1, 1.0};
            Scaler<Element>::run((Stored *)p.target + first, (const Stored *)p.stages[peer], count, nothing);
        }
        meet_peers(p, p.meetings + 3, given_up);
    }
};

// A rank's input on its way to where the others read it: phx_peer_fill_TYPE. The others may still read what was there
// if this rank gave up; then nothing is written.
struct FillParameters {
    ScaleParameters scale;
    const u32 *status;
};

#define PHX_FILL(NAME, ELEMENT)                                                                            \
    PHX_KERNEL(phx_peer_fill_##NAME, FillParameters) {                                                     \
        if (observe(p.status) == 0) Scaler<ELEMENT>::scale(p.scale);                                       \
    }

PHX_FILL(f16, F16)
PHX_FILL(bf16, BF16)
PHX_FILL(f32, Plain<float>)
PHX_FILL(f64, Plain<double>)
PHX_FILL(i8, Plain<i8>)
PHX_FILL(u8, Plain<u8>)
PHX_FILL(i16, Plain<i16>)
PHX_FILL(i32, Plain<i32>)
PHX_FILL(u32, Plain<u32>)
PHX_FILL(i64, Plain<i64>)
PHX_FILL(u64, Plain<u64>)
PHX_FILL(bool, Truth)

#define PHX_PEERS(NAME, ELEMENT)                                                                           \
    PHX_BLOCK_KERNEL(phx_peer_one_shot_##NAME, PeerParameters) {                                           \
        PHX_SHARED u32 given_up;                                                                           \
        Peers<ELEMENT>::one_shot(p, &given_up);                                                            \
    }                                                                                                      \
    PHX_BLOCK_KERNEL(phx_peer_two_shot_##NAME, PeerParameters) {                                           \
        PHX_SHARED u32 given_up;                                                                           \
        Peers<ELEMENT>::two_shot(p, &given_up);                                                            \
    }

PHX_PEERS(f16, F16)
PHX_PEERS(bf16, BF16)
PHX_PEERS(f32, Plain<float>)
PHX_PEERS(f64, Plain<double>)
