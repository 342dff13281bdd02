#include "index.h"

#include "lanes_math.h"

namespace jubako::JUBAKO_ISA {
namespace {

#ifdef __AVX512F__
constexpr int GROUPS = 4;  // groups of 16 blocks scored together
#else
constexpr int GROUPS = 1;
#endif
constexpr int HEADS = 4;
static_assert(INDEX_GROUP == LANES);

// Adds the rectified products of H heads to the totals of G groups.
template <int G, int H>
inline void score_tile(const float* q, int dim, const float* const* keys, Lanes* totals) {
    Lanes acc[G][H];
    for (int g = 0; g < G; ++g) {
        for (int h = 0; h < H; ++h) acc[g][h] = zero();
    }
    for (int d = 0; d < dim; ++d) {
        Lanes key[G];
        for (int g = 0; g < G; ++g) key[g] = load(keys[g] + size_t(d) * LANES);
        for (int h = 0; h < H; ++h) {
            const Lanes value = splat(q[size_t(h) * dim + d]);
            for (int g = 0; g < G; ++g) acc[g][h] = fma(value, key[g], acc[g][h]);
        }
    }
    for (int h = 0; h < H; ++h) {
        for (int g = 0; g < G; ++g) totals[g] = totals[g] + max(acc[g][h], zero());
    }
}

template <int G>
void score_groups(const IndexShape& shape, const float* q, const float* const* keys, float* scores) {
    Lanes totals[G];
    for (int g = 0; g < G; ++g) totals[g] = zero();
    int h = 0;
    for (; h + HEADS <= shape.heads; h += HEADS) score_tile<G, HEADS>(q + size_t(h) * shape.dim, shape.dim, keys, totals);
    for (; h < shape.heads; ++h) score_tile<G, 1>(q + size_t(h) * shape.dim, shape.dim, keys, totals);
    const Lanes scale = splat(1.0f / __builtin_sqrtf(float(shape.dim)));
    for (int g = 0; g < G; ++g) store(scores + g * LANES, totals[g] * scale);
}

// How many of `count` scores are at or above `bound`.
int64_t count_from(const float* scores, int64_t count, float bound) {
    int64_t found = 0, i = 0;
#ifdef __AVX512F__
    __m512i acc = _mm512_setzero_si512();
    const __m512 bounds = _mm512_set1_ps(bound);
    const __m512i one = _mm512_set1_epi32(1);
    for (; i + LANES <= count; i += LANES) {
        acc = _mm512_mask_add_epi32(acc, _mm512_cmp_ps_mask(_mm512_loadu_ps(scores + i), bounds, _CMP_GE_OQ), acc, one);
    }
    found = _mm512_reduce_add_epi32(acc);
#else
    __m256i acc = _mm256_setzero_si256();
    const __m256 bounds = _mm256_set1_ps(bound);
    for (; i + 8 <= count; i += 8) {
        acc = _mm256_sub_epi32(acc, _mm256_castps_si256(_mm256_cmp_ps(_mm256_loadu_ps(scores + i), bounds, _CMP_GE_OQ)));
    }
    alignas(32) int32_t parts[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(parts), acc);
    for (int part : parts) found += part;
#endif
    for (; i < count; ++i) found += scores[i] >= bound;
    return found;
}

inline float as_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

inline uint32_t as_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

}  // namespace

void index_pool(const IndexShape& shape, const float* raw, int ring, int64_t block, const float* gamma, const float* turn,
                float* scratch, float* group) {
    const int dim = shape.dim;
    const float share = 1.0f / float(shape.ratio);
    for (int i = 0; i < dim; i += LANES) {
        Lanes acc = zero();
        for (int token = 0; token < shape.ratio; ++token) {
            acc = acc + load(raw + size_t((block * shape.ratio + token) % ring) * dim + i);
        }
        store(scratch + i, acc * splat(share));
    }
    rms_norm(scratch, gamma, dim, shape.eps, scratch);
    rotate(scratch, turn, shape.pairs);
    float* column = group + size_t(block % INDEX_GROUP);
    for (int i = 0; i < dim; ++i) column[size_t(i) * INDEX_GROUP] = scratch[i];
}

void index_query(const IndexShape& shape, const float* q, const float* gamma, const float* turn, float* out) {
    for (int h = 0; h < shape.heads; ++h) {
        const size_t head = size_t(h) * shape.dim;
        rms_norm(q + head, gamma, shape.dim, shape.eps, out + head);
        rotate(out + head, turn, shape.pairs);
    }
}

void index_score(const IndexShape& shape, const float* q, int queries, const IndexKeys& keys, int64_t first, int64_t last,
                 float* scores, int64_t stride) {
    const size_t query_size = size_t(shape.heads) * shape.dim;
    const float* tile[GROUPS];
    int64_t group = first;
    for (; group + GROUPS <= last; group += GROUPS) {
        for (int g = 0; g < GROUPS; ++g) tile[g] = keys.group(group + g);
        for (int i = 0; i < queries; ++i) score_groups<GROUPS>(shape, q + i * query_size, tile, scores + i * stride + group * LANES);
    }
    for (; group < last; ++group) {
        tile[0] = keys.group(group);
        for (int i = 0; i < queries; ++i) score_groups<1>(shape, q + i * query_size, tile, scores + i * stride + group * LANES);
    }
}

// Bisection on the bits of the scores, which for values ≥ 0 order like the values, each step one counting pass.
void index_choose(const float* scores, int64_t count, int budget, int32_t* blocks) {
    Lanes most = zero(), least = splat(__builtin_inff());
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        most = max(load(scores + i), most);
        least = min(load(scores + i), least);
    }
    float top = largest(most), bottom = -largest(splat(-0.0f) - least);
    for (; i < count; ++i) {
        top = scores[i] > top ? scores[i] : top;
        bottom = scores[i] < bottom ? scores[i] : bottom;
    }
    // at least `budget` scores are ≥ low, fewer are ≥ high
    uint32_t low = as_bits(bottom + 0.0f), high = as_bits(top) + 1;
    int64_t equal_wanted = -1;  // of the scores equal to low; negative: not known yet
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        const int64_t found = count_from(scores, count, as_float(middle));
        if (found >= budget) low = middle;
        else high = middle;
        if (found == budget) {
            equal_wanted = count;
            break;
        }
    }
    const float bound = as_float(low);
    if (equal_wanted < 0) equal_wanted = budget - count_from(scores, count, as_float(low + 1));

    int chosen = 0;
    for (i = 0; chosen < budget && i < count; i += LANES) {
        alignas(64) float tail[LANES];
        const float* from = scores + i;
        if (i + LANES > count) {
            for (int l = 0; l < LANES; ++l) tail[l] = i + l < count ? from[l] : -1.0f;
            from = tail;
        }
        const Lanes values = load(from);
        uint32_t take = mask_above(values, splat(bound));
        uint32_t equal = mask_equal(values, splat(bound));
        for (; equal && equal_wanted > 0; --equal_wanted) {
            take |= equal & (0u - equal);
            equal &= equal - 1;
        }
        for (; take; take &= take - 1) blocks[chosen++] = static_cast<int32_t>(i) + __builtin_ctz(take);
    }
}

}  // namespace jubako::JUBAKO_ISA
