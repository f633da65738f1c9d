// Between f32 and the narrower floats, for gradients that travel compressed. phx_cast_FROM_TO.
//
// Narrowing rounds to the nearest, ties to even; NaN becomes the canonical one. Widening is exact, but for the payload
// of NaN. Source and target must be apart.
#pragma once
#include "numbers.cuh"

struct CastParameters {
    void *target;
    const void *source;
    u64 count;
};

template <typename From, typename To> struct Caster {
    typedef typename From::Stored Source;
    typedef typename To::Stored Target;

    // Sixteen bytes of the narrower type at once, and the two or four of the wider one.
    static const u32 LANES = 16 / (sizeof(Source) < sizeof(Target) ? sizeof(Source) : sizeof(Target));
    static const u32 READS = LANES * sizeof(Source) / 16, WRITES = LANES * sizeof(Target) / 16;

    static PHX_FN void run(const CastParameters &p) {
        const Source *source = (const Source *)p.source;
        Target *target = (Target *)p.target;
        const u64 number = thread_number(), threads = thread_count();
        // Elements have two sizes: both arrays begin at a multiple of sixteen bytes, or go one by one.
        const u64 whole = (address_of(source) | address_of(target)) % 16 == 0 ? p.count / LANES : 0;
        for (u64 at = number; at < whole; at += threads) {
            union {
                Vector whole[READS];
                Source each[LANES];
            } in;
            union {
                Vector whole[WRITES];
                Target each[LANES];
            } out;
#pragma unroll
            for (u32 read = 0; read < READS; ++read) in.whole[read] = ((const Vector *)source)[at * READS + read];
#pragma unroll
            for (u32 lane = 0; lane < LANES; ++lane) out.each[lane] = To::put(From::get(in.each[lane]));
#pragma unroll
            for (u32 write = 0; write < WRITES; ++write) ((Vector *)target)[at * WRITES + write] = out.whole[write];
        }
        for (u64 at = whole * LANES + number; at < p.count; at += threads) {
            store_one(target + at, To::put(From::get(load_one(source + at))));
        }
    }
};

#define PHX_CAST(NAME, FROM, TO) \
    PHX_KERNEL(phx_cast_##NAME, CastParameters) { Caster<FROM, TO>::run(p); }

PHX_CAST(f16_f32, F16, Plain<float>)
PHX_CAST(bf16_f32, BF16, Plain<float>)
PHX_CAST(f8_e4m3_f32, F8E4M3, Plain<float>)
PHX_CAST(f8_e5m2_f32, F8E5M2, Plain<float>)
PHX_CAST(f32_f16, Plain<float>, F16)
PHX_CAST(f32_bf16, Plain<float>, BF16)
PHX_CAST(f32_f8_e4m3, Plain<float>, F8E4M3)
PHX_CAST(f32_f8_e5m2, Plain<float>, F8E5M2)
