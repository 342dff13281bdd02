// The n-gram embedding's injection into the streams: everything but its two matrix products. float32, contiguous.
#pragma once

#include <cstdint>

#include "isa.h"

namespace jubako {

constexpr int NGRAM_MAX_KERNEL = 64;

struct NgramCall {
    int tokens, streams, hidden, kernel, dilation;
    int64_t position;   // tokens seen before this call
    float eps;
    const float *norm_key, *norm_query, *norm_conv;  // [streams · hidden]
    const float* conv;   // [kernel, streams · hidden]
    float* key;          // [tokens, streams · hidden]; overwritten with the gated, normed values
    const float* value;  // [tokens, hidden]
    float* x;            // [tokens, streams, hidden], updated in place
    const float* past;   // [ring, streams · hidden] normed columns; that of token p at p mod ring
    int ring;            // at least past_columns()

    [[gnu::always_inline]] int past_columns() const { return (kernel - 1) * dilation; }
};

}  // namespace jubako

JUBAKO_KERNELS(
    // Adds the gated value to stream `stream` of `token` and leaves its normed copy in `key`, for ngram_convolve.
    void ngram_gate(const NgramCall& call, int token, int stream);
    // Adds the convolution of the normed values; every ngram_gate of the call must be done.
    void ngram_convolve(const NgramCall& call, int token);
)
