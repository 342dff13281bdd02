// Choosing from logits: experts and tokens.
#include "arrays.h"
#include "kernels/route.h"
#include "pool.h"

namespace jubako {
namespace {

std::pair<OwnedInts, Owned> route_tokens(const Floats<2>& logits, int k) {
    const int64_t tokens = static_cast<int64_t>(logits.shape(0)), count = static_cast<int64_t>(logits.shape(1));
    require(k > 0 && k <= count && count <= ROUTE_MAX_EXPERTS, "k must lie between 1 and the number of experts");
    OwnedInts ids = output<int32_t>({tokens, k});
    Owned weights = output<float>({tokens, k});
    const float* from = logits.data();
    nb::gil_scoped_release release;
    parallel_for(tokens, [&](int64_t t) {
        int32_t* keys = scratch<int32_t>(Slot::ops_c, count + 16);
        JUBAKO_CALL(route(from + t * count, static_cast<int>(count), k, keys, ids.data() + t * k, weights.data() + t * k));
    });
    return {std::move(ids), std::move(weights)};
}

nb::ndarray<nb::numpy, int64_t> argmax_rows(const Floats<2>& values) {
    const int64_t rows = static_cast<int64_t>(values.shape(0)), count = static_cast<int64_t>(values.shape(1));
    require(count > 0, "no values to choose from");
    auto ids = output<int64_t>({rows});
    nb::gil_scoped_release release;
    parallel_for(rows, [&](int64_t row) { ids.data()[row] = JUBAKO_CALL(argmax(values.data() + row * count, count)); });
    return ids;
}

}  // namespace
}  // namespace jubako

void bind_route(nanobind::module_& m) {
    using namespace nanobind::literals;
    m.def("route", &jubako::route_tokens, "logits"_a.noconvert(), "k"_a, "See ops: route.");
    m.def("argmax", &jubako::argmax_rows, "values"_a.noconvert(), "Index of the largest value of each row; the lowest one on ties: int64 [rows].");
}
