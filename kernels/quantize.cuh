// Gradients in 8 bits: each run of QUANTIZE_RUN elements between its least and its greatest, in 255 steps.
//
// What rounding took away is kept in `error`, and added to what is coded the next time, so that nothing is lost over
// many steps (F. Seide and others, "1-Bit Stochastic Gradient Descent", Interspeech 2014). A run with anything that is
// not finite decodes to NaN, all of it, so that it is seen as it would be uncompressed; its errors are forgotten.
#pragma once
#include "numbers.cuh"

#define QUANTIZE_RUN 1024

// What a run's codes mean: least + code * step.
struct RunScale {
    float least, step;
};

struct QuantizeParameters {
    u8 *codes;
    // One for each run that has begun.
    RunScale *scales;
    const void *source;
    // Of as many floats, zero at first; null for none.
    float *error;
    u64 count;
};

struct DequantizeParameters {
    void *target;
    const u8 *codes;
    const RunScale *scales;
    u64 count;
    // Whether to add to the target.
    u32 adds;
};

struct Span {
    float least, greatest;
    // Whether all was finite.
    u32 sound;
};

struct JoinSpans {
    PHX_FN Span operator()(const Span &one, const Span &other) const {
        Span both;
        both.least = other.least < one.least ? other.least : one.least;
        both.greatest = one.greatest < other.greatest ? other.greatest : one.greatest;
        both.sound = one.sound & other.sound;
        return both;
    }
};

PHX_FN u64 quantize_runs(u64 count) { return (count + QUANTIZE_RUN - 1) / QUANTIZE_RUN; }

template <typename Element> struct Quantizer {
    typedef typename Element::Stored Stored;
    static constexpr float NARROWEST = 1e-37f;

    static PHX_FN float value(const QuantizeParameters &p, u64 at) {
        const float own = Element::get(load_one((const Stored *)p.source + at));
        return p.error ? own + p.error[at] : own;
    }

    static PHX_FN void quantize(const QuantizeParameters &p, Span *room) {
        const float infinity = bits_of<float>(0x7f800000u);
        for (u64 run = blockIdx.x; run < quantize_runs(p.count); run += gridDim.x) {
            const u64 begin = run * QUANTIZE_RUN, end = begin + QUANTIZE_RUN < p.count ? begin + QUANTIZE_RUN : p.count;
            Span span = {infinity, -infinity, 1};
            for (u64 at = begin + threadIdx.x; at < end; at += PHX_THREADS) {
                const float one = value(p, at);
                // Only of what is finite the difference with itself is a number.
                const Span own = {one, one, one - one == 0.0f ? 1u : 0u};
                span = JoinSpans()(span, own);
            }
            span = over_block(span, room, JoinSpans());
            // Halves, of which the difference of any two is finite.
            float step = (span.greatest * 0.5f - span.least * 0.5f) / 127.5f;
            // Narrower than numbers can be told apart by: all are the least.
            if (step < NARROWEST) step = 0.0f;
            if (!span.sound) step = bits_of<float>(0x7fc00000u);
            const RunScale scale = {span.sound ? span.least : 0.0f, step};
            if (threadIdx.x == 0) p.scales[run] = scale;
            for (u64 at = begin + threadIdx.x; at < end; at += PHX_THREADS) {
                const float one = value(p, at);
                float code = 0.0f;
                if (span.sound && step > 0.0f) {
                    code = (one * 0.5f - span.least * 0.5f) / (step * 0.5f);
                    code = code < 0.0f ? 0.0f : code > 255.0f ? 255.0f : code;
                    // 2^23: what is left of the fraction is rounded away, ties to even.
                    code = (code + 8388608.0f) - 8388608.0f;
                }
                p.codes[at] = (u8)code;
                if (p.error) p.error[at] = span.sound ? one - (span.least + code * step) : 0.0f;
            }
        }
    }

    static PHX_FN void dequantize(const DequantizeParameters &p) {
        Stored *target = (Stored *)p.target;
        for (u64 at = thread_number(); at < p.count; at += thread_count()) {
            const RunScale scale = p.scales[at / QUANTIZE_RUN];
            float one = scale.least + (float)p.codes[at] * scale.step;
            if (p.adds) one = Element::get(load_one(target + at)) + one;
            store_one(target + at, Element::put(one));
        }
    }
};

#define PHX_QUANTIZE(NAME, ELEMENT)                                                                        \
    PHX_BLOCK_KERNEL(phx_quantize_##NAME, QuantizeParameters) {                                            \
        PHX_SHARED Span room[PHX_THREADS];                                                                 \
        Quantizer<ELEMENT>::quantize(p, room);                                                             \
    }                                                                                                      \
    PHX_KERNEL(phx_dequantize_##NAME, DequantizeParameters) { Quantizer<ELEMENT>::dequantize(p); }

PHX_QUANTIZE(f16, F16)
PHX_QUANTIZE(bf16, BF16)
PHX_QUANTIZE(f32, Plain<float>)
