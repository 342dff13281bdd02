// Narrow rows: those of 1, 2 or 4 blocks that lie side by side are unpacked together, as many as fill a unit, and meet columns
// whose blocks are repeated.
#pragma once

#include "vector.h"

namespace jubako::JUBAKO_ISA {

// The partial sums of 8 / blocks rows of that many blocks, side by side, to their sums: the tree without what is zero.
template <int blocks>
inline void store_narrow(__m256 p, float scale, float* out) {
    if constexpr (blocks == 1) {
        _mm256_storeu_ps(out, _mm256_mul_ps(_mm256_add_ps(p, _mm256_setzero_ps()), _mm256_set1_ps(scale)));
    } else {
        if constexpr (blocks == 4) p = _mm256_add_ps(p, _mm256_permute_ps(p, 0x4e));  // P0+P2 P1+P3
        p = _mm256_mul_ps(_mm256_add_ps(_mm256_hadd_ps(p, p), _mm256_setzero_ps()), _mm256_set1_ps(scale));
        const __m128 low = _mm256_castps256_ps128(p), high = _mm256_extractf128_ps(p, 1);
        if constexpr (blocks == 2) {
            _mm_storeu_ps(out, _mm_movelh_ps(low, high));
        } else {
            _mm_store_ss(out, low);
            _mm_store_ss(out + 1, high);
        }
    }
}

// A column of `blocks` blocks, repeated until the unit is full.
template <int blocks, bool fine>
inline void repeat(const Column<fine>& from, Column<fine>& to) {
    for (int i = 0; i < 8; i += blocks) {
        for (int r = 0; r < 4; ++r) {
            std::memcpy(to.q + 64 * r + 8 * i, from.q + 64 * r, 8 * blocks);
            if constexpr (fine) std::memcpy(to.high + 64 * r + 8 * i, from.high + 64 * r, 8 * blocks);
            if constexpr (fine) std::memcpy(to.whole + 64 * r + 8 * i, from.whole + 64 * r, 16 * blocks);
        }
        std::memcpy(to.d + i, from.d, 4 * blocks);
        std::memcpy(to.s + i, from.s, 4 * blocks);
        std::memcpy(to.sum16 + 2 * i, from.sum16, 8 * blocks);
    }
}

template <class F, bool fine, int blocks, int columns>
__attribute__((flatten)) void narrow_rows(const RowsTimesColumns& job, int first_column) {
    constexpr int together = 8 / blocks, unit_bytes = 256 / F::weights * F::bytes;
    Column<fine> x[columns];
    for (int c = 0; c < columns; ++c) repeat<blocks, fine>(*static_cast<const Column<fine>*>(job.x[first_column + c]), x[c]);
    const uint8_t* w = job.weights + job.first_row * job.row_stride;
    for (int64_t row = job.first_row; row < job.first_row + job.rows; row += together, w += unit_bytes) {
        for (int line = 0; line < unit_bytes; line += 64) _mm_prefetch(reinterpret_cast<const char*>(w + prefetch_distance + line), _MM_HINT_T0);
        Unit u;
        F::unpack(w, u);
        for (int c = 0; c + 1 < columns; c += 2) {
            Pair pair;
            step<F, fine>(u, u, x[c], x[c + 1], pair);
            store_narrow<blocks>(pair.first(), job.scale, job.out[first_column + c] + row);
            store_narrow<blocks>(pair.second(), job.scale, job.out[first_column + c + 1] + row);
        }
        if (columns % 2 == 1) {
            const __m256 p = step<F, fine>(u, x[columns - 1], _mm256_setzero_ps());
            store_narrow<blocks>(p, job.scale, job.out[first_column + columns - 1] + row);
        }
    }
}

template <class F, bool fine, int blocks>
void narrow_format(const RowsTimesColumns& job) {
    int c = 0;
    for (; c + 4 <= job.columns; c += 4) narrow_rows<F, fine, blocks, 4>(job, c);
    if (c + 2 <= job.columns) narrow_rows<F, fine, blocks, 2>(job, c), c += 2;
    if (c < job.columns) narrow_rows<F, fine, blocks, 1>(job, c);
}

// Takes the rows of `job` that go by whole units off it, if they are narrow.
template <class F, bool fine>
void take_narrow(RowsTimesColumns& job) {
    if constexpr (F::weights == 32) {
        const int64_t blocks = job.cols / 32;
        if (job.cols % 32 != 0 || (blocks != 1 && blocks != 2 && blocks != 4) || job.row_stride != blocks * F::bytes) return;
        RowsTimesColumns part = job;
        part.rows = job.rows / (8 / blocks) * (8 / blocks);
        job.first_row += part.rows;
        job.rows -= part.rows;
        if (blocks == 1) narrow_format<F, fine, 1>(part);
        else if (blocks == 2) narrow_format<F, fine, 2>(part);
        else narrow_format<F, fine, 4>(part);
    }
}

template <class F, bool fine>
void vector_format(RowsTimesColumns job) {
    take_narrow<F, fine>(job);
    if (job.rows > 0) whole_rows<F, fine>(job);
}

}  // namespace jubako::JUBAKO_ISA
