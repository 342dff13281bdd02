// Products of weight rows and activation columns. The arithmetic is one for all kernels, levels, shapes and thread counts:
//
//   P[j] (j = 0 … 7) takes blocks j, j + 8, j + 16 … of 32 weights in order:
//     P = fma(float(dot), factor·d, P)      dot = Σ code·q exactly; groups of 16 with whole-number scales: the sum of
//                                           float(dot)·scale of both, rounded to float as written
//     P = fma(offset, s, P)                 if blocks have a minimum; for groups: fma(float(m0·sum0 + m1·sum1), −dmin·d, P)
//     NVFP4: two steps, fma(float(dot0), factor0·d, P) and fma(float(dot1), factor1·d, P)
//   y = ((P0 + P4) + (P2 + P6)) + ((P1 + P5) + (P3 + P7)), times the tensor's scale if it has one
//   A column that is not an expert's is read finely: its q has 16 bits (activation.h).
//   F32, F16 and BF16 weights take x as it is: P[j] takes k = j, j + 8 … in order by fma(w, x, P), then the same tree.
#pragma once

#include <cstdint>

#include "activation.h"
#include "isa.h"
#include "weight.h"

namespace jubako {

// Rows first_row … first_row + rows of a matrix times `columns` columns. Column c reads x[c] (XUnit, or FineUnit if fine, in the
// order of the type; float, zeros up to a multiple of 8, for float weights) and writes out[c][row].
struct RowsTimesColumns {
    Type type;
    const uint8_t* weights;  // row 0
    int64_t row_stride, first_row, rows, cols;
    const void* const* x;
    float* const* out;
    int columns;
    float scale;
    bool fine = false;
    const uint8_t* next = nullptr;  // weights that this thread reads after these, if they lie elsewhere: called from memory early
};

// More columns than that go through panels (kernels/matrix.h), up to there every row is read once (kernels/vector.h).
constexpr int vector_columns = 16;

// A product of a whole matrix: out[t][n] = weight[expert] row n · x[t].
struct LinearTask {
    const Weight* weight;
    int64_t expert;
    float* out;  // [tokens, rows]
};

// x[tokens, width] meets every task; it is quantised once, finely. Columns of the weights beyond width meet zeros.
void linear(const LinearTask* tasks, int64_t count, const float* x, int64_t tokens, int64_t width);

// The mixture of experts of a layer: ids[tokens, chosen] by rank (negative: not here, adds nothing), and the shared expert,
// added last with weight sigmoid(shared_router · x), if there is one.
struct ExpertWeights {
    const Weight *gate, *up, *down;
    const Weight *shared_router = nullptr, *shared_gate = nullptr, *shared_up = nullptr, *shared_down = nullptr;
};
void experts(const ExpertWeights& weights, const float* x, int64_t tokens, const int32_t* ids, const float* route_weights,
             int64_t chosen, float* out);

// The columns of x in the forms that the weights' types read, made in scratch memory of the calling thread.
class Columns {
public:
    explicit Columns(bool fine) : fine_(fine) {}
    // Weights to come; null entries are skipped.
    void want(const Weight* weight);
    void make(const float* x, int64_t tokens, int64_t width);
    const void* const* of(const Weight& weight) const;  // one pointer a column

private:
    bool fine_;
    bool wanted_[3] = {};
    const void** pointers_[3] = {};
    int64_t cols_ = 0;
};

}  // namespace jubako

JUBAKO_KERNELS(
    Order order_of(Type type);
    void multiply(const RowsTimesColumns& job);
    void decode_row(Type type, const uint8_t* row, int64_t cols, float* out);
    // out = silu(gate)·up
    void silu_times(const float* gate, const float* up, int64_t count, float* out);
    // sum = fma(weight, y, sum)
    void add_scaled(float weight, const float* y, int64_t count, float* sum);
    float sigmoid_of(float x);)
