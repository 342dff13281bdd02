// What an attention layer remembers of one sequence: keys, values, and the indexer's keys. Layouts: kernels/attention.h
// and kernels/index.h. Everything is found by position, so taking tokens back is setting a number.
#pragma once

#include <algorithm>

#include "arrays.h"
#include "kernels/attention.h"
#include "kernels/index.h"

namespace jubako {

constexpr int INDEX_KEEP = 32;  // raw index keys kept beyond an unfinished block: how far `truncate` can reach back

struct AttentionState {
    const KvLayout layout;
    const int ratio, index_dim, ring;  // ratio 0: no indexer
    int64_t length = 0;                // tokens whose keys and values are in the cache
    int64_t indexed = 0;               // tokens whose raw index keys are known; blocks below indexed / ratio are pooled
    int64_t deepest = 0;               // the most `indexed` has been since tokens were last taken back
    Region cache, raw_keys, pooled;

    AttentionState(int64_t context, int kv_heads, int dim, int bits, int ratio, int index_dim)
        : layout{kv_heads, dim, bits, context},
          ratio(ratio),
          index_dim(index_dim),
          ring(ratio + INDEX_KEEP),
          cache(checked(layout).bytes()),
          raw_keys(ratio == 0 ? 0 : size_t(ring) * index_dim * sizeof(float)),
          pooled(ratio == 0 ? 0 : pooled_floats() * sizeof(float)) {
        require(ratio == 0 || (ratio > 0 && index_dim > 0 && index_dim % 16 == 0), "index width must be a multiple of 16");
    }

    void reset() {
        length = indexed = deepest = 0;
        cache.clear();
        raw_keys.clear();
        pooled.clear();
    }

    // Forgets all tokens from `to` on. Raises where the unfinished block's raw keys are no longer there.
    void truncate(int64_t to) {
        require(to >= 0 && to <= length, "can't be truncated to more than it holds");
        if (ratio != 0 && to < indexed) {
            require(to % ratio == 0 || to / ratio * ratio >= deepest - ring, "too many tokens to take back");
            indexed = to;
        }
        length = to;
    }

private:
    static const KvLayout& checked(const KvLayout& layout) {
        require(layout.bits == 8 || layout.bits == 16, "the cache takes 8 or 16 bits");
        require(layout.context > 0 && layout.kv_heads > 0 && layout.dim > 0, "sizes must be positive");
        require(layout.dim % (layout.bits == 8 ? KV_BLOCK : 16) == 0, "head width must be a multiple of 32 (16 in a 16-bit cache)");
        return layout;
    }
    size_t pooled_floats() const { return size_t((layout.context / ratio + 15) / 16) * 16 * index_dim; }
};

}  // namespace jubako
