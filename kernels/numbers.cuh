// Element types, the operations on them, and how a result is finished: to the same bits as on the host.
//
// An element type says what it is calculated in (Number) and gets elements in and out of it. Halves and eighths are
// calculated in float and rounded once. Whatever NaN comes out of a calculation is written as the one canonical quiet
// NaN, so that results depend neither on the order of operands nor on the processor. Nothing is fused: kernels are
// compiled without contraction (-fmad=false).
#pragma once
#include "base.cuh"

// What is done to a result. A divisor of 1 and a factor of 1 leave it.
struct Finish {
    u64 divisor;
    double factor;
};

PHX_FN bool is_nan(float value) { return value != value; }
PHX_FN bool is_nan(double value) { return value != value; }

// f16.

PHX_FN float f16_to_f32(u16 half) {
#if PHX_ON_DEVICE
    float single;
    asm("cvt.f32.f16 %0, %1;" : "=f"(single) : "h"(half));
    return single;
#else
    u32 sign = (u32)(half & 0x8000) << 16;
    u32 magnitude = (u32)(half & 0x7fff) << 13;
    if (magnitude >= (31u << 23)) {
        u32 quiet = magnitude > (31u << 23) ? 1u << 22 : 0;
        return bits_of<float>(sign | (magnitude + (224u << 23)) | quiet);
    }
    if (magnitude < (1u << 23)) {
        float above = bits_of<float>(magnitude + (113u << 23)) - bits_of<float>(113u << 23);
        return bits_of<float>(sign | bits_of<u32>(above));
    }
    return bits_of<float>(sign | (magnitude + (112u << 23)));
#endif
}

// The nearest; NaN becomes the canonical one.
PHX_FN u16 f32_to_f16(float single) {
    if (is_nan(single)) return 0x7e00;
#if PHX_ON_DEVICE
    u16 half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(single));
    return half;
#else
    u32 bits = bits_of<u32>(single);
    u16 sign = (u16)((bits >> 16) & 0x8000);
    u32 magnitude = bits & 0x7fffffff;
    if (magnitude >= (143u << 23)) return sign | 0x7c00;
    if (magnitude < (113u << 23)) {
        return sign | (u16)(bits_of<u32>(bits_of<float>(magnitude) + 0.5f) - bits_of<u32>(0.5f));
    }
    return sign | (u16)((magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13);
#endif
}

// bf16.

PHX_FN float bf16_to_f32(u16 half) { return bits_of<float>((u32)half << 16); }

PHX_FN u16 f32_to_bf16(float single) {
    u32 bits = bits_of<u32>(single);
    return is_nan(single) ? 0x7fc0 : (u16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Eighths: FRACTION bits of fraction. e4m3 has no infinity, and only all ones for NaN; e5m2 is laid out as f16 is. What
// is beyond the largest finite number becomes that number, infinity included, as in CUDA's saturating conversions.

template <u32 FRACTION> struct Eighth {
    static const i32 BIAS = FRACTION == 3 ? 7 : 15;
    static const u32 LARGEST = FRACTION == 3 ? 0x7e : 0x7b;
    static const u32 NOT_A_NUMBER = FRACTION == 3 ? 0x7f : 0x7e;
};

template <u32 FRACTION> PHX_FN float eighth_to_f32(u8 bits) {
    typedef Eighth<FRACTION> Form;
    u32 sign = (u32)(bits & 0x80) << 24;
    u32 magnitude = bits & 0x7f;
    if (magnitude > (FRACTION == 3 ? 0x7eu : 0x7cu)) return bits_of<float>(0x7fc00000u);
    if (FRACTION == 2 && magnitude == 0x7c) return bits_of<float>(sign | 0x7f800000u);
    u32 exponent = magnitude >> FRACTION, fraction = magnitude & ((1u << FRACTION) - 1);
    // A subnormal is a whole number of the smallest steps, exactly.
    float small = (float)fraction * bits_of<float>((u32)(127 + 1 - Form::BIAS - (i32)FRACTION) << 23);
    u32 normal = (exponent + 127 - Form::BIAS) << 23 | fraction << (23 - FRACTION);
    return bits_of<float>(sign | (exponent == 0 ? bits_of<u32>(small) : normal));
}

template <u32 FRACTION> PHX_FN u8 f32_to_eighth(float single) {
    typedef Eighth<FRACTION> Form;
    if (is_nan(single)) return Form::NOT_A_NUMBER;
    u32 bits = bits_of<u32>(single);
    u8 sign = (u8)((bits >> 24) & 0x80);
    u32 magnitude = bits & 0x7fffffff;
    const u32 dropped = 23 - FRACTION;
    const u32 smallest_normal = (u32)(127 + 1 - Form::BIAS) << 23;
    u32 rounded;
    if (magnitude < smallest_normal) {
        // Adding a number whose last bit is worth the smallest step lets the addition round.
        const float ruler = bits_of<float>((u32)(127 + 1 - Form::BIAS - (i32)FRACTION + 23) << 23);
        rounded = bits_of<u32>(bits_of<float>(magnitude) + ruler) - bits_of<u32>(ruler);
    } else {
        const u32 half = ((1u << (dropped - 1)) - 1) + ((magnitude >> dropped) & 1);
        rounded = (magnitude - ((u32)(127 - Form::BIAS) << 23) + half) >> dropped;
    }
    // A copy, since a choice between the members themselves would want them to lie somewhere.
    const u32 largest = Form::LARGEST;
    return sign | (u8)(rounded < largest ? rounded : largest);
}

// Numbers.

template <typename N> PHX_FN N settle(N value) { return value; }
PHX_FN float settle(float value) { return is_nan(value) ? bits_of<float>(0x7fc00000u) : value; }
PHX_FN double settle(double value) { return is_nan(value) ? bits_of<double>(0x7ff8000000000000ull) : value; }

// Element types: Stored is what lies in memory, Number what it is calculated in.

template <typename T> struct Plain {
    typedef T Stored;
    typedef T Number;
    static const bool FINISHES = true;
    static PHX_FN T get(T stored) { return stored; }
    static PHX_FN T put(T number) { return settle(number); }
};
struct F16 {
    typedef u16 Stored;
    typedef float Number;
    static const bool FINISHES = true;
    static PHX_FN float get(u16 stored) { return f16_to_f32(stored); }
    static PHX_FN u16 put(float number) { return f32_to_f16(number); }
};
struct BF16 {
    typedef u16 Stored;
    typedef float Number;
    static const bool FINISHES = true;
    static PHX_FN float get(u16 stored) { return bf16_to_f32(stored); }
    static PHX_FN u16 put(float number) { return f32_to_bf16(number); }
};
template <u32 FRACTION> struct F8 {
    typedef u8 Stored;
    typedef float Number;
    static const bool FINISHES = true;
    static PHX_FN float get(u8 stored) { return eighth_to_f32<FRACTION>(stored); }
    static PHX_FN u8 put(float number) { return f32_to_eighth<FRACTION>(number); }
};
typedef F8<3> F8E4M3;
typedef F8<2> F8E5M2;

// A byte that is false or true: zero, or anything else, which is written as one.
struct Truth {
    typedef u8 Stored;
    typedef u8 Number;
    static const bool FINISHES = false;
    static PHX_FN u8 get(u8 stored) { return stored != 0; }
    static PHX_FN u8 put(u8 number) { return number; }
};

// Operations. Sums and products of integers wrap: they are those of the unsigned numbers with the same bits.

struct Sum {
    template <typename N> static PHX_FN N of(N left, N right) { return (N)(left + right); }
    static PHX_FN i32 of(i32 left, i32 right) { return (i32)((u32)left + (u32)right); }
    static PHX_FN i64 of(i64 left, i64 right) { return (i64)((u64)left + (u64)right); }
};
struct Product {
    template <typename N> static PHX_FN N of(N left, N right) { return (N)(left * right); }
    static PHX_FN i32 of(i32 left, i32 right) { return (i32)((u32)left * (u32)right); }
    static PHX_FN i64 of(i64 left, i64 right) { return (i64)((u64)left * (u64)right); }
    // C++ would multiply these as int, and overflow.
    static PHX_FN u16 of(u16 left, u16 right) { return (u16)((u32)left * right); }
};
// NaN if either is; -0 before +0.
struct Min {
    template <typename N> static PHX_FN N of(N left, N right) { return right < left ? right : left; }
    static PHX_FN float of(float left, float right) { return least<float, u32>(left, right); }
    static PHX_FN double of(double left, double right) { return least<double, u64>(left, right); }
    template <typename N, typename B> static PHX_FN N least(N left, N right) {
        if (is_nan(left)) return left;
        if (is_nan(right)) return right;
        if (left == right) return bits_of<N>(bits_of<B>(left) | bits_of<B>(right));
        return right < left ? right : left;
    }
};
struct Max {
    template <typename N> static PHX_FN N of(N left, N right) { return left < right ? right : left; }
    static PHX_FN float of(float left, float right) { return greatest<float, u32>(left, right); }
    static PHX_FN double of(double left, double right) { return greatest<double, u64>(left, right); }
    template <typename N, typename B> static PHX_FN N greatest(N left, N right) {
        if (is_nan(left)) return left;
        if (is_nan(right)) return right;
        if (left == right) return bits_of<N>(bits_of<B>(left) & bits_of<B>(right));
        return left < right ? right : left;
    }
};
struct BitAnd {
    template <typename N> static PHX_FN N of(N left, N right) { return (N)(left & right); }
};
struct BitOr {
    template <typename N> static PHX_FN N of(N left, N right) { return (N)(left | right); }
};
struct BitXor {
    template <typename N> static PHX_FN N of(N left, N right) { return (N)(left ^ right); }
};
// NaN counts as true.
struct LogicalAnd {
    template <typename N> static PHX_FN N of(N left, N right) { return (N)(left != (N)0 && right != (N)0 ? 1 : 0); }
};
struct LogicalOr {
    template <typename N> static PHX_FN N of(N left, N right) { return (N)(left != (N)0 || right != (N)0 ? 1 : 0); }
};

// Finishing. Floats divide in their own type; a division by a power of two is exact either way.

PHX_FN float finish(float value, const Finish &how) {
    if (how.divisor > 1) value = value / (float)how.divisor;
    if (how.factor != 1.0) value = value * (float)how.factor;
    return value;
}
PHX_FN double finish(double value, const Finish &how) {
    if (how.divisor > 1) value = value / (double)how.divisor;
    if (how.factor != 1.0) value = value * how.factor;
    return value;
}

template <typename N> struct IsSigned {
    static const bool is = false;
};
template <> struct IsSigned<i8> {
    static const bool is = true;
};
template <> struct IsSigned<i16> {
    static const bool is = true;
};
template <> struct IsSigned<i32> {
    static const bool is = true;
};
template <> struct IsSigned<i64> {
    static const bool is = true;
};

// The exact quotient towards zero; then the product in double, towards zero, saturating, of which NaN gives zero.
template <typename N> PHX_FN N finish(N value, const Finish &how) {
    constexpr bool is_signed = IsSigned<N>::is;
    const u64 greatest = ~0ull >> (64 - 8 * sizeof(N) + (is_signed ? 1 : 0));
    if (how.divisor > 1) {
        bool negative = false;
        if constexpr (is_signed) negative = value < 0;
        u64 magnitude = negative ? 0ull - (u64)value : (u64)value;
        if (sizeof(N) <= 4 && how.divisor <= 0xffffffffull) magnitude = (u32)magnitude / (u32)how.divisor;
        else magnitude = magnitude / how.divisor;
        value = (N)(negative ? 0ull - magnitude : magnitude);
    }
    if (how.factor != 1.0) {
        const double product = (double)value * how.factor;
        // The greatest of 64 bits rounds up to a power of two as a double; from there on everything is out of range.
        const double least = is_signed ? -(double)(greatest >> 1) * 2.0 - (sizeof(N) == 8 ? 0.0 : 2.0) : 0.0;
        if (is_nan(product)) value = 0;
        else if (product >= (double)greatest) value = (N)greatest;
        else if (product <= least) value = is_signed ? (N)(0ull - greatest - 1) : (N)0;
        else value = (N)product;
    }
    return value;
}
