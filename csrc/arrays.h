// What the bindings share: array types, checks, outputs, and lazily committed memory.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace jubako {

namespace nb = nanobind;

// Arrays are taken as they are: another type or layout raises TypeError instead of being converted (bind with noconvert).
template <class T, size_t N>
using Array = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
template <size_t N>
using Floats = Array<const float, N>;
using Owned = nb::ndarray<nb::numpy, float>;
using OwnedInts = nb::ndarray<nb::numpy, int32_t>;

inline void require(bool fine, const char* message) {
    if (!fine) throw std::invalid_argument(message);  // ValueError in Python
}

template <class A>
void require_shape(const A& array, std::initializer_list<int64_t> shape, const char* name) {
    size_t axis = 0;
    for (int64_t size : shape) {
        if (static_cast<int64_t>(array.shape(axis)) != size) {
            throw std::invalid_argument(std::string(name) + " has size " + std::to_string(array.shape(axis)) + " in dimension " +
                                        std::to_string(axis) + "; " + std::to_string(size) + " was expected");
        }
        ++axis;
    }
}

// A new array that frees its memory with its last reference.
template <class T>
nb::ndarray<nb::numpy, T> output(std::initializer_list<int64_t> shape) {
    size_t sizes[4], count = 1, rank = 0;
    for (int64_t size : shape) count *= sizes[rank++] = static_cast<size_t>(size);
    void* data = std::aligned_alloc(64, (count * sizeof(T) + 127) / 64 * 64);
    if (data == nullptr) throw std::bad_alloc();
    nb::capsule owner(data, [](void* p) noexcept { std::free(p); });
    return nb::ndarray<nb::numpy, T>(data, rank, sizes, owner);
}

inline std::vector<float> copy(const Floats<1>& array) { return {array.data(), array.data() + array.size()}; }

// [channels, taps] to [taps, channels], so that a tap's weights lie side by side.
inline std::vector<float> taps_first(const Floats<2>& array) {
    const size_t channels = array.shape(0), taps = array.shape(1);
    std::vector<float> result(channels * taps);
    for (size_t c = 0; c < channels; ++c) {
        for (size_t k = 0; k < taps; ++k) result[k * channels + c] = array.data()[c * taps + k];
    }
    return result;
}

// Zeroed memory that costs nothing until it is written to. Large pages where the system gives them.
class Region {
public:
    explicit Region(size_t bytes) : bytes_(bytes) {
        if (bytes == 0) return;
        data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (data_ == MAP_FAILED) {
            data_ = nullptr;
            throw std::bad_alloc();
        }
        if (bytes >= size_t(1) << 21) madvise(data_, bytes, MADV_HUGEPAGE);
    }
    Region(const Region&) = delete;
    Region& operator=(const Region&) = delete;
    ~Region() {
        if (data_ != nullptr) munmap(data_, bytes_);
    }

    template <class T>
    T* as() const {
        return static_cast<T*>(data_);
    }
    size_t bytes() const { return bytes_; }
    // All zero again, and the memory given back.
    void clear() {
        if (data_ != nullptr) madvise(data_, bytes_, MADV_DONTNEED);
    }

private:
    void* data_ = nullptr;
    size_t bytes_;
};

}  // namespace jubako
