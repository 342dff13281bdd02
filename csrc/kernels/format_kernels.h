// What each format's code is made into; format_kernels.cpp chooses among them by type.
#pragma once

#include "../linear.h"

namespace jubako::JUBAKO_ISA {

struct FormatKernels {
    void (*multiply)(const RowsTimesColumns& job) = nullptr;
    void (*decode)(const uint8_t* row, int64_t cols, float* out) = nullptr;
    Order order = Order::dwords;
};

// Each knows some types and returns empty pointers for the others.
FormatKernels legacy_kernels(Type type);
FormatKernels fp4_kernels(Type type);
FormatKernels k_kernels(Type type);
FormatKernels ternary_kernels(Type type);
FormatKernels iq2_kernels(Type type);
FormatKernels iq3_kernels(Type type);
FormatKernels float_kernels(Type type);

}  // namespace jubako::JUBAKO_ISA
