#include "read.h"

namespace jubako::JUBAKO_ISA {

#ifdef JUBAKO_AVX512
constexpr size_t width = 64;
#else
constexpr size_t width = 32;
#endif

uint64_t read_fold(const uint8_t* p, size_t n) {
    typedef uint64_t Lanes __attribute__((vector_size(width), aligned(8)));
    Lanes sums[4] = {};
    for (size_t at = 0; at < n; at += 4 * width)
        for (size_t i = 0; i < 4; ++i) sums[i] ^= *reinterpret_cast<const Lanes*>(p + at + width * i);
    Lanes all = (sums[0] ^ sums[1]) ^ (sums[2] ^ sums[3]);
    uint64_t folded = 0;
    for (size_t i = 0; i < width / 8; ++i) folded ^= all[i];
    return folded;
}

}  // namespace jubako::JUBAKO_ISA
