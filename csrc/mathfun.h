// exp, sigmoid, silu and softplus as one written sequence of float32 operations, so that scalars, 8 lanes and 16 lanes
// give the same bits (and so can a GPU). For files of csrc/kernels only.
//
//   exp(x): k = round(x·log2 e), r = x − k·ln 2 in two parts, e^r by the polynomial of Cephes' expf, times 2^k by adding k to
//   the exponent. Within 2 units in the last place; 0 below −87.3, clamped at 88.72 (3.4e38); NaN stays NaN.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "isa.h"

namespace jubako::JUBAKO_ISA {

// Lanes behind one spelling: F1 (a float), F8 (AVX2), F16 (AVX-512).
struct F1 {
    float v;
    static constexpr int lanes = 1;
    static F1 all(float x) { return {x}; }
    static F1 load(const float* p) { return {*p}; }
    void store(float* p) const { *p = v; }
};
inline uint32_t float_bits(float x) {
    uint32_t u;
    std::memcpy(&u, &x, 4);
    return u;
}
inline float bits_float(uint32_t u) {
    float x;
    std::memcpy(&x, &u, 4);
    return x;
}
inline F1 operator+(F1 a, F1 b) { return {a.v + b.v}; }
inline F1 operator-(F1 a, F1 b) { return {a.v - b.v}; }
inline F1 operator*(F1 a, F1 b) { return {a.v * b.v}; }
inline F1 operator/(F1 a, F1 b) { return {a.v / b.v}; }
inline F1 fma(F1 a, F1 b, F1 c) { return {__builtin_fmaf(a.v, b.v, c.v)}; }
inline F1 min(F1 a, F1 b) { return {a.v < b.v ? a.v : b.v}; }  // b when either is NaN, as the instruction does
inline F1 max(F1 a, F1 b) { return {a.v > b.v ? a.v : b.v}; }
inline F1 zero_below(F1 x, F1 limit, F1 y) { return {x.v < limit.v ? 0.0f : y.v}; }  // x < limit ? 0 : y
inline F1 add_exponent(F1 y, F1 shifted) { return {bits_float(float_bits(y.v) + (float_bits(shifted.v) << 23))}; }
inline F1 sqrt(F1 a) { return {__builtin_sqrtf(a.v)}; }
inline F1 log2_parts(F1 x, F1& mantissa) {  // x > 0, normal: exponent, and the mantissa in [√½, √2)
    uint32_t shifted = float_bits(x.v) - 0x3f3504f3u;
    mantissa.v = bits_float((shifted & 0x007fffffu) + 0x3f3504f3u);
    return {static_cast<float>(static_cast<int32_t>(shifted) >> 23)};
}
inline F1 choose_above(F1 x, F1 limit, F1 y, F1 otherwise) { return {x.v > limit.v ? y.v : otherwise.v}; }

struct F8 {
    __m256 v;
    static constexpr int lanes = 8;
    static F8 all(float x) { return {_mm256_set1_ps(x)}; }
    static F8 load(const float* p) { return {_mm256_loadu_ps(p)}; }
    void store(float* p) const { _mm256_storeu_ps(p, v); }
};
inline F8 operator+(F8 a, F8 b) { return {_mm256_add_ps(a.v, b.v)}; }
inline F8 operator-(F8 a, F8 b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline F8 operator*(F8 a, F8 b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline F8 operator/(F8 a, F8 b) { return {_mm256_div_ps(a.v, b.v)}; }
inline F8 fma(F8 a, F8 b, F8 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline F8 min(F8 a, F8 b) { return {_mm256_min_ps(a.v, b.v)}; }
inline F8 max(F8 a, F8 b) { return {_mm256_max_ps(a.v, b.v)}; }
inline F8 zero_below(F8 x, F8 limit, F8 y) {
    return {_mm256_andnot_ps(_mm256_cmp_ps(x.v, limit.v, _CMP_LT_OQ), y.v)};
}
inline F8 add_exponent(F8 y, F8 shifted) {
    __m256i k = _mm256_slli_epi32(_mm256_castps_si256(shifted.v), 23);
    return {_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(y.v), k))};
}
inline F8 sqrt(F8 a) { return {_mm256_sqrt_ps(a.v)}; }
inline F8 log2_parts(F8 x, F8& mantissa) {
    __m256i half = _mm256_set1_epi32(0x3f3504f3);
    __m256i shifted = _mm256_sub_epi32(_mm256_castps_si256(x.v), half);
    __m256i low = _mm256_and_si256(shifted, _mm256_set1_epi32(0x007fffff));
    mantissa.v = _mm256_castsi256_ps(_mm256_add_epi32(low, half));
    return {_mm256_cvtepi32_ps(_mm256_srai_epi32(shifted, 23))};
}
inline F8 choose_above(F8 x, F8 limit, F8 y, F8 otherwise) {
    return {_mm256_blendv_ps(otherwise.v, y.v, _mm256_cmp_ps(x.v, limit.v, _CMP_GT_OQ))};
}

#ifdef JUBAKO_AVX512
struct F16 {
    __m512 v;
    static constexpr int lanes = 16;
    static F16 all(float x) { return {_mm512_set1_ps(x)}; }
    static F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
    void store(float* p) const { _mm512_storeu_ps(p, v); }
};
inline F16 operator+(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F16 operator-(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F16 operator*(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F16 operator/(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F16 fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F16 min(F16 a, F16 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F16 max(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F16 zero_below(F16 x, F16 limit, F16 y) {
    return {_mm512_maskz_mov_ps(static_cast<__mmask16>(~_mm512_cmp_ps_mask(x.v, limit.v, _CMP_LT_OQ)), y.v)};
}
inline F16 add_exponent(F16 y, F16 shifted) {
    __m512i k = _mm512_slli_epi32(_mm512_castps_si512(shifted.v), 23);
    return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(y.v), k))};
}
inline F16 sqrt(F16 a) { return {_mm512_sqrt_ps(a.v)}; }
inline F16 log2_parts(F16 x, F16& mantissa) {
    __m512i half = _mm512_set1_epi32(0x3f3504f3);
    __m512i shifted = _mm512_sub_epi32(_mm512_castps_si512(x.v), half);
    __m512i low = _mm512_and_si512(shifted, _mm512_set1_epi32(0x007fffff));
    mantissa.v = _mm512_castsi512_ps(_mm512_add_epi32(low, half));
    return {_mm512_cvtepi32_ps(_mm512_srai_epi32(shifted, 23))};
}
inline F16 choose_above(F16 x, F16 limit, F16 y, F16 otherwise) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, limit.v, _CMP_GT_OQ), otherwise.v, y.v)};
}
using FV = F16;
#else
using FV = F8;
#endif

template <class F>
inline F exp(F x) {
    const F low = F::all(-87.3f);
    F c = min(F::all(88.72283f), max(low, x));  // this operand order keeps a NaN
    const F magic = F::all(12582912.0f);        // 1.5·2^23: its low bits hold k after the addition
    F shifted = fma(c, F::all(1.44269504f), magic);
    F k = shifted - magic;
    F r = fma(k, F::all(-0.693359375f), c);
    r = fma(k, F::all(2.12194440e-4f), r);
    F p = F::all(1.9875691500e-4f);
    p = fma(p, r, F::all(1.3981999507e-3f));
    p = fma(p, r, F::all(8.3334519073e-3f));
    p = fma(p, r, F::all(4.1665795894e-2f));
    p = fma(p, r, F::all(1.6666665459e-1f));
    p = fma(p, r, F::all(5.0000001201e-1f));
    p = fma(p, r * r, r) + F::all(1.0f);
    return zero_below(x, low, add_exponent(p, shifted));
}

template <class F>
inline F sigmoid(F x) {
    return F::all(1.0f) / (F::all(1.0f) + exp(F::all(0.0f) - x));
}

template <class F>
inline F silu(F x) {
    return x / (F::all(1.0f) + exp(F::all(0.0f) - x));
}

// log(x) for normal x > 0, by the polynomial of Cephes' logf.
template <class F>
inline F log(F x) {
    F m;
    F e = log2_parts(x, m);
    F f = m - F::all(1.0f);
    F p = F::all(7.0376836292e-2f);
    p = fma(p, f, F::all(-1.1514610310e-1f));
    p = fma(p, f, F::all(1.1676998740e-1f));
    p = fma(p, f, F::all(-1.2420140846e-1f));
    p = fma(p, f, F::all(1.4249322787e-1f));
    p = fma(p, f, F::all(-1.6668057665e-1f));
    p = fma(p, f, F::all(2.0000714765e-1f));
    p = fma(p, f, F::all(-2.4999993993e-1f));
    p = fma(p, f, F::all(3.3333331174e-1f));
    F z = f * f;
    F y = p * f * z;
    y = fma(e, F::all(-2.12194440e-4f), y);
    y = fma(z, F::all(-0.5f), y);
    return fma(e, F::all(0.693359375f), f + y);
}

// log(1 + e^x); x itself above 20, as in torch.
template <class F>
inline F softplus(F x) {
    F capped = min(F::all(20.0f), x);
    return choose_above(x, F::all(20.0f), x, log(F::all(1.0f) + exp(capped)));
}

inline float exp(float x) { return exp(F1{x}).v; }
inline float log(float x) { return log(F1{x}).v; }
inline float sigmoid(float x) { return sigmoid(F1{x}).v; }
inline float silu(float x) { return silu(F1{x}).v; }
inline float softplus(float x) { return softplus(F1{x}).v; }

}  // namespace jubako::JUBAKO_ISA
