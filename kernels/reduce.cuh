// target = sources[0] op sources[1] op ..., from left to right, finished: one pass over memory.
//
// One kernel for each element type and operation, phx_reduce_OP_TYPE. The target may be one of the sources.
#pragma once
#include "numbers.cuh"

struct ReduceParameters {
    void *target;
    const void *sources[PHX_MOST_SOURCES];
    u64 count;
    Finish finish;
    // 2 to PHX_MOST_SOURCES.
    u32 sources_used;
};

// `sources` is an array among the kernel's parameters, where it can be indexed without a copy; the arrays begin `begin`
// elements after what it names.
template <typename Element, typename Op> struct Reducer {
    typedef typename Element::Stored Stored;
    typedef typename Element::Number Number;
    static const u32 LANES = 16 / sizeof(Stored);

    static PHX_FN Number finished(Number value, const Finish &how) {
        return Element::FINISHES ? finish(value, how) : value;
    }

    // SOURCES of 0 stands for any number.
    template <u32 SOURCES>
    static PHX_FN void vector(void *target, const void *const *sources, u32 used, u64 byte, u64 further,
                              const Finish &how) {
        union Lanes {
            Vector whole;
            Stored each[LANES];
        };
        Lanes first, other;
        first.whole = *(const Vector *)((const u8 *)sources[0] + further + byte);
        Number value[LANES];
        if (SOURCES == 2) {
            other.whole = *(const Vector *)((const u8 *)sources[1] + further + byte);
#pragma unroll
            for (u32 lane = 0; lane < LANES; ++lane) {
                value[lane] = Op::of(Element::get(first.each[lane]), Element::get(other.each[lane]));
            }
        } else {
#pragma unroll
            for (u32 lane = 0; lane < LANES; ++lane) value[lane] = Element::get(first.each[lane]);
            for (u32 source = 1; source < used; ++source) {
                other.whole = *(const Vector *)((const u8 *)sources[source] + further + byte);
#pragma unroll
                for (u32 lane = 0; lane < LANES; ++lane) {
                    value[lane] = Op::of(value[lane], Element::get(other.each[lane]));
                }
            }
        }
#pragma unroll
        for (u32 lane = 0; lane < LANES; ++lane) first.each[lane] = Element::put(finished(value[lane], how));
        *(Vector *)((u8 *)target + byte) = first.whole;
    }

    static PHX_FN void element(Stored *target, const void *const *sources, u32 used, u64 at, u64 begin,
                               const Finish &how) {
        Number value = Element::get(load_one((const Stored *)sources[0] + begin + at));
        for (u32 source = 1; source < used; ++source) {
            value = Op::of(value, Element::get(load_one((const Stored *)sources[source] + begin + at)));
        }
        store_one(target + at, Element::put(finished(value, how)));
    }

    static PHX_FN void run(void *target, const void *const *sources, u32 used, u64 begin, u64 count,
                           const Finish &how) {
        const u64 further = begin * sizeof(Stored);
        u64 offsets = 0;
        for (u32 source = 0; source < used; ++source) {
            offsets |= address_of(target) ^ (address_of(sources[source]) + further);
        }
        const u64 number = thread_number(), threads = thread_count();
        const Way way = way_through(target, offsets, count, sizeof(Stored));
        const u64 body = way.head * sizeof(Stored);
        if (used == 2) {
            for (u64 at = number; at < way.vectors; at += threads) {
                vector<2>(target, sources, used, body + 16 * at, further, how);
            }
        } else {
            for (u64 at = number; at < way.vectors; at += threads) {
                vector<0>(target, sources, used, body + 16 * at, further, how);
            }
        }
        const u64 tail = way.head + way.vectors * LANES;
        for (u64 at = number; at < way.head; at += threads) element((Stored *)target, sources, used, at, begin, how);
        for (u64 at = tail + number; at < count; at += threads) {
            element((Stored *)target, sources, used, at, begin, how);
        }
    }
};

#define PHX_REDUCE(NAME, ELEMENT, OP) \
    PHX_KERNEL(phx_reduce_##NAME, ReduceParameters) {                                  \
        Reducer<ELEMENT, OP>::run(p.target, p.sources, p.sources_used, 0, p.count, p.finish); \
    }

#define PHX_REDUCE_FLOATS(NAME, ELEMENT)                                     \
    PHX_REDUCE(sum_##NAME, ELEMENT, Sum) PHX_REDUCE(product_##NAME, ELEMENT, Product) \
    PHX_REDUCE(min_##NAME, ELEMENT, Min) PHX_REDUCE(max_##NAME, ELEMENT, Max)         \
    PHX_REDUCE(logical_and_##NAME, ELEMENT, LogicalAnd) PHX_REDUCE(logical_or_##NAME, ELEMENT, LogicalOr)

// Whether an integer has a sign matters for the order and for finishing; the rest is done on the unsigned type.
#define PHX_REDUCE_INTEGERS(NAME, ELEMENT)                                   \
    PHX_REDUCE(sum_##NAME, ELEMENT, Sum) PHX_REDUCE(product_##NAME, ELEMENT, Product) \
    PHX_REDUCE(min_##NAME, ELEMENT, Min) PHX_REDUCE(max_##NAME, ELEMENT, Max)         \
    PHX_REDUCE(bit_and_##NAME, ELEMENT, BitAnd) PHX_REDUCE(bit_or_##NAME, ELEMENT, BitOr) \
    PHX_REDUCE(bit_xor_##NAME, ELEMENT, BitXor)                              \
    PHX_REDUCE(logical_and_##NAME, ELEMENT, LogicalAnd) PHX_REDUCE(logical_or_##NAME, ELEMENT, LogicalOr)

#if PHX_PART != 2
PHX_REDUCE_FLOATS(f16, F16)
PHX_REDUCE_FLOATS(bf16, BF16)
PHX_REDUCE_FLOATS(f32, Plain<float>)
PHX_REDUCE_FLOATS(f64, Plain<double>)
PHX_REDUCE_FLOATS(f8_e4m3, F8E4M3)
PHX_REDUCE_FLOATS(f8_e5m2, F8E5M2)
PHX_REDUCE_INTEGERS(i8, Plain<i8>)
PHX_REDUCE_INTEGERS(u8, Plain<u8>)
PHX_REDUCE_INTEGERS(i16, Plain<i16>)
PHX_REDUCE_INTEGERS(i32, Plain<i32>)
PHX_REDUCE_INTEGERS(u32, Plain<u32>)
PHX_REDUCE_INTEGERS(i64, Plain<i64>)
PHX_REDUCE_INTEGERS(u64, Plain<u64>)
// For bool, sum and max mean or, product and min mean and.
PHX_REDUCE(bit_and_bool, Truth, BitAnd)
PHX_REDUCE(bit_or_bool, Truth, BitOr)
PHX_REDUCE(bit_xor_bool, Truth, BitXor)
#endif
