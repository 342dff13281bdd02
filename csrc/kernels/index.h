// The indexer's cache and its kernels: pooled block keys, scores of blocks, choice of blocks.
//
//   raw keys   ring [ring, dim]: un-normed, un-rotated; token p at p mod ring
//   keys       [pages][groups of 16 blocks][dim][16]: mean of the block's raw keys, normed, rotated at its first token
#pragma once

#include <cstdint>

#include "isa.h"

namespace jubako {

constexpr int INDEX_GROUP = 16;  // blocks whose keys lie interleaved

// A sequence's pooled keys.
struct IndexKeys {
    float* keys;
    const int32_t* table;  // the sequence's pages
    int groups, dim;       // groups of a page

    [[gnu::always_inline]] float* group(int64_t g) const {
        return keys + (size_t(table[g / groups]) * groups + size_t(g % groups)) * INDEX_GROUP * dim;
    }
};

struct IndexShape {
    int heads, dim, ratio, pairs;  // pairs: rotated pairs (i, i + pairs)
    float eps;
};

}  // namespace jubako

JUBAKO_KERNELS(
    // Pools block `block` from the ring into its group. turn: cosines and sines at the block's first token; scratch [dim].
    void index_pool(const IndexShape& shape, const float* raw, int ring, int64_t block, const float* gamma, const float* turn,
                    float* scratch, float* group);
    // out [heads, dim] = the query heads of q, normed and rotated.
    void index_query(const IndexShape& shape, const float* q, const float* gamma, const float* turn, float* out);
    // scores[b] = sum over heads of max(0, q_h · key_b) / sqrt(dim) for groups [first, last) and `queries` queries.
    // q [queries, heads, dim]; scores rows are `stride` apart and start at block 0.
    void index_score(const IndexShape& shape, const float* q, int queries, const IndexKeys& keys, int64_t first, int64_t last,
                     float* scores, int64_t stride);
    // The `budget` best of `count` scores (all ≥ 0; count > budget) in rising order; of equal scores the lower block.
    void index_choose(const float* scores, int64_t count, int budget, int32_t* blocks);
)
