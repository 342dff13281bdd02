// What an attention layer remembers: `AttentionPages` holds the keys and values of many sequences in pages of equal
// size, `PageTable` says which pages a sequence has, `AttentionState` is one sequence in one layer. Layouts:
// kernels/attention.h and kernels/index.h. Everything is found by position, so taking tokens back is setting a number.
//
//   PageTable (one a sequence)        AttentionPages (one a layer)
//   tokens   0 …  63 ── page 7        [page 0][page 1] … [page 7] …     keys and values, then pooled index keys
//   tokens  64 … 127 ── page 2        a page may stand in several tables; only its single holder writes to it
#pragma once

#include <algorithm>
#include <memory>

#include "arrays.h"
#include "kernels/attention.h"
#include "kernels/index.h"

namespace jubako {

constexpr int INDEX_KEEP = 32;   // raw index keys kept beyond an unfinished block: how far `truncate` can reach back
constexpr int PAGE_TOKENS = 64;  // at least

// Tokens of a page: whole groups of index blocks.
inline int page_tokens(int ratio) {
    const int group = std::max(1, ratio) * INDEX_GROUP;
    return (PAGE_TOKENS + group - 1) / group * group;
}

struct AttentionPages {
    const KvLayout layout;
    const int ratio, index_dim;  // ratio 0: no indexer
    const int64_t count;         // pages
    Region cache, pooled;

    AttentionPages(int64_t count, int page, int kv_heads, int dim, int bits, int ratio, int index_dim)
        : layout{kv_heads, dim, bits, page},
          ratio(ratio),
          index_dim(index_dim),
          count(count),
          cache(checked(layout, count).page_bytes() * count),
          pooled(ratio == 0 ? 0 : pooled_floats(checked(layout, ratio, index_dim)) * count * sizeof(float)) {}

    int groups() const { return ratio == 0 ? 0 : layout.page / (ratio * INDEX_GROUP); }
    size_t pooled_floats() const { return ratio == 0 ? 0 : pooled_floats(groups()); }

private:
    size_t pooled_floats(int groups) const { return size_t(groups) * INDEX_GROUP * index_dim; }
    static const KvLayout& checked(const KvLayout& layout, int64_t count) {
        require(layout.bits == 8 || layout.bits == 16, "the cache takes 8 or 16 bits");
        require(count > 0 && count < int64_t(1) << 31 && layout.page > 0 && layout.kv_heads > 0 && layout.dim > 0, "sizes must be positive");
        require(layout.dim % (layout.bits == 8 ? KV_BLOCK : 16) == 0, "head width must be a multiple of 32 (16 in a 16-bit cache)");
        return layout;
    }
    static int checked(const KvLayout& layout, int ratio, int index_dim) {
        require(ratio > 0 && index_dim > 0 && index_dim % 16 == 0, "index width must be a multiple of 16");
        require(layout.page % (ratio * INDEX_GROUP) == 0, "a page must hold whole groups of 16 index blocks");
        return layout.page / (ratio * INDEX_GROUP);
    }
};

struct PageTable {
    const int64_t limit;  // pages are numbered below
    std::vector<int32_t> pages;

    explicit PageTable(int64_t limit) : limit(limit) {}

    // Page `page` holds the tokens of place `place`: one that is taken, or the next.
    void set(int64_t place, int64_t page) {
        require(page >= 0 && page < limit, "no such page");
        require(place >= 0 && place <= int64_t(pages.size()), "pages must come in order");
        if (place == int64_t(pages.size())) pages.push_back(static_cast<int32_t>(page));
        else pages[size_t(place)] = static_cast<int32_t>(page);
    }
    void truncate(int64_t count) {
        require(count >= 0 && count <= int64_t(pages.size()), "no such page");
        pages.resize(size_t(count));
    }
};

struct AttentionState {
    const std::shared_ptr<AttentionPages> memory;
    const std::shared_ptr<PageTable> table;
    const KvLayout layout;
    const int ratio, index_dim, ring;
    int64_t length = 0;   // tokens whose keys and values are in the cache
    int64_t indexed = 0;  // tokens whose raw index keys are known; blocks below indexed / ratio are pooled
    int64_t deepest = 0;  // the most `indexed` has been since tokens were last taken back
    bool alone = false;   // the pages belong to this state only
    Region raw_keys;

    // A sequence among others.
    AttentionState(std::shared_ptr<AttentionPages> pages, std::shared_ptr<PageTable> table)
        : memory(std::move(pages)),
          table(std::move(table)),
          layout(memory->layout),
          ratio(memory->ratio),
          index_dim(memory->index_dim),
          ring(ratio + INDEX_KEEP),
          raw_keys(ratio == 0 ? 0 : size_t(ring) * index_dim * sizeof(float)) {
        require(this->table->limit <= memory->count, "the table numbers more pages than there are");
    }

    // A sequence with memory of its own for `context` tokens.
    AttentionState(int64_t context, int kv_heads, int dim, int bits, int ratio, int index_dim)
        : AttentionState(std::make_shared<AttentionPages>(pages_of(context, ratio), page_tokens(ratio), kv_heads, dim, bits, ratio, index_dim),
                         std::make_shared<PageTable>(pages_of(context, ratio))) {
        for (int64_t page = 0; page < table->limit; ++page) table->set(page, page);
        alone = true;
    }

    // Cells that have a page.
    int64_t room() const { return int64_t(table->pages.size()) * layout.page; }
    uint8_t* record(int head, int64_t cell) const { return memory->cache.as<uint8_t>() + layout.at(table->pages.data(), head, cell); }
    IndexKeys pooled() const { return {memory->pooled.as<float>(), table->pages.data(), memory->groups(), index_dim}; }

    // Forgets everything; memory of its own is given back.
    void reset() {
        length = indexed = deepest = 0;
        raw_keys.clear();
        if (!alone) return;
        memory->cache.clear();
        memory->pooled.clear();
    }

    // Takes the first `tokens` tokens of the pages as read; the raw keys of an unfinished block must be in the ring.
    void resume(int64_t tokens) {
        require(tokens >= 0 && tokens <= room(), "no pages for so many tokens");
        length = tokens;
        indexed = deepest = ratio == 0 ? 0 : tokens;
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
    static int64_t pages_of(int64_t context, int ratio) {
        require(context > 0 && ratio >= 0, "sizes must be positive");
        return (context + page_tokens(ratio) - 1) / page_tokens(ratio);
    }
};

}  // namespace jubako
