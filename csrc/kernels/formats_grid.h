// Formats whose weights come from a codebook: IQ1, IQ2 and IQ3.
#pragma once

#include "../codebooks.h"
#include "formats_k.h"

namespace jubako::JUBAKO_ISA {

// Keeps a compiler from taking the numbers out of the registers they were stored from, which is slower than loading them.
template <class Array>
inline void through_memory(Array& array) {
    asm volatile("" : "+m"(array));
}

// Grids of eight weights. Lane b of index[r] numbers the entry of weights 32b + 8r … + 7; vector r of `g` gets those of all blocks.
inline void eights(const uint64_t* grid, const __m256i index[4], V g[4]) {
#ifdef JUBAKO_AVX512
    for (int r = 0; r < 4; ++r) g[r] = _mm512_i32gather_epi64(index[r], grid, 8);
#else
    alignas(32) uint32_t at[32];
    for (int r = 0; r < 4; ++r) _mm256_store_si256(reinterpret_cast<__m256i*>(at + 8 * r), index[r]);
    through_memory(at);
    auto two = [&](const uint32_t* i) {
        __m128d low = _mm_load_sd(reinterpret_cast<const double*>(grid + i[0]));
        return _mm_castpd_si128(_mm_loadh_pd(low, reinterpret_cast<const double*>(grid + i[1])));
    };
    auto four = [&](const uint32_t* i) { return _mm256_inserti128_si256(_mm256_castsi128_si256(two(i)), two(i + 2), 1); };
    for (int r = 0; r < 4; ++r) g[r] = {four(at + 8 * r), four(at + 8 * r + 4)};
#endif
}

// Byte r of each dword.
inline void bytes_of_dwords(__m256i x, __m256i index[4]) {
    const __m256i byte = _mm256_set1_epi32(255);
    index[0] = _mm256_and_si256(x, byte);
    index[1] = _mm256_and_si256(_mm256_srli_epi32(x, 8), byte);
    index[2] = _mm256_and_si256(_mm256_srli_epi32(x, 16), byte);
    index[3] = _mm256_srli_epi32(x, 24);
}

// Bits first + step·r of each dword, `count` of them, into bits 8 … of index r.
template <int first, int step, int count>
inline void add_high_bits(__m256i x, __m256i index[4]) {
    const __m256i mask = _mm256_set1_epi32(((1 << count) - 1) << 8);
    for (int r = 0; r < 4; ++r) {
        const int shift = 8 - first - step * r;
        __m256i high = shift >= 0 ? _mm256_slli_epi32(x, shift) : _mm256_srli_epi32(x, -shift);
        index[r] = _mm256_or_si256(index[r], _mm256_and_si256(high, mask));
    }
}

// The low, or the high, dwords of eight qwords.
inline __m256i dwords_of_qwords(const uint8_t* p, bool high) {
    __m256 a = _mm256_castsi256_ps(load32(p)), b = _mm256_castsi256_ps(load32(p + 32));
    __m256 t = high ? _mm256_shuffle_ps(a, b, 0xdd) : _mm256_shuffle_ps(a, b, 0x88);
    return _mm256_permute4x64_epi64(_mm256_castps_si256(t), 0xd8);
}

inline void eights_to_dwords(const V g[4], V c[4]) {
    c[0] = even_odd32(g[0], left64<32>(g[2]));
    c[1] = even_odd32(right64<32>(g[0]), g[2]);
    c[2] = even_odd32(g[1], left64<32>(g[3]));
    c[3] = even_odd32(right64<32>(g[1]), g[3]);
}

#ifdef JUBAKO_AVX512

// Tables of 256 bytes in registers, looked up by quarters.
struct Quarters {
    Mask second, third, fourth;
    explicit Quarters(V index) {
        const Mask upper = _mm512_movepi8_mask(index), odd = _mm512_test_epi8_mask(index, bytes(64));
        second = _kandn_mask64(upper, odd);
        third = _kandn_mask64(odd, upper);
        fourth = _kand_mask64(odd, upper);
    }
};

inline V table_at(const uint8_t* table, V index, const Quarters& in) {
    V x = _mm512_permutexvar_epi8(index, load64(table));
    x = _mm512_mask_permutexvar_epi8(x, in.second, index, load64(table + 64));
    x = _mm512_mask_permutexvar_epi8(x, in.third, index, load64(table + 128));
    return _mm512_mask_permutexvar_epi8(x, in.fourth, index, load64(table + 192));
}

// Codes of weights 0 … 3 of each index. pairs: their levels, weights 0–1 and 2–3, in bits 0 … 2 and 4 … 6 of a byte; signs: 32 bits at
// the bottom of each block's qword; values: of the eight levels, and of the eight with a minus. A look-up takes six bits of a byte,
// so the values are there four times.
inline void signed_levels(const V pairs[2], V signs, __m128i values, V c[4]) {
    const V table = quads(values);
    const V nibbles = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(0x1c1814100c080400ll), signs);
    // bit matrices, output bit 7 first: sign bits 0 and 1, or 2 and 3, of a nibble to bits 3 and 7
    const long long to_levels[2] = {0x0000000100000002ll, 0x0000000400000008ll};
    for (int i = 0; i < 2; ++i) {
        const V pair = both(pairs[i], _mm512_gf2p8affine_epi64_epi8(nibbles, _mm512_set1_epi64(to_levels[i]), 0));
        c[2 * i] = _mm512_permutexvar_epi8(pair, table);
        c[2 * i + 1] = _mm512_permutexvar_epi8(right16<4>(pair), table);
    }
}

constexpr Order small_grids = Order::planes;

#else

// Grids of four weights: at(i) numbers the entry of weights 4i … 4i + 3.
template <class Index>
inline void fours(const uint32_t* grid, Index at, V c[4]) {
    auto eight = [&](int i) {
        auto entry = [&](int l) { return static_cast<int>(grid[at(i + 4 * l)]); };
        __m128i low = dwords4(entry(0), entry(1), entry(2), entry(3)), high = dwords4(entry(4), entry(5), entry(6), entry(7));
        return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
    };
    for (int r = 0; r < 4; ++r) c[r] = {eight(r), eight(32 + r)};
}

constexpr Order small_grids = Order::dwords;

#endif

// The bytes are magnitudes + 64; where a bit is set the code changes sign.
template <Order order, class Signs>
inline void apply_signs(Signs signs, V c[4]) {
    BlockBits<order> bits(signs);
    c[0] = subtract_from_where(c[0], bits.template of<0>(), 128);
    c[1] = subtract_from_where(c[1], bits.template of<1>(), 128);
    c[2] = subtract_from_where(c[2], bits.template of<2>(), 128);
    c[3] = subtract_from_where(c[3], bits.template of<3>(), 128);
}

// Bytes of 7 sign bits: bit 7 makes the number of minus signs even.
#ifdef JUBAKO_AVX512

// rows of the bit matrix, output bit 7 first: the sum of the input bits 0 … 6, then each bit as it is
constexpr long long parity_matrix = 0x010204081020407fll;
inline __m256i with_parity(__m256i x) { return _mm256_gf2p8affine_epi64_epi8(x, _mm256_set1_epi64x(parity_matrix), 0); }

// 4 × 7 sign bits at the bottom of each dword; for BlockBits.
inline V signs_of_28(__m256i x) {
    V fields = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(0x150e0700), _mm512_cvtepu32_epi64(x));
    return _mm512_gf2p8affine_epi64_epi8(fields, _mm512_set1_epi64(parity_matrix), 0);
}

#else

inline __m256i with_parity(__m256i x) {
    const __m256i odd = _mm256_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0, 0, -128, -128, 0,
                                         -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0);
    const __m256i nibble = _mm256_set1_epi8(15);
    __m256i low = _mm256_shuffle_epi8(odd, _mm256_and_si256(x, nibble));
    __m256i high = _mm256_shuffle_epi8(odd, _mm256_and_si256(_mm256_srli_epi16(x, 4), nibble));
    return _mm256_or_si256(x, _mm256_xor_si256(low, high));
}

inline __m256i signs_of_28(__m256i x) {
    __m256i a = _mm256_and_si256(x, _mm256_set1_epi32(0x7f));
    __m256i b = _mm256_and_si256(_mm256_slli_epi32(x, 1), _mm256_set1_epi32(0x7f00));
    __m256i c = _mm256_and_si256(_mm256_slli_epi32(x, 2), _mm256_set1_epi32(0x7f0000));
    __m256i d = _mm256_and_si256(_mm256_slli_epi32(x, 3), _mm256_set1_epi32(0x7f000000));
    return with_parity(_mm256_or_si256(_mm256_or_si256(a, b), _mm256_or_si256(c, d)));
}

#endif

// d · (2s + 1), s in the bits from `shift` up of every lane; what is above them has been cleared.
template <int shift>
inline __m256 odd_factor(__m256 d, __m256i x) {
    const __m256i one = _mm256_set1_epi32(1);
    __m256i odd = shift > 0 ? _mm256_or_si256(_mm256_srli_epi32(x, shift > 0 ? shift - 1 : 0), one)
                            : _mm256_or_si256(_mm256_slli_epi32(x, 1), one);
    return _mm256_mul_ps(d, _mm256_cvtepi32_ps(odd));
}

// d of one superblock times a power of two, in all lanes.
inline __m256 scaled_half(const uint8_t* p, float by) { return _mm256_mul_ps(half_of_all(p), _mm256_set1_ps(by)); }

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
        // a block has four index bytes, then 4 × 7 sign bits and the scale
        __m256i tail = dwords_of_qwords(p + 2, true);
        __m256i index[4];
        V g[4];
        bytes_of_dwords(dwords_of_qwords(p + 2, false), index);
        eights(codebooks.iq2_xxs, index, g);
        eights_to_dwords(g, u.c);
        apply_signs<order>(signs_of_28(tail), u.c);
        u.factor = odd_factor<28>(scaled_half(p, 0.125f), tail);
    }
};

struct IQ2_XS : Grid {
    static constexpr int bytes = 74;
    static constexpr Scales scales = Scales::group;
    static void unpack(const uint8_t* p, Unit& u) {
        // 16 bits for eight weights: 9 of the index, 7 signs
        __m256i a = load32(p + 2), b = load32(p + 34);
        const __m256i nine = _mm256_set1_epi32(511);
        __m256i low = dwords_of_qwords(p + 2, false), high = dwords_of_qwords(p + 2, true);
        __m256i index[4] = {_mm256_and_si256(low, nine), _mm256_and_si256(_mm256_srli_epi32(low, 16), nine),
                            _mm256_and_si256(high, nine), _mm256_and_si256(_mm256_srli_epi32(high, 16), nine)};
        V g[4];
        eights(codebooks.iq2_xs, index, g);
        eights_to_dwords(g, u.c);
        __m256i signs = _mm256_packus_epi16(_mm256_srli_epi16(a, 9), _mm256_srli_epi16(b, 9));
        signs = _mm256_permute4x64_epi64(signs, 0xd8);
        apply_signs<order>(with_parity(signs), u.c);
        u.scale = odd_nibbles(p + 66);
        u.factor = scaled_half(p, 0.125f);
    }
};

struct IQ2_S : Grid {
    static constexpr int bytes = 82;
    static constexpr Scales scales = Scales::group;
    static void unpack(const uint8_t* p, Unit& u) {
        __m256i index[4];
        V g[4];
        bytes_of_dwords(load32(p + 2), index);
        add_high_bits<0, 2, 2>(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(read<long long>(p + 66))), index);
        eights(codebooks.iq2_s, index, g);
        eights_to_dwords(g, u.c);
        apply_signs<Order::dwords>(load32(p + 34), u.c);
        u.scale = odd_nibbles(p + 74);
        u.factor = scaled_half(p, 0.125f);
    }
};

struct IQ3_XXS : Grid {
    static constexpr int bytes = 98;
    static constexpr Order order = small_grids;
    static void unpack(const uint8_t* p, Unit& u) {
        const __m256i x = load32(p + 66);
#ifdef JUBAKO_AVX512
        const V index = load64(p + 2);
        const Quarters in(index);
        const V pairs[2] = {table_at(codebooks.iq3_xxs_pairs[0], index, in), table_at(codebooks.iq3_xxs_pairs[1], index, in)};
        signed_levels(pairs, signs_of_28(x), _mm_setr_epi8(68, 76, 84, 92, 100, 108, 116, 126, 60, 52, 44, 36, 28, 20, 12, 2), u.c);
#else
        fours(codebooks.iq3_xxs, [&](int i) { return p[2 + i]; }, u.c);
        apply_signs<order>(signs_of_28(x), u.c);
#endif
        u.factor = odd_factor<28>(scaled_half(p, 0.25f), x);
    }
};

struct IQ3_S : Grid {
    static constexpr int bytes = 110;
    static constexpr Order order = small_grids;
    static void unpack(const uint8_t* p, Unit& u) {
#ifdef JUBAKO_AVX512
        const V index = load64(p + 2);
        const Mask high = read<uint64_t>(p + 66);
        const Quarters in(index);
        V pairs[2];
        for (int i = 0; i < 2; ++i)
            pairs[i] = _mm512_mask_blend_epi8(high, table_at(codebooks.iq3_s_pairs[i], index, in),
                                              table_at(codebooks.iq3_s_pairs[i] + 256, index, in));
        signed_levels(pairs, _mm512_cvtepu32_epi64(load32(p + 74)), _mm_setr_epi8(65, 67, 69, 71, 73, 75, 77, 79, 63, 61, 59, 57, 55, 53, 51, 49), u.c);
#else
        // the ninth bits beside the other eight: bit i of a block's byte belongs to its index i
        alignas(32) uint16_t at[64];
        const __m256i spread = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
        const __m256i bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201ull));
        for (int i = 0; i < 2; ++i) {
            __m256i low = load32(p + 2 + 32 * i), high = _mm256_shuffle_epi8(_mm256_set1_epi32(read<int>(p + 66 + 4 * i)), spread);
            high = _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(high, bit), bit), _mm256_set1_epi8(1));
            __m256i x = _mm256_unpacklo_epi8(low, high), y = _mm256_unpackhi_epi8(low, high);
            auto* to = reinterpret_cast<__m128i*>(at + 32 * i);
            _mm_store_si128(to, _mm256_castsi256_si128(x));
            _mm_store_si128(to + 1, _mm256_castsi256_si128(y));
            _mm_store_si128(to + 2, _mm256_extracti128_si256(x, 1));
            _mm_store_si128(to + 3, _mm256_extracti128_si256(y, 1));
        }
        through_memory(at);
        fours(codebooks.iq3_s, [&](int i) { return at[i]; }, u.c);
        apply_signs<order>(load32(p + 74), u.c);
#endif
        __m256i s = _mm256_srlv_epi32(_mm256_set1_epi32(read<int>(p + 106)), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
        u.factor = odd_factor<0>(half_of_all(p), _mm256_and_si256(s, _mm256_set1_epi32(15)));
    }
};

// IQ1 codes are 8 · grid ± 1.
struct IQ1_S : Superblock {
    static constexpr int bytes = 50, largest = 25, bias = 16;
    static void unpack(const uint8_t* p, Unit& u) {
        __m256i h = _mm256_cvtepu16_epi32(load16(p + 34)), index[4];
        V g[4];
        bytes_of_dwords(load32(p + 2), index);
        add_high_bits<0, 3, 3>(h, index);
        eights(codebooks.iq1, index, g);
        eights_to_dwords(g, u.c);
        __m256i minus = _mm256_srai_epi32(_mm256_slli_epi32(h, 16), 31);  // all ones where the delta is negative
        V deltas = twice32(_mm256_or_si256(minus, _mm256_set1_epi8(1)));
        for (V& c : u.c) c = add8(c, deltas);
        u.factor = odd_factor<12>(scaled_half(p, 0.125f), _mm256_and_si256(h, _mm256_set1_epi32(0x7000)));
    }
};

struct IQ1_M : Superblock {
    static constexpr int bytes = 56, largest = 25, bias = 16;
    static constexpr Scales scales = Scales::group;
    static void unpack(const uint8_t* p, Unit& u) {
        // nibble r of the 16 bits of a block: three index bits, delta sign
        __m256i h = _mm256_cvtepu16_epi32(load16(p + 32)), index[4];
        V g[4];
        bytes_of_dwords(load32(p), index);
        add_high_bits<0, 4, 3>(h, index);
        eights(codebooks.iq1, index, g);
        eights_to_dwords(g, u.c);
        // lane 2b: nibbles 0 (vectors 0, 1) and 1 (vectors 2, 3); lane 2b + 1: nibbles 2 and 3
        V first = delta_lanes(h, 3, 11), second = delta_lanes(h, 7, 15);
        u.c[0] = add8(u.c[0], first);
        u.c[1] = add8(u.c[1], first);
        u.c[2] = add8(u.c[2], second);
        u.c[3] = add8(u.c[3], second);
        // four numbers of 16 bits: four 3-bit scales each, and above them a quarter of d
        uint64_t s = read<uint64_t>(p + 48);
        uint16_t d = static_cast<uint16_t>((s >> 12 & 0xf) | (s >> 24 & 0xf0) | (s >> 36 & 0xf00) | (s >> 48 & 0xf000));
        __m128i packed = _mm_cvtsi64_si128(static_cast<long long>(s));
        const __m128i spread = _mm_setr_epi8(0, 1, 0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 7, 6, 7);
        __m128i x = _mm_shuffle_epi8(packed, spread);  // every number twice
        const __m128i mask = _mm_set1_epi32(0x00070007);
        __m128i even = _mm_and_si128(_mm_mulhi_epu16(x, _mm_setr_epi16(0, 1024, 0, 1024, 0, 1024, 0, 1024)), mask);
        even = _mm_or_si128(even, _mm_and_si128(x, _mm_set1_epi32(0x00000007)));
        __m128i odd = _mm_and_si128(_mm_mulhi_epu16(x, _mm_setr_epi16(8192, 128, 8192, 128, 8192, 128, 8192, 128)), mask);
        __m128i scales = _mm_or_si128(even, _mm_slli_epi16(odd, 8));
        u.scale = float_lanes(widen8(_mm_add_epi8(_mm_add_epi8(scales, scales), _mm_set1_epi8(1))));
        u.factor = _mm256_set1_ps(_cvtsh_ss(d) * 0.125f);
    }

private:
    // ±1 in the bytes of lane 2b by bit `even` of h[b], of lane 2b + 1 by bit `odd`.
    static V delta_lanes(__m256i h, int even, int odd) {
        auto lanes = [&](int bit) {
            __m256i minus = _mm256_srai_epi32(_mm256_slli_epi32(h, 31 - bit), 31);
            return twice32(_mm256_or_si256(minus, _mm256_set1_epi8(1)));
        };
        return even_odd32(lanes(even), lanes(odd));
    }
};

}  // namespace jubako::JUBAKO_ISA
