#include "../activation.h"

#include <immintrin.h>

#include <cstring>

namespace jubako::JUBAKO_ISA {

namespace {

inline int sum_of(__m128i v) {
    v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0x4e));
    v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0xb1));
    return _mm_cvtsi128_si32(v);
}

inline __m256i max_magnitude(__m256i a, __m256i b) { return _mm256_max_epi32(a, b); }

// 32 bytes into place `block` of a unit.
inline void store_bytes(const __m256i q[4], int block, Order order, int8_t* to) {
    // packs interleave 128-bit lanes; the permutation restores the order
    __m256i w0 = _mm256_packs_epi32(q[0], q[1]), w1 = _mm256_packs_epi32(q[2], q[3]);
    __m256i bytes = _mm256_packs_epi16(w0, w1);
    bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    if (order == Order::planes) {
        const __m256i by_plane = _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 0, 4, 8, 12, 1, 5, 9, 13,
                                                  2, 6, 10, 14, 3, 7, 11, 15);
        bytes = _mm256_shuffle_epi8(bytes, by_plane);
    }
    alignas(32) int32_t dwords[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(dwords), bytes);
    for (int half = 0; half < 2; ++half)
        for (int r = 0; r < 4; ++r) std::memcpy(to + 64 * r + 8 * block + 4 * half, &dwords[4 * half + r], 4);
}

// The same of 32 whole numbers of 16 bits, in Order::dwords.
inline void store_whole(const __m256i q[4], int block, int16_t* to) {
    for (int half = 0; half < 2; ++half) {
        alignas(32) int64_t fours[4];
        __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(q[2 * half], q[2 * half + 1]), 0xd8);
        _mm256_store_si256(reinterpret_cast<__m256i*>(fours), words);
        for (int r = 0; r < 4; ++r) std::memcpy(to + 64 * r + 8 * block + 4 * half, &fours[r], 8);
    }
}

// One block of 32 into place `block` of a unit. Magnitudes are compared as integers: a NaN is then the largest of all.
template <bool fine>
inline void quantize_block(const float* x, int block, Order order, Column<fine>& out) {
    constexpr float most = fine ? 32385.0f : 127.0f;
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256 v[4];
    __m256i m[4];
    for (int i = 0; i < 4; ++i) {
        v[i] = _mm256_loadu_ps(x + 8 * i);
        m[i] = _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude);
    }
    __m256i m8 = max_magnitude(max_magnitude(m[0], m[1]), max_magnitude(m[2], m[3]));
    __m128i m4 = _mm_max_epi32(_mm256_castsi256_si128(m8), _mm256_extracti128_si256(m8, 1));
    m4 = _mm_max_epi32(m4, _mm_shuffle_epi32(m4, 0x4e));
    m4 = _mm_max_epi32(m4, _mm_shuffle_epi32(m4, 0xb1));
    float largest = _mm_cvtss_f32(_mm_castsi128_ps(m4));
    bool tiny = largest < 0x1p-100f;
    float d = tiny ? 0.0f : largest / most;
    if (fine) d += 0.0f * largest;  // NaN for an infinity
    __m256 inverse = _mm256_set1_ps(tiny ? 0.0f : most / largest);
    __m256i q[4];
    for (int i = 0; i < 4; ++i) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
    __m256i s0 = _mm256_add_epi32(q[0], q[1]), s1 = _mm256_add_epi32(q[2], q[3]);
    int sum0 = sum_of(_mm_add_epi32(_mm256_castsi256_si128(s0), _mm256_extracti128_si256(s0, 1)));
    int sum1 = sum_of(_mm_add_epi32(_mm256_castsi256_si128(s1), _mm256_extracti128_si256(s1, 1)));
    if constexpr (fine) {
        __m256i high[4], low[4];
        for (int i = 0; i < 4; ++i) {
            high[i] = _mm256_srai_epi32(_mm256_add_epi32(q[i], _mm256_set1_epi32(128)), 8);
            low[i] = _mm256_sub_epi32(q[i], _mm256_slli_epi32(high[i], 8));
        }
        store_bytes(low, block, order, out.q);
        store_bytes(high, block, order, out.high);
        if (order == Order::dwords) store_whole(q, block, out.whole);
    } else {
        store_bytes(q, block, order, out.q);
    }
    out.d[block] = d;
    // beyond any number when the block holds a NaN or an infinity, whose d makes every product one: let them wrap
    auto times128 = [](unsigned sum) { return static_cast<int32_t>(-128u * sum); };
    const unsigned sum = static_cast<unsigned>(sum0) + static_cast<unsigned>(sum1);
    out.s[block] = d * static_cast<float>(static_cast<int32_t>(sum));
    out.sum16[2 * block] = times128(static_cast<unsigned>(sum0));
    out.sum16[2 * block + 1] = times128(static_cast<unsigned>(sum1));
    out.sum32[block] = times128(sum);
}

template <bool fine>
inline void quantize_column(const float* x, int64_t count, int64_t units, Order order, Column<fine>* out) {
    int64_t whole = count / 32, blocks = (count + 31) / 32;
    if (blocks < 8 * units) std::memset(static_cast<void*>(out + blocks / 8), 0, sizeof(*out) * (units - blocks / 8));
    for (int64_t b = 0; b < whole; ++b) quantize_block<fine>(x + 32 * b, static_cast<int>(b % 8), order, out[b / 8]);
    if (whole < blocks) {
        float last[32] = {};
        std::memcpy(last, x + 32 * whole, static_cast<size_t>(count - 32 * whole) * sizeof(float));
        quantize_block<fine>(last, static_cast<int>(whole % 8), order, out[whole / 8]);
    }
}

}  // namespace

void quantize_blocks(const float* x, int64_t first, int64_t blocks, Order order, XUnit* out) {
    for (int64_t b = first; b < first + blocks; ++b, x += 32) quantize_block<false>(x, static_cast<int>(b % 8), order, out[b / 8]);
}

void quantize(const float* x, int64_t count, int64_t units, Order order, XUnit* out) {
    quantize_column<false>(x, count, units, order, out);
}

void quantize(const float* x, int64_t count, int64_t units, Order order, FineUnit* out) {
    quantize_column<true>(x, count, units, order, out);
}

}  // namespace jubako::JUBAKO_ISA
