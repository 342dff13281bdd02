// Choosing experts and tokens from logits.
#pragma once

#include <cstdint>

#include "isa.h"

namespace jubako {
constexpr int ROUTE_MAX_EXPERTS = 1 << 16;
}

JUBAKO_KERNELS(
    // The k largest of `count` logits in order (ties: lower index; a NaN loses to every number), with their softmax over all
    // experts renormalised over the chosen ones. That is the softmax over the chosen ones: the common denominator cancels.
    // `keys` is scratch of `count` rounded up to 16.
    void route(const float* logits, int count, int k, int32_t* keys, int32_t* ids, float* weights);
    // Index of the largest value; the lowest one on ties.
    int64_t argmax(const float* values, int64_t count);
)
