#include "hyper.h"

#include "lanes_math.h"

namespace jubako::JUBAKO_ISA {

void hyper_norm(const HyperShape& shape, const float* x, const float* gamma, float* out) {
    for (int s = 0; s < shape.streams; ++s) {
        const size_t row = size_t(s) * shape.hidden;
        rms_norm(x + row, gamma + row, shape.hidden, shape.eps, out + row);
    }
}

void hyper_low_rank(const HyperShape& shape, float* low) {
    const float streams = float(shape.streams);
    int i = 0;
    for (; i + LANES <= shape.rank; i += LANES) store(low + i, silu(load(low + i) / splat(streams)));
    if (i < shape.rank) {
        alignas(64) float tail[LANES] = {};
        const size_t bytes = size_t(shape.rank - i) * sizeof(float);
        memcpy(tail, low + i, bytes);
        store(tail, silu(load(tail) / splat(streams)));
        memcpy(low + i, tail, bytes);
    }
}

void hyper_gate(const HyperShape& shape, const float* gate, const float* normed, float* mixed) {
    const Lanes share = splat(1.0f / float(shape.streams));
    for (int i = 0; i < shape.hidden; i += LANES) {
        Lanes acc = sigmoid(load(gate + i)) * load(normed + i);
        for (int s = 1; s < shape.streams; ++s) {
            const size_t place = size_t(s) * shape.hidden + i;
            acc = fma(sigmoid(load(gate + place)), load(normed + place), acc);
        }
        store(mixed + i, acc * share);
    }
}

void hyper_inject(const HyperShape& shape, float* inject) {
    for (int s = 0; s < shape.streams; ++s) inject[s] = 2.0f * sigmoid(inject[s] / float(shape.streams));
}

void hyper_combine(const HyperShape& shape, float* x, const float* inject, const float* out) {
    for (int s = 0; s < shape.streams; ++s) {
        const Lanes weight = splat(inject[s]);
        float* row = x + size_t(s) * shape.hidden;
        for (int i = 0; i < shape.hidden; i += LANES) store(row + i, fma(weight, load(out + i), load(row + i)));
    }
}

}  // namespace jubako::JUBAKO_ISA
