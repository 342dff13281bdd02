#include "route.h"

#include <climits>

#include "lanes_math.h"

namespace jubako::JUBAKO_ISA {
namespace {

constexpr int32_t TAKEN = INT_MIN;
constexpr int32_t NOT_A_NUMBER = INT_MIN + 1;

// Integers in the order of the floats; both zeros are equal.
inline int32_t order_key(float x) {
    if (__builtin_isnan(x)) return NOT_A_NUMBER;
    int32_t bits;
    const float same_zero = x + 0.0f;
    memcpy(&bits, &same_zero, sizeof bits);
    return bits >= 0 ? bits : static_cast<int32_t>(0x80000000u - static_cast<uint32_t>(bits));
}

inline int32_t largest_key(const int32_t* keys, int count) {
    int32_t best[LANES];
    for (int l = 0; l < LANES; ++l) best[l] = keys[l];
    for (int i = LANES; i < count; i += LANES) {
        for (int l = 0; l < LANES; ++l) best[l] = keys[i + l] > best[l] ? keys[i + l] : best[l];
    }
    int32_t top = best[0];
    for (int l = 1; l < LANES; ++l) top = best[l] > top ? best[l] : top;
    return top;
}

}  // namespace

void route(const float* logits, int count, int k, int32_t* keys, int32_t* ids, float* weights) {
    const int padded = (count + LANES - 1) / LANES * LANES;
    for (int i = 0; i < count; ++i) keys[i] = order_key(logits[i]);
    for (int i = count; i < padded; ++i) keys[i] = TAKEN;
    for (int rank = 0; rank < k; ++rank) {
        const int32_t top = largest_key(keys, padded);
        int id = 0;
        while (keys[id] != top) ++id;
        keys[id] = TAKEN;
        ids[rank] = id;
    }
    float total = 0.0f;
    for (int rank = 0; rank < k; ++rank) {
        weights[rank] = exp(logits[ids[rank]] - logits[ids[0]]);
        total += weights[rank];
    }
    for (int rank = 0; rank < k; ++rank) weights[rank] /= total;
}

int64_t argmax(const float* values, int64_t count) {
    int64_t i = 0;
    Lanes best = splat(-__builtin_inff());
    for (; i + LANES <= count; i += LANES) best = max(load(values + i), best);
    float top = largest(best);
    for (; i < count; ++i) top = values[i] > top ? values[i] : top;
    for (i = 0; i < count; ++i) {
        if (values[i] == top) return i;
    }
    return 0;
}

}  // namespace jubako::JUBAKO_ISA
