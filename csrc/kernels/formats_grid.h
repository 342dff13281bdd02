// Formats whose weights come from a codebook: IQ1, IQ2 and IQ3.
#pragma once

#include "../codebooks.h"
#include "formats_k.h"

namespace jubako::JUBAKO_ISA {

// Grids of eight weights. index(b, r) numbers the entry of weights 32b + 8r … + 7. Vector r of `g` holds those of all blocks.
template <class Index>
inline void eights(const uint64_t* grid, Index index, V g[4]) {
    for (int r = 0; r < 4; ++r) {
        auto at = [&](int b) { return static_cast<long long>(grid[index(b, r)]); };
        g[r] = join(_mm256_setr_epi64x(at(0), at(1), at(2), at(3)), _mm256_setr_epi64x(at(4), at(5), at(6), at(7)));
    }
}

inline void eights_to_dwords(const V g[4], V c[4]) {
    c[0] = even_odd32(g[0], left64<32>(g[2]));
    c[1] = even_odd32(right64<32>(g[0]), g[2]);
    c[2] = even_odd32(g[1], left64<32>(g[3]));
    c[3] = even_odd32(right64<32>(g[1]), g[3]);
}

// Grids of four weights. index(i) numbers the entry of weights 4i … 4i + 3.
template <class Index>
inline void fours(const uint32_t* grid, Index index, V c[4]) {
    for (int r = 0; r < 4; ++r) {
        auto at = [&](int l) { return static_cast<int>(grid[index(4 * l + r)]); };
        c[r] = join(_mm256_setr_epi32(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7)),
                    _mm256_setr_epi32(at(8), at(9), at(10), at(11), at(12), at(13), at(14), at(15)));
    }
}

// The bytes are magnitudes + 64; where a bit is set the code changes sign.
template <Order order>
inline void apply_signs(__m256i signs, V c[4]) {
    BlockBits<order> bits(signs);
    c[0] = subtract_from_where(c[0], bits.template of<0>(), 128);
    c[1] = subtract_from_where(c[1], bits.template of<1>(), 128);
    c[2] = subtract_from_where(c[2], bits.template of<2>(), 128);
    c[3] = subtract_from_where(c[3], bits.template of<3>(), 128);
}

// Bytes of 7 sign bits: bit 7 makes the number of minus signs even.
inline __m256i with_parity(__m256i x) {
#ifdef JUBAKO_AVX512
    // rows of the bit matrix, output bit 7 first: the sum of all input bits, then each bit as it is
    return _mm256_gf2p8affine_epi64_epi8(x, _mm256_set1_epi64x(0x010204081020407fll), 0);
#else
    const __m256i odd = _mm256_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0, 0, -128, -128, 0,
                                         -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0);
    const __m256i nibble = _mm256_set1_epi8(15);
    __m256i low = _mm256_shuffle_epi8(odd, _mm256_and_si256(x, nibble));
    __m256i high = _mm256_shuffle_epi8(odd, _mm256_and_si256(_mm256_srli_epi16(x, 4), nibble));
    return _mm256_or_si256(x, _mm256_xor_si256(low, high));
#endif
}

// 4 × 7 sign bits at the bottom of each dword.
inline __m256i signs_of_28(__m256i x) {
    __m256i a = _mm256_and_si256(x, _mm256_set1_epi32(0x7f));
    __m256i b = _mm256_and_si256(_mm256_slli_epi32(x, 1), _mm256_set1_epi32(0x7f00));
    __m256i c = _mm256_and_si256(_mm256_slli_epi32(x, 2), _mm256_set1_epi32(0x7f0000));
    __m256i d = _mm256_and_si256(_mm256_slli_epi32(x, 3), _mm256_set1_epi32(0x7f000000));
    return with_parity(_mm256_or_si256(_mm256_or_si256(a, b), _mm256_or_si256(c, d)));
}

// d · (2s + 1) with s a whole number in every lane.
inline __m256 odd_factor(float d, __m256i s) {
    __m256i odd = _mm256_add_epi32(_mm256_add_epi32(s, s), _mm256_set1_epi32(1));
    return _mm256_mul_ps(_mm256_set1_ps(d), _mm256_cvtepi32_ps(odd));
}

// Nibbles of 8 bytes, low first, as 2s + 1 in float lanes.
inline V odd_nibbles(const uint8_t* p) {
    __m128i x = _mm_cvtsi64_si128(read<long long>(p));
    __m128i s = _mm_and_si128(_mm_unpacklo_epi8(x, _mm_srli_epi16(x, 4)), _mm_set1_epi8(15));
    return float_lanes(widen8(_mm_add_epi8(_mm_add_epi8(s, s), _mm_set1_epi8(1))));
}

struct Grid : Superblock {
    static constexpr int largest = 126, bias = 64;
};

struct IQ2_XXS : Grid {
    static constexpr int bytes = 66;
    static void unpack(const uint8_t* p, Unit& u) {
        V g[4];
        eights(codebooks.iq2_xxs, [&](int b, int r) { return p[2 + 8 * b + r]; }, g);
        eights_to_dwords(g, u.c);
        __m256i x = dwords8(p + 6, 8);
        apply_signs<Order::dwords>(signs_of_28(x), u.c);
        u.factor = odd_factor(half(p) * 0.125f, _mm256_srli_epi32(x, 28));
    }
};

struct IQ2_XS : Grid {
    static constexpr int bytes = 74;
    static constexpr Scales scales = Scales::group;
    static void unpack(const uint8_t* p, Unit& u) {
        V g[4];
        eights(codebooks.iq2_xs, [&](int b, int r) { return read<uint16_t>(p + 2 + 8 * b + 2 * r) & 511; }, g);
        eights_to_dwords(g, u.c);
        __m256i x = _mm256_packus_epi16(_mm256_srli_epi16(load32(p + 2), 9), _mm256_srli_epi16(load32(p + 34), 9));
        apply_signs<Order::dwords>(with_parity(_mm256_permute4x64_epi64(x, 0xd8)), u.c);
        u.scale = odd_nibbles(p + 66);
        u.factor = _mm256_set1_ps(half(p) * 0.125f);
    }
};

struct IQ2_S : Grid {
    static constexpr int bytes = 82;
    static constexpr Scales scales = Scales::group;
    static void unpack(const uint8_t* p, Unit& u) {
        V g[4];
        eights(codebooks.iq2_s, [&](int b, int r) { return p[2 + 4 * b + r] | (p[66 + b] << (8 - 2 * r) & 0x300); }, g);
        eights_to_dwords(g, u.c);
        apply_signs<Order::dwords>(load32(p + 34), u.c);
        u.scale = odd_nibbles(p + 74);
        u.factor = _mm256_set1_ps(half(p) * 0.125f);
    }
};

struct IQ3_XXS : Grid {
    static constexpr int bytes = 98;
    static void unpack(const uint8_t* p, Unit& u) {
        fours(codebooks.iq3_xxs, [&](int i) { return p[2 + i]; }, u.c);
        __m256i x = load32(p + 66);
        apply_signs<Order::dwords>(signs_of_28(x), u.c);
        u.factor = odd_factor(half(p) * 0.25f, _mm256_srli_epi32(x, 28));
    }
};

struct IQ3_S : Grid {
    static constexpr int bytes = 110;
    static void unpack(const uint8_t* p, Unit& u) {
        fours(codebooks.iq3_s, [&](int i) { return p[2 + i] | (p[66 + i / 8] >> i % 8 & 1) << 8; }, u.c);
        apply_signs<Order::dwords>(load32(p + 74), u.c);
        __m256i s = _mm256_srlv_epi32(_mm256_set1_epi32(read<int>(p + 106)), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
        u.factor = odd_factor(half(p), _mm256_and_si256(s, _mm256_set1_epi32(15)));
    }
};

// IQ1 codes are 8 · grid ± 1.
struct IQ1_S : Superblock {
    static constexpr int bytes = 50, largest = 25, bias = 16;
    static void unpack(const uint8_t* p, Unit& u) {
        V g[4];
        const uint8_t* high = p + 34;
        eights(codebooks.iq1, [&](int b, int r) { return p[2 + 4 * b + r] | (read<uint16_t>(high + 2 * b) >> 3 * r & 7) << 8; }, g);
        eights_to_dwords(g, u.c);
        __m256i h = _mm256_cvtepu16_epi32(load16(high));
        __m256i minus = _mm256_srai_epi32(_mm256_slli_epi32(h, 16), 31);  // all ones where the delta is negative
        __m256i delta = _mm256_or_si256(minus, _mm256_set1_epi8(1));
        V deltas = twice32(delta);
        for (V& c : u.c) c = add8(c, deltas);
        u.factor = odd_factor(half(p) * 0.125f, _mm256_and_si256(_mm256_srli_epi32(h, 12), _mm256_set1_epi32(7)));
    }
};

struct IQ1_M : Superblock {
    static constexpr int bytes = 56, largest = 25, bias = 16;
    static constexpr Scales scales = Scales::group;
    static void unpack(const uint8_t* p, Unit& u) {
        const uint8_t* high = p + 32;
        auto nibble = [&](int b, int r) { return high[2 * b + r / 2] >> 4 * (r & 1) & 15; };
        V g[4];
        eights(codebooks.iq1, [&](int b, int r) { return p[4 * b + r] | (nibble(b, r) & 7) << 8; }, g);
        // bit 3 of nibble r of block b: minus
        const V one = jubako::JUBAKO_ISA::bytes(1);
        __m256i h = _mm256_cvtepu16_epi32(load16(high));
        eights_to_dwords(g, u.c);
        // lane 2b: nibbles 0 (vectors 0, 1) and 1 (vectors 2, 3); lane 2b + 1: nibbles 2 and 3
        V first = delta_lanes(h, 3, 11), second = delta_lanes(h, 7, 15);
        u.c[0] = add8(add8(u.c[0], one), first);
        u.c[1] = add8(add8(u.c[1], one), first);
        u.c[2] = add8(add8(u.c[2], one), second);
        u.c[3] = add8(add8(u.c[3], one), second);
        uint64_t s = read<uint64_t>(p + 48);
        uint16_t d = static_cast<uint16_t>((s >> 12 & 0xf) | (s >> 24 & 0xf0) | (s >> 36 & 0xf00) | (s >> 48 & 0xf000));
        alignas(16) uint8_t odd[16];
        for (int l = 0; l < 16; ++l) odd[l] = static_cast<uint8_t>(2 * (s >> (16 * (l / 4) + 3 * (l % 4)) & 7) + 1);
        u.scale = float_lanes(widen8(load16(odd)));
        u.factor = _mm256_set1_ps(_cvtsh_ss(d) * 0.125f);
    }

private:
    // −2 in the bytes of lane 2b where bit `even` of h[b] is set, of lane 2b + 1 for bit `odd`; else 0.
    static V delta_lanes(__m256i h, int even, int odd) {
        const __m256i one = _mm256_set1_epi32(1), minus_two = _mm256_set1_epi32(static_cast<int>(0xfefefefeu));
        auto lanes = [&](int bit) {
            __m256i x = _mm256_and_si256(_mm256_srli_epi32(h, bit), one);
            return _mm256_and_si256(_mm256_cmpeq_epi32(x, one), minus_two);
        };
        return even_odd32(twice32(lanes(even)), twice32(lanes(odd)));
    }
};

}  // namespace jubako::JUBAKO_ISA
