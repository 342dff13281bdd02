// What measuring and waiting need of the native side.
#include <immintrin.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <atomic>
#include <chrono>

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

static void pause_for(double seconds) {
    using Clock = std::chrono::steady_clock;
    for (const auto until = Clock::now() + std::chrono::duration<double>(seconds); Clock::now() < until;)
        for (int i = 0; i < 8; ++i) _mm_pause();
}

void bind_measure(nb::module_& m) {
    m.def("pause", &pause_for, "seconds"_a, nb::call_guard<nb::gil_scoped_release>(),
          "Wait as a thread does that others on its core hardly notice.");
    m.def("read_all", &read_all, "bytes"_a,
          "Read an array of bytes (whole blocks of 256) on all threads, for its time; the exclusive or of its 64-bit words.");
}
