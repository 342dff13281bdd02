// Hyper-connections: the parts of mixing and combining streams that are not matrix products. float32, contiguous.
#pragma once

#include "isa.h"

namespace jubako {

struct HyperShape {
    int streams, hidden, rank;
    float eps;
};

}  // namespace jubako

JUBAKO_KERNELS(
    // out[s] = RMS(x[s]) · gamma[s] for each of `streams` rows of `hidden`.
    void hyper_norm(const HyperShape& shape, const float* x, const float* gamma, float* out);
    // low = silu(low / streams), `rank` values.
    void hyper_low_rank(const HyperShape& shape, float* low);
    // mixed = mean over s of sigmoid(gate[s]) · normed[s]
    void hyper_gate(const HyperShape& shape, const float* gate, const float* normed, float* mixed);
    // inject = 2 · sigmoid(inject / streams), `streams` values.
    void hyper_inject(const HyperShape& shape, float* inject);
    // x[s] += inject[s] · out
    void hyper_combine(const HyperShape& shape, float* x, const float* inject, const float* out);
)
