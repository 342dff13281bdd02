// Vectors of 64 bytes behind one spelling (a zmm register, or two ymm registers) and the unit of 256 weights that every
// format unpacks to. Lanes and byte orders: activation.h.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "../activation.h"

namespace jubako::JUBAKO_ISA {

inline __m128i load16(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
inline __m256i load32(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
template <class T>
inline T read(const void* p) {
    T value;
    std::memcpy(&value, p, sizeof value);
    return value;
}

#ifdef JUBAKO_AVX512

using V = __m512i;
using Mask = __mmask64;  // a byte each

inline V load64(const void* p) { return _mm512_loadu_si512(p); }
inline void store64(void* p, V x) { _mm512_storeu_si512(p, x); }
inline V zeros() { return _mm512_setzero_si512(); }
inline V bytes(int x) { return _mm512_set1_epi8(static_cast<char>(x)); }
inline V dwords(int x) { return _mm512_set1_epi32(x); }
inline V mask_and(V a, V b) { return _mm512_and_si512(a, b); }
inline V both(V low, V high) { return _mm512_or_si512(low, high); }
inline V sub8(V a, V b) { return _mm512_sub_epi8(a, b); }
inline V add8(V a, V b) { return _mm512_add_epi8(a, b); }
template <int n> inline V right16(V x) { return _mm512_srli_epi16(x, n); }
template <int n> inline V left16(V x) { return _mm512_slli_epi16(x, n); }
template <int n> inline V right64(V x) { return _mm512_srli_epi64(x, n); }
template <int n> inline V left64(V x) { return _mm512_slli_epi64(x, n); }
inline V right32(V x, V counts) { return _mm512_srlv_epi32(x, counts); }
inline V quad(const void* a, const void* b, const void* c, const void* d) {
    __m512i x = _mm512_castsi128_si512(load16(a));
    x = _mm512_inserti32x4(x, load16(b), 1);
    x = _mm512_inserti32x4(x, load16(c), 2);
    return _mm512_inserti32x4(x, load16(d), 3);
}
inline V quads(__m128i x) { return _mm512_broadcast_i32x4(x); }
inline V join(__m256i low, __m256i high) { return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1); }
inline V dwords_of_lanes(int a, int b, int c, int d) {  // one value for each 128-bit lane
    return _mm512_setr_epi32(a, a, a, a, b, b, b, b, c, c, c, c, d, d, d, d);
}
inline V look_up(__m128i table, V index) { return _mm512_shuffle_epi8(quads(table), index); }
inline V unpack_low32(V a, V b) { return _mm512_unpacklo_epi32(a, b); }
inline V unpack_high32(V a, V b) { return _mm512_unpackhi_epi32(a, b); }
inline V unpack_low64(V a, V b) { return _mm512_unpacklo_epi64(a, b); }
inline V unpack_high64(V a, V b) { return _mm512_unpackhi_epi64(a, b); }
inline V even_odd32(V even, V odd) { return _mm512_mask_blend_epi32(0xaaaa, even, odd); }  // even lanes of one, odd of the other
inline V qwords_of_dwords(__m256i x) { return _mm512_cvtepu32_epi64(x); }
inline V twice32(__m256i x) {  // every dword twice
    const __m512i index = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return _mm512_permutexvar_epi32(index, _mm512_castsi256_si512(x));
}
inline V widen8(__m128i x) { return _mm512_cvtepi8_epi32(x); }
inline V float_lanes(V x) { return _mm512_castps_si512(_mm512_cvtepi32_ps(x)); }
inline Mask any_bits8(V x, V bits) { return _mm512_test_epi8_mask(x, bits); }
inline V add_where(V x, Mask where, int k) { return _mm512_mask_add_epi8(x, where, x, bytes(k)); }
inline V subtract_from_where(V x, Mask where, int k) { return _mm512_mask_sub_epi8(x, where, bytes(k), x); }

// 32 bits for each block (bit j for weight j), spread over the bytes of vector r in one of the orders.
template <Order order>
struct BlockBits {
    V x;
    explicit BlockBits(__m256i bits) : x(_mm512_cvtepu32_epi64(bits)) {}
    explicit BlockBits(V low_halves_of_qwords) : x(low_halves_of_qwords) {}
    template <int r>
    Mask of() const {
        constexpr long long dword_order = 0x1312111003020100ll + 0x0404040404040404ll * r;
        constexpr long long plane_order = 0x1c1814100c080400ll + 0x0101010101010101ll * r;
        return _mm512_bitshuffle_epi64_mask(x, _mm512_set1_epi64(order == Order::dwords ? dword_order : plane_order));
    }
};

inline __m256i dwords8(const uint8_t* p, int stride) {
    const __m256i index = _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(stride));
    return _mm256_i32gather_epi32(reinterpret_cast<const int*>(p), index, 1);
}
inline __m256 low_halves(__m256i x) { return _mm256_cvtph_ps(_mm256_cvtepi32_epi16(x)); }

#else

struct V {
    __m256i a, b;  // lanes 0–7 and 8–15
};
using Mask = V;

inline V load64(const void* p) { return {load32(p), load32(static_cast<const uint8_t*>(p) + 32)}; }
inline void store64(void* p, V x) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), x.a);
    _mm256_storeu_si256(static_cast<__m256i*>(p) + 1, x.b);
}
inline V same(__m256i x) { return {x, x}; }
inline V zeros() { return same(_mm256_setzero_si256()); }
inline V bytes(int x) { return same(_mm256_set1_epi8(static_cast<char>(x))); }
inline V dwords(int x) { return same(_mm256_set1_epi32(x)); }
inline V mask_and(V x, V y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
inline V both(V x, V y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
inline V sub8(V x, V y) { return {_mm256_sub_epi8(x.a, y.a), _mm256_sub_epi8(x.b, y.b)}; }
inline V add8(V x, V y) { return {_mm256_add_epi8(x.a, y.a), _mm256_add_epi8(x.b, y.b)}; }
template <int n> inline V right16(V x) { return {_mm256_srli_epi16(x.a, n), _mm256_srli_epi16(x.b, n)}; }
template <int n> inline V left16(V x) { return {_mm256_slli_epi16(x.a, n), _mm256_slli_epi16(x.b, n)}; }
template <int n> inline V right64(V x) { return {_mm256_srli_epi64(x.a, n), _mm256_srli_epi64(x.b, n)}; }
template <int n> inline V left64(V x) { return {_mm256_slli_epi64(x.a, n), _mm256_slli_epi64(x.b, n)}; }
inline V right32(V x, V n) { return {_mm256_srlv_epi32(x.a, n.a), _mm256_srlv_epi32(x.b, n.b)}; }
inline __m256i pair(const void* low, const void* high) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load16(low)), load16(high), 1);
}
inline V quad(const void* a, const void* b, const void* c, const void* d) { return {pair(a, b), pair(c, d)}; }
inline V quads(__m128i x) { return same(_mm256_broadcastsi128_si256(x)); }
inline V join(__m256i low, __m256i high) { return {low, high}; }
inline V dwords_of_lanes(int a, int b, int c, int d) {
    return {_mm256_setr_epi32(a, a, a, a, b, b, b, b), _mm256_setr_epi32(c, c, c, c, d, d, d, d)};
}
inline V look_up(__m128i table, V index) {
    __m256i t = _mm256_broadcastsi128_si256(table);
    return {_mm256_shuffle_epi8(t, index.a), _mm256_shuffle_epi8(t, index.b)};
}
inline V unpack_low32(V x, V y) { return {_mm256_unpacklo_epi32(x.a, y.a), _mm256_unpacklo_epi32(x.b, y.b)}; }
inline V unpack_high32(V x, V y) { return {_mm256_unpackhi_epi32(x.a, y.a), _mm256_unpackhi_epi32(x.b, y.b)}; }
inline V unpack_low64(V x, V y) { return {_mm256_unpacklo_epi64(x.a, y.a), _mm256_unpacklo_epi64(x.b, y.b)}; }
inline V unpack_high64(V x, V y) { return {_mm256_unpackhi_epi64(x.a, y.a), _mm256_unpackhi_epi64(x.b, y.b)}; }
inline V even_odd32(V x, V y) { return {_mm256_blend_epi32(x.a, y.a, 0xaa), _mm256_blend_epi32(x.b, y.b, 0xaa)}; }
inline V twice32(__m256i x) {
    return {_mm256_permutevar8x32_epi32(x, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)),
            _mm256_permutevar8x32_epi32(x, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7))};
}
inline V widen8(__m128i x) { return {_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(x, x))}; }
inline V float_lanes(V x) {
    return {_mm256_castps_si256(_mm256_cvtepi32_ps(x.a)), _mm256_castps_si256(_mm256_cvtepi32_ps(x.b))};
}
// bits holds one bit in every byte
inline Mask any_bits8(V x, V bits) {
    V y = mask_and(x, bits);
    return {_mm256_cmpeq_epi8(y.a, bits.a), _mm256_cmpeq_epi8(y.b, bits.b)};
}
inline V add_where(V x, Mask where, int k) { return add8(x, mask_and(where, bytes(k))); }
inline V subtract_from_where(V x, Mask where, int k) {  // (x ^ m) + (k + 1 & m) is k − x where m is all ones
    V flipped{_mm256_xor_si256(x.a, where.a), _mm256_xor_si256(x.b, where.b)};
    return add8(flipped, mask_and(where, bytes(k + 1)));
}

template <Order order>
struct BlockBits {
    V x;  // each block's dword twice
    explicit BlockBits(__m256i bits) : x(twice32(bits)) {}
    template <int r>
    Mask of() const {
        if (order == Order::dwords) {  // lane 2b: bits 4r+p, lane 2b+1: bits 16+4r+p
            constexpr char k = r / 2, h = 2 + r / 2;
            const __m128i spread = _mm_setr_epi8(k, k, k, k, 4 + h, 4 + h, 4 + h, 4 + h, 8 + k, 8 + k, 8 + k, 8 + k, 12 + h,
                                                 12 + h, 12 + h, 12 + h);
            return any_bits8(shuffled(spread), dwords(static_cast<int>(0x08040201u << 4 * (r & 1))));
        }
        // lane 2b: bits 4p+r, lane 2b+1: bits 16+4p+r
        const __m128i spread = _mm_setr_epi8(0, 0, 1, 1, 6, 6, 7, 7, 8, 8, 9, 9, 14, 14, 15, 15);
        return any_bits8(shuffled(spread), dwords(static_cast<int>(0x10011001u << r)));
    }
    V shuffled(__m128i index) const {
        __m256i i = _mm256_broadcastsi128_si256(index);
        return {_mm256_shuffle_epi8(x.a, i), _mm256_shuffle_epi8(x.b, i)};
    }
};

// Written out: from _mm256_setr_epi32 compilers make stores to the stack and a load that has to wait for them.
inline __m128i dwords4(int a, int b, int c, int d) {
    __m128i low = _mm_insert_epi32(_mm_cvtsi32_si128(a), b, 1), high = _mm_insert_epi32(_mm_cvtsi32_si128(c), d, 1);
    return _mm_unpacklo_epi64(low, high);
}
inline __m256i dwords8(const uint8_t* p, int stride) {
    auto four = [&](const uint8_t* q) {
        return dwords4(read<int>(q), read<int>(q + stride), read<int>(q + 2 * stride), read<int>(q + 3 * stride));
    };
    return _mm256_inserti128_si256(_mm256_castsi128_si256(four(p)), four(p + 4 * stride), 1);
}
inline __m256 low_halves(__m256i x) {
    x = _mm256_and_si256(x, _mm256_set1_epi32(0xffff));
    x = _mm256_permute4x64_epi64(_mm256_packus_epi32(x, x), 0x08);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(x));
}

#endif

// Eight IEEE halves, `stride` bytes apart; reads four bytes at each.
inline __m256 halves8(const uint8_t* p, int stride) { return low_halves(dwords8(p, stride)); }
inline __m256 high_halves(__m256i x) { return low_halves(_mm256_srli_epi32(x, 16)); }
inline __m256 half_of_all(const uint8_t* p) { return _mm256_cvtph_ps(_mm_set1_epi16(read<short>(p))); }
inline float half(const uint8_t* p) { return _cvtsh_ss(read<uint16_t>(p)); }
inline __m256 negated(__m256 x) { return _mm256_xor_ps(x, _mm256_set1_ps(-0.0f)); }
inline V nibbles_low(V x) { return mask_and(x, bytes(15)); }
inline V nibbles_high(V x) { return mask_and(right16<4>(x), bytes(15)); }

// From natural order to Order::dwords: 128-bit lane g of n[i] is group 4g + i.
inline void spread_groups(const V n[4], V c[4]) {
    V a = unpack_low32(n[0], n[1]), b = unpack_high32(n[0], n[1]);
    V x = unpack_low32(n[2], n[3]), y = unpack_high32(n[2], n[3]);
    c[0] = unpack_low64(a, x);
    c[1] = unpack_high64(a, x);
    c[2] = unpack_low64(b, y);
    c[3] = unpack_high64(b, y);
}

// What a format unpacks to. code = byte − bias, or a signed byte for wide formats on AVX2.
struct Unit {
    V c[4];
    __m256 factor;    // of the blocks
    __m256 offset;    // of the blocks: Minimum::block; or all −dmin: Minimum::group
    __m256 factor1;   // of the second halves of the blocks: Scales::two_floats
    V scale;          // of the groups, whole numbers as floats: Scales::group
    V minimum;        // likewise: Minimum::group
};

enum class Scales { block, group, two_floats };
enum class Minimum { none, block, group };

}  // namespace jubako::JUBAKO_ISA
