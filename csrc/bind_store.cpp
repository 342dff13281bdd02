// What Python sees of reading from files: Reader, RowTable, ExpertStore.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <tuple>

#include "arrays.h"
#include "cut_file.h"
#include "experts_stored.h"
#include "row_server.h"
#include "rows.h"
#include "store_source.h"
#include "stored_weight.h"

namespace jubako {
namespace {

using Bytes = nb::ndarray<nb::numpy, uint8_t>;
using Ids = Array<const int32_t, 1>;
using PartTuple = std::tuple<int, int64_t, int64_t, int64_t>;

using Slots = std::optional<Array<const int32_t, 2>>;

// Keeps the bytes of routers and slots.
struct StoredSource : StoreSource {
    StoredSource(std::shared_ptr<ExpertStore> store, std::vector<Weight> routers, int chosen, std::vector<StoredWeight> bytes, Slots where)
        : StoreSource(std::move(store), std::move(routers), chosen, where ? where->data() : nullptr), kept(std::move(bytes)), slots(std::move(where)) {}
    std::vector<StoredWeight> kept;
    Slots slots;
};

void init_source(StoredSource* self, std::shared_ptr<ExpertStore> store, const std::vector<const StoredWeight*>& routers, int chosen, Slots slots) {
    require(routers.empty() || static_cast<int>(routers.size()) == store->layers(), "routers are none, or one a layer");
    require(routers.empty() || (chosen > 0 && chosen <= store->experts()), "chosen lies between 1 and the number of experts");
    require(!slots || (static_cast<int>(slots->shape(0)) == store->layers() && static_cast<int>(slots->shape(1)) == store->experts()), "slots have a row for each layer");
    std::vector<StoredWeight> kept;
    for (const StoredWeight* router : routers) {
        require(router->rows == store->experts() && router->cols == routers[0]->cols, "a router has a row for each expert");
        kept.push_back(*router);
    }
    new (self) StoredSource(std::move(store), std::vector<Weight>(kept.begin(), kept.end()), chosen, kept, std::move(slots));
}

// Keeps what the server reads and writes.
struct StoredServer {
    Array<uint32_t, 1> words;
    Array<const int64_t, 1> ids;
    Array<uint8_t, 2> rows;
    std::unique_ptr<RowServer> server;
};

StoredLayer layer_of(const std::array<PartTuple, PARTS>& parts) {
    StoredLayer layer;
    for (size_t i = 0; i < PARTS; ++i) layer[i] = {std::get<0>(parts[i]), std::get<1>(parts[i]), std::get<2>(parts[i]), std::get<3>(parts[i])};
    return layer;
}

std::vector<StoredLayer> layers_of(const std::vector<std::array<PartTuple, PARTS>>& layers) {
    std::vector<StoredLayer> result;
    for (const auto& parts : layers) result.push_back(layer_of(parts));
    return result;
}

Bytes read_bytes(Reader& reader, int file, int64_t offset, int64_t bytes) {
    require(offset >= 0 && bytes > 0, "nothing to read");
    auto* pages = new Pages(page_ceil(offset + bytes) - page_floor(offset));
    nb::capsule owner(pages, [](void* p) noexcept { delete static_cast<Pages*>(p); });
    {
        nb::gil_scoped_release release;
        reader.read_all(cut({file, offset, bytes, pages->data()}));
    }
    const size_t shape[] = {static_cast<size_t>(bytes)};
    return Bytes(pages->data() + offset % PAGE, 1, shape, owner);
}

void check_ids(const ExpertStore& store, int layer, const int32_t* ids, size_t count, bool absent_too) {
    require(layer >= 0 && layer < store.layers(), "no such layer");
    for (size_t i = 0; i < count; ++i) require(ids[i] < store.experts() && (absent_too || ids[i] >= 0), "no such expert");
}

Owned run(ExpertStore& store, int layer, const StoredWeight& gate, const StoredWeight& up, const StoredWeight& down, const Floats<2>& x,
          const Array<const int32_t, 2>& ids, const Floats<2>& route_weights, const StoredWeight& shared_router, const StoredWeight& shared_gate,
          const StoredWeight& shared_up, const StoredWeight& shared_down, std::optional<nb::callable> meanwhile) {
    const auto tokens = static_cast<int64_t>(x.shape(0)), chosen = static_cast<int64_t>(ids.shape(1));
    check_ids(store, layer, ids.data(), ids.size(), true);
    require_shape(ids, {tokens, chosen}, "ids");
    require_shape(route_weights, {tokens, chosen}, "route_weights");
    require(static_cast<int64_t>(x.shape(1)) == gate.cols && gate.rows == up.rows && down.cols >= gate.rows, "the shapes of the experts do not fit");
    require(shared_gate.cols == gate.cols && shared_down.rows == down.rows && shared_router.rows == 1, "the shapes of the shared expert do not fit");
    const ExpertWeights weights{&gate, &up, &down, &shared_router, &shared_gate, &shared_up, &shared_down};
    Owned out = output<float>({tokens, down.rows});
    nb::gil_scoped_release release;
    stored_experts(
        store, layer, weights, x.data(), tokens, ids.data(), route_weights.data(), chosen,
        [&] {
            if (!meanwhile) return;
            nb::gil_scoped_acquire acquire;
            (*meanwhile)();
        },
        out.data());
    return out;
}

}  // namespace
}  // namespace jubako

void bind_store(nanobind::module_& m) {
    namespace nb = nanobind;
    using namespace nb::literals;
    using namespace jubako;
    nb::exception<ReadError>(m, "ReadError");
    nb::class_<Reader>(m, "Reader", "Reads files past the page cache, in parallel, on threads of its own.")
        .def("__init__", [](Reader* self, std::vector<std::string> paths, int threads) { new (self) Reader(std::move(paths), threads); }, "paths"_a,
             "threads"_a = 16)
        .def("read", &read_bytes, "file"_a, "offset"_a, "bytes"_a, "Bytes of a file, by its number: uint8 [bytes]. Raises ReadError.")
        .def_prop_ro("direct", &Reader::direct, "Whether the file system reads without the page cache.")
        .def_prop_ro("bytes_read", &Reader::bytes_read);
    nb::class_<RowReads>(m, "RowReads", "Rows on their way.")
        .def("take",
             [](RowReads& reads, int64_t row_bytes) {
                 const std::vector<uint8_t>* bytes;
                 {
                     nb::gil_scoped_release release;
                     bytes = &reads.take();
                 }
                 const size_t shape[] = {bytes->size() / static_cast<size_t>(row_bytes), static_cast<size_t>(row_bytes)};
                 return Bytes(const_cast<uint8_t*>(bytes->data()), 2, shape, nb::find(reads));
             },
             "row_bytes"_a, "Wait for them: uint8 [rows, row_bytes]. Raises ReadError.");
    nb::class_<RowTable>(m, "RowTable", "A matrix that stays in its file.")
        .def("__init__",
             [](RowTable* self, std::shared_ptr<Reader> reader, int file, int64_t offset, int64_t row_bytes, int64_t rows) {
                 require(offset >= 0 && row_bytes > 0 && rows > 0, "no table");
                 new (self) RowTable{std::move(reader), file, offset, row_bytes, rows};
             },
             "reader"_a, "file"_a, "offset"_a, "row_bytes"_a, "rows"_a)
        .def_ro("row_bytes", &RowTable::row_bytes)
        .def("begin",
             [](const RowTable& table, const Array<const int64_t, 1>& ids) {
                 for (size_t i = 0; i < ids.size(); ++i) require(ids.data()[i] >= 0 && ids.data()[i] < table.rows, "no such row");
                 return new RowReads(table, ids.data(), static_cast<int64_t>(ids.size()));
             },
             "ids"_a.noconvert(), nb::rv_policy::take_ownership, "Begin to read rows ids int64 [n].");
    nb::class_<StoredServer>(m, "RowServer", "Reads rows that a GPU asks for through memory which both see (csrc/row_server.h).")
        .def("__init__",
             [](StoredServer* self, const RowTable& table, Array<uint32_t, 1> words, Array<const int64_t, 1> ids, Array<uint8_t, 2> rows) {
                 require_shape(words, {row_words}, "words");
                 require_shape(rows, {static_cast<int64_t>(ids.shape(0)), table.row_bytes}, "rows");
                 new (self) StoredServer{words, ids, rows, nullptr};
                 self->server = std::make_unique<RowServer>(table, words.data(), ids.data(), static_cast<int64_t>(ids.shape(0)), rows.data());
             },
             "table"_a, "words"_a.noconvert(), "ids"_a.noconvert(), "rows"_a.noconvert(),
             "words uint32 [64], ids int64 [n] of the rows asked for, rows uint8 [n, row_bytes] for what is read.")
        .def("begin", [](StoredServer& s) { s.server->begin(); }, "Requests may come from now on: its thread spins.")
        .def("end", [](StoredServer& s) { s.server->end(); }, "None will come until the next `begin`.")
        .def_prop_ro("error", [](StoredServer& s) { return s.server->error(); }, "Why the last read failed; empty if none did.");
    nb::class_<ExpertStore>(m, "ExpertStore", "Experts in main memory, read from the file as they are needed (store.h).")
        .def("__init__",
             [](ExpertStore* self, std::shared_ptr<Reader> reader, const std::vector<std::array<PartTuple, PARTS>>& layers, int experts,
                std::vector<int64_t> frames) { new (self) ExpertStore(std::move(reader), layers_of(layers), experts, std::move(frames)); },
             "reader"_a, "layers"_a, "experts"_a, "frames"_a,
             "layers: for gate, up and down (file, offset of expert 0, bytes from one expert to the next, bytes of one); frames: how\n"
             "many for layers of each shape (`store_shapes`), or none: room for all.")
        .def("load",
             [](ExpertStore& store, int layer) {
                 check_ids(store, layer, nullptr, 0, false);
                 require(store.whole(), "only a store with room for all experts loads layers");
                 nb::gil_scoped_release release;
                 store.load(layer);
             },
             "layer"_a, "Read all experts of a layer. Raises ReadError.")
        .def("step", &ExpertStore::step, "A step of the network begins.")
        .def("hold",
             [](ExpertStore& store, int layer, const Ids& ids) {
                 check_ids(store, layer, ids.data(), ids.size(), false);
                 const int count = static_cast<int>(ids.size());
                 nb::gil_scoped_release release;
                 const int held = store.hold(layer, ids.data(), count);
                 try {
                     store.wait(layer, ids.data(), held);
                 } catch (...) {
                     store.release(layer, ids.data(), held);
                     throw;
                 }
                 return held;
             },
             "layer"_a, "ids"_a.noconvert(),
             "Read those of experts int32 [n], each once, that are absent; none goes until `release`. How many, from the first on:\n"
             "fewer than all when no frame is left, but at least one. Raises ReadError.")
        .def("release",
             [](ExpertStore& store, int layer, const Ids& ids) {
                 check_ids(store, layer, ids.data(), ids.size(), false);
                 store.release(layer, ids.data(), static_cast<int>(ids.size()));
             },
             "layer"_a, "ids"_a.noconvert(), "Held experts may go.")
        .def_prop_ro("error", &ExpertStore::error, "Why the last read failed; empty if none did.")
        .def("expect",
             [](ExpertStore& store, int layer, const Ids& ids, bool sure) {
                 check_ids(store, layer, ids.data(), ids.size(), false);
                 store.expect(layer, ids.data(), static_cast<int>(ids.size()), sure);
             },
             "layer"_a, "ids"_a.noconvert(), "sure"_a = false,
             "Experts int32 [n] that a layer may ask for next, the likeliest first: read when nothing else is, and unless sure only in\n"
             "place of experts used less.")
        .def("experts", &run, "layer"_a, "gate"_a, "up"_a, "down"_a, "x"_a.noconvert(), "ids"_a.noconvert(), "route_weights"_a.noconvert(),
             "shared_router"_a, "shared_gate"_a, "shared_up"_a, "shared_down"_a, "meanwhile"_a = nb::none(),
             "As `experts`, of a layer of the store; the weights' bytes are not read. meanwhile(): called while experts are read.")
        .def_prop_ro("whole", &ExpertStore::whole, "Whether there is room for all experts.")
        .def_prop_ro("addresses",
                     [](ExpertStore& store) {
                         const size_t shape[] = {static_cast<size_t>(store.layers()), static_cast<size_t>(store.experts()), size_t{PARTS}};
                         return nb::ndarray<nb::numpy, const uint64_t>(reinterpret_cast<const uint64_t*>(store.table()), 3, shape, nb::find(store));
                     },
                     "uint64 [layers, experts, 3], a view: where gate, up and down of each expert begin, 0 where it is absent.")
        .def("part",
             [](ExpertStore& store, int layer, int part, int64_t bytes) {
                 check_ids(store, layer, nullptr, 0, false);
                 require(store.whole() && part >= 0 && part < PARTS, "no such part");
                 const size_t shape[] = {static_cast<size_t>(bytes)};
                 return nb::ndarray<nb::numpy, const uint8_t>(store.first(layer, part), 1, shape, nb::find(store));
             },
             "layer"_a, "part"_a, "bytes"_a, "Bytes of a part of a layer, from expert 0 on, in a store with room for all: uint8 [bytes], a view.")
        .def("regions",
             [](const ExpertStore& store) {
                 std::vector<std::pair<uint64_t, int64_t>> found;
                 for (auto [data, bytes] : store.regions()) found.emplace_back(reinterpret_cast<uint64_t>(data), bytes);
                 return found;
             },
             "(address, bytes) of the memory laid out.")
        .def_prop_ro("counts",
                     [](const ExpertStore& store) {
                         const ExpertStore::Counts c = store.counts();
                         return std::make_tuple(c.asked, c.missed, c.expected, c.expected_in_vain);
                     },
                     "Experts asked for, of those read when asked for; read because expected, of those never asked for.");
    nb::class_<StoredSource, ExpertSource>(m, "StoreSource", "Lets a store bring what `ExpertThreads` are asked for.")
        .def("__init__", &init_source, "store"_a, "routers"_a = std::vector<const StoredWeight*>{}, "chosen"_a = 0, "slots"_a = nb::none(),
             "routers [experts, hidden] of all layers, and how many experts a token chooses: to read ahead what the next layer may ask for; slots: int32 "
             "[layers, experts], negative where the GPU does not have an expert itself, as it changes.");
    m.def("explain_cut_files", &explain_cut_files, "Let a mapped file whose bytes are gone end the process with a line that names it, exit code 1.");
    m.def("store_shapes", [](const std::vector<std::array<PartTuple, PARTS>>& layers) { return shapes_of(layers_of(layers)); }, "layers"_a,
          "The shape of each layer's experts, as a number, and the bytes of a frame of each shape.");
}
