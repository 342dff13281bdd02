// Rows times 1 … 8 columns: every unit of a row is unpacked once and meets all columns.
#pragma once

#include "../linear.h"
#include "units.h"

namespace jubako::JUBAKO_ISA {

inline float tree(__m256 p) {
    __m128 t = _mm_add_ps(_mm256_castps256_ps128(p), _mm256_extractf128_ps(p, 1));  // P0+P4 P1+P5 P2+P6 P3+P7
    t = _mm_add_ps(t, _mm_movehl_ps(t, t));
    return _mm_cvtss_f32(_mm_add_ss(t, _mm_shuffle_ps(t, t, 1))) + 0.0f;  // never -0
}

#ifdef JUBAKO_AVX512

template <class F, bool fine>
inline V dots(const V c[4], const Column<fine>& x) {
    V acc = zeros();
    if (F::bias > 0) acc = _mm512_srai_epi32(load64(x.sum16), 7 - __builtin_ctz(F::bias > 0 ? F::bias : 1));
    for (int r = 0; r < 4; ++r) acc = _mm512_dpbusd_epi32(acc, c[r], load64(x.q + 64 * r));
    if constexpr (fine) {
        V high = zeros();
        for (int r = 0; r < 4; ++r) high = _mm512_dpbusd_epi32(high, c[r], load64(x.high + 64 * r));
        acc = _mm512_add_epi32(acc, _mm512_slli_epi32(high, 8));
    }
    return acc;
}
inline __m256i even_lanes(V x) {
    return _mm512_castsi512_si256(_mm512_permutexvar_epi32(_mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15), x));
}
inline __m256i add_pairs(V x) { return even_lanes(_mm512_add_epi32(x, _mm512_srli_epi64(x, 32))); }
inline __m256 scaled_pairs(V x, V scale) {
    __m512 f = _mm512_mul_ps(_mm512_cvtepi32_ps(x), _mm512_castsi512_ps(scale));
    f = _mm512_add_ps(f, _mm512_castsi512_ps(_mm512_srli_epi64(_mm512_castps_si512(f), 32)));
    return _mm256_castsi256_ps(even_lanes(_mm512_castps_si512(f)));
}
inline __m256i odd_lanes(V x) { return even_lanes(_mm512_srli_epi64(x, 32)); }

#else

inline __m256i sum16_over(__m256i sum, int bias) {
    return bias == 0 ? _mm256_setzero_si256() : _mm256_srai_epi32(sum, 7 - __builtin_ctz(bias));
}
// acc + times · dots
template <class F>
inline __m256i dots8(const __m256i& c0, const __m256i& c1, const __m256i& c2, const __m256i& c3, const int8_t* q, short times,
                     __m256i acc) {
    const __m256i ones = _mm256_set1_epi16(times);
    const __m256i c[4] = {c0, c1, c2, c3};
    __m256i product[4];
    for (int r = 0; r < 4; ++r) {
        __m256i x = load32(q + 64 * r);
        product[r] = F::wide ? _mm256_maddubs_epi16(_mm256_abs_epi8(c[r]), _mm256_sign_epi8(x, c[r])) : _mm256_maddubs_epi16(c[r], x);
    }
    constexpr int reach = F::wide ? 32512 : 2 * 128 * F::largest;  // magnitude of one 16-bit sum
    if (4 * reach <= 32767) {
        __m256i sum = _mm256_add_epi16(_mm256_add_epi16(product[0], product[1]), _mm256_add_epi16(product[2], product[3]));
        return _mm256_add_epi32(acc, _mm256_madd_epi16(sum, ones));
    }
    if (2 * reach <= 32767) {
        __m256i a = _mm256_madd_epi16(_mm256_add_epi16(product[0], product[1]), ones);
        __m256i b = _mm256_madd_epi16(_mm256_add_epi16(product[2], product[3]), ones);
        return _mm256_add_epi32(acc, _mm256_add_epi32(a, b));
    }
    for (int r = 0; r < 4; ++r) acc = _mm256_add_epi32(acc, _mm256_madd_epi16(product[r], ones));
    return acc;
}
inline __m256i lanes_from_pairs(__m256i x) { return _mm256_permute4x64_epi64(x, 0xd8); }
// Signed bytes and 16-bit columns.
inline __m256i dots16(const __m256i& c0, const __m256i& c1, const __m256i& c2, const __m256i& c3, const int16_t* x) {
    const __m256i c[4] = {c0, c1, c2, c3};
    __m256i low = _mm256_setzero_si256(), high = low;
    for (int r = 0; r < 4; ++r) {
        const __m256i first = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(c[r]));
        const __m256i second = _mm256_cvtepi8_epi16(_mm256_extracti128_si256(c[r], 1));
        low = _mm256_add_epi32(low, _mm256_madd_epi16(first, load32(x + 64 * r)));
        high = _mm256_add_epi32(high, _mm256_madd_epi16(second, load32(x + 64 * r + 16)));
    }
    return lanes_from_pairs(_mm256_hadd_epi32(low, high));
}
template <class F, bool fine>
inline V dots(const V c[4], const Column<fine>& x) {
    if constexpr (fine && F::wide) {
        return {dots16(c[0].a, c[1].a, c[2].a, c[3].a, x.whole), dots16(c[0].b, c[1].b, c[2].b, c[3].b, x.whole + 32)};
    } else {
        const V sum = load64(x.sum16);
        __m256i a = sum16_over(sum.a, F::bias), b = sum16_over(sum.b, F::bias);
        if constexpr (fine) a = dots8<F>(c[0].a, c[1].a, c[2].a, c[3].a, x.high, 256, a);
        a = dots8<F>(c[0].a, c[1].a, c[2].a, c[3].a, x.q, 1, a);
        if constexpr (fine) b = dots8<F>(c[0].b, c[1].b, c[2].b, c[3].b, x.high + 32, 256, b);
        b = dots8<F>(c[0].b, c[1].b, c[2].b, c[3].b, x.q + 32, 1, b);
        return {a, b};
    }
}
inline __m256i even_lanes(V x) {
    return lanes_from_pairs(_mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b), 0x88)));
}
inline __m256i odd_lanes(V x) {
    return lanes_from_pairs(_mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b), 0xdd)));
}
inline __m256i add_pairs(V x) { return lanes_from_pairs(_mm256_hadd_epi32(x.a, x.b)); }
inline __m256 scaled_pairs(V x, V scale) {
    __m256 a = _mm256_mul_ps(_mm256_cvtepi32_ps(x.a), _mm256_castsi256_ps(scale.a));
    __m256 b = _mm256_mul_ps(_mm256_cvtepi32_ps(x.b), _mm256_castsi256_ps(scale.b));
    return _mm256_castsi256_ps(lanes_from_pairs(_mm256_castps_si256(_mm256_hadd_ps(a, b))));
}

#endif

// One unit meets one column.
template <class F, bool fine>
inline __m256 step(const Unit& u, const Column<fine>& x, __m256 p) {
    V dot = dots<F, fine>(u.c, x);
    __m256 d = _mm256_load_ps(x.d);
    if constexpr (F::scales == Scales::two_floats) {
        p = _mm256_fmadd_ps(_mm256_cvtepi32_ps(even_lanes(dot)), _mm256_mul_ps(u.factor, d), p);
        p = _mm256_fmadd_ps(_mm256_cvtepi32_ps(odd_lanes(dot)), _mm256_mul_ps(u.factor1, d), p);
    } else {
        __m256 f = F::scales == Scales::group ? scaled_pairs(dot, u.scale) : _mm256_cvtepi32_ps(add_pairs(dot));
        p = _mm256_fmadd_ps(f, _mm256_mul_ps(u.factor, d), p);
    }
    if constexpr (F::minimum == Minimum::block) p = _mm256_fmadd_ps(u.offset, _mm256_load_ps(x.s), p);
    if constexpr (F::minimum == Minimum::group) {
        __m256 sum = _mm256_mul_ps(scaled_pairs(load64(x.sum16), u.minimum), _mm256_set1_ps(-1.0f / 128));
        p = _mm256_fmadd_ps(sum, _mm256_mul_ps(u.offset, d), p);
    }
    return p;
}

#ifdef JUBAKO_AVX512

// Two products of a unit and a column whose partial sums share a register: those of the first in its lower half.
struct Pair {
    __m512 p = _mm512_setzero_ps();
    __m256 first() const { return _mm512_castps512_ps256(p); }
    __m256 second() const { return _mm512_extractf32x8_ps(p, 1); }
};
inline __m512 halves(__m256 low, __m256 high) { return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1); }
inline __m512 even_of(__m512 a, __m512 b) {
    return _mm512_permutex2var_ps(a, _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30), b);
}
inline __m512 odd_of(__m512 a, __m512 b) {
    return _mm512_permutex2var_ps(a, _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31), b);
}
inline __m512 scaled(V x, V scale) { return _mm512_mul_ps(_mm512_cvtepi32_ps(x), _mm512_castsi512_ps(scale)); }

// Unit u meets column x, unit v column y.
template <class F, bool fine>
inline void step(const Unit& u, const Unit& v, const Column<fine>& x, const Column<fine>& y, Pair& sum) {
    const V dot_x = dots<F, fine>(u.c, x), dot_y = dots<F, fine>(v.c, y);
    const __m512 d = halves(_mm256_load_ps(x.d), _mm256_load_ps(y.d)), factor = halves(u.factor, v.factor);
    __m512 p = sum.p;
    if constexpr (F::scales == Scales::group) {
        const __m512 a = scaled(dot_x, u.scale), b = scaled(dot_y, v.scale);
        p = _mm512_fmadd_ps(_mm512_add_ps(even_of(a, b), odd_of(a, b)), _mm512_mul_ps(factor, d), p);
    } else {
        const __m512 a = _mm512_castsi512_ps(dot_x), b = _mm512_castsi512_ps(dot_y);
        const V even = _mm512_castps_si512(even_of(a, b)), odd = _mm512_castps_si512(odd_of(a, b));
        if constexpr (F::scales == Scales::two_floats) {
            p = _mm512_fmadd_ps(_mm512_cvtepi32_ps(even), _mm512_mul_ps(factor, d), p);
            p = _mm512_fmadd_ps(_mm512_cvtepi32_ps(odd), _mm512_mul_ps(halves(u.factor1, v.factor1), d), p);
        } else {
            p = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_add_epi32(even, odd)), _mm512_mul_ps(factor, d), p);
        }
    }
    if constexpr (F::minimum == Minimum::block)
        p = _mm512_fmadd_ps(halves(u.offset, v.offset), halves(_mm256_load_ps(x.s), _mm256_load_ps(y.s)), p);
    if constexpr (F::minimum == Minimum::group) {
        const __m512 a = scaled(load64(x.sum16), u.minimum), b = scaled(load64(y.sum16), v.minimum);
        const __m512 minima = _mm512_mul_ps(_mm512_add_ps(even_of(a, b), odd_of(a, b)), _mm512_set1_ps(-1.0f / 128));
        p = _mm512_fmadd_ps(minima, _mm512_mul_ps(halves(u.offset, v.offset), d), p);
    }
    sum.p = p;
}

constexpr bool rows_in_pairs = true;

#else

struct Pair {
    __m256 x = _mm256_setzero_ps(), y = _mm256_setzero_ps();
    __m256 first() const { return x; }
    __m256 second() const { return y; }
};
template <class F, bool fine>
inline void step(const Unit& u, const Unit& v, const Column<fine>& x, const Column<fine>& y, Pair& sum) {
    sum.x = step<F, fine>(u, x, sum.x);
    sum.y = step<F, fine>(v, y, sum.y);
}

constexpr bool rows_in_pairs = false;  // two units do not leave enough registers

#endif

// How far ahead of the unpacking weights are called from memory, in bytes: on through the rows, then through `next`.
constexpr int prefetch_distance = 4096;

// flatten: compilers tire of putting the unpacking into so many functions.
template <class F, bool fine, int columns>
__attribute__((flatten)) void vector_rows(const RowsTimesColumns& job, int first_column) {
    constexpr int unit_blocks = 256 / F::weights, unit_bytes = unit_blocks * F::bytes;
    const int64_t units = job.cols / 256;
    const int64_t rest = job.cols % 256 / F::weights;
    const Column<fine>* x[columns];
    for (int c = 0; c < columns; ++c) x[c] = static_cast<const Column<fine>*>(job.x[first_column + c]);
    alignas(64) uint8_t last[unit_bytes + 64] = {};
    const uint8_t* end = job.weights + (job.first_row + job.rows) * job.row_stride;
    // Rows before that one are followed by other rows up to the end of their last unit.
    const int64_t beyond = ((unit_blocks - rest) * F::bytes + job.row_stride - 1) / job.row_stride;
    const bool dense = job.row_stride == job.cols / F::weights * F::bytes;
    const int64_t in_place = dense ? job.first_row + job.rows - beyond : 0;
    const int64_t jump = job.next == nullptr ? 0 : job.next - end;
    for (int64_t row = job.first_row; row < job.first_row + job.rows; ++row) {
        const uint8_t* w = job.weights + row * job.row_stride;
        Pair pairs[columns / 2 + 1];
        __m256 single = _mm256_setzero_ps();
        Unit u;
        auto meet = [&](int64_t unit) __attribute__((always_inline)) {
            for (int c = 0; c + 1 < columns; c += 2) step<F, fine>(u, u, x[c][unit], x[c + 1][unit], pairs[c / 2]);
            if (columns % 2 == 1) single = step<F, fine>(u, x[columns - 1][unit], single);
        };
        for (int64_t i = 0; i < units; ++i, w += unit_bytes) {
            const uint8_t* ahead = w + prefetch_distance;
            if (ahead >= end) ahead += jump;
            for (int line = 0; line < unit_bytes; line += 64) _mm_prefetch(reinterpret_cast<const char*>(ahead + line), _MM_HINT_T0);
            F::unpack(w, u);
            meet(i);
        }
        if (rest > 0) {  // the row ends inside of a unit: the blocks after it, or zeros, meet zeros
            if (row < in_place) {
                F::unpack(w, u);
            } else {
                std::memcpy(last, w, static_cast<size_t>(rest) * F::bytes);
                F::unpack(last, u);
            }
            meet(units);
        }
        for (int c = 0; c < columns; ++c) {
            const __m256 p = columns % 2 == 1 && c == columns - 1 ? single : c % 2 == 0 ? pairs[c / 2].first() : pairs[c / 2].second();
            job.out[first_column + c][row] = tree(p) * job.scale;
        }
    }
}

// One column meets two rows at a time, whose partial sums share a register; rows of whole units. What is left of `job` stays.
template <class F, bool fine>
__attribute__((flatten)) void take_row_pairs(RowsTimesColumns& job) {
    constexpr int unit_bytes = 256 / F::weights * F::bytes;
    if (job.columns != 1 || job.cols % 256 != 0) return;
    const auto* x = static_cast<const Column<fine>*>(job.x[0]);
    const uint8_t* end = job.weights + (job.first_row + job.rows) * job.row_stride;
    const int64_t units = job.cols / 256, jump = job.next == nullptr ? 0 : job.next - end;
    for (; job.rows >= 2; job.first_row += 2, job.rows -= 2) {
        const uint8_t *v = job.weights + job.first_row * job.row_stride, *w = v + job.row_stride;
        Pair pair;
        for (int64_t i = 0; i < units; ++i, v += unit_bytes, w += unit_bytes) {
            for (const uint8_t* row : {v, w}) {
                const uint8_t* ahead = row + prefetch_distance;
                if (ahead >= end) ahead += jump;
                for (int line = 0; line < unit_bytes; line += 64) _mm_prefetch(reinterpret_cast<const char*>(ahead + line), _MM_HINT_T0);
            }
            Unit first, second;
            F::unpack(v, first);
            F::unpack(w, second);
            step<F, fine>(first, second, x[i], x[i], pair);
        }
        job.out[0][job.first_row] = tree(pair.first()) * job.scale;
        job.out[0][job.first_row + 1] = tree(pair.second()) * job.scale;
    }
}

template <class F, bool fine>
void whole_rows(RowsTimesColumns job) {
    if constexpr (rows_in_pairs) take_row_pairs<F, fine>(job);
    if (job.rows == 0) return;
    for (int c = 0; c < job.columns;) {
        int left = job.columns - c;
        if (left >= 8) vector_rows<F, fine, 8>(job, c), c += 8;
        else if (left >= 4) vector_rows<F, fine, 4>(job, c), c += 4;
        else if (left == 3) vector_rows<F, fine, 3>(job, c), c += 3;
        else if (left == 2) vector_rows<F, fine, 2>(job, c), c += 2;
        else vector_rows<F, fine, 1>(job, c), c += 1;
    }
}

template <class F>
void decode_format(const uint8_t* row, int64_t cols, float* out) {
    constexpr int unit_blocks = 256 / F::weights, unit_bytes = unit_blocks * F::bytes;
    alignas(64) uint8_t last[unit_bytes + 64] = {};
    alignas(64) uint8_t codes[256];
    alignas(64) float factor[8], factor1[8], offset[8], scale[16], minimum[16];
    for (int64_t start = 0; start < cols; start += 256, row += unit_bytes) {
        const uint8_t* w = row;
        int count = cols - start < 256 ? static_cast<int>(cols - start) : 256;
        if (count < 256) std::memcpy(last, row, static_cast<size_t>(count) / F::weights * F::bytes), w = last;
        Unit u;
        F::unpack(w, u);
        for (int r = 0; r < 4; ++r) store64(codes + 64 * r, u.c[r]);
        _mm256_store_ps(factor, u.factor);
        if (F::scales == Scales::two_floats) _mm256_store_ps(factor1, u.factor1);
        if (F::minimum != Minimum::none) _mm256_store_ps(offset, u.offset);
        if (F::scales == Scales::group) store64(scale, u.scale);
        if (F::minimum == Minimum::group) store64(minimum, u.minimum);
        for (int i = 0; i < count; ++i) {
            int lane = i / 16, at = i % 16, block = i / 32;
            int byte = F::order == Order::dwords ? 64 * (at / 4) + 4 * lane + at % 4 : 64 * (at % 4) + 4 * lane + at / 4;
            int code = F::wide ? static_cast<int8_t>(codes[byte]) : codes[byte] - F::bias;
            float f = F::scales == Scales::two_floats && lane % 2 == 1 ? factor1[block] : factor[block];
            if (F::scales == Scales::group) f *= scale[lane];
            float value = f * static_cast<float>(code);
            if (F::minimum == Minimum::block) value += offset[block];
            if (F::minimum == Minimum::group) value += offset[block] * minimum[lane];
            out[start + i] = value;
        }
    }
}

}  // namespace jubako::JUBAKO_ISA
