// Formats with blocks of 32 to 128 weights. A unit is as many blocks as make 256 weights.
#pragma once

#include "units.h"

namespace jubako::JUBAKO_ISA {

#ifdef JUBAKO_AVX512
constexpr bool signed_codes = false;
#else
constexpr bool signed_codes = true;  // wide formats keep signed bytes and multiply magnitudes (vector.h)
#endif

// Block layouts as in ggml; `largest` bounds the stored bytes (wide: magnitudes up to 128).
struct Format {
    static constexpr int bias = 0;
    static constexpr bool wide = false;
    static constexpr Scales scales = Scales::block;
    static constexpr Minimum minimum = Minimum::none;
    static constexpr Order order = Order::dwords;
};

#ifdef JUBAKO_AVX512

// 16 bytes a block, byte j: low nibble weight j, high nibble weight j + 16. In the bytes' upper halves there is something.
inline void loose_nibbles(const uint8_t* p, int stride, V c[4]) {
    V e = quad(p, p + stride, p + 2 * stride, p + 3 * stride);
    V o = quad(p + 4 * stride, p + 5 * stride, p + 6 * stride, p + 7 * stride);
    const V index = _mm512_setr_epi32(0, 0, 4, 4, 8, 8, 12, 12, 16, 16, 20, 20, 24, 24, 28, 28);
    const V shift = _mm512_set1_epi64(4ll << 32);
    for (int r = 0; r < 4; ++r) c[r] = right32(_mm512_permutex2var_epi32(e, _mm512_add_epi32(index, dwords(r)), o), shift);
}

#endif

inline void nibble_blocks(const uint8_t* p, int stride, V c[4]) {
#ifdef JUBAKO_AVX512
    loose_nibbles(p, stride, c);
    for (int r = 0; r < 4; ++r) c[r] = mask_and(c[r], bytes(15));
#else
    V e = quad(p, p + 2 * stride, p + 4 * stride, p + 6 * stride);
    V o = quad(p + stride, p + 3 * stride, p + 5 * stride, p + 7 * stride);
    V n[4] = {nibbles_low(e), nibbles_high(e), nibbles_low(o), nibbles_high(o)};
    spread_groups(n, c);
#endif
}

// The table's bytes for the nibbles of eight blocks.
inline void look_up_blocks(__m128i table, const uint8_t* p, int stride, V c[4]) {
#ifdef JUBAKO_AVX512
    loose_nibbles(p, stride, c);
    for (int r = 0; r < 4; ++r) c[r] = _mm512_permutexvar_epi8(c[r], quads(table));  // takes six bits; the table is there four times
#else
    nibble_blocks(p, stride, c);
    for (int r = 0; r < 4; ++r) c[r] = look_up(table, c[r]);
#endif
}

inline void add_fifth_bits(__m256i high, V c[4]) {
    BlockBits<Order::dwords> bits(high);
    c[0] = add_where(c[0], bits.of<0>(), 16);
    c[1] = add_where(c[1], bits.of<1>(), 16);
    c[2] = add_where(c[2], bits.of<2>(), 16);
    c[3] = add_where(c[3], bits.of<3>(), 16);
}

struct Q4_0 : Format {
    static constexpr int weights = 32, bytes = 18, largest = 15, bias = 8;
    static void unpack(const uint8_t* p, Unit& u) {
        nibble_blocks(p + 2, bytes, u.c);
        u.factor = halves8(p, bytes);
    }
};

struct Q4_1 : Format {
    static constexpr int weights = 32, bytes = 20, largest = 15;
    static constexpr Minimum minimum = Minimum::block;
    static void unpack(const uint8_t* p, Unit& u) {
        nibble_blocks(p + 4, bytes, u.c);
        __m256i head = dwords8(p, bytes);
        u.factor = low_halves(head);
        u.offset = high_halves(head);
    }
};

struct Q5_0 : Format {
    static constexpr int weights = 32, bytes = 22, largest = 31, bias = 16;
    static void unpack(const uint8_t* p, Unit& u) {
        nibble_blocks(p + 6, bytes, u.c);
        add_fifth_bits(dwords8(p + 2, bytes), u.c);
        u.factor = halves8(p, bytes);
    }
};

struct Q5_1 : Format {
    static constexpr int weights = 32, bytes = 24, largest = 31;
    static constexpr Minimum minimum = Minimum::block;
    static void unpack(const uint8_t* p, Unit& u) {
        nibble_blocks(p + 8, bytes, u.c);
        add_fifth_bits(dwords8(p + 4, bytes), u.c);
        __m256i head = dwords8(p, bytes);
        u.factor = low_halves(head);
        u.offset = high_halves(head);
    }
};

struct Q8_0 : Format {
    static constexpr int weights = 32, bytes = 34, largest = 255, bias = signed_codes ? 0 : 128;
    static constexpr bool wide = signed_codes;
    static void unpack(const uint8_t* p, Unit& u) {
        V n[4];
        for (int i = 0; i < 4; ++i) {
            const uint8_t* first = p + 2 + (i >> 1) * bytes + 16 * (i & 1);
            n[i] = quad(first, first + 2 * bytes, first + 4 * bytes, first + 6 * bytes);
        }
        spread_groups(n, u.c);
#ifdef JUBAKO_AVX512
        for (V& c : u.c) c = _mm512_xor_si512(c, dwords(static_cast<int>(0x80808080u)));
#endif
        u.factor = halves8(p, bytes);
    }
};

inline __m128i iq4_table() {
    const __m128i table = _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
    return signed_codes ? table : _mm_add_epi8(table, _mm_set1_epi8(-128));
}

struct IQ4_NL : Format {
    static constexpr int weights = 32, bytes = 18, largest = 255, bias = signed_codes ? 0 : 128;
    static constexpr bool wide = signed_codes;
    static void unpack(const uint8_t* p, Unit& u) {
        look_up_blocks(iq4_table(), p + 2, bytes, u.c);
        u.factor = halves8(p, bytes);
    }
};

inline __m128i fp4_table() {  // doubled E2M1 + 16
    return _mm_setr_epi8(16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4);
}

struct MXFP4 : Format {
    static constexpr int weights = 32, bytes = 17, largest = 28, bias = 16;
    static void unpack(const uint8_t* p, Unit& u) {
        look_up_blocks(fp4_table(), p + 1, bytes, u.c);
        // 2^(e − 128); e = 0 and 1 are subnormal
        __m256i e = _mm256_and_si256(dwords8(p, bytes), _mm256_set1_epi32(255));
        __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
        __m256i subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
        __m256i is_normal = _mm256_cmpgt_epi32(e, _mm256_set1_epi32(1));
        u.factor = _mm256_castsi256_ps(_mm256_blendv_epi8(subnormal, normal, is_normal));
    }
};

struct NVFP4 : Format {
    static constexpr int weights = 64, bytes = 36, largest = 28, bias = 16;
    static constexpr Scales scales = Scales::two_floats;
    // Half of a UE4M3 number. Normal: exponent and mantissa at float's place, rebiased; below, mantissa · 2^-10. 0x7f reads as 0.
    static __m256 scale(__m128i codes) {
        __m256i x = _mm256_cvtepu8_epi32(codes), magnitude = _mm256_and_si256(x, _mm256_set1_epi32(0x7f));
        magnitude = _mm256_andnot_si256(_mm256_cmpeq_epi32(x, _mm256_set1_epi32(0x7f)), magnitude);
        __m256i normal = _mm256_add_epi32(_mm256_slli_epi32(magnitude, 20), _mm256_set1_epi32(119 << 23));
        __m256 subnormal = _mm256_mul_ps(_mm256_cvtepi32_ps(magnitude), _mm256_set1_ps(0x1p-10f));
        __m256i is_normal = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(7));
        return _mm256_blendv_ps(subnormal, _mm256_castsi256_ps(normal), _mm256_castsi256_ps(is_normal));
    }
    static void unpack(const uint8_t* p, Unit& u) {
        // Group l has 8 bytes: byte j low nibble weight j, high nibble weight j + 8.
        V first, second;
        const uint8_t *p0 = p + 4, *p1 = p + 40, *p2 = p + 76, *p3 = p + 112;
        even_odd_dwords(join(load32(p0), load32(p1)), join(load32(p2), load32(p3)), first, second);
        u.c[0] = look_up(fp4_table(), nibbles_low(first));
        u.c[1] = look_up(fp4_table(), nibbles_low(second));
        u.c[2] = look_up(fp4_table(), nibbles_high(first));
        u.c[3] = look_up(fp4_table(), nibbles_high(second));
        __m128i s = _mm_setr_epi32(read<int>(p), read<int>(p + 36), read<int>(p + 72), read<int>(p + 108));
        const __m128i split = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
        s = _mm_shuffle_epi8(s, split);
        u.factor = scale(s);
        u.factor1 = scale(_mm_unpackhi_epi64(s, s));
    }

private:
    static void even_odd_dwords(V x, V y, V& even, V& odd) {
#ifdef JUBAKO_AVX512
        const V evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        even = _mm512_permutex2var_epi32(x, evens, y);
        odd = _mm512_permutex2var_epi32(x, _mm512_add_epi32(evens, dwords(1)), y);
#else
        auto split = [](__m256i a, __m256i b, int part) {
            __m256 fa = _mm256_castsi256_ps(a), fb = _mm256_castsi256_ps(b);
            __m256 t = part == 0 ? _mm256_shuffle_ps(fa, fb, 0x88) : _mm256_shuffle_ps(fa, fb, 0xdd);
            return _mm256_permute4x64_epi64(_mm256_castps_si256(t), 0xd8);
        };
        even = {split(x.a, x.b, 0), split(y.a, y.b, 0)};
        odd = {split(x.a, x.b, 1), split(y.a, y.b, 1)};
#endif
    }
};

struct Q2_0 : Format {
    static constexpr int weights = 64, bytes = 18, largest = 3, bias = 1;
    static constexpr Order order = Order::planes;
    static void unpack(const uint8_t* p, Unit& u) {
        V x = quad(p + 2, p + 2 + bytes, p + 2 + 2 * bytes, p + 2 + 3 * bytes);
        const V three = jubako::JUBAKO_ISA::bytes(3);
        u.c[0] = mask_and(x, three);
        u.c[1] = mask_and(right16<2>(x), three);
        u.c[2] = mask_and(right16<4>(x), three);
        u.c[3] = mask_and(right16<6>(x), three);
        __m128i d = _mm_cvtsi32_si128(read<uint16_t>(p));
        d = _mm_insert_epi16(d, read<uint16_t>(p + bytes), 1);
        d = _mm_insert_epi16(d, read<uint16_t>(p + 2 * bytes), 2);
        d = _mm_insert_epi16(d, read<uint16_t>(p + 3 * bytes), 3);
        u.factor = _mm256_cvtph_ps(_mm_unpacklo_epi16(d, d));
    }
};

struct Q1_0 : Format {
    static constexpr int weights = 128, bytes = 18, largest = 2, bias = 1;
    static void unpack(const uint8_t* p, Unit& u) {
        __m256i x = _mm256_inserti128_si256(_mm256_castsi128_si256(load16(p + 2)), load16(p + 2 + bytes), 1);
        BlockBits<Order::dwords> bits(x);
        u.c[0] = add_where(zeros(), bits.of<0>(), 2);
        u.c[1] = add_where(zeros(), bits.of<1>(), 2);
        u.c[2] = add_where(zeros(), bits.of<2>(), 2);
        u.c[3] = add_where(zeros(), bits.of<3>(), 2);
        u.factor = _mm256_set_m128(_mm_set1_ps(half(p + bytes)), _mm_set1_ps(half(p)));
    }
};

}  // namespace jubako::JUBAKO_ISA
