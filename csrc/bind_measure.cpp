// What measuring needs of the native side.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <atomic>

#include "kernels/read.h"
#include "pool.h"

namespace nb = nanobind;
using namespace nb::literals;

static uint64_t read_all(nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> bytes) {
    constexpr size_t part = size_t{1} << 20;
    const uint8_t* data = bytes.data();
    const size_t size = bytes.shape(0) / 256 * 256;
    std::atomic<uint64_t> all{0};
    nb::gil_scoped_release release;
    jubako::parallel_for(static_cast<int64_t>((size + part - 1) / part), [&](int64_t item) {
        const size_t start = static_cast<size_t>(item) * part;
        all.fetch_xor(JUBAKO_CALL(read_fold(data + start, std::min(part, size - start))), std::memory_order_relaxed);
    });
    return all.load();
}

void bind_measure(nb::module_& m) {
    m.def("read_all", &read_all, "bytes"_a,
          "Read an array of bytes (whole blocks of 256) on all threads, for its time; the exclusive or of its 64-bit words.");
}
