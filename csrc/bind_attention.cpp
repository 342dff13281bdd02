// Attention: `Attention` (a layer's norms and sizes) works on `AttentionState`.
#include <nanobind/stl/shared_ptr.h>

#include <algorithm>
#include <optional>

#include "attention_state.h"
#include "pool.h"
#include "rope.h"

namespace jubako {
namespace {

constexpr int TASKS = 64;  // pieces of work made at a time, at least, before their partial results are merged

class Attention {
public:
    Attention(const Floats<1>& q_norm, const Floats<1>& k_norm, int heads, int kv_heads, float eps, Rope& rope)
        : q_norm_(copy(q_norm)), k_norm_(copy(k_norm)), heads_(heads), kv_heads_(kv_heads), eps_(eps), rope_(rope) {
        require(heads > 0 && kv_heads > 0 && heads % kv_heads == 0, "query heads must be a multiple of the key/value heads");
        require(q_norm_.size() == k_norm_.size() && q_norm_.size() % 16 == 0, "head width must be a multiple of 16");
        require(2 * rope.pairs() <= dim(), "more rotated pairs than a head holds");
    }

    int dim() const { return static_cast<int>(q_norm_.size()); }

    std::pair<Owned, Owned> prepare(const Floats<2>& q, const Floats<2>& k, const Floats<2>& v, AttentionState& state,
                                    int64_t position) const {
        const int dim = this->dim();
        const int64_t tokens = static_cast<int64_t>(q.shape(0)), width = int64_t(heads_) * dim, keys = int64_t(kv_heads_) * dim;
        require_shape(q, {tokens, 2 * width}, "q");
        require_shape(k, {tokens, keys}, "k");
        require_shape(v, {tokens, keys}, "v");
        check(state);
        require(position == state.length, "tokens must come in order: position is not the length of the cache");
        require(position + tokens <= state.room(), "position beyond the pages of the context");
        Owned queries = output<float>({tokens, heads_, dim}), gates = output<float>({tokens, width});
        const float *q_in = q.data(), *k_in = k.data(), *v_in = v.data();
        float *q_out = queries.data(), *gate_out = gates.data();
        nb::gil_scoped_release release;
        rope_.prepare(position + tokens);
        parallel_for(tokens, [&](int64_t t) {
            const float* turn = rope_.at(position + t);
            for (int h = 0; h < heads_; ++h) {
                const float* from = q_in + (t * heads_ + h) * 2 * dim;
                float* query = q_out + (t * heads_ + h) * dim;
                std::copy(from, from + dim, query);
                std::copy(from + dim, from + 2 * dim, gate_out + (t * heads_ + h) * dim);
                JUBAKO_CALL(attention_rotate(query, q_norm_.data(), dim, eps_, turn, rope_.pairs()));
            }
            float* key = scratch<float>(Slot::ops_c, dim);
            for (int h = 0; h < kv_heads_; ++h) {
                const size_t head = size_t(t) * keys + size_t(h) * dim;
                uint8_t* record = state.record(h, position + t);
                std::copy(k_in + head, k_in + head + dim, key);
                JUBAKO_CALL(attention_rotate(key, k_norm_.data(), dim, eps_, turn, rope_.pairs()));
                JUBAKO_CALL(kv_store(state.layout, key, record));
                JUBAKO_CALL(kv_store(state.layout, v_in + head, record + state.layout.half_record()));
            }
        });
        state.length = position + tokens;
        return {std::move(queries), std::move(gates)};
    }

private:
    void check(const AttentionState& state) const {
        require(state.layout.kv_heads == kv_heads_ && state.layout.dim == dim(), "state of another layer");
    }

    std::vector<float> q_norm_, k_norm_;
    int heads_, kv_heads_;
    float eps_;
    Rope& rope_;
};

int32_t checked_count(const AttentionState& state, const Array<const int32_t, 2>& blocks,
                             const Array<const int32_t, 1>& counts, int64_t t, int64_t position) {
    require(blocks.shape(0) == counts.shape(0) && t < int64_t(counts.shape(0)), "blocks and counts need a row for each token");
    const int32_t count = counts.data()[t];
    require(count < 0 || (state.ratio > 0 && count <= int64_t(blocks.shape(1))), "count beyond the row of blocks");
    const int32_t* row = blocks.data() + t * blocks.shape(1);
    const int64_t complete = count < 0 ? 0 : (position + t + 1) / state.ratio;
    bool inside = true;
    for (int32_t i = 0; i < count; ++i) inside &= row[i] >= 0 && row[i] < complete;
    require(inside, "a chosen block is not complete");
    return count;
}

Cells chosen_cells(const int32_t* blocks, int32_t count, int ratio, int64_t own) {
    const int64_t tail = (own + 1) / ratio * ratio, block_cells = int64_t(count) * ratio;
    return {blocks, block_cells, block_cells + own + 1 - tail, tail, ratio};
}

// Tokens [first, last): every segment of every kv head is a task, then every head's segments are merged in order.
void attend_some(const float* q, int heads, const float* gate, const AttentionState& state, const Cells* cells, int64_t first,
                 int64_t last, int64_t tasks, float* out) {
    struct Piece {
        int32_t token, segment;
    };
    const int dim = state.layout.dim, kv_heads = state.layout.kv_heads, group = heads / kv_heads;
    const size_t width = size_t(heads) * dim, size = attend_partial_floats(group, dim);
    const int64_t count = last - first, pieces = tasks / kv_heads;
    float* partials = scratch<float>(Slot::ops_a, static_cast<int64_t>(tasks * size));
    Piece* piece = scratch<Piece>(Slot::ops_b, pieces + count);
    Piece* start = piece + pieces;  // token's first piece, number of its segments
    for (int64_t t = 0, next = 0; t < count; ++t) {
        const int segments = cells[first + t].segments();
        start[t] = {static_cast<int32_t>(next), segments};
        for (int s = 0; s < segments; ++s) piece[next++] = {static_cast<int32_t>(t), s};
    }
    const uint8_t* cache = state.memory->cache.as<uint8_t>();
    const int32_t* table = state.table->pages.data();
    // partials [kv_heads][pieces]: a head's segments of a token lie side by side
    parallel_for(tasks, [&](int64_t task) {
        const int head = static_cast<int>(task / pieces);
        const Piece p = piece[task % pieces];
        const float* queries = q + size_t(first + p.token) * width + size_t(head) * group * dim;
        JUBAKO_CALL(attend_segment(state.layout, cache, table, head, cells[first + p.token], p.segment, queries, dim, group,
                                   partials + task * size));
    });
    parallel_for(count * kv_heads, [&](int64_t task) {
        const int head = static_cast<int>(task % kv_heads);
        const int64_t token = task / kv_heads;
        const float* from = partials + (size_t(head) * pieces + start[token].token) * size;
        for (int row = 0; row < group; ++row) {
            const size_t place = size_t(first + token) * width + (size_t(head) * group + row) * dim;
            JUBAKO_CALL(attend_merge(dim, group, row, from, size, start[token].segment, gate + place, out + place));
        }
    });
}

Owned sparse_attention(const Floats<3>& q, const Floats<2>& gate, const AttentionState& state,
             const std::optional<Array<const int32_t, 2>>& blocks, const std::optional<Array<const int32_t, 1>>& counts,
             int64_t position) {
    const int64_t tokens = static_cast<int64_t>(q.shape(0)), width = static_cast<int64_t>(q.shape(1) * q.shape(2));
    const int heads = static_cast<int>(q.shape(1)), kv_heads = state.layout.kv_heads;
    require_shape(q, {tokens, heads, state.layout.dim}, "q");
    require_shape(gate, {tokens, width}, "gate");
    require(heads > 0 && heads % kv_heads == 0, "query heads must be a multiple of the key/value heads");
    require(position >= 0 && position + tokens <= state.length, "the cache does not hold the queries' own tokens");
    require(blocks.has_value() == counts.has_value(), "blocks and counts go together");
    std::vector<Cells> cells(static_cast<size_t>(tokens));
    for (int64_t t = 0; t < tokens; ++t) {
        const int32_t count = counts ? checked_count(state, *blocks, *counts, t, position) : -1;
        cells[t] = count < 0 ? Cells{nullptr, 0, position + t + 1, 0, 1}
                             : chosen_cells(blocks->data() + t * blocks->shape(1), count, state.ratio, position + t);
    }
    Owned out = output<float>({tokens, width});
    nb::gil_scoped_release release;
    for (int64_t first = 0; first < tokens;) {
        int64_t last = first, tasks = 0;
        while (last < tokens && tasks < TASKS) tasks += int64_t(cells[last++].segments()) * kv_heads;
        attend_some(q.data(), heads, gate.data(), state, cells.data(), first, last, tasks, out.data());
        first = last;
    }
    return out;
}

nb::ndarray<nb::numpy, float> decoded(const AttentionState& state, int64_t cell, size_t offset) {
    auto result = output<float>({state.layout.kv_heads, state.layout.dim});
    require(cell >= 0 && cell < state.length, "no such cell");
    for (int h = 0; h < state.layout.kv_heads; ++h) {
        JUBAKO_CALL(kv_load(state.layout, state.record(h, cell) + offset, result.data() + size_t(h) * state.layout.dim));
    }
    return result;
}

nb::ndarray<nb::numpy, float> pooled_key(const AttentionState& state, int64_t block) {
    require(state.ratio > 0 && block >= 0 && block < state.indexed / state.ratio, "no such block");
    auto result = output<float>({state.index_dim});
    const float* column = state.pooled().group(block / INDEX_GROUP) + block % INDEX_GROUP;
    for (int i = 0; i < state.index_dim; ++i) result.data()[i] = column[size_t(i) * INDEX_GROUP];
    return result;
}

}  // namespace
}  // namespace jubako

void bind_attention(nanobind::module_& m) {
    namespace nb = nanobind;
    using namespace nb::literals;
    using namespace jubako;
    nb::class_<Rope>(m, "Rope", "Cosines and sines of all positions, shared by the layers.")
        .def(nb::init<const Floats<1>&, float, int64_t>(), "frequencies"_a.noconvert(), "magnitude"_a, "positions"_a);
    m.def("page_tokens", &page_tokens, "ratio"_a, "Tokens that a page must hold, or a multiple of it, for blocks of `ratio` tokens.");
    nb::class_<AttentionPages>(m, "AttentionPages", "Keys, values and pooled index keys of one attention layer and many sequences.")
        .def(nb::init<int64_t, int, int, int, int, int, int>(), "count"_a, "page"_a, "kv_heads"_a, "dim"_a, "bits"_a, "ratio"_a = 0,
             "index_dim"_a = 0)
        .def_prop_ro(
            "cache",
            [](AttentionPages& s) {
                const size_t shape[] = {size_t(s.count), s.layout.page_bytes()};
                return nb::ndarray<nb::numpy, uint8_t>(s.cache.as<uint8_t>(), 2, shape, nb::find(s));
            },
            "uint8 [count, bytes], a view: keys and values of each page.")
        .def_prop_ro(
            "pooled",
            [](AttentionPages& s) {
                const size_t shape[] = {size_t(s.count), s.pooled_floats() * sizeof(float)};
                return nb::ndarray<nb::numpy, uint8_t>(s.pooled.as<uint8_t>(), 2, shape, nb::find(s));
            },
            "uint8 [count, bytes], a view: pooled index keys of each page.");
    nb::class_<PageTable>(m, "PageTable", "The pages of one sequence, in the order of its tokens.")
        .def(nb::init<int64_t>(), "limit"_a)
        .def("__len__", [](const PageTable& t) { return t.pages.size(); })
        .def("set", &PageTable::set, "place"_a, "page"_a, "Let a page be the one of that place; the place after the last adds one.")
        .def("truncate", &PageTable::truncate, "count"_a, "Keep the first `count` pages.");
    nb::class_<AttentionState>(m, "AttentionState", "Keys and values of one attention layer and one sequence, and its indexer's keys.")
        .def(nb::init<std::shared_ptr<AttentionPages>, std::shared_ptr<PageTable>>(), "pages"_a, "table"_a)
        .def(nb::init<int64_t, int, int, int, int, int>(), "context"_a, "kv_heads"_a, "dim"_a, "bits"_a, "ratio"_a = 0,
             "index_dim"_a = 0)
        .def_ro("length", &AttentionState::length, "Tokens in the cache.")
        .def("reset", &AttentionState::reset, "Forget everything; give the memory back if it is not shared.")
        .def_prop_ro(
            "raw_keys",
            [](AttentionState& s) {
                const size_t shape[] = {size_t(s.ratio == 0 ? 0 : s.ring), size_t(s.index_dim)};
                return nb::ndarray<nb::numpy, float>(s.raw_keys.as<float>(), 2, shape, nb::find(s));
            },
            "float32 [ring, index_dim], a view: the raw index key of token p at p mod ring.")
        .def("resume", &AttentionState::resume, "length"_a,
             "Take the first `length` tokens of the pages as read; raw_keys must be as they were then.")
        .def("truncate", &AttentionState::truncate, "length"_a,
             "Forget all tokens from `length` on, in constant time. With an indexer at most 32 tokens can be taken back.")
        .def("key", [](const AttentionState& s, int64_t cell) { return decoded(s, cell, 0); }, "cell"_a,
             "Key of a token as the kernels see it: float32 [kv_heads, dim].")
        .def("value", [](const AttentionState& s, int64_t cell) { return decoded(s, cell, s.layout.half_record()); }, "cell"_a,
             "Value of a token as the kernels see it: float32 [kv_heads, dim].")
        .def("pooled", &pooled_key, "block"_a, "Pooled index key of a complete block: float32 [index_dim].");
    nb::class_<Attention>(m, "Attention", "Norms and sizes of an attention layer.")
        .def(nb::init<const Floats<1>&, const Floats<1>&, int, int, float, Rope&>(), "q_norm"_a.noconvert(), "k_norm"_a.noconvert(),
             "heads"_a, "kv_heads"_a, "eps"_a, "rope"_a, nb::keep_alive<1, 7>())
        .def("prepare", &Attention::prepare, "q"_a.noconvert(), "k"_a.noconvert(), "v"_a.noconvert(), "state"_a, "position"_a,
             "See ops: attention_prepare.");
    m.def("sparse_attention", &sparse_attention, "q"_a.noconvert(), "gate"_a.noconvert(), "state"_a, "blocks"_a.noconvert().none(),
          "counts"_a.noconvert().none(), "position"_a, "See ops: sparse_attention.");
}
