// Adasum: gradients that point the same way are averaged, those at right angles are added.
//
//     target = a (1 - a.b / 2 a.a) + b (1 - a.b / 2 b.b)
//
// S. Maleki and others, "Scaling Distributed Training with Adaptive Summation", MLSys 2021. The three products are
// summed in double, in an order that depends on the count alone: phx_adasum_products_TYPE sums each run of ADASUM_RUN
// elements, every thread those that lie PHX_THREADS apart, and the threads' sums by halves; phx_adasum_combine_TYPE
// sums the runs likewise.
#pragma once
#include "numbers.cuh"

#define ADASUM_RUN 16384

struct Products {
    double both, left, right;
};

struct AdasumParameters {
    void *target;
    const void *left;
    const void *right;
    u64 count;
    // In device memory: one for each run that has begun.
    Products *products;
};

struct AddProducts {
    PHX_FN Products operator()(const Products &one, const Products &other) const {
        Products sum = {one.both + other.both, one.left + other.left, one.right + other.right};
        return sum;
    }
};

PHX_FN u64 adasum_runs(u64 count) { return (count + ADASUM_RUN - 1) / ADASUM_RUN; }

template <typename Element> struct Adasum {
    typedef typename Element::Stored Stored;

    static PHX_FN void products(const AdasumParameters &p, Products *room) {
        for (u64 run = blockIdx.x; run < adasum_runs(p.count); run += gridDim.x) {
            const u64 begin = run * ADASUM_RUN, end = begin + ADASUM_RUN < p.count ? begin + ADASUM_RUN : p.count;
            Products sum = {0, 0, 0};
            for (u64 at = begin + threadIdx.x; at < end; at += PHX_THREADS) {
                const double left = (double)Element::get(load_one((const Stored *)p.left + at));
                const double right = (double)Element::get(load_one((const Stored *)p.right + at));
                const Products one = {left * right, left * left, right * right};
                sum = AddProducts()(sum, one);
            }
            sum = over_block(sum, room, AddProducts());
            if (threadIdx.x == 0) p.products[run] = sum;
        }
    }

    static PHX_FN void combine(const AdasumParameters &p, Products *room) {
        Products sum = {0, 0, 0};
        for (u64 run = threadIdx.x; run < adasum_runs(p.count); run += PHX_THREADS) {
            sum = AddProducts()(sum, p.products[run]);
        }
        sum = over_block(sum, room, AddProducts());
        // A side that is all zeros has no direction, and adds nothing.
        const double left = sum.left == 0.0 ? 1.0 : 1.0 - sum.both / (2.0 * sum.left);
        const double right = sum.right == 0.0 ? 1.0 : 1.0 - sum.both / (2.0 * sum.right);
        typedef typename Element::Number Number;
        for (u64 at = thread_number(); at < p.count; at += thread_count()) {
            const double one = left * (double)Element::get(load_one((const Stored *)p.left + at));
            const double other = right * (double)Element::get(load_one((const Stored *)p.right + at));
            store_one((Stored *)p.target + at, Element::put((Number)(one + other)));
        }
    }
};

#define PHX_ADASUM(NAME, ELEMENT)                                                                          \
    PHX_BLOCK_KERNEL(phx_adasum_products_##NAME, AdasumParameters) {                                       \
        PHX_SHARED Products room[PHX_THREADS];                                                             \
        Adasum<ELEMENT>::products(p, room);                                                                \
    }                                                                                                      \
    PHX_BLOCK_KERNEL(phx_adasum_combine_##NAME, AdasumParameters) {                                        \
        PHX_SHARED Products room[PHX_THREADS];                                                             \
        Adasum<ELEMENT>::combine(p, room);                                                                 \
    }

PHX_ADASUM(f16, F16)
PHX_ADASUM(bf16, BF16)
PHX_ADASUM(f32, Plain<float>)
PHX_ADASUM(f64, Plain<double>)
