// The weight that Python holds: `_cpu.Weight`, bound in bind_linear.cpp.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <optional>

#include "weight.h"

namespace jubako {

struct StoredWeight : Weight {
    nanobind::ndarray<const uint8_t, nanobind::device::cpu> bytes;
    std::optional<nanobind::ndarray<const float, nanobind::device::cpu, nanobind::c_contig>> scales_array;
};

}  // namespace jubako
