// The mixture of experts of a layer whose experts an `ExpertStore` holds or reads.
#pragma once

#include <functional>

#include "linear.h"
#include "store.h"

namespace jubako {

// As `experts`, with the same bits; weights.gate, up and down say of what kind the experts are, not where. Experts are
// computed as they arrive. meanwhile: called once reading has begun, if there is something to read. Throws ReadError.
void stored_experts(ExpertStore& store, int layer, const ExpertWeights& weights, const float* x, int64_t tokens, const int32_t* ids,
                    const float* route_weights, int64_t chosen, const std::function<void()>& meanwhile, float* out);

}  // namespace jubako
