// Rows of a matrix by number: token embeddings, n-gram rows.
#include <string>

#include "arrays.h"
#include "linear.h"
#include "pool.h"

namespace jubako {
namespace {

// Rows of one task: few enough that a token's n-gram rows are read side by side, from memory or from the disk.
constexpr int64_t ROWS = 4;

Owned embed(const Weight& weight, const Array<const int64_t, 1>& ids) {
    const int64_t count = static_cast<int64_t>(ids.shape(0));
    for (int64_t i = 0; i < count; ++i) {
        if (ids.data()[i] < 0 || ids.data()[i] >= weight.rows) {
            throw std::invalid_argument("row " + std::to_string(ids.data()[i]) + " is outside of the " + std::to_string(weight.rows) +
                                        " rows");
        }
    }
    Owned out = output<float>({count, weight.cols});
    const int64_t* rows = ids.data();
    nb::gil_scoped_release release;
    parallel_for((count + ROWS - 1) / ROWS, [&](int64_t task) {
        for (int64_t i = task * ROWS; i < count && i < (task + 1) * ROWS; ++i) {
            float* row = out.data() + i * weight.cols;
            JUBAKO_CALL(decode_row(weight.type, weight.row(0, rows[i]), weight.cols, row));
            const float scale = weight.scale_of(0);
            for (int64_t c = 0; scale != 1.0f && c < weight.cols; ++c) row[c] *= scale;
        }
    });
    return out;
}

}  // namespace
}  // namespace jubako

void bind_embed(nanobind::module_& m) {
    using namespace nanobind::literals;
    m.def("embed", &jubako::embed, "weight"_a, "ids"_a.noconvert(), "See ops: embed.");
}
