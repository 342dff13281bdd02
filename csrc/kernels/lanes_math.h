// Functions over rows of float32: sums, norms, rotation.
#pragma once

#include "lanes.h"

namespace jubako::JUBAKO_ISA {

// Several running sums in a fixed order, to keep the multipliers busy. Counts are multiples of 16.
inline float sum_of_squares(const float* x, int count) {
    Lanes a = zero(), b = zero(), c = zero(), d = zero();
    int i = 0;
    for (; i + 4 * LANES <= count; i += 4 * LANES) {
        const Lanes va = load(x + i), vb = load(x + i + LANES), vc = load(x + i + 2 * LANES), vd = load(x + i + 3 * LANES);
        a = fma(va, va, a);
        b = fma(vb, vb, b);
        c = fma(vc, vc, c);
        d = fma(vd, vd, d);
    }
    for (; i < count; i += LANES) a = fma(load(x + i), load(x + i), a);
    return sum(a + b + (c + d));
}

inline float dot(const float* x, const float* y, int count) {
    Lanes a = zero(), b = zero();
    int i = 0;
    for (; i + 2 * LANES <= count; i += 2 * LANES) {
        a = fma(load(x + i), load(y + i), a);
        b = fma(load(x + i + LANES), load(y + i + LANES), b);
    }
    if (i < count) a = fma(load(x + i), load(y + i), a);
    return sum(a + b);
}

// out = x / sqrt(mean(x²) + eps) · gamma; out may be x.
inline void rms_norm(const float* x, const float* gamma, int count, float eps, float* out) {
    const Lanes scale = splat(1.0f / __builtin_sqrtf(sum_of_squares(x, count) / float(count) + eps));
    for (int i = 0; i < count; i += LANES) store(out + i, load(x + i) * scale * load(gamma + i));
}

// Rotates the pairs (i, i + pairs) of x by the angles whose cosines and sines are `turn` [2, pairs].
inline void rotate(float* x, const float* turn, int pairs) {
    for (int i = 0; i < pairs; ++i) {
        const float a = x[i], b = x[i + pairs];
        x[i] = __builtin_fmaf(a, turn[i], -(b * turn[pairs + i]));
        x[i + pairs] = __builtin_fmaf(b, turn[i], a * turn[pairs + i]);
    }
}

}  // namespace jubako::JUBAKO_ISA
