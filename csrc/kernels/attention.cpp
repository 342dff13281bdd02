#include "attention.h"

#include "lanes_math.h"
#include "pool.h"

namespace jubako::JUBAKO_ISA {
namespace {

#ifdef __AVX512F__
constexpr int TILE_HEADS = 4, TILE_CELLS = 4, TILE_VECTORS = 4;
#else
constexpr int TILE_HEADS = 2, TILE_CELLS = 2, TILE_VECTORS = 2;
#endif
constexpr int PAD_HEADS = 4;

void prefetch(const uint8_t* p, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) _mm_prefetch(reinterpret_cast<const char*>(p + i), _MM_HINT_T0);
}

// Where the cells [first, first + count) lie. Those of a block follow each other, and those of the tail within a page.
void find_records(const KvLayout& layout, const uint8_t* cache, const int32_t* table, int head, const Cells& cells, int64_t first,
                  int count, const uint8_t** records) {
    const size_t size = layout.record();
    for (int i = 0; i < count;) {
        const int64_t place = first + i, cell = cells.cell(place);
        const int64_t run = place < cells.block_cells ? cells.ratio - place % cells.ratio : layout.page - cell % layout.page;
        const int end = run < count - i ? i + int(run) : count;
        const uint8_t* record = cache + layout.at(table, head, cell);
        for (; i < end; ++i, record += size) records[i] = record;
    }
}

// Products of H query heads with C decoded rows: scores[h][c].
template <int H, int C>
inline void score_tile(const float* q, const float* rows, int dim, float* scores, size_t stride) {
    Lanes acc[H][C];
    for (int h = 0; h < H; ++h) {
        for (int c = 0; c < C; ++c) acc[h][c] = zero();
    }
    for (int i = 0; i < dim; i += LANES) {
        Lanes row[C];
        for (int c = 0; c < C; ++c) row[c] = load(rows + size_t(c) * dim + i);
        for (int h = 0; h < H; ++h) {
            const Lanes value = load(q + size_t(h) * dim + i);
            for (int c = 0; c < C; ++c) acc[h][c] = fma(value, row[c], acc[h][c]);
        }
    }
    if constexpr (C == 4) {
        for (int h = 0; h < H; ++h) _mm_storeu_ps(scores + h * stride, sum4(acc[h][0], acc[h][1], acc[h][2], acc[h][3]));
    } else {
        static_assert(C == 2 && H == 2);
        const __m128 sums = sum4(acc[0][0], acc[0][1], acc[1][0], acc[1][1]);
        _mm_storel_pi(reinterpret_cast<__m64*>(scores), sums);
        _mm_storeh_pi(reinterpret_cast<__m64*>(scores + stride), sums);
    }
}

// Adds `count` decoded rows, weighted, to V vectors of H heads: out[h][:] += weights[h][c] · rows[c].
template <int H, int V>
inline void mix_tile(const float* weights, size_t stride, const float* rows, int count, int dim, float* out) {
    Lanes acc[H][V];
    for (int h = 0; h < H; ++h) {
        for (int v = 0; v < V; ++v) acc[h][v] = load(out + size_t(h) * dim + v * LANES);
    }
    for (int c = 0; c < count; ++c) {
        Lanes row[V];
        for (int v = 0; v < V; ++v) row[v] = load(rows + size_t(c) * dim + v * LANES);
        for (int h = 0; h < H; ++h) {
            const Lanes weight = splat(weights[h * stride + c]);
            for (int v = 0; v < V; ++v) acc[h][v] = fma(weight, row[v], acc[h][v]);
        }
    }
    for (int h = 0; h < H; ++h) {
        for (int v = 0; v < V; ++v) store(out + size_t(h) * dim + v * LANES, acc[h][v]);
    }
}

template <int H>
inline void mix_rows(const float* weights, size_t stride, const float* rows, int count, int dim, float* out) {
    int i = 0;
    for (; i + TILE_VECTORS * LANES <= dim; i += TILE_VECTORS * LANES) {
        mix_tile<H, TILE_VECTORS>(weights, stride, rows + i, count, dim, out + i);
    }
    for (; i < dim; i += LANES) mix_tile<H, 1>(weights, stride, rows + i, count, dim, out + i);
}

}  // namespace

void attention_rotate(float* x, const float* gamma, int dim, float eps, const float* turn, int pairs) {
    rms_norm(x, gamma, dim, eps, x);
    rotate(x, turn, pairs);
}

void kv_store(const KvLayout& layout, const float* row, uint8_t* half_record) {
    const int dim = layout.dim;
    if (layout.bits == 8) {
        auto* codes = reinterpret_cast<int8_t*>(half_record);
        auto* scales = reinterpret_cast<float*>(half_record + dim);
        for (int i = 0; i < dim; i += KV_BLOCK) {
            const Lanes a = load(row + i), b = load(row + i + LANES);
            const float scale = largest(max(abs(a), abs(b))) / 127.0f;
            const Lanes inverse = splat(scale > 0.0f ? 1.0f / scale : 0.0f);
            const Lanes limit = splat(127.0f);
            store_i8(codes + i, max(min(a * inverse, limit), splat(-127.0f)));
            store_i8(codes + i + LANES, max(min(b * inverse, limit), splat(-127.0f)));
            scales[i / KV_BLOCK] = scale;
        }
        return;
    }
    Lanes most = zero();
    for (int i = 0; i < dim; i += LANES) most = max(abs(load(row + i)), most);
    float scale = 1.0f;
    const float top = largest(most);
    while (top > 32768.0f * scale && scale < 0x1p126f) scale *= 2.0f;
    const Lanes inverse = splat(1.0f / scale);
    auto* values = reinterpret_cast<uint16_t*>(half_record);
    for (int i = 0; i < dim; i += LANES) store_f16(values + i, load(row + i) * inverse);
    memcpy(half_record + 2 * size_t(dim), &scale, sizeof scale);
}

void kv_load(const KvLayout& layout, const uint8_t* half_record, float* row) {
    const int dim = layout.dim;
    if (layout.bits == 8) {
        const auto* codes = reinterpret_cast<const int8_t*>(half_record);
        const auto* scales = reinterpret_cast<const float*>(half_record + dim);
        for (int i = 0; i < dim; i += KV_BLOCK) {
            const Lanes scale = splat(scales[i / KV_BLOCK]);
            store(row + i, load_i8(codes + i) * scale);
            store(row + i + LANES, load_i8(codes + i + LANES) * scale);
        }
        return;
    }
    float scale;
    memcpy(&scale, half_record + 2 * size_t(dim), sizeof scale);
    const auto* values = reinterpret_cast<const uint16_t*>(half_record);
    for (int i = 0; i < dim; i += LANES) store(row + i, load_f16(values + i) * splat(scale));
}

void attend_segment(const KvLayout& layout, const uint8_t* cache, const int32_t* table, int head, const Cells& cells, int segment,
                    const float* q, size_t q_stride, int group, float* partial) {
    const int dim = layout.dim;
    const size_t half = layout.half_record();
    const int64_t first = segment * cells.segment_cells();
    const int64_t most_cells = cells.segment_cells(), left = cells.count - first;
    const int count = int(left < most_cells ? left : most_cells);
    const int padded = (count + ATTEND_TILE - 1) / ATTEND_TILE * ATTEND_TILE;
    const int rows_padded = (group + PAD_HEADS - 1) / PAD_HEADS * PAD_HEADS;

    // queries [rows_padded, dim], decoded rows [tile, dim], scores [rows_padded, padded], then where each cell lies
    const size_t floats = size_t(rows_padded) * dim + size_t(ATTEND_TILE) * dim + size_t(rows_padded) * padded;
    auto* queries = static_cast<float*>(
        scratch_bytes(Slot::ops_c, floats * sizeof(float) + size_t(padded + ATTEND_TILE) * sizeof(const uint8_t*)));
    float* rows = queries + size_t(rows_padded) * dim;
    float* scores = rows + size_t(ATTEND_TILE) * dim;
    auto* records = reinterpret_cast<const uint8_t**>(queries + floats);
    for (int h = 0; h < rows_padded; ++h) {
        memcpy(queries + size_t(h) * dim, q + size_t(h < group ? h : group - 1) * q_stride, size_t(dim) * sizeof(float));
    }
    find_records(layout, cache, table, head, cells, first, count, records);
    for (int i = count; i < padded + ATTEND_TILE; ++i) records[i] = records[count - 1];

    for (int cell = 0; cell < padded; cell += ATTEND_TILE) {
        for (int i = 0; i < ATTEND_TILE; ++i) {
            prefetch(records[cell + ATTEND_TILE + i], layout.record());
            kv_load(layout, records[cell + i], rows + size_t(i) * dim);
        }
        for (int i = 0; i < ATTEND_TILE; i += TILE_CELLS) {
            for (int h = 0; h < rows_padded; h += TILE_HEADS) {
                score_tile<TILE_HEADS, TILE_CELLS>(queries + size_t(h) * dim, rows + size_t(i) * dim, dim,
                                                   scores + size_t(h) * padded + cell + i, padded);
            }
        }
    }

    float* maxima = partial + size_t(group) * dim;
    float* totals = maxima + group;
    const float scale = 1.0f / __builtin_sqrtf(float(dim));
    for (int h = 0; h < group; ++h) {
        float* line = scores + size_t(h) * padded;
        for (int i = count; i < padded; ++i) line[i] = -__builtin_inff();
        Lanes most = splat(-__builtin_inff()), total = zero();
        for (int i = 0; i < padded; i += LANES) most = max(load(line + i), most);
        const float top = largest(most);
        for (int i = 0; i < padded; i += LANES) {
            const Lanes weight = exp((load(line + i) - splat(top)) * splat(scale));
            store(line + i, weight);
            total = total + weight;
        }
        maxima[h] = top * scale;
        totals[h] = sum(total);
    }

    memset(partial, 0, size_t(group) * dim * sizeof(float));
    for (int cell = 0; cell < count; cell += ATTEND_TILE) {
        const int tile = count - cell < ATTEND_TILE ? count - cell : ATTEND_TILE;
        for (int i = 0; i < tile; ++i) kv_load(layout, records[cell + i] + half, rows + size_t(i) * dim);
        int h = 0;
        for (; h + TILE_HEADS <= group; h += TILE_HEADS) {
            mix_rows<TILE_HEADS>(scores + size_t(h) * padded + cell, padded, rows, tile, dim, partial + size_t(h) * dim);
        }
        for (; h < group; ++h) mix_rows<1>(scores + size_t(h) * padded + cell, padded, rows, tile, dim, partial + size_t(h) * dim);
    }
}

void attend_merge(int dim, int group, int row, const float* partials, size_t stride, int segments, const float* gate, float* out) {
    const size_t maximum = size_t(group) * dim + row, total = maximum + group, sums = size_t(row) * dim;
    float top = partials[maximum];
    for (int s = 1; s < segments; ++s) {
        const float other = partials[s * stride + maximum];
        top = other > top ? other : top;
    }
    float weights[ATTEND_MAX_SEGMENTS], all = 0.0f;
    for (int s = 0; s < segments; ++s) {
        weights[s] = exp(partials[s * stride + maximum] - top);
        all = __builtin_fmaf(weights[s], partials[s * stride + total], all);
    }
    const Lanes share = splat(1.0f / all);
    for (int i = 0; i < dim; i += LANES) {
        Lanes acc = splat(weights[0]) * load(partials + sums + i);
        for (int s = 1; s < segments; ++s) acc = fma(splat(weights[s]), load(partials + s * stride + sums + i), acc);
        store(out + i, acc * share * sigmoid(load(gate + i)));
    }
}

}  // namespace jubako::JUBAKO_ISA
