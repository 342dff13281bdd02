// _cpu.ExpertThreads: experts for a GPU that asks through mapped memory.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>

#include "activation.h"
#include "arrays.h"
#include "expert_threads.h"

namespace jubako {
namespace {

using Words = Array<uint32_t, 1>;
using Ids = Array<const int32_t, 2>;
using Rows = Array<float, 2>;
using Addresses = Array<const uint64_t, 2>;

Weight shape_of(int type, int64_t rows, int64_t cols) {
    const BlockLayout* layout = block_layout(type);
    require(layout != nullptr, "a block type without kernels");
    require(rows > 0 && cols > 0 && cols % layout->weights == 0, "rows must be a whole number of blocks");
    Weight weight;
    weight.type = static_cast<Type>(type);
    weight.rows = rows;
    weight.cols = cols;
    weight.row_stride = weight.row_bytes();
    return weight;
}

struct StoredLayer : ExpertLayer {
    Addresses address_array;
    std::optional<Floats<2>> scale_array;
};

void init_layer(StoredLayer* self, std::vector<int> types, int64_t size, int64_t hidden, int64_t down_cols, Addresses addresses,
                std::optional<Floats<2>> scales) {
    require(types.size() == 3, "types are those of gate, up and down");
    require(addresses.shape(1) == 3, "addresses are [experts, 3]");
    require(down_cols >= size && units_of(size) * 256 >= down_cols, "down_cols is not the experts' size with a padding");
    if (scales) require_shape(*scales, {static_cast<int64_t>(addresses.shape(0)), 3}, "scales");
    ExpertLayer layer{shape_of(types[0], size, hidden), shape_of(types[1], size, hidden), shape_of(types[2], hidden, down_cols),
                      addresses.data(), scales ? scales->data() : nullptr, static_cast<int64_t>(addresses.shape(0))};
    new (self) StoredLayer{layer, addresses, scales};
}

// Keeps what the threads read and write.
struct StoredThreads {
    Words words;
    Ids ids;
    Floats<2> x;
    Rows rows;
    std::vector<StoredLayer> layers;
    std::unique_ptr<ExpertThreads> threads;
};

ExpertThreads& running(StoredThreads& stored) {
    require(stored.threads != nullptr, "these threads are closed");
    return *stored.threads;
}

void init_threads(StoredThreads* self, Words words, Ids ids, Floats<2> x, Rows rows, std::vector<StoredLayer> layers) {
    require_shape(words, {mailbox_words}, "words");
    const int64_t tokens = ids.shape(0), chosen = ids.shape(1), hidden = x.shape(1);
    require_shape(x, {tokens, hidden}, "x");
    require_shape(rows, {tokens * chosen, hidden}, "rows");
    std::vector<ExpertLayer> plain(layers.begin(), layers.end());
    for (const ExpertLayer& layer : plain) require(layer.gate.cols == hidden && layer.down.rows == hidden, "a layer is not as wide as x");
    new (self) StoredThreads{words, ids, x, rows, std::move(layers), nullptr};
    self->threads = std::make_unique<ExpertThreads>(Mailbox{words.data(), ids.data(), x.data(), rows.data(), tokens, chosen}, std::move(plain));
}

}  // namespace
}  // namespace jubako

void bind_expert_threads(nanobind::module_& m) {
    using namespace jubako;
    using namespace nb::literals;
    nb::class_<ExpertSource>(m, "ExpertSource", "Brings experts into main memory.");
    nb::class_<StoredLayer>(m, "ExpertLayer", "Where a layer's experts lie in main memory. Keeps its arrays alive.")
        .def("__init__", &init_layer, "types"_a, "size"_a, "hidden"_a, "down_cols"_a, "addresses"_a.noconvert(), "scales"_a.noconvert() = nb::none(),
             "types: ggml's numbers of gate's and up's [size, hidden] and down's [hidden, down_cols] block types; addresses uint64\n"
             "[experts, 3] of their blocks, rows one after the other, 0 where an expert is not in memory; may change at any time.");
    nb::class_<StoredThreads>(m, "ExpertThreads", "Answers a GPU that asks for experts through memory which both see (csrc/expert_threads.h).")
        .def("__init__", &init_threads, "words"_a.noconvert(), "ids"_a.noconvert(), "x"_a.noconvert(), "rows"_a.noconvert(), "layers"_a,
             "words uint32 [112], ids int32 [tokens, chosen], x float32 [tokens, hidden], rows float32 [tokens*chosen, hidden].")
        .def("set_source", [](StoredThreads& s, ExpertSource* source) { running(s).set_source(source); }, "source"_a.none(), nb::keep_alive<1, 2>(),
             "What brings experts into memory whose addresses are 0.")
        .def("begin", [](StoredThreads& s) { running(s).begin(); }, "Requests may come from now on: threads spin.")
        .def("end", [](StoredThreads& s) { running(s).end(); }, "None will come until the next `begin`.")
        .def("close", [](StoredThreads& s) { nb::gil_scoped_release release; s.threads.reset(); }, "End the thread that watches the bell.")
        .def_prop_ro("requests", [](StoredThreads& s) { return running(s).requests.load(); }, "Requests answered.")
        .def_prop_ro("experts", [](StoredThreads& s) { return running(s).experts.load(); }, "Experts computed, once a request each.")
        .def_prop_ro("named", [](StoredThreads& s) { return running(s).named.load(); }, "Experts that guesses named, whose weights were called into caches.")
        .def_prop_ro("seconds", [](StoredThreads& s) { return running(s).seconds.load(); }, "Seconds spent on answers.");
}
