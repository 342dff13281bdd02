#include <algorithm>
#include <cstring>

#include "linear.h"
#include "pool.h"

namespace jubako {
namespace {

// The uses of one expert: members[first … first + count) number (token, rank) pairs as token·chosen + rank.
struct Group {
    int64_t expert, first, count;
};

// Rows in one item of work: whole blocks of 32, since gate and up rows are quantised when they are done; as many as leave
// every thread some items, because memory likes long pieces and the columns of an expert stay near from one panel to the next.
int64_t rows_of_item(int64_t rows, int64_t uses) {
    const int64_t product_rows = (int64_t{1} << 20) / std::max<int64_t>(uses, 1);  // 4 MB of products
    return std::clamp<int64_t>(std::min(rows / (8 * threads()), product_rows) / 32 * 32, 32, 160);
}

RowsTimesColumns rows_job(const Weight& w, int64_t expert, int64_t first, int64_t rows) {
    RowsTimesColumns job{};
    job.type = w.type;
    job.weights = w.row(expert, 0);
    job.row_stride = w.row_stride;
    job.first_row = first;
    job.rows = rows;
    job.cols = w.cols;
    job.scale = w.scale_of(expert);
    job.next = nullptr;
    return job;
}

}  // namespace

void experts(const ExpertWeights& weights, const float* x, int64_t tokens, const int32_t* ids, const float* route_weights,
             int64_t chosen, float* out) {
    const bool shared = weights.shared_gate != nullptr;
    const int64_t width = weights.gate->cols, height = weights.down->rows;
    if (tokens == 0) return;
    Columns columns(false);
    for (const Weight* w : {weights.gate, weights.up, weights.shared_gate, weights.shared_up, weights.shared_router}) columns.want(w);
    columns.make(x, tokens, width);

    // Counting sort of the uses by expert. The shared expert comes first and is the group with number −1; its uses follow the others.
    const int64_t uses = tokens * chosen, all_uses = uses + (shared ? tokens : 0);
    auto* members = scratch<int64_t>(Slot::members, all_uses + weights.gate->experts + 1);
    int64_t* starts = members + all_uses;
    std::fill(starts, starts + weights.gate->experts + 1, 0);
    for (int64_t i = 0; i < uses; ++i)
        if (ids[i] >= 0) ++starts[ids[i] + 1];
    auto* groups = scratch<Group>(Slot::group, std::min(uses, weights.gate->experts) + 1);
    int64_t group_count = 0;
    if (shared) groups[group_count++] = {-1, uses, tokens};
    for (int64_t e = 0; e < weights.gate->experts; ++e) {
        if (starts[e + 1] > 0) groups[group_count++] = {e, starts[e], starts[e + 1]};
        starts[e + 1] += starts[e];
    }
    for (int64_t i = 0; i < uses; ++i)
        if (ids[i] >= 0) members[starts[ids[i]]++] = i;
    for (int64_t t = 0; shared && t < tokens; ++t) members[uses + t] = uses + t;
    auto token_of = [&](int64_t use) { return use < uses ? use / chosen : use - uses; };

    // silu(gate)·up of every use, quantised block by block as rows get done.
    const int64_t routed_rows = weights.gate->rows, shared_rows = shared ? weights.shared_gate->rows : 0;
    const int64_t hidden_cols = std::max(weights.down->cols, shared ? weights.shared_down->cols : 0);
    const int64_t units = units_of(hidden_cols), stride = units * 256;
    auto* hidden = scratch<XUnit>(Slot::hidden, all_uses * units);
    auto* hidden_floats = scratch<float>(Slot::hidden_floats, all_uses * stride);
    const int64_t hidden_rows = rows_of_item(group_count * routed_rows, 0), output_rows = rows_of_item(height, all_uses);
    auto items_of = [&](const Group& g) { return ((g.expert < 0 ? shared_rows : routed_rows) + hidden_rows - 1) / hidden_rows; };
    const int64_t shared_items = shared ? items_of(groups[0]) : 0;
    const int64_t routed_items = (routed_rows + hidden_rows - 1) / hidden_rows;
    parallel_for(shared_items + routed_items * (group_count - (shared ? 1 : 0)), [&](int64_t item) {
        const bool in_shared = item < shared_items;
        const Group& group = in_shared ? groups[0] : groups[(shared ? 1 : 0) + (item - shared_items) / routed_items];
        const Weight& gate = in_shared ? *weights.shared_gate : *weights.gate;
        const Weight& up = in_shared ? *weights.shared_up : *weights.up;
        const Weight& down = in_shared ? *weights.shared_down : *weights.down;
        const int64_t expert = in_shared ? 0 : group.expert;
        const int64_t first = (in_shared ? item : (item - shared_items) % routed_items) * hidden_rows;
        const int64_t rows = std::min(hidden_rows, gate.rows - first);
        auto** pointers = scratch<const void*>(Slot::inputs, 2 * group.count);
        auto* product = scratch<float>(Slot::product, 2 * group.count * hidden_rows);
        auto** gate_out = scratch<float*>(Slot::outputs, 2 * group.count);
        auto** up_out = gate_out + group.count;
        for (int64_t c = 0; c < group.count; ++c) {
            const int64_t token = token_of(members[group.first + c]);
            pointers[c] = columns.of(gate)[token];
            pointers[group.count + c] = columns.of(up)[token];
            gate_out[c] = product + 2 * c * hidden_rows - first;
            up_out[c] = product + (2 * c + 1) * hidden_rows - first;
        }
        RowsTimesColumns job = rows_job(gate, expert, first, rows);
        job.columns = static_cast<int>(group.count);
        job.x = pointers;
        job.out = gate_out;
        job.next = up.row(expert, first);
        JUBAKO_CALL(multiply(job));
        job = rows_job(up, expert, first, rows);
        job.columns = static_cast<int>(group.count);
        job.x = pointers + group.count;
        job.out = up_out;
        JUBAKO_CALL(multiply(job));
        const Order order = down.is_float() ? Order::dwords : JUBAKO_CALL(order_of(down.type));
        for (int64_t c = 0; c < group.count; ++c) {
            const int64_t use = members[group.first + c];
            float* values = product + 2 * c * hidden_rows;
            JUBAKO_CALL(silu_times(values, values + hidden_rows, rows, values));
            if (down.is_float()) {
                float* target = hidden_floats + use * stride;
                std::memcpy(target + first, values, static_cast<size_t>(rows) * sizeof(float));
                if (first + rows == gate.rows) std::fill(target + gate.rows, target + stride, 0.0f);
            } else {
                XUnit* target = hidden + use * units;
                const int64_t blocks = (rows + 31) / 32;
                std::fill(values + rows, values + 32 * blocks, 0.0f);
                JUBAKO_CALL(quantize_blocks(values, first / 32, blocks, order, target));
                if (first + rows == gate.rows) {  // zero blocks up to the end of the unit, and of a padded row of down
                    const float zeros[32] = {};
                    for (int64_t block = first / 32 + blocks; block < 8 * units; ++block)
                        JUBAKO_CALL(quantize_blocks(zeros, block, 1, order, target));
                }
            }
        }
    });

    // down: an item makes its rows for every use, then adds them up for every token by rank.
    auto* shared_weight = scratch<float>(Slot::shared, tokens);
    if (shared) {
        auto** outputs = scratch<float*>(Slot::outputs, tokens);
        for (int64_t t = 0; t < tokens; ++t) outputs[t] = shared_weight + t;
        RowsTimesColumns job = rows_job(*weights.shared_router, 0, 0, 1);
        job.columns = static_cast<int>(tokens);
        job.x = columns.of(*weights.shared_router);
        job.out = outputs;
        JUBAKO_CALL(multiply(job));
        for (int64_t t = 0; t < tokens; ++t) shared_weight[t] = JUBAKO_CALL(sigmoid_of(shared_weight[t]));
    }
    parallel_for((height + output_rows - 1) / output_rows, [&](int64_t item) {
        const int64_t first = item * output_rows, rows = std::min(output_rows, height - first);
        auto* product = scratch<float>(Slot::product, all_uses * output_rows);
        auto** pointers = scratch<const void*>(Slot::inputs, all_uses);
        auto** outputs = scratch<float*>(Slot::outputs, all_uses);
        for (int64_t g = 0; g < group_count; ++g) {
            const Group& group = groups[g];
            const Weight& down = group.expert < 0 ? *weights.shared_down : *weights.down;
            for (int64_t c = 0; c < group.count; ++c) {
                const int64_t use = members[group.first + c];
                pointers[c] = down.is_float() ? static_cast<const void*>(hidden_floats + use * stride) : hidden + use * units;
                outputs[c] = product + use * output_rows - first;
            }
            RowsTimesColumns job = rows_job(down, std::max<int64_t>(group.expert, 0), first, rows);
            if (g + 1 < group_count) job.next = weights.down->row(groups[g + 1].expert, first);
            job.columns = static_cast<int>(group.count);
            job.x = pointers;
            job.out = outputs;
            JUBAKO_CALL(multiply(job));
        }
        for (int64_t t = 0; t < tokens; ++t) {
            float* sum = out + t * height + first;
            std::fill(sum, sum + rows, 0.0f);
            for (int64_t k = 0; k < chosen; ++k)
                if (ids[t * chosen + k] >= 0)
                    JUBAKO_CALL(add_scaled(route_weights[t * chosen + k], product + (t * chosen + k) * output_rows, rows, sum));
            if (shared) JUBAKO_CALL(add_scaled(shared_weight[t], product + (uses + t) * output_rows, rows, sum));
        }
    });
}

}  // namespace jubako
