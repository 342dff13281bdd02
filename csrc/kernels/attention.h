// The key/value cache and attention over chosen cells. A cell is the place of one token.
//
//   cache   [pages][kv_heads][tokens of a page][record], bytes; a sequence's table says which pages are its own
//   record  8 bit:   key int8[dim], key scales float32[dim/32], value int8[dim], value scales float32[dim/32]
//           16 bit:  key half[dim], key scale float32, value half[dim], value scale float32
//
// Half precision ends at 65504, so a row that goes beyond is stored times a power of two; its scale undoes that.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa.h"

// Shared by code of every instruction set, so each use keeps its own copy (see isa.h).
#define KV_INLINE [[gnu::always_inline]] inline

namespace jubako {

constexpr int KV_BLOCK = 32;            // values under one scale in the 8-bit cache
constexpr int ATTEND_SEGMENT = 256;     // cells whose partial sums are made together, at least
constexpr int ATTEND_MAX_SEGMENTS = 64;
constexpr int ATTEND_TILE = 16;         // cells decoded at a time

struct KvLayout {
    int kv_heads, dim, bits, page;  // page: tokens of one

    KV_INLINE size_t half_record() const { return bits == 8 ? size_t(dim) + dim / KV_BLOCK * sizeof(float) : 2 * size_t(dim) + sizeof(float); }
    KV_INLINE size_t record() const { return 2 * half_record(); }
    KV_INLINE size_t page_bytes() const { return record() * kv_heads * page; }
    // Bytes from the start of the cache to a cell's record.
    KV_INLINE size_t at(const int32_t* table, int head, int64_t cell) const {
        const uint32_t place = uint32_t(cell) / uint32_t(page), within = uint32_t(cell) % uint32_t(page);
        return ((size_t(table[place]) * kv_heads + head) * page + within) * record();
    }
};

// The cells one query attends to: `blocks` of `ratio` cells in rising order, then all cells from `tail` to its own.
struct Cells {
    const int32_t* blocks;
    int64_t block_cells;  // number of blocks · ratio
    int64_t count;        // with the tail
    int64_t tail;         // first cell of the tail
    int ratio;

    KV_INLINE int64_t cell(int64_t i) const {
        return i < block_cells ? int64_t(blocks[i / ratio]) * ratio + i % ratio : tail + (i - block_cells);
    }
    // Segments depend on nothing but the count, so a query has the same bits in every call.
    KV_INLINE int64_t segment_cells() const {
        const int64_t pieces = (count + ATTEND_SEGMENT * ATTEND_MAX_SEGMENTS - 1) / (ATTEND_SEGMENT * ATTEND_MAX_SEGMENTS);
        return ATTEND_SEGMENT * pieces;
    }
    KV_INLINE int segments() const { return int((count + segment_cells() - 1) / segment_cells()); }
};

// Partial result of one segment for the query heads of one kv head: sums [group, dim], then maximum and total [group].
KV_INLINE size_t attend_partial_floats(int group, int dim) { return size_t(group) * (dim + 2); }

}  // namespace jubako

JUBAKO_KERNELS(
    // Norms and rotates one head in place. turn: cosines and sines [2, pairs].
    void attention_rotate(float* x, const float* gamma, int dim, float eps, const float* turn, int pairs);
    // Encodes one row of a key or value into its half of a record.
    void kv_store(const KvLayout& layout, const float* row, uint8_t* half_record);
    // The inverse.
    void kv_load(const KvLayout& layout, const uint8_t* half_record, float* row);
    // Attention of the `group` query heads q [group rows, q_stride apart] of kv head `head` over one segment of the cells.
    void attend_segment(const KvLayout& layout, const uint8_t* cache, const int32_t* table, int head, const Cells& cells, int segment, const float* q,
                        size_t q_stride, int group, float* partial);
    // out [dim] = sigmoid(gate) · the merged segments of query head `row` of the group; partials lie `stride` floats apart.
    void attend_merge(int dim, int group, int row, const float* partials, size_t stride, int segments, const float* gate, float* out);
)
