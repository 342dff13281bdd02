#include "experts.h"

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "claims.h"
#include "pool.h"

namespace jubako {
namespace {

// Rows in one item of work: whole blocks of 32, since gate and up rows are quantised when they are done; as many as leave
// every thread some items, because memory likes long pieces and the columns of an expert stay near from one panel to the next.
int64_t rows_of_item(int64_t rows, int64_t uses) {
    const int64_t product_rows = (int64_t{1} << 20) / std::max<int64_t>(uses, 1);  // 4 MB of products
    return std::clamp<int64_t>(std::min(rows / (8 * threads()), product_rows) / 32 * 32, 32, 160);
}

constexpr int64_t most_fine = 256;  // uses of experts whose blocks of 32 rows are worth being cut

// Items of `rows` rows each for every expert: starts[g] is the first of expert g, starts[count] their number.
template <class Height>
int64_t* share_out(const Work& work, int64_t rows, Slot slot, Height height) {
    auto* starts = scratch<int64_t>(slot, work.count + 1);
    starts[0] = 0;
    for (int64_t g = 0; g < work.count; ++g) starts[g + 1] = starts[g] + (height(work.experts[g]) + rows - 1) / rows;
    return starts;
}

int64_t owner_of(const int64_t* starts, int64_t count, int64_t item) {
    return std::upper_bound(starts, starts + count + 1, item) - starts - 1;
}

// Where gate's and up's rows of an expert's uses go: those of use c at `values` + c · step, up's `gap` after gate's.
struct Products {
    float* values;
    int64_t step, gap;

    float* gate(int64_t c) const { return values + c * step; }
    float* up(int64_t c) const { return values + c * step + gap; }
};

// Rows first … first + rows of gate and up of all uses of an expert, to those places of `to`.
void gate_up_rows(const Work& work, const ExpertUses& expert, int64_t first, int64_t rows, const Columns& columns, const Products& to) {
    const int64_t count = expert.count;
    auto** inputs = scratch<const void*>(Slot::inputs, 2 * count);
    auto** outputs = scratch<float*>(Slot::outputs, 2 * count);
    for (int64_t c = 0; c < count; ++c) {
        const int64_t token = work.token_of(work.members[expert.first + c]);
        inputs[c] = columns.of(expert.gate)[token];
        inputs[count + c] = columns.of(expert.up)[token];
        outputs[c] = to.gate(c);
        outputs[count + c] = to.up(c);
    }
    RowsTimesColumns job = rows_job(expert.gate, first, rows);
    job.columns = static_cast<int>(count);
    job.x = inputs;
    job.out = outputs;
    job.next = expert.up.row(0, first);
    JUBAKO_CALL(multiply(job));
    job = rows_job(expert.up, first, rows);
    job.columns = static_cast<int>(count);
    job.x = inputs + count;
    job.out = outputs + count;
    JUBAKO_CALL(multiply(job));
}

// silu(gate)·up of rows first … first + rows, whole blocks of 32 but for the last ones, as down reads them.
void activate_rows(const Work& work, const ExpertUses& expert, int64_t first, int64_t rows, const Products& from, const Hidden& hidden) {
    const int64_t stride = hidden.units_of_use * 256, last = expert.gate.rows;
    const Order order = expert.down.is_float() ? Order::dwords : JUBAKO_CALL(order_of(expert.down.type));
    for (int64_t c = 0; c < expert.count; ++c) {
        const int64_t use = work.members[expert.first + c];
        float* values = from.gate(c) + first;
        JUBAKO_CALL(silu_times(values, from.up(c) + first, rows, values));
        if (expert.down.is_float()) {
            float* target = hidden.floats + use * stride;
            std::memcpy(target + first, values, static_cast<size_t>(rows) * sizeof(float));
            if (first + rows == last) std::fill(target + last, target + stride, 0.0f);
            continue;
        }
        XUnit* target = hidden.units + use * hidden.units_of_use;
        const int64_t whole = rows / 32;
        JUBAKO_CALL(quantize_blocks(values, first / 32, whole, order, target));
        if (first + rows == last) {  // zeros up to the end of the unit, and of a padded row of down
            float rest[32] = {};
            std::memcpy(rest, values + 32 * whole, static_cast<size_t>(rows - 32 * whole) * sizeof(float));
            for (int64_t block = first / 32 + whole; block < 8 * hidden.units_of_use; ++block) {
                JUBAKO_CALL(quantize_blocks(rest, block, 1, order, target));
                std::fill(rest, rest + 32, 0.0f);
            }
        }
    }
}

// Rows first … first + rows of silu(gate)·up of all uses of an expert.
void hidden_rows(const Work& work, const ExpertUses& expert, int64_t first, int64_t rows, const Columns& columns, const Hidden& hidden) {
    auto* product = scratch<float>(Slot::product, 2 * expert.count * rows);
    const Products products{product - first, 2 * rows, rows};
    gate_up_rows(work, expert, first, rows, columns, products);
    activate_rows(work, expert, first, rows, products, hidden);
}

ExpertUses uses_of(const Weight& gate, const Weight& up, const Weight& down, int64_t expert, int64_t first, int64_t count) {
    auto at = [&](const Weight& stack) { return matrix_of(stack, expert, stack.row(expert, 0)); };
    return {at(gate), at(up), at(down), first, count};
}

// The work that ids [tokens, chosen] ask for, by a counting sort. The shared expert comes first.
Work sorted(const ExpertWeights& weights, int64_t tokens, const int32_t* ids, int64_t chosen) {
    const bool shared = weights.shared_gate != nullptr;
    const int64_t uses = tokens * chosen, all_uses = uses + (shared ? tokens : 0), experts = weights.gate->experts;
    auto* members = scratch<int64_t>(Slot::members, all_uses + experts + 1);
    int64_t* starts = members + all_uses;
    std::fill(starts, starts + experts + 1, 0);
    for (int64_t i = 0; i < uses; ++i)
        if (ids[i] >= 0) ++starts[ids[i] + 1];
    auto* found = scratch<ExpertUses>(Slot::group, std::min(uses, experts) + 1);
    int64_t count = 0;
    if (shared) found[count++] = uses_of(*weights.shared_gate, *weights.shared_up, *weights.shared_down, 0, uses, tokens);
    for (int64_t e = 0; e < experts; ++e) {
        if (starts[e + 1] > 0) found[count++] = uses_of(*weights.gate, *weights.up, *weights.down, e, starts[e], starts[e + 1]);
        starts[e + 1] += starts[e];
    }
    for (int64_t i = 0; i < uses; ++i)
        if (ids[i] >= 0) members[starts[ids[i]]++] = i;
    for (int64_t t = 0; shared && t < tokens; ++t) members[uses + t] = uses + t;
    return {found, count, members, tokens, chosen};
}

Hidden room_for_hidden(const Work& work, int64_t all_uses) {
    int64_t cols = 0;
    for (int64_t g = 0; g < work.count; ++g) cols = std::max(cols, work.experts[g].down.cols);
    Hidden hidden{};
    hidden.units_of_use = units_of(cols);
    hidden.units = scratch<XUnit>(Slot::hidden, all_uses * hidden.units_of_use);
    hidden.floats = scratch<float>(Slot::hidden_floats, all_uses * hidden.units_of_use * 256);
    return hidden;
}

int64_t hidden_rows_of_item(const Work& work) {
    int64_t rows = 0;
    for (int64_t g = 0; g < work.count; ++g) rows += work.experts[g].gate.rows;
    return rows_of_item(rows, 0);
}

}  // namespace

Weight matrix_of(const Weight& stack, int64_t expert, const uint8_t* data) {
    Weight one = stack;
    one.data = data;
    one.experts = 1;
    one.scale = stack.scale == nullptr ? nullptr : stack.scale + (stack.scales > 1 ? expert : 0);
    one.scales = stack.scale == nullptr ? 0 : 1;
    return one;
}

RowsTimesColumns rows_job(const Weight& w, int64_t first, int64_t rows) {
    RowsTimesColumns job{};
    job.type = w.type;
    job.weights = w.row(0, 0);
    job.row_stride = w.row_stride;
    job.first_row = first;
    job.rows = rows;
    job.cols = w.cols;
    job.scale = w.scale_of(0);
    return job;
}

Hidden make_hidden(const Work& work, int64_t all_uses, const Columns& columns) {
    const Hidden hidden = room_for_hidden(work, all_uses);
    const int64_t piece = hidden_rows_of_item(work);
    const int64_t* starts = share_out(work, piece, Slot::starts, [](const ExpertUses& e) { return e.gate.rows; });
    parallel_for(starts[work.count], [&](int64_t item) {
        const int64_t g = owner_of(starts, work.count, item), first = (item - starts[g]) * piece;
        const ExpertUses& expert = work.experts[g];
        hidden_rows(work, expert, first, std::min(piece, expert.gate.rows - first), columns, hidden);
    });
    return hidden;
}

void expert_rows(const Work& work, const float* x, float* rows) {
    if (work.count == 0) return;
    Columns columns(false);
    for (int64_t g = 0; g < work.count; ++g)
        for (const Weight* w : {&work.experts[g].gate, &work.experts[g].up}) columns.want(w);
    columns.make(x, work.tokens, work.experts[0].gate.cols);
    expert_rows(work, columns, work.uses(), rows);
}

// One round of work for both halves: whoever finds no hidden rows left goes on with down rows of experts whose hidden values are
// there. What down rows wait for has been taken by a thread that is at work on it. Few rows are cut finely, so that all threads end
// together: blocks of 32 are quantised by whoever is the last at one.
void expert_rows(const Work& work, const Columns& columns, int64_t all_uses, float* rows) {
    if (work.count == 0) return;
    const Hidden hidden = room_for_hidden(work, all_uses);
    int64_t uses = 0, widest = 0;
    for (int64_t g = 0; g < work.count; ++g) uses += work.experts[g].count, widest = std::max(widest, work.experts[g].gate.rows);
    const int64_t height = work.experts[0].down.rows, piece = hidden_rows_of_item(work);
    const bool fine = piece == 32 && uses <= most_fine;
    const Claims gates(work, &ExpertUses::gate, fine ? row_unit : 32, fine ? piece / 2 : piece, Slot::claims);
    const Claims downs(work, &ExpertUses::down, fine ? row_unit : 32, fine ? 32 : 64, Slot::down_claims);
    const int64_t* starts = share_out(work, 32, Slot::starts, [](const ExpertUses& e) { return e.gate.rows; });
    auto* missing = scratch<std::atomic<int64_t>>(Slot::missing, work.count + starts[work.count]);
    auto* made = missing + work.count;  // rows of each block
    for (int64_t g = 0; g < work.count; ++g) missing[g].store(work.experts[g].gate.rows, std::memory_order_relaxed);
    for (int64_t block = 0; block < starts[work.count]; ++block) made[block].store(0, std::memory_order_relaxed);
    auto* products = scratch<float>(Slot::halves, fine ? 2 * uses * widest : 0);
    parallel_for(threads(), [&](int64_t) {
        gates.take([&](int64_t g, int64_t first, int64_t count) {
            const ExpertUses& expert = work.experts[g];
            if (!fine) {
                hidden_rows(work, expert, first, count, columns, hidden);
                missing[g].fetch_sub(count, std::memory_order_release);
                return;
            }
            const Products mine{products + 2 * (expert.first - work.experts[0].first) * widest, 2 * widest, widest};
            gate_up_rows(work, expert, first, count, columns, mine);
            for (int64_t at = first; at < first + count;) {
                const int64_t block = at / 32 * 32, end = std::min(block + 32, expert.gate.rows), next = std::min(end, first + count);
                if (made[starts[g] + block / 32].fetch_add(next - at, std::memory_order_acq_rel) + next - at == end - block) {
                    activate_rows(work, expert, block, end - block, mine, hidden);
                    missing[g].fetch_sub(end - block, std::memory_order_release);
                }
                at = next;
            }
        });
        downs.take([&](int64_t g, int64_t first, int64_t count) {
            const ExpertUses& expert = work.experts[g];
            auto** inputs = scratch<const void*>(Slot::inputs, expert.count);
            auto** outputs = scratch<float*>(Slot::outputs, expert.count);
            for (int64_t c = 0; c < expert.count; ++c) {
                const int64_t use = work.members[expert.first + c];
                inputs[c] = hidden.of(expert.down, use);
                outputs[c] = rows + use * height;
            }
            RowsTimesColumns job = rows_job(expert.down, first, count);
            job.columns = static_cast<int>(expert.count);
            job.x = inputs;
            job.out = outputs;
            while (missing[g].load(std::memory_order_acquire) != 0) _mm_pause();
            JUBAKO_CALL(multiply(job));
        });
    });
}

void experts(const ExpertWeights& weights, const float* x, int64_t tokens, const int32_t* ids, const float* route_weights,
             int64_t chosen, float* out) {
    const bool shared = weights.shared_gate != nullptr;
    const int64_t width = weights.gate->cols, height = weights.down->rows;
    if (tokens == 0) return;
    Columns columns(false);
    for (const Weight* w : {weights.gate, weights.up, weights.shared_gate, weights.shared_up, weights.shared_router}) columns.want(w);
    columns.make(x, tokens, width);
    const Work work = sorted(weights, tokens, ids, chosen);
    const int64_t uses = work.uses(), all_uses = uses + (shared ? tokens : 0);
    const Hidden hidden = make_hidden(work, all_uses, columns);

    // down: an item makes its rows for every use, then adds them up for every token by rank.
    auto* shared_weight = scratch<float>(Slot::shared, tokens);
    if (shared) {
        auto** outputs = scratch<float*>(Slot::outputs, tokens);
        for (int64_t t = 0; t < tokens; ++t) outputs[t] = shared_weight + t;
        RowsTimesColumns job = rows_job(*weights.shared_router, 0, 1);
        job.columns = static_cast<int>(tokens);
        job.x = columns.of(*weights.shared_router);
        job.out = outputs;
        JUBAKO_CALL(multiply(job));
        for (int64_t t = 0; t < tokens; ++t) shared_weight[t] = JUBAKO_CALL(sigmoid_of(shared_weight[t]));
    }
    const int64_t piece = rows_of_item(height, all_uses);
    parallel_for((height + piece - 1) / piece, [&](int64_t item) {
        const int64_t first = item * piece, rows = std::min(piece, height - first);
        auto* product = scratch<float>(Slot::product, all_uses * piece);
        auto** inputs = scratch<const void*>(Slot::inputs, all_uses);
        auto** outputs = scratch<float*>(Slot::outputs, all_uses);
        for (int64_t g = 0; g < work.count; ++g) {
            const ExpertUses& expert = work.experts[g];
            for (int64_t c = 0; c < expert.count; ++c) {
                const int64_t use = work.members[expert.first + c];
                inputs[c] = hidden.of(expert.down, use);
                outputs[c] = product + use * piece - first;
            }
            RowsTimesColumns job = rows_job(expert.down, first, rows);
            if (g + 1 < work.count) job.next = work.experts[g + 1].down.row(0, first);
            job.columns = static_cast<int>(expert.count);
            job.x = inputs;
            job.out = outputs;
            JUBAKO_CALL(multiply(job));
        }
        for (int64_t t = 0; t < tokens; ++t) {
            float* sum = out + t * height + first;
            std::fill(sum, sum + rows, 0.0f);
            for (int64_t k = 0; k < chosen; ++k)
                if (ids[t * chosen + k] >= 0)
                    JUBAKO_CALL(add_scaled(route_weights[t * chosen + k], product + (t * chosen + k) * piece, rows, sum));
            if (shared) JUBAKO_CALL(add_scaled(shared_weight[t], product + (uses + t) * piece, rows, sum));
        }
    });
}

}  // namespace jubako
