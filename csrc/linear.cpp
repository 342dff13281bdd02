#include "linear.h"

#include <algorithm>
#include <cstring>

#include "pool.h"

namespace jubako {
namespace {

// Which form of the columns a type reads.
enum Form { dword_units, plane_units, floats };

Form form_of(const Weight& weight) {
    if (weight.is_float()) return floats;
    return JUBAKO_CALL(order_of(weight.type)) == Order::dwords ? dword_units : plane_units;
}

}  // namespace

void Columns::want(const Weight* weight) {
    if (weight == nullptr) return;
    wanted_[form_of(*weight)] = true;
    cols_ = std::max(cols_, weight->cols);
}

void Columns::make(const float* x, int64_t tokens, int64_t width) {
    const int64_t units = units_of(cols_), padded = (cols_ + 15) / 16 * 16;
    auto** pointers = scratch<const void*>(Slot::pointers, 3 * tokens);
    XUnit* coarse[2] = {};
    FineUnit* fine[2] = {};
    float* copied = nullptr;
    const Slot slots[2] = {Slot::input, Slot::input_planar};
    for (int form = 0; form < 2; ++form) {
        if (wanted_[form] && fine_) fine[form] = scratch<FineUnit>(slots[form], tokens * units);
        if (wanted_[form] && !fine_) coarse[form] = scratch<XUnit>(slots[form], tokens * units);
    }
    if (wanted_[floats]) copied = scratch<float>(Slot::input_floats, tokens * padded);
    for (int form = 0; form < 3; ++form) pointers_[form] = pointers + form * tokens;
    const int64_t piece = tokens <= 4 ? tokens : 4;
    parallel_for((tokens + piece - 1) / piece, [&](int64_t item) {
        for (int64_t t = item * piece; t < std::min(tokens, (item + 1) * piece); ++t) {
            auto make_column = [&](int form, auto* column) {
                JUBAKO_CALL(quantize(x + t * width, width, units, static_cast<Order>(form), column));
                pointers_[form][t] = column;
            };
            for (int form = 0; form < 2; ++form) {
                if (fine[form] != nullptr) make_column(form, fine[form] + t * units);
                if (coarse[form] != nullptr) make_column(form, coarse[form] + t * units);
            }
            if (wanted_[floats]) {
                float* column = copied + t * padded;
                std::memcpy(column, x + t * width, static_cast<size_t>(width) * sizeof(float));
                std::fill(column + width, column + padded, 0.0f);
                pointers_[floats][t] = column;
            }
        }
    });
}

const void* const* Columns::of(const Weight& weight) const { return pointers_[form_of(weight)]; }

void linear(const LinearTask* tasks, int64_t count, const float* x, int64_t tokens, int64_t width) {
    if (tokens == 0 || count == 0) return;
    Columns columns(true);
    int64_t bytes = 0;
    for (int64_t i = 0; i < count; ++i) {
        columns.want(tasks[i].weight);
        bytes += tasks[i].weight->rows * tasks[i].weight->row_bytes();
    }
    columns.make(x, tokens, width);

    // Pieces of rows: long enough to stream, enough of them to share out.
    const int64_t piece_bytes = std::clamp<int64_t>(bytes / (8 * threads()), 16 << 10, 256 << 10);
    auto rows_of_piece = [&](const Weight& w) {
        int64_t rows = std::max<int64_t>(1, piece_bytes / w.row_bytes());
        return rows >= 32 || tokens > vector_columns ? (rows + 31) / 32 * 32 : rows;
    };
    auto* first_item = scratch<int64_t>(Slot::group, count + 1);
    first_item[0] = 0;
    for (int64_t i = 0; i < count; ++i) {
        const Weight& w = *tasks[i].weight;
        first_item[i + 1] = first_item[i] + (w.rows + rows_of_piece(w) - 1) / rows_of_piece(w);
    }
    parallel_for(first_item[count], [&](int64_t item) {
        const int64_t i = std::upper_bound(first_item, first_item + count + 1, item) - first_item - 1;
        const Weight& w = *tasks[i].weight;
        RowsTimesColumns job;
        job.type = w.type;
        job.weights = w.row(tasks[i].expert, 0);
        job.row_stride = w.row_stride;
        job.first_row = (item - first_item[i]) * rows_of_piece(w);
        job.rows = std::min(rows_of_piece(w), w.rows - job.first_row);
        job.cols = w.cols;
        job.x = columns.of(w);
        job.columns = static_cast<int>(tokens);
        job.scale = w.scale_of(tasks[i].expert);
        job.fine = true;
        auto** out = scratch<float*>(Slot::outputs, tokens);
        for (int64_t t = 0; t < tokens; ++t) out[t] = tasks[i].out + t * w.rows;
        job.out = out;
        JUBAKO_CALL(multiply(job));
    });
}

}  // namespace jubako
