#include "ngram.h"

#include "lanes_math.h"

namespace jubako::JUBAKO_ISA {

void ngram_gate(const NgramCall& c, int token, int stream) {
    const int hidden = c.hidden;
    const size_t part = size_t(stream) * hidden, place = size_t(token) * c.streams * hidden + part;
    float* key = c.key + place;
    float* x = c.x + place;
    const float* value = c.value + size_t(token) * hidden;
    const float key_scale = 1.0f / __builtin_sqrtf(sum_of_squares(key, hidden) / float(hidden) + c.eps);
    const float query_scale = 1.0f / __builtin_sqrtf(sum_of_squares(x, hidden) / float(hidden) + c.eps);
    Lanes acc = zero();
    for (int i = 0; i < hidden; i += LANES) {
        const Lanes k = load(key + i) * splat(key_scale) * load(c.norm_key + part + i);
        const Lanes q = load(x + i) * splat(query_scale) * load(c.norm_query + part + i);
        acc = fma(k, q, acc);
    }
    const float match = sum(acc) / __builtin_sqrtf(float(hidden));
    const float size = __builtin_sqrtf(__builtin_fabsf(match) > 1e-6f ? __builtin_fabsf(match) : 1e-6f);
    const float gate = sigmoid(match > 0.0f ? size : match < 0.0f ? -size : 0.0f);
    for (int i = 0; i < hidden; i += LANES) {
        const Lanes gated = splat(gate) * load(value + i);
        store(key + i, gated);
        store(x + i, load(x + i) + gated);
    }
    rms_norm(key, c.norm_conv + part, hidden, c.eps, key);
}

void ngram_convolve(const NgramCall& c, int token) {
    const int width = c.streams * c.hidden;
    const float* rows[NGRAM_MAX_KERNEL];
    for (int tap = 0; tap < c.kernel; ++tap) {
        const int source = token - (c.kernel - 1 - tap) * c.dilation;
        rows[tap] = source >= 0 ? c.key + size_t(source) * width
                                : c.past + size_t((c.position + c.ring + source) % c.ring) * width;
    }
    float* x = c.x + size_t(token) * width;
    for (int i = 0; i < width; i += LANES) {
        Lanes acc = load(rows[0] + i) * load(c.conv + i);
        for (int tap = 1; tap < c.kernel; ++tap) acc = fma(load(rows[tap] + i), load(c.conv + size_t(tap) * width + i), acc);
        store(x + i, load(x + i) + silu(acc));
    }
}

}  // namespace jubako::JUBAKO_ISA
