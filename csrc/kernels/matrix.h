// Rows times many columns. A panel of rows is unpacked once into the thread's scratch memory, then meets the columns a few at
// a time. In the panel a block of 32 weights is 8 × (4 bytes of every row), then the rows' factors; blocks j, j + 8, j + 16 …
// are taken together, so that one partial sum at a time lives in registers, and the partial sums are added up in the order of the tree.
#pragma once

#include "../pool.h"
#include "narrow.h"

namespace jubako::JUBAKO_ISA {

// Where weights 4k … 4k+3 of a block are in a column, from the block's first on.
constexpr int place_of(int k) { return 64 * (k % 4) + 4 * (k / 4); }

#ifdef JUBAKO_AVX512

constexpr int vector_lanes = 16;
using Lanes32 = __m512i;
using LanesF = __m512;
inline Lanes32 lanes(int x) { return _mm512_set1_epi32(x); }
inline LanesF lanes(float x) { return _mm512_set1_ps(x); }
inline LanesF to_float(Lanes32 x) { return _mm512_cvtepi32_ps(x); }
inline Lanes32 add(Lanes32 a, Lanes32 b) { return _mm512_add_epi32(a, b); }
inline LanesF add(LanesF a, LanesF b) { return _mm512_add_ps(a, b); }
inline LanesF multiply_lanes(LanesF a, LanesF b) { return _mm512_mul_ps(a, b); }
inline LanesF fused(LanesF a, LanesF b, LanesF c) { return _mm512_fmadd_ps(a, b, c); }
inline LanesF load_lanes(const float* p) { return _mm512_load_ps(p); }
inline void store_lanes(float* p, LanesF x) { _mm512_storeu_ps(p, x); }

// Dwords of two vectors of rows meet those of the columns: acc + dot, or of the columns' high parts 256 · (acc + dot).
template <class F, bool high, int dwords, int columns>
inline void dot_group(const uint8_t* codes, const int8_t* const (&x)[columns], Lanes32 (&acc)[columns][2]) {
    for (int k = 0; k < dwords; ++k) {
        const Lanes32 w0 = load64(codes + 128 * k), w1 = load64(codes + 128 * k + 64);
        for (int c = 0; c < columns; ++c) {
            const Lanes32 xs = lanes(read<int>(x[c] + place_of(k)));
            acc[c][0] = _mm512_dpbusd_epi32(acc[c][0], w0, xs);
            acc[c][1] = _mm512_dpbusd_epi32(acc[c][1], w1, xs);
        }
    }
    for (int c = 0; high && c < columns; ++c)
        for (int v = 0; v < 2; ++v) acc[c][v] = _mm512_slli_epi32(acc[c][v], 8);
}

#else

constexpr int vector_lanes = 8;
using Lanes32 = __m256i;
using LanesF = __m256;
inline Lanes32 lanes(int x) { return _mm256_set1_epi32(x); }
inline LanesF lanes(float x) { return _mm256_set1_ps(x); }
inline LanesF to_float(Lanes32 x) { return _mm256_cvtepi32_ps(x); }
inline Lanes32 add(Lanes32 a, Lanes32 b) { return _mm256_add_epi32(a, b); }
inline LanesF add(LanesF a, LanesF b) { return _mm256_add_ps(a, b); }
inline LanesF multiply_lanes(LanesF a, LanesF b) { return _mm256_mul_ps(a, b); }
inline LanesF fused(LanesF a, LanesF b, LanesF c) { return _mm256_fmadd_ps(a, b, c); }
inline LanesF load_lanes(const float* p) { return _mm256_load_ps(p); }
inline void store_lanes(float* p, LanesF x) { _mm256_storeu_ps(p, x); }

template <class F, bool high, int dwords, int columns>
inline void dot_group(const uint8_t* codes, const int8_t* const (&x)[columns], Lanes32 (&acc)[columns][2]) {
    constexpr int reach = 2 * 128 * F::largest;
    constexpr int together = 4 * reach <= 32767 ? 4 : 2 * reach <= 32767 ? 2 : 1;  // dwords whose 16-bit sums fit
    const __m256i ones = _mm256_set1_epi16(high ? 256 : 1);
    if constexpr (F::wide) {
        for (int k = 0; k < dwords; ++k) {
            const __m256i w0 = load32(codes + 64 * k), w1 = load32(codes + 64 * k + 32);
            const __m256i magnitude0 = _mm256_abs_epi8(w0), magnitude1 = _mm256_abs_epi8(w1);
            for (int c = 0; c < columns; ++c) {
                const __m256i xs = lanes(read<int>(x[c] + place_of(k)));
                const __m256i product0 = _mm256_maddubs_epi16(magnitude0, _mm256_sign_epi8(xs, w0));
                const __m256i product1 = _mm256_maddubs_epi16(magnitude1, _mm256_sign_epi8(xs, w1));
                acc[c][0] = _mm256_add_epi32(acc[c][0], _mm256_madd_epi16(product0, ones));
                acc[c][1] = _mm256_add_epi32(acc[c][1], _mm256_madd_epi16(product1, ones));
            }
        }
    } else {
        for (int k = 0; k < dwords; k += together)
            for (int v = 0; v < 2; ++v) {
                __m256i w[together];
                for (int i = 0; i < together; ++i) w[i] = load32(codes + 64 * (k + i) + 32 * v);
                for (int c = 0; c < columns; ++c) {
                    __m256i sum = _mm256_maddubs_epi16(w[0], lanes(read<int>(x[c] + place_of(k))));
                    for (int i = 1; i < together; ++i)
                        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(w[i], lanes(read<int>(x[c] + place_of(k + i)))));
                    acc[c][v] = _mm256_add_epi32(acc[c][v], _mm256_madd_epi16(sum, ones));
                }
            }
    }
}

// A block of signed bytes of 8 rows meets 16-bit columns. A lane of a sum is one of two for a row.
template <int columns>
inline void dot_block16(const uint8_t* codes, const int16_t* const (&x)[columns], Lanes32 (&dot)[columns]) {
    Lanes32 sum[columns][2];
    for (int c = 0; c < columns; ++c) sum[c][0] = sum[c][1] = lanes(0);
    for (int k = 0; k < 8; ++k) {
        const __m256i w0 = _mm256_cvtepi8_epi16(load16(codes + 64 * k)), w1 = _mm256_cvtepi8_epi16(load16(codes + 64 * k + 16));
        for (int c = 0; c < columns; ++c) {
            const __m256i xs = _mm256_set1_epi64x(read<long long>(x[c] + place_of(k)));
            sum[c][0] = add(sum[c][0], _mm256_madd_epi16(w0, xs));
            sum[c][1] = add(sum[c][1], _mm256_madd_epi16(w1, xs));
        }
    }
    for (int c = 0; c < columns; ++c) dot[c] = lanes_from_pairs(_mm256_hadd_epi32(sum[c][0], sum[c][1]));
}

#endif

constexpr int panel_rows = 2 * vector_lanes;

// 8 × 8 dwords: `from` strided by 4·from_dwords bytes, row i of the result at to[i].
inline void transpose8(const uint32_t* from, int64_t from_dwords, uint32_t* const to[8]) {
    __m256i a[8], b[8];
    for (int i = 0; i < 8; ++i) a[i] = load32(from + i * from_dwords);
    for (int i = 0; i < 4; ++i) {
        b[2 * i] = _mm256_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm256_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
    }
    for (int i = 0; i < 2; ++i) {
        a[4 * i] = _mm256_unpacklo_epi64(b[4 * i], b[4 * i + 2]);
        a[4 * i + 1] = _mm256_unpackhi_epi64(b[4 * i], b[4 * i + 2]);
        a[4 * i + 2] = _mm256_unpacklo_epi64(b[4 * i + 1], b[4 * i + 3]);
        a[4 * i + 3] = _mm256_unpackhi_epi64(b[4 * i + 1], b[4 * i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(to[i]), _mm256_permute2x128_si256(a[i], a[4 + i], 0x20));
        _mm256_store_si256(reinterpret_cast<__m256i*>(to[4 + i]), _mm256_permute2x128_si256(a[i], a[4 + i], 0x31));
    }
}

// A panel's block: dwords [8][rows], then floats [rows] each: the factors, the factors of the second halves or the two scales of the
// groups, the offsets, the two minima of the groups, as far as the format has them.
template <class F>
struct Panel {
    static constexpr int codes = 0, factor = 8;
    static constexpr int scale = factor + 1;
    static constexpr int offset = scale + (F::scales == Scales::block ? 0 : F::scales == Scales::group ? 2 : 1);
    static constexpr int minimum = offset + (F::minimum == Minimum::none ? 0 : 1);
    static constexpr int vectors = minimum + (F::minimum == Minimum::group ? 2 : 0);
    static constexpr int64_t dwords = static_cast<int64_t>(vectors) * panel_rows;

    // What the rows of one unit unpack to, before it is transposed.
    struct Rows {
        uint32_t codes[panel_rows][64];
        float scale[panel_rows][16], minimum[panel_rows][16];
        float factor[panel_rows][8], factor1[panel_rows][8], offset[panel_rows][8];
    };

    static void pack(const RowsTimesColumns& job, int64_t first, uint32_t* panel) {
        constexpr int unit_bytes = 256 / F::weights * F::bytes;
        alignas(64) Rows rows;
        alignas(64) uint8_t last[unit_bytes + 64] = {};
        const int64_t end = job.first_row + job.rows;
        for (int64_t start = 0; start < job.cols; start += 256) {
            for (int i = 0; i < panel_rows; ++i) {
                const int64_t row = first + i < end ? first + i : end - 1;
                const uint8_t* w = job.weights + row * job.row_stride + start / 256 * unit_bytes;
                if (job.cols - start < 256) {
                    std::memcpy(last, w, static_cast<size_t>(job.cols - start) / F::weights * F::bytes);
                    w = last;
                }
                Unit u;
                F::unpack(w, u);
                for (int r = 0; r < 4; ++r) store64(rows.codes[i] + 16 * r, u.c[r]);
                _mm256_store_ps(rows.factor[i], u.factor);
                if (F::scales == Scales::two_floats) _mm256_store_ps(rows.factor1[i], u.factor1);
                if (F::scales == Scales::group) store64(rows.scale[i], u.scale);
                if (F::minimum != Minimum::none) _mm256_store_ps(rows.offset[i], u.offset);
                if (F::minimum == Minimum::group) store64(rows.minimum[i], u.minimum);
            }
            const int blocks = static_cast<int>((job.cols - start < 256 ? job.cols - start : 256) / 32);
            transpose(rows, blocks, panel);
            panel += 8 * dwords;
        }
    }

private:
    static void transpose(const Rows& rows, int blocks, uint32_t* panel) {
        alignas(64) uint32_t unused[panel_rows];
        uint32_t* to[8];
        for (int i = 0; i < panel_rows; i += 8) {
            auto place = [&](int block, int vector) { return block < blocks ? panel + block * dwords + vector * panel_rows + i : unused; };
            for (int r = 0; r < 4; ++r)
                for (int half = 0; half < 2; ++half) {  // lanes 8·half … are blocks 4·half …
                    for (int l = 0; l < 8; ++l) to[l] = place(4 * half + l / 2, codes + 4 * (l & 1) + r);
                    transpose8(rows.codes[i] + 16 * r + 8 * half, 64, to);
                }
            auto blockwise = [&](const float* from, int vector) {
                for (int l = 0; l < 8; ++l) to[l] = place(l, vector);
                transpose8(reinterpret_cast<const uint32_t*>(from), 8, to);
            };
            auto groupwise = [&](const float* from, int vector) {
                for (int half = 0; half < 2; ++half) {
                    for (int l = 0; l < 8; ++l) to[l] = place(4 * half + l / 2, vector + (l & 1));
                    transpose8(reinterpret_cast<const uint32_t*>(from) + 8 * half, 16, to);
                }
            };
            blockwise(rows.factor[i], factor);
            if (F::scales == Scales::two_floats) blockwise(rows.factor1[i], scale);
            if (F::scales == Scales::group) groupwise(rows.scale[i], scale);
            if (F::minimum != Minimum::none) blockwise(rows.offset[i], offset);
            if (F::minimum == Minimum::group) groupwise(rows.minimum[i], minimum);
        }
    }
};

// One block of a panel meets the same block of the columns.
template <class F, bool fine, int columns>
inline void block_step(const uint32_t* panel, const Column<fine>* const (&x)[columns], int64_t unit, int j, LanesF (&p)[columns][2]) {
    using P = Panel<F>;
    constexpr int halves = F::scales == Scales::block ? 1 : 2;  // that dots are taken of
    constexpr int shift = F::bias > 0 ? 7 - __builtin_ctz(F::bias > 0 ? F::bias : 1) : 0;
    auto part = [&](int vector, int v) {
        return load_lanes(reinterpret_cast<const float*>(panel) + vector * panel_rows + v * vector_lanes);
    };
    const uint8_t* codes = reinterpret_cast<const uint8_t*>(panel);
#ifdef JUBAKO_AVX2
    if constexpr (F::wide && fine) {
        static_assert(F::scales == Scales::block && F::minimum == Minimum::none);
        const int16_t* whole[columns];
        for (int c = 0; c < columns; ++c) whole[c] = x[c][unit].whole + 8 * j;
        for (int v = 0; v < 2; ++v) {
            Lanes32 dot[columns];
            dot_block16<columns>(codes + 32 * v, whole, dot);
            for (int c = 0; c < columns; ++c)
                p[c][v] = fused(to_float(dot[c]), multiply_lanes(part(P::factor, v), lanes(x[c][unit].d[j])), p[c][v]);
        }
        return;
    }
#endif
    Lanes32 acc[columns][2];
    LanesF sums[columns][2];
    const int8_t* q[columns];
    for (int half = 0; half < halves; ++half) {
        const uint8_t* half_codes = codes + 16 * half * panel_rows;
        const int at = 8 * j + 4 * half;
        for (int c = 0; c < columns; ++c) acc[c][0] = acc[c][1] = lanes(0);
        if constexpr (fine) {
            for (int c = 0; c < columns; ++c) q[c] = x[c][unit].high + at;
            dot_group<F, true, 8 / halves, columns>(half_codes, q, acc);
        }
        for (int c = 0; c < columns; ++c) {
            const XUnit& xu = x[c][unit];
            const Lanes32 bias = lanes((halves == 1 ? xu.sum32[j] : xu.sum16[2 * j + half]) >> shift);
            for (int v = 0; F::bias > 0 && v < 2; ++v) acc[c][v] = add(acc[c][v], bias);
            q[c] = xu.q + at;
        }
        dot_group<F, false, 8 / halves, columns>(half_codes, q, acc);
        for (int c = 0; c < columns; ++c)
            for (int v = 0; v < 2; ++v) {
                if (F::scales == Scales::group) {
                    LanesF f = multiply_lanes(to_float(acc[c][v]), part(P::scale + half, v));
                    sums[c][v] = half == 0 ? f : add(sums[c][v], f);
                } else {
                    sums[c][v] = to_float(acc[c][v]);
                }
                if (F::scales != Scales::group || half == 1) {
                    const int factor = F::scales == Scales::two_floats && half == 1 ? P::scale : P::factor;
                    p[c][v] = fused(sums[c][v], multiply_lanes(part(factor, v), lanes(x[c][unit].d[j])), p[c][v]);
                }
            }
    }
    if (F::minimum == Minimum::block)
        for (int c = 0; c < columns; ++c)
            for (int v = 0; v < 2; ++v) p[c][v] = fused(part(P::offset, v), lanes(x[c][unit].s[j]), p[c][v]);
    if (F::minimum == Minimum::group)
        for (int c = 0; c < columns; ++c) {
            const XUnit& xu = x[c][unit];
            const float sum0 = static_cast<float>(-(xu.sum16[2 * j] >> 7)), sum1 = static_cast<float>(-(xu.sum16[2 * j + 1] >> 7));
            for (int v = 0; v < 2; ++v) {
                LanesF m = add(multiply_lanes(part(P::minimum, v), lanes(sum0)), multiply_lanes(part(P::minimum + 1, v), lanes(sum1)));
                p[c][v] = fused(m, multiply_lanes(part(P::offset, v), lanes(xu.d[j])), p[c][v]);
            }
        }
}

template <class F, bool fine, int columns>
void panel_tile(const RowsTimesColumns& job, const uint32_t* panel, int64_t first, int column) {
    using P = Panel<F>;
    const int64_t blocks = job.cols / 32;
    const Column<fine>* x[columns];
    for (int c = 0; c < columns; ++c) x[c] = static_cast<const Column<fine>*>(job.x[column + c]);
    LanesF pairs[columns][2], fours[columns][2], eights[columns][2];  // P0+P4, (P0+P4)+(P2+P6), the tree
    for (int step = 0; step < 8; ++step) {
        constexpr int order[8] = {0, 4, 2, 6, 1, 5, 3, 7};
        const int j = order[step];
        LanesF p[columns][2];
        for (int c = 0; c < columns; ++c) p[c][0] = p[c][1] = lanes(0.0f);
        for (int64_t b = j; b < blocks; b += 8) block_step<F, fine, columns>(panel + b * P::dwords, x, b / 8, j, p);
        for (int c = 0; c < columns; ++c)
            for (int v = 0; v < 2; ++v) {
                if (step % 2 == 0) pairs[c][v] = p[c][v];
                if (step % 2 == 1) pairs[c][v] = add(pairs[c][v], p[c][v]);
                if (step % 4 == 1) fours[c][v] = pairs[c][v];
                if (step % 4 == 3) fours[c][v] = add(fours[c][v], pairs[c][v]);
                if (step == 3) eights[c][v] = fours[c][v];
            }
    }
    const int64_t rows = job.first_row + job.rows - first;
    for (int c = 0; c < columns; ++c) {
        alignas(64) float y[panel_rows];
        for (int v = 0; v < 2; ++v) {
            LanesF sum = add(add(eights[c][v], fours[c][v]), lanes(0.0f));
            store_lanes(y + v * vector_lanes, multiply_lanes(sum, lanes(job.scale)));
        }
        std::memcpy(job.out[column + c] + first, y, sizeof(float) * static_cast<size_t>(rows < panel_rows ? rows : panel_rows));
    }
}

template <class F, bool fine>
void matrix_rows(const RowsTimesColumns& job) {
    constexpr int tile = vector_lanes == 8 ? (F::wide && fine ? 6 : 3) : F::scales == Scales::block ? 6 : 4;
    const int64_t blocks = (job.cols + 255) / 256 * 8;
    auto* panel = scratch<uint32_t>(Slot::panel, blocks * Panel<F>::dwords);
    for (int64_t row = job.first_row; row < job.first_row + job.rows; row += panel_rows) {
        Panel<F>::pack(job, row, panel);
        int c = 0;
        for (; c + tile <= job.columns; c += tile) panel_tile<F, fine, tile>(job, panel, row, c);
        // the last tile goes over some columns again
        if (c < job.columns) panel_tile<F, fine, tile>(job, panel, row, job.columns - tile);
    }
}

template <class F, bool fine>
void multiply_columns(const RowsTimesColumns& job) {
    if (job.columns <= vector_columns || job.rows < panel_rows / 2) vector_format<F, fine>(job);
    else matrix_rows<F, fine>(job);
}

template <class F>
void multiply_format(const RowsTimesColumns& job) {
    if (job.fine) multiply_columns<F, true>(job);
    else multiply_columns<F, false>(job);
}

}  // namespace jubako::JUBAKO_ISA
