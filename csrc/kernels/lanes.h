// Sixteen float32 lanes with the same results on both instruction sets: one zmm register, or two ymm registers.
// Every reduction over lanes is the tree ((l, l+8), (l, l+4), (l, l+2), (l, l+1)), so that AVX2 and AVX-512 agree bit for bit.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "mathfun.h"

namespace jubako::JUBAKO_ISA {

constexpr int LANES = 16;

#ifdef JUBAKO_AVX512

using Lanes = F16;

inline Lanes load(const float* p) { return Lanes::load(p); }
inline void store(float* p, Lanes a) { a.store(p); }
inline Lanes splat(float x) { return Lanes::all(x); }
inline Lanes zero() { return {_mm512_setzero_ps()}; }
inline Lanes abs(Lanes a) { return {_mm512_abs_ps(a.v)}; }
inline Lanes load_i8(const int8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
// Rounds half to even; values must lie within [-128, 127].
inline void store_i8(int8_t* p, Lanes a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a.v)));
}
inline Lanes load_f16(const uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline void store_f16(uint16_t* p, Lanes a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
// Bit l is set where lane l of a is above (at) the bound.
inline uint32_t mask_above(Lanes a, Lanes bound) { return _mm512_cmp_ps_mask(a.v, bound.v, _CMP_GT_OQ); }
inline uint32_t mask_equal(Lanes a, Lanes bound) { return _mm512_cmp_ps_mask(a.v, bound.v, _CMP_EQ_OQ); }

struct Halves {
    __m256 low, high;
};
inline Halves halves(Lanes a) { return {_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1)}; }

// Sums over the lanes of four vectors at once, each by the tree of `sum`.
inline __m128 sum4(Lanes a, Lanes b, Lanes c, Lanes d) {
    __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a.v, b.v, 0x44), _mm512_shuffle_f32x4(a.v, b.v, 0xEE));
    __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c.v, d.v, 0x44), _mm512_shuffle_f32x4(c.v, d.v, 0xEE));
    __m512 q = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
    __m512 r = _mm512_add_ps(q, _mm512_shuffle_ps(q, q, 0x4E));
    __m512 s = _mm512_add_ps(r, _mm512_shuffle_ps(r, r, 0xB1));
    return _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, s));
}

#else

struct Lanes {
    F8 low, high;
};

inline Lanes load(const float* p) { return {F8::load(p), F8::load(p + 8)}; }
inline void store(float* p, Lanes a) {
    a.low.store(p);
    a.high.store(p + 8);
}
inline Lanes splat(float x) { return {F8::all(x), F8::all(x)}; }
inline Lanes zero() { return splat(0.0f); }
inline Lanes operator+(Lanes a, Lanes b) { return {a.low + b.low, a.high + b.high}; }
inline Lanes operator-(Lanes a, Lanes b) { return {a.low - b.low, a.high - b.high}; }
inline Lanes operator*(Lanes a, Lanes b) { return {a.low * b.low, a.high * b.high}; }
inline Lanes operator/(Lanes a, Lanes b) { return {a.low / b.low, a.high / b.high}; }
inline Lanes fma(Lanes a, Lanes b, Lanes c) { return {fma(a.low, b.low, c.low), fma(a.high, b.high, c.high)}; }
inline Lanes min(Lanes a, Lanes b) { return {min(a.low, b.low), min(a.high, b.high)}; }
inline Lanes max(Lanes a, Lanes b) { return {max(a.low, b.low), max(a.high, b.high)}; }
inline Lanes abs(Lanes a) {
    __m256 sign = _mm256_set1_ps(-0.0f);
    return {{_mm256_andnot_ps(sign, a.low.v)}, {_mm256_andnot_ps(sign, a.high.v)}};
}
inline Lanes exp(Lanes a) { return {exp(a.low), exp(a.high)}; }
inline Lanes sigmoid(Lanes a) { return {sigmoid(a.low), sigmoid(a.high)}; }
inline Lanes silu(Lanes a) { return {silu(a.low), silu(a.high)}; }
inline Lanes load_i8(const int8_t* p) {
    __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {{_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))},
            {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))}};
}
inline void store_i8(int8_t* p, Lanes a) {
    __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(a.low.v), _mm256_cvtps_epi32(a.high.v));  // 0-3, 8-11, 4-7, 12-15
    words = _mm256_permute4x64_epi64(words, 0xD8);
    __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}
inline Lanes load_f16(const uint16_t* p) {
    return {{_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))},
            {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))}};
}
inline void store_f16(uint16_t* p, Lanes a) {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.low.v, mode));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(a.high.v, mode));
}
inline uint32_t mask_above(Lanes a, Lanes bound) {
    return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.low.v, bound.low.v, _CMP_GT_OQ)) |
                                 _mm256_movemask_ps(_mm256_cmp_ps(a.high.v, bound.high.v, _CMP_GT_OQ)) << 8);
}
inline uint32_t mask_equal(Lanes a, Lanes bound) {
    return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.low.v, bound.low.v, _CMP_EQ_OQ)) |
                                 _mm256_movemask_ps(_mm256_cmp_ps(a.high.v, bound.high.v, _CMP_EQ_OQ)) << 8);
}

struct Halves {
    __m256 low, high;
};
inline Halves halves(Lanes a) { return {a.low.v, a.high.v}; }

inline __m128 quarter(Lanes a) {
    __m256 eight = _mm256_add_ps(a.low.v, a.high.v);
    return _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
}
inline __m128 sum4(Lanes a, Lanes b, Lanes c, Lanes d) {
    __m128 qa = quarter(a), qb = quarter(b), qc = quarter(c), qd = quarter(d);
    __m128 ab = _mm_add_ps(_mm_movelh_ps(qa, qb), _mm_movehl_ps(qb, qa));  // a0+a2 a1+a3 b0+b2 b1+b3
    __m128 cd = _mm_add_ps(_mm_movelh_ps(qc, qd), _mm_movehl_ps(qd, qc));
    return _mm_add_ps(_mm_shuffle_ps(ab, cd, 0x88), _mm_shuffle_ps(ab, cd, 0xDD));
}

#endif

inline float sum(Lanes a) {
    Halves h = halves(a);
    __m256 eight = _mm256_add_ps(h.low, h.high);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

inline float largest(Lanes a) {
    Halves h = halves(a);
    __m256 eight = _mm256_max_ps(h.low, h.high);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

}  // namespace jubako::JUBAKO_ISA
