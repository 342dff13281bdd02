#include "format_kernels.h"

#include "../mathfun.h"

namespace jubako::JUBAKO_ISA {

namespace {

FormatKernels kernels_of(Type type) {
    for (auto known : {float_kernels, legacy_kernels, fp4_kernels, k_kernels, ternary_kernels, iq2_kernels, iq3_kernels}) {
        FormatKernels kernels = known(type);
        if (kernels.multiply != nullptr) return kernels;
    }
    return {};
}

}  // namespace

Order order_of(Type type) { return kernels_of(type).order; }

void multiply(const RowsTimesColumns& job) { kernels_of(job.type).multiply(job); }

void decode_row(Type type, const uint8_t* row, int64_t cols, float* out) { kernels_of(type).decode(row, cols, out); }

void silu_times(const float* gate, const float* up, int64_t count, float* out) {
    int64_t i = 0;
    for (; i + FV::lanes <= count; i += FV::lanes) (silu(FV::load(gate + i)) * FV::load(up + i)).store(out + i);
    for (; i < count; ++i) out[i] = silu(gate[i]) * up[i];
}

void add_scaled(float weight, const float* y, int64_t count, float* sum) {
    int64_t i = 0;
    for (; i + FV::lanes <= count; i += FV::lanes) fma(FV::all(weight), FV::load(y + i), FV::load(sum + i)).store(sum + i);
    for (; i < count; ++i) sum[i] = __builtin_fmaf(weight, y[i], sum[i]);
}

float sigmoid_of(float x) { return sigmoid(x); }

}  // namespace jubako::JUBAKO_ISA
