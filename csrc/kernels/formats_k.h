// Formats with superblocks of 256 weights and packed sub-scales: the K-quants, IQ4_XS and the ternary ones.
// Natural order is built as spread_groups wants it: lane g of n[i] holds group 4g + i.
#pragma once

#include "formats_legacy.h"

namespace jubako::JUBAKO_ISA {

struct Superblock : Format {
    static constexpr int weights = 256;
};

// 6-bit scales and minima of Q4_K and Q5_K.
inline void k_scales(const uint8_t* p, Unit& u) {
    uint32_t a = read<uint32_t>(p + 4), b = read<uint32_t>(p + 8), c = read<uint32_t>(p + 12);
    uint64_t scales = (a & 0x3f3f3f3fu) | static_cast<uint64_t>((c & 0x0f0f0f0fu) | (a >> 2 & 0x30303030u)) << 32;
    uint64_t minima = (b & 0x3f3f3f3fu) | static_cast<uint64_t>((c >> 4 & 0x0f0f0f0fu) | (b >> 2 & 0x30303030u)) << 32;
    __m256 s = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(scales))));
    __m256 m = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(minima))));
    u.factor = _mm256_mul_ps(half_of_all(p), s);
    u.offset = _mm256_mul_ps(negated(half_of_all(p + 2)), m);
}

struct Q4_K : Superblock {
    static constexpr int bytes = 144, largest = 15;
    static constexpr Minimum minimum = Minimum::block;
    static void unpack(const uint8_t* p, Unit& u) {
        const uint8_t* q = p + 16;
        V a = quad(q, q + 32, q + 64, q + 96), b = quad(q + 16, q + 48, q + 80, q + 112);
        V n[4] = {nibbles_low(a), nibbles_low(b), nibbles_high(a), nibbles_high(b)};
        spread_groups(n, u.c);
        k_scales(p, u);
    }
};

struct Q5_K : Superblock {
    static constexpr int bytes = 176, largest = 31;
    static constexpr Minimum minimum = Minimum::block;
    static void unpack(const uint8_t* p, Unit& u) {
        const uint8_t* q = p + 48;
        V a = quad(q, q + 32, q + 64, q + 96), b = quad(q + 16, q + 48, q + 80, q + 112);
        V h0 = quads(load16(p + 16)), h1 = quads(load16(p + 32));
        const V even = dwords_of_lanes(0x01010101, 0x04040404, 0x10101010, 0x40404040);
        const V odd = dwords_of_lanes(0x02020202, 0x08080808, 0x20202020, static_cast<int>(0x80808080u));
        V n[4] = {add_where(nibbles_low(a), any_bits8(h0, even), 16), add_where(nibbles_low(b), any_bits8(h1, even), 16),
                  add_where(nibbles_high(a), any_bits8(h0, odd), 16), add_where(nibbles_high(b), any_bits8(h1, odd), 16)};
        spread_groups(n, u.c);
        k_scales(p, u);
    }
};

// Two bits a weight: weight n in byte 32·(n / 128) + n % 32, shift 2·((n % 128) / 32).
inline void two_bit_groups(const uint8_t* q, V n[4]) {
    const V shift0 = dwords_of_lanes(0, 4, 0, 4), shift1 = dwords_of_lanes(2, 6, 2, 6), three = bytes(3);
    V a = quad(q, q, q + 32, q + 32), b = quad(q + 16, q + 16, q + 48, q + 48);
    n[0] = mask_and(right32(a, shift0), three);
    n[1] = mask_and(right32(b, shift0), three);
    n[2] = mask_and(right32(a, shift1), three);
    n[3] = mask_and(right32(b, shift1), three);
}

struct Q2_K : Superblock {
    static constexpr int bytes = 84, largest = 3;
    static constexpr Scales scales = Scales::group;
    static constexpr Minimum minimum = Minimum::group;
    static void unpack(const uint8_t* p, Unit& u) {
        V n[4];
        two_bit_groups(p + 16, n);
        spread_groups(n, u.c);
        __m128i s = load16(p);
        const __m128i low = _mm_set1_epi8(15);
        u.scale = float_lanes(widen8(_mm_and_si128(s, low)));
        u.minimum = float_lanes(widen8(_mm_and_si128(_mm_srli_epi16(s, 4), low)));
        u.factor = half_of_all(p + 80);
        u.offset = negated(half_of_all(p + 82));
    }
};

struct Q3_K : Superblock {
    static constexpr int bytes = 110, largest = 7, bias = 4;
    static constexpr Scales scales = Scales::group;
    static void unpack(const uint8_t* p, Unit& u) {
        V n[4];
        two_bit_groups(p + 32, n);
        V h0 = quads(load16(p)), h1 = quads(load16(p + 16));
        const V even = dwords_of_lanes(0x01010101, 0x04040404, 0x10101010, 0x40404040);
        const V odd = dwords_of_lanes(0x02020202, 0x08080808, 0x20202020, static_cast<int>(0x80808080u));
        n[0] = add_where(n[0], any_bits8(h0, even), 4);
        n[1] = add_where(n[1], any_bits8(h1, even), 4);
        n[2] = add_where(n[2], any_bits8(h0, odd), 4);
        n[3] = add_where(n[3], any_bits8(h1, odd), 4);
        spread_groups(n, u.c);
        __m128i low = _mm_cvtsi64_si128(read<long long>(p + 96));
        low = _mm_and_si128(_mm_unpacklo_epi64(low, _mm_srli_epi16(low, 4)), _mm_set1_epi8(15));
        __m128i high = _mm_srlv_epi32(_mm_set1_epi32(read<int>(p + 104)), _mm_setr_epi32(0, 2, 4, 6));
        high = _mm_slli_epi16(_mm_and_si128(high, _mm_set1_epi8(3)), 4);
        u.scale = float_lanes(widen8(_mm_sub_epi8(_mm_or_si128(low, high), _mm_set1_epi8(32))));
        u.factor = half_of_all(p + 108);
    }
};

struct Q6_K : Superblock {
    static constexpr int bytes = 210, largest = 63, bias = 32;
    static constexpr Scales scales = Scales::group;
    static void unpack(const uint8_t* p, Unit& u) {
        const V shift = dwords_of_lanes(0, 4, 0, 4), low = jubako::JUBAKO_ISA::bytes(15);
        V n[4];
        two_bit_groups(p + 128, n);
        for (int i = 0; i < 4; ++i) {
            const uint8_t* q = p + 32 * (i >> 1) + 16 * (i & 1);
            n[i] = both(mask_and(right32(quad(q, q, q + 64, q + 64), shift), low), left16<4>(n[i]));
        }
        spread_groups(n, u.c);
        u.scale = float_lanes(widen8(load16(p + 192)));
        u.factor = half_of_all(p + 208);
    }
};

struct IQ4_XS : Superblock {
    static constexpr int bytes = 136, largest = 255, bias = signed_codes ? 0 : 128;
    static constexpr bool wide = signed_codes;
    static void unpack(const uint8_t* p, Unit& u) {
        nibble_blocks(p + 8, 16, u.c);
        for (V& c : u.c) c = look_up(iq4_table(), c);
        __m256i low = _mm256_srlv_epi32(_mm256_set1_epi32(read<int>(p + 4)), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
        __m256i high = _mm256_srlv_epi32(_mm256_set1_epi32(read<uint16_t>(p + 2)), _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
        low = _mm256_and_si256(low, _mm256_set1_epi32(15));
        high = _mm256_slli_epi32(_mm256_and_si256(high, _mm256_set1_epi32(3)), 4);
        __m256i s = _mm256_sub_epi32(_mm256_or_si256(low, high), _mm256_set1_epi32(32));
        u.factor = _mm256_mul_ps(half_of_all(p), _mm256_cvtepi32_ps(s));
    }
};

struct TQ2_0 : Superblock {
    static constexpr int bytes = 66, largest = 3, bias = 1;
    static void unpack(const uint8_t* p, Unit& u) {
        V n[4];
        two_bit_groups(p, n);
        spread_groups(n, u.c);
        u.factor = half_of_all(p + 64);
    }
};

// Five base-3 digits a byte as a fraction of 256: multiplying by 3^n brings digit n to the top.
struct TQ1_0 : Superblock {
    static constexpr int bytes = 54, largest = 2, bias = 1;
    static void unpack(const uint8_t* p, Unit& u) {
        alignas(64) uint8_t digits[256];
        const int powers[5] = {1, 3, 9, 27, 81};
        auto digit = [&](uint8_t byte, int n) { return static_cast<uint8_t>(static_cast<uint8_t>(byte * powers[n]) * 3 >> 8); };
        for (int n = 0; n < 5; ++n) {
            for (int m = 0; m < 32; ++m) digits[32 * n + m] = digit(p[m], n);
            for (int m = 0; m < 16; ++m) digits[160 + 16 * n + m] = digit(p[32 + m], n);
        }
        for (int n = 0; n < 4; ++n)
            for (int m = 0; m < 4; ++m) digits[240 + 4 * n + m] = digit(p[48 + m], n);
        V n[4];
        for (int i = 0; i < 4; ++i) {
            const uint8_t* first = digits + 16 * i;
            n[i] = quad(first, first + 64, first + 128, first + 192);
        }
        spread_groups(n, u.c);
        u.factor = half_of_all(p + 52);
    }
};

}  // namespace jubako::JUBAKO_ISA
