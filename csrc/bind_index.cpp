// The indexer: `Indexer` (its norms and sizes) pools keys into an AttentionState and chooses blocks from it.
#include <algorithm>

#include "attention_state.h"
#include "kernels/index.h"
#include "pool.h"
#include "rope.h"

namespace jubako {
namespace {

constexpr int QUERY_TILE = 16;    // queries scored together: their scores stay in the cache
constexpr int64_t GROUP_TILE = 16;  // groups of 16 blocks scored by one task

class Indexer {
public:
    Indexer(const Floats<1>& q_norm, const Floats<1>& k_norm, int heads, int ratio, int budget, float eps, Rope& rope)
        : q_norm_(copy(q_norm)), k_norm_(copy(k_norm)), budget_(budget), rope_(rope) {
        shape_ = {heads, static_cast<int>(q_norm_.size()), ratio, rope.pairs(), eps};
        require(heads > 0 && ratio > 0 && budget > 0, "an indexer needs heads, a block size and a budget of blocks");
        require(q_norm_.size() == k_norm_.size() && shape_.dim % 16 == 0, "index width must be a multiple of 16");
        require(2 * rope.pairs() <= shape_.dim, "more rotated pairs than an index head holds");
    }

    void update(const Floats<2>& raw, AttentionState& state, int64_t position) const {
        const int64_t tokens = static_cast<int64_t>(raw.shape(0));
        require_shape(raw, {tokens, shape_.dim}, "raw index keys");
        check(state);
        require(position == state.indexed, "index keys must come in order: position is not the number of tokens indexed");
        require(position + tokens <= state.room(), "position beyond the pages of the context");
        const float* from = raw.data();
        float* ring = state.raw_keys.as<float>();
        nb::gil_scoped_release release;
        rope_.prepare(position + tokens);
        float* buffer = scratch<float>(Slot::ops_a, shape_.dim);
        for (int64_t t = 0; t < tokens; ++t) {
            const int64_t token = position + t;
            std::copy(from + t * shape_.dim, from + (t + 1) * shape_.dim, ring + token % state.ring * shape_.dim);
            if ((token + 1) % shape_.ratio != 0) continue;
            const int64_t block = token / shape_.ratio;
            const float* turn = rope_.at(block * shape_.ratio);
            float* group = state.pooled().group(block / INDEX_GROUP);
            JUBAKO_CALL(index_pool(shape_, ring, state.ring, block, k_norm_.data(), turn, buffer, group));
        }
        state.indexed = position + tokens;
        state.deepest = std::max(state.deepest, state.indexed);
    }

    std::pair<OwnedInts, OwnedInts> select(const Floats<2>& q, const AttentionState& state, int64_t position) const {
        const int64_t tokens = static_cast<int64_t>(q.shape(0)), width = int64_t(shape_.heads) * shape_.dim;
        require_shape(q, {tokens, width}, "index queries");
        check(state);
        require(position >= 0 && position + tokens <= state.indexed, "the blocks of these queries are not pooled yet");
        OwnedInts blocks = output<int32_t>({tokens, budget_}), counts = output<int32_t>({tokens});
        const float* from = q.data();
        nb::gil_scoped_release release;
        rope_.prepare(position + tokens);
        for (int64_t first = 0; first < tokens; first += QUERY_TILE) {
            const int64_t count = std::min<int64_t>(QUERY_TILE, tokens - first);
            select_some(from + first * width, count, state, position + first, blocks.data() + first * budget_, counts.data() + first);
        }
        return {std::move(blocks), std::move(counts)};
    }

private:
    void check(const AttentionState& state) const {
        require(state.ratio == shape_.ratio && state.index_dim == shape_.dim, "state of another layer");
    }

    void select_some(const float* q, int64_t count, const AttentionState& state, int64_t position, int32_t* blocks,
                     int32_t* counts) const {
        const auto complete = [&](int64_t i) { return (position + i + 1) / shape_.ratio; };
        const int64_t width = int64_t(shape_.heads) * shape_.dim;
        int64_t easy = 0;  // queries that can have all their blocks
        while (easy < count && complete(easy) <= budget_) ++easy;
        for (int64_t i = 0; i < easy; ++i) {
            counts[i] = static_cast<int32_t>(complete(i));
            for (int32_t b = 0; b < budget_; ++b) blocks[i * budget_ + b] = b < counts[i] ? b : -1;
        }
        if (easy == count) return;

        const int64_t scored = count - easy, groups = (complete(count - 1) + 15) / 16, stride = groups * 16;
        float* queries = scratch<float>(Slot::ops_a, scored * (width + stride));
        float* scores = queries + scored * width;
        for (int64_t i = 0; i < scored; ++i) {
            const float* turn = rope_.at(position + easy + i);
            JUBAKO_CALL(index_query(shape_, q + (easy + i) * width, q_norm_.data(), turn, queries + i * width));
        }
        const IndexKeys keys = state.pooled();
        parallel_for((groups + GROUP_TILE - 1) / GROUP_TILE, [&](int64_t task) {
            const int64_t first = task * GROUP_TILE, last = std::min(groups, first + GROUP_TILE);
            JUBAKO_CALL(index_score(shape_, queries, static_cast<int>(scored), keys, first, last, scores, stride));
        });
        parallel_for(scored, [&](int64_t i) {
            counts[easy + i] = budget_;
            JUBAKO_CALL(index_choose(scores + i * stride, complete(easy + i), budget_, blocks + (easy + i) * budget_));
        });
    }

    std::vector<float> q_norm_, k_norm_;
    int budget_;
    IndexShape shape_;
    Rope& rope_;
};

}  // namespace
}  // namespace jubako

void bind_index(nanobind::module_& m) {
    namespace nb = nanobind;
    using namespace nb::literals;
    using namespace jubako;
    nb::class_<Indexer>(m, "Indexer", "Norms and sizes of an attention layer's indexer.")
        .def(nb::init<const Floats<1>&, const Floats<1>&, int, int, int, float, Rope&>(), "q_norm"_a.noconvert(), "k_norm"_a.noconvert(),
             "heads"_a, "ratio"_a, "budget"_a, "eps"_a, "rope"_a, nb::keep_alive<1, 8>())
        .def("update", &Indexer::update, "raw"_a.noconvert(), "state"_a, "position"_a, "See ops: index_update.")
        .def("select", &Indexer::select, "q"_a.noconvert(), "state"_a, "position"_a, "See ops: index_select.");
}
