// A quantised (or float) matrix, or a stack of them, in the file's own blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace jubako {

// ids of ggml (formats)
enum class Type : int {
    f32 = 0, f16 = 1, q4_0 = 2, q4_1 = 3, q5_0 = 6, q5_1 = 7, q8_0 = 8, q2_k = 10, q3_k = 11, q4_k = 12, q5_k = 13,
    q6_k = 14, iq2_xxs = 16, iq2_xs = 17, iq3_xxs = 18, iq1_s = 19, iq4_nl = 20, iq3_s = 21, iq2_s = 22, iq4_xs = 23,
    iq1_m = 29, bf16 = 30, tq1_0 = 34, tq2_0 = 35, mxfp4 = 39, nvfp4 = 40, q1_0 = 41, q2_0 = 42,
};

struct BlockLayout {
    const char* name;
    int weights, bytes;
};

const BlockLayout* block_layout(int id);  // nullptr when there are no kernels for that id

// Not the owner of its bytes: the Python object that wraps it keeps the array alive. Checked when it is made
// (bind_linear.cpp): cols is a whole number of blocks and row_stride holds them.
struct Weight {
    const uint8_t* data = nullptr;
    Type type = Type::f32;
    int64_t rows = 0, cols = 0, experts = 1;
    int64_t row_stride = 0, expert_stride = 0;  // bytes
    const float* scale = nullptr;               // [1] or [experts], or none
    int64_t scales = 0;

    const uint8_t* row(int64_t expert, int64_t index) const {
        return data + expert * expert_stride + index * row_stride;
    }
    float scale_of(int64_t expert) const { return scale == nullptr ? 1.0f : scale[scales > 1 ? expert : 0]; }
    bool is_float() const { return type == Type::f32 || type == Type::f16 || type == Type::bf16; }
    int64_t row_bytes() const {
        const BlockLayout* layout = block_layout(static_cast<int>(type));
        return cols / layout->weights * layout->bytes;
    }
};

}  // namespace jubako
