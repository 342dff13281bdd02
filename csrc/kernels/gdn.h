// What one call of the gated delta net reads and writes. All arrays are float32 and contiguous.
//
// A revocable call leaves the state as it was before its own tokens and keeps their factors (k, u, decay) instead. The
// next call first applies those of the tokens that were accepted, while it has the state in the cache anyway.
#pragma once

#include <cstdint>

#include "isa.h"

namespace jubako {

constexpr int GDN_MAX_DIM = 256;
constexpr int GDN_MAX_KERNEL = 64;
constexpr float GDN_NORM_EPS = 1e-6f;  // of the l2 norm of q and k
constexpr int GDN_REVOCABLE = 16;      // tokens of a revocable call, at most

struct GdnCall {
    int tokens, key_heads, value_heads, dim, kernel, channels;
    int64_t position;     // tokens seen before this call
    float eps;            // of the output norm
    const float* conv;    // [kernel, channels]
    const float* dt_bias; // [value_heads]
    const float* a;       // [value_heads], not above zero
    const float* norm;    // [dim]
    const float* qkv;     // [tokens, channels]: q and k of the key heads, v of the value heads
    const float* z;       // [tokens, value_heads, dim]
    const float* beta;    // [tokens, value_heads]
    const float* alpha;   // [tokens, value_heads]
    const float* conv_past;  // [ring, channels] raw columns; that of token p lies at p mod ring
    int ring;                // at least kernel - 1
    bool revocable;
    int accepted;            // tokens of the revocable call before whose factors are still to be applied
    const float* accepted_k; // [accepted, key_heads, dim]
    float* k;                // [tokens, key_heads, dim], written by a revocable call
    float* u;                // [GDN_REVOCABLE, value_heads, dim]: those of the accepted tokens, then the revocable call's own
    float* decay;            // [GDN_REVOCABLE, value_heads], as u
    float* state;         // [value_heads, dim (of k), dim (of v)]
    float* out;           // [tokens, value_heads, dim]
};

}  // namespace jubako

JUBAKO_KERNELS(
    // All tokens of one value head. Reads conv_past, does not write it.
    void gdn_head(const GdnCall& call, int head);
    // Applies the accepted tokens' factors to one head's state.
    void gdn_settle(const GdnCall& call, int head);
)
