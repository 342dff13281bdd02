// Activations as the quantised products read them: blocks of 32 in 8 bits, 8 blocks to a unit.
//
//   d = max|x| / 127, q = round-half-even(x · (127 / max|x|)), sum = Σ q, s = d · float(sum)
//
// Products outside of the experts read columns finely, in 16 bits: 32385 takes the place of 127, and q is 256·high + low.
// An error of half a percent there moves routes and first choices.
//
// Lane l of 16 is the group of weights 16l … 16l+15 of a unit of 256. The bytes of a group are spread over four vectors
// of 64 bytes, four bytes in each, so that one accumulator lane gathers one group:
//   Order::dwords   byte p of lane l of vector r is weight 16l + 4r + p
//   Order::planes   byte p of lane l of vector r is weight 16l + 4p + r
#pragma once

#include <cstdint>

#include "isa.h"
#include "weight.h"

namespace jubako {

enum class Order : int { dwords, planes };

struct alignas(64) XUnit {
    int8_t q[256];    // vector r at 64 r
    float d[8];       // of the blocks
    float s[8];
    int32_t sum16[16];  // −128 · Σ q of the groups
    int32_t sum32[8];   // −128 · Σ q of the blocks
    int32_t unused[8];
};

struct FineUnit : XUnit {  // XUnit's q is low
    int8_t high[256];
    int16_t whole[256];  // 256·high + low, in the same order; only of Order::dwords
};

template <bool fine> struct ColumnOf { using Unit = XUnit; };
template <> struct ColumnOf<true> { using Unit = FineUnit; };
template <bool fine> using Column = typename ColumnOf<fine>::Unit;

inline int64_t units_of(int64_t cols) { return (cols + 255) / 256; }

}  // namespace jubako

JUBAKO_KERNELS(
    // x[count] -> out[units], zero beyond count. Blocks whose largest magnitude is below 2^-100 become zero; a NaN makes its block
    // NaN, and so does an infinity in a fine column.
    void quantize(const float* x, int64_t count, int64_t units, Order order, XUnit* out);
    void quantize(const float* x, int64_t count, int64_t units, Order order, FineUnit* out);
    // x[32 · blocks] into the blocks from first_block on; the rest of `out` stays.
    void quantize_blocks(const float* x, int64_t first_block, int64_t blocks, Order order, XUnit* out);)
