// Python's view of weights and of the products: _cpu.Weight, linear, linear_many, experts, decode_rows.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "linear.h"
#include "pool.h"
#include "stored_weight.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace jubako;

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::device::cpu, nb::c_contig>;
using Ints = nb::ndarray<const int32_t, nb::device::cpu, nb::c_contig>;
using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu, nb::c_contig>;
using IdMatrix = nb::ndarray<const int32_t, nb::ndim<2>, nb::device::cpu, nb::c_contig>;
using Result = nb::ndarray<nb::numpy, float, nb::ndim<2>>;

[[noreturn]] void refuse(const std::string& message) { throw nb::value_error(message.c_str()); }

std::string text(int64_t number) { return std::to_string(number); }

void init_weight(StoredWeight* self, Bytes bytes, int type, std::optional<Floats> scale) {
    const BlockLayout* layout = block_layout(type);
    if (layout == nullptr) refuse("block type " + text(type) + " has no kernels");
    if (bytes.ndim() < 1 || bytes.ndim() > 3) refuse("a weight has 1 to 3 dimensions, not " + text(bytes.ndim()));
    const size_t last = bytes.ndim() - 1;
    const int64_t row_bytes = bytes.shape(last);
    if (bytes.stride(last) != 1 && row_bytes > 1) refuse("the bytes of a weight's row must lie side by side");
    if (row_bytes == 0 || row_bytes % layout->bytes != 0)
        refuse(std::string("a row of ") + text(row_bytes) + " bytes is not a whole number of " + layout->name + " blocks (" +
               text(layout->bytes) + " bytes)");
    new (self) StoredWeight();
    self->data = bytes.data();
    self->type = static_cast<Type>(type);
    self->cols = row_bytes / layout->bytes * layout->weights;
    self->rows = bytes.ndim() >= 2 ? bytes.shape(last - 1) : 1;
    self->experts = bytes.ndim() == 3 ? bytes.shape(0) : 1;
    self->row_stride = bytes.ndim() >= 2 ? bytes.stride(last - 1) : row_bytes;
    self->expert_stride = bytes.ndim() == 3 ? bytes.stride(0) : 0;
    self->bytes = bytes;
    if (scale.has_value()) {
        self->scales = scale->size();
        if (self->scales != 1 && self->scales != self->experts)
            refuse("a weight of " + text(self->experts) + " experts has " + text(self->scales) + " scales");
        self->scales_array = scale;
        self->scale = scale->data();
    }
}

Result new_result(int64_t rows, int64_t cols) {
    auto* data = new float[static_cast<size_t>(rows * cols)];
    nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<float*>(p); });
    return Result(data, {static_cast<size_t>(rows), static_cast<size_t>(cols)}, owner);
}

void check_width(const StoredWeight& weight, int64_t width) {
    if (width > weight.cols || (width < weight.cols && units_of(width) * 256 < weight.cols))
        refuse("x has " + text(width) + " columns, the weight has " + text(weight.cols));
}

int64_t checked_expert(const StoredWeight& weight, int64_t expert) {
    if (expert < 0 || expert >= weight.experts) refuse("expert " + text(expert) + " of " + text(weight.experts));
    return expert;
}

std::vector<Result> linear_many(const std::vector<const StoredWeight*>& weights, Matrix x, int64_t expert) {
    std::vector<Result> results;
    std::vector<LinearTask> tasks;
    const int64_t tokens = x.shape(0), width = x.shape(1);
    for (const StoredWeight* weight : weights) {
        if (weight == nullptr) refuse("a weight is None");
        check_width(*weight, width);
        results.push_back(new_result(tokens, weight->rows));
        tasks.push_back({weight, checked_expert(*weight, expert), results.back().data()});
    }
    nb::gil_scoped_release release;
    linear(tasks.data(), static_cast<int64_t>(tasks.size()), x.data(), tokens, width);
    return results;
}

Result run_experts(const StoredWeight& gate, const StoredWeight& up, const StoredWeight& down, Matrix x, IdMatrix ids,
                   Matrix route_weights, const StoredWeight* shared_router, const StoredWeight* shared_gate,
                   const StoredWeight* shared_up, const StoredWeight* shared_down) {
    const int64_t tokens = x.shape(0), width = x.shape(1), chosen = ids.shape(1);
    auto check = [&](const char* name, const StoredWeight& g, const StoredWeight& u, const StoredWeight& d) {
        if (g.cols != width || u.cols != width || g.rows != u.rows || d.cols < g.rows || g.experts != u.experts || g.experts != d.experts)
            refuse(std::string("the shapes of ") + name + " do not fit: gate " + text(g.rows) + " x " + text(g.cols) + ", up " + text(u.rows) +
                   " x " + text(u.cols) + ", down " + text(d.rows) + " x " + text(d.cols) + ", x has " + text(width) + " columns");
    };
    check("the experts", gate, up, down);
    ExpertWeights weights{&gate, &up, &down};
    if (shared_gate != nullptr) {
        if (shared_router == nullptr || shared_up == nullptr || shared_down == nullptr) refuse("a shared expert needs router, gate, up and down");
        check("the shared expert", *shared_gate, *shared_up, *shared_down);
        if (shared_router->cols != width || shared_router->rows != 1) refuse("the shared router must be one row as wide as x");
        if (shared_down->rows != down.rows) refuse("the shared expert's output differs in width from the experts'");
        weights.shared_router = shared_router;
        weights.shared_gate = shared_gate;
        weights.shared_up = shared_up;
        weights.shared_down = shared_down;
    }
    if (static_cast<int64_t>(ids.shape(0)) != tokens || static_cast<int64_t>(route_weights.shape(0)) != tokens ||
        static_cast<int64_t>(route_weights.shape(1)) != chosen)
        refuse("ids and route_weights must be [" + text(tokens) + ", chosen]");
    for (int64_t i = 0; i < tokens * chosen; ++i)
        if (ids.data()[i] >= gate.experts) refuse("expert " + text(ids.data()[i]) + " of " + text(gate.experts));
    Result result = new_result(tokens, down.rows);
    nb::gil_scoped_release release;
    experts(weights, x.data(), tokens, ids.data(), route_weights.data(), chosen, result.data());
    return result;
}

Result decode_rows(const StoredWeight& weight, nb::ndarray<const int64_t, nb::ndim<1>, nb::device::cpu, nb::c_contig> rows, int64_t expert) {
    const int64_t count = rows.shape(0);
    checked_expert(weight, expert);
    for (int64_t i = 0; i < count; ++i)
        if (rows.data()[i] < 0 || rows.data()[i] >= weight.rows) refuse("row " + text(rows.data()[i]) + " of " + text(weight.rows));
    Result result = new_result(count, weight.cols);
    const float scale = weight.scale_of(expert);
    nb::gil_scoped_release release;
    parallel_for((count + 15) / 16, [&](int64_t item) {
        for (int64_t i = 16 * item; i < 16 * item + 16 && i < count; ++i) {
            float* out = result.data() + i * weight.cols;
            JUBAKO_CALL(decode_row(weight.type, weight.row(expert, rows.data()[i]), weight.cols, out));
            if (weight.scale != nullptr)
                for (int64_t k = 0; k < weight.cols; ++k) out[k] *= scale;
        }
    });
    return result;
}

}  // namespace

void bind_linear(nb::module_& m) {
    nb::class_<StoredWeight>(m, "Weight", "A matrix, or a stack of expert matrices, in the file's own blocks. Keeps its array alive.")
        .def("__init__", &init_weight, "bytes"_a.noconvert(), "type"_a, "scale"_a = nb::none(),
             "bytes: uint8 [(experts,) rows, row_bytes], strided in all but the last dimension; type: ggml's number of the block\n"
             "type; scale: float32 [1] or [experts], multiplies the products (NVFP4).")
        .def_prop_ro("type", [](const StoredWeight& w) { return static_cast<int>(w.type); })
        .def_prop_ro("rows", [](const StoredWeight& w) { return w.rows; })
        .def_prop_ro("cols", [](const StoredWeight& w) { return w.cols; })
        .def_prop_ro("experts", [](const StoredWeight& w) { return w.experts; });
    m.def("linear",
          [](const StoredWeight& weight, Matrix x, int64_t expert) { return linear_many({&weight}, x, expert)[0]; },
          "weight"_a, "x"_a, "expert"_a = 0, "x [T, K] -> [T, rows]. K may be less than the weight's cols by a padding: zeros there.");
    m.def("linear_many", &linear_many, "weights"_a, "x"_a, "expert"_a = 0, "linear with each of the weights; x is quantised once.");
    m.def("experts", &run_experts, "gate"_a, "up"_a, "down"_a, "x"_a, "ids"_a, "route_weights"_a, "shared_router"_a = nb::none(),
          "shared_gate"_a = nb::none(), "shared_up"_a = nb::none(), "shared_down"_a = nb::none(),
          "x [T, H], ids int32 [T, k] in order of rank (negative: that expert is not here and adds nothing), route_weights [T, k]\n"
          "-> [T, H]: the sum of route_weight · down(silu(gate·x) · (up·x)) by rank, then the shared expert times sigmoid(router·x).");
    m.def("decode_rows", &decode_rows, "weight"_a, "rows"_a, "expert"_a = 0, "rows int64 [n] -> float32 [n, cols]: the decoded weights.");
}
