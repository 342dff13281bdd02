// What experts.cpp shares with whoever computes experts without adding them up (expert_threads.cpp).
#pragma once

#include "linear.h"

namespace jubako {

// Where few experts work without being added up: threads' parts of a matrix are multiples of so many rows.
constexpr int64_t row_unit = 2;

// An expert at work. Its weights are matrices of one expert; its uses are members[first … first + count), which number
// (token, rank) pairs as token·chosen + rank.
struct ExpertUses {
    Weight gate, up, down;
    int64_t first, count;
};

// All experts that work, their members one after the other, for tokens · chosen uses; a number from there on is the shared expert's, for token number − tokens · chosen.
struct Work {
    const ExpertUses* experts;
    int64_t count;
    const int64_t* members;
    int64_t tokens, chosen;

    int64_t uses() const { return tokens * chosen; }
    int64_t token_of(int64_t use) const { return use < uses() ? use / chosen : use - uses(); }
};

// silu(gate)·up of uses, as down reads it. Lies in scratch memory of the thread that made it.
struct Hidden {
    XUnit* units;
    float* floats;
    int64_t units_of_use;

    const void* of(const Weight& down, int64_t use) const {
        return down.is_float() ? static_cast<const void*>(floats + use * units_of_use * 256) : units + use * units_of_use;
    }
};

// Room for `all_uses` numbers of uses. Works on all threads of the pool.
Hidden make_hidden(const Work& work, int64_t all_uses, const Columns& columns);

// The matrix of one expert of a stack, whose rows lie at `data`.
Weight matrix_of(const Weight& stack, int64_t expert, const uint8_t* data);

// A product of rows first … first + rows of a matrix of one expert.
RowsTimesColumns rows_job(const Weight& w, int64_t first, int64_t rows);

// The output of every use, unweighted: rows[use] of down's height. x [tokens, width of gate].
void expert_rows(const Work& work, const float* x, float* rows);
// The same of columns made before, for some of `all_uses` uses.
void expert_rows(const Work& work, const Columns& columns, int64_t all_uses, float* rows);

}  // namespace jubako
