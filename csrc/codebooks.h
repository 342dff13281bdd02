// The grids of the IQ formats, expanded once when the module is loaded.
#pragma once

#include <cstdint>

namespace jubako {

struct Codebooks {
    // bytes are the magnitudes + 64, for IQ1 8·weight + 16
    alignas(64) uint64_t iq2_xxs[256];
    alignas(64) uint64_t iq2_xs[512];
    alignas(64) uint64_t iq2_s[1024];
    alignas(64) uint64_t iq1[2048];
    alignas(64) uint32_t iq3_xxs[256];
    alignas(64) uint32_t iq3_s[512];
    // for table look-ups in registers: levels of weights 0–1 and of weights 2–3, the first of each at bit 0, the second at bit 4
    alignas(64) uint8_t iq3_xxs_pairs[2][256];
    alignas(64) uint8_t iq3_s_pairs[2][512];
};

extern const Codebooks codebooks;

}  // namespace jubako
