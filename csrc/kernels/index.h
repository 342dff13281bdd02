// The indexer's cache and its kernels: pooled block keys, scores of blocks, choice of blocks.
//
//   raw keys   ring [ring, dim]: un-normed, un-rotated; token p at p mod ring
//   keys       [groups of 16 blocks][dim][16]: mean of the block's raw keys, normed, rotated at its first token
#pragma once

#include <cstdint>

#include "isa.h"

namespace jubako {

struct IndexShape {
    int heads, dim, ratio, pairs;  // pairs: rotated pairs (i, i + pairs)
    float eps;
};

}  // namespace jubako

JUBAKO_KERNELS(
    // Pools block `block` from the ring into `keys`. turn: cosines and sines at the block's first token; scratch [dim].
    void index_pool(const IndexShape& shape, const float* raw, int ring, int64_t block, const float* gamma, const float* turn,
                    float* scratch, float* keys);
    // out [heads, dim] = the query heads of q, normed and rotated.
    void index_query(const IndexShape& shape, const float* q, const float* gamma, const float* turn, float* out);
    // scores[b] = sum over heads of max(0, q_h · key_b) / sqrt(dim) for groups [first, last) and `queries` queries.
    // q [queries, heads, dim]; scores rows are `stride` apart and start at block 0.
    void index_score(const IndexShape& shape, const float* q, int queries, const float* keys, int64_t first, int64_t last,
                     float* scores, int64_t stride);
    // The `budget` best of `count` scores (all ≥ 0; count > budget) in rising order; of equal scores the lower block.
    void index_choose(const float* scores, int64_t count, int budget, int32_t* blocks);
)
