// target = source, finished: prescales, averages and postscales where nothing is combined. phx_scale_TYPE.
//
// A divisor and a factor of 1 copy bit by bit; otherwise floats are settled, as after a reduction. bool is copied. The
// target may be the source.
#pragma once
#include "numbers.cuh"

struct ScaleParameters {
    void *target;
    const void *source;
    u64 count;
    Finish finish;
};

template <typename Element> struct Scaler {
    typedef typename Element::Stored Stored;
    static const u32 LANES = 16 / sizeof(Stored);

    static PHX_FN Stored of(Stored stored, const Finish &how, bool copies) {
        return copies ? stored : Element::put(finish(Element::get(stored), how));
    }

    static PHX_FN void scale(const ScaleParameters &p) {
        run((Stored *)p.target, (const Stored *)p.source, p.count, p.finish);
    }

    static PHX_FN void run(Stored *target, const Stored *source, u64 count, const Finish &how) {
        const bool copies = !Element::FINISHES || (how.divisor <= 1 && how.factor == 1.0);
        const u64 number = thread_number(), threads = thread_count();
        const Way way = way_through(target, address_of(target) ^ address_of(source), count, sizeof(Stored));
        for (u64 at = number; at < way.vectors; at += threads) {
            union {
                Vector whole;
                Stored each[LANES];
            } lanes;
            lanes.whole = ((const Vector *)(source + way.head))[at];
#pragma unroll
            for (u32 lane = 0; lane < LANES; ++lane) lanes.each[lane] = of(lanes.each[lane], how, copies);
            ((Vector *)(target + way.head))[at] = lanes.whole;
        }
        const u64 tail = way.head + way.vectors * LANES;
        for (u64 at = number; at < way.head; at += threads) {
            store_one(target + at, of(load_one(source + at), how, copies));
        }
        for (u64 at = tail + number; at < count; at += threads) {
            store_one(target + at, of(load_one(source + at), how, copies));
        }
    }
};

#define PHX_SCALE(NAME, ELEMENT) \
    PHX_KERNEL(phx_scale_##NAME, ScaleParameters) { Scaler<ELEMENT>::scale(p); }

PHX_SCALE(f16, F16)
PHX_SCALE(bf16, BF16)
PHX_SCALE(f32, Plain<float>)
PHX_SCALE(f64, Plain<double>)
PHX_SCALE(f8_e4m3, F8E4M3)
PHX_SCALE(f8_e5m2, F8E5M2)
PHX_SCALE(i8, Plain<i8>)
PHX_SCALE(u8, Plain<u8>)
PHX_SCALE(i16, Plain<i16>)
PHX_SCALE(i32, Plain<i32>)
PHX_SCALE(u32, Plain<u32>)
PHX_SCALE(i64, Plain<i64>)
PHX_SCALE(u64, Plain<u64>)
PHX_SCALE(bool, Truth)
