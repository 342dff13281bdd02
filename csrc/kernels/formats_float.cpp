// F32, F16 and BF16 rows: x stays float32, eight partial sums along the row.
#include <cstring>

#include "format_kernels.h"
#include "vector.h"

namespace jubako::JUBAKO_ISA {

namespace {

struct F32 {
    static constexpr int bytes = 4;
    static __m256 load8(const uint8_t* p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }
};
struct F16Weights {
    static constexpr int bytes = 2;
    static __m256 load8(const uint8_t* p) { return _mm256_cvtph_ps(load16(p)); }
};
struct BF16 {
    static constexpr int bytes = 2;
    static __m256 load8(const uint8_t* p) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load16(p)), 16));
    }
};

template <class F, int rows, int columns>
inline void tile(const RowsTimesColumns& job, int64_t row, int column) {
    const int64_t whole = job.cols / 8 * 8, rest = job.cols - whole;
    const uint8_t* w[rows];
    const float* x[columns];
    __m256 p[rows][columns];
    for (int i = 0; i < rows; ++i) w[i] = job.weights + (row + i) * job.row_stride;
    for (int c = 0; c < columns; ++c) x[c] = static_cast<const float*>(job.x[column + c]);
    for (int i = 0; i < rows; ++i)
        for (int c = 0; c < columns; ++c) p[i][c] = _mm256_setzero_ps();
    for (int64_t k = 0; k < whole; k += 8) {
        __m256 xs[columns];
        for (int c = 0; c < columns; ++c) xs[c] = _mm256_loadu_ps(x[c] + k);
        for (int i = 0; i < rows; ++i) {
            __m256 ws = F::load8(w[i] + k * F::bytes);
            for (int c = 0; c < columns; ++c) p[i][c] = _mm256_fmadd_ps(ws, xs[c], p[i][c]);
        }
    }
    for (int i = 0; i < rows; ++i) {
        alignas(32) uint8_t last[32] = {};
        if (rest > 0) std::memcpy(last, w[i] + whole * F::bytes, static_cast<size_t>(rest) * F::bytes);
        for (int c = 0; c < columns; ++c) {
            if (rest > 0) p[i][c] = _mm256_fmadd_ps(F::load8(last), _mm256_loadu_ps(x[c] + whole), p[i][c]);
            job.out[column + c][row + i] = tree(p[i][c]) * job.scale;
        }
    }
}

template <class F, int rows>
void band(const RowsTimesColumns& job, int64_t row) {
    int c = 0;
    for (; c + 3 <= job.columns; c += 3) tile<F, rows, 3>(job, row, c);
    if (c + 2 == job.columns) tile<F, rows, 2>(job, row, c);
    if (c + 1 == job.columns) tile<F, rows, 1>(job, row, c);
}

template <class F>
void float_rows(const RowsTimesColumns& job) {
    int64_t row = job.first_row;
    const int64_t end = job.first_row + job.rows;
    for (; row + 4 <= end; row += 4) band<F, 4>(job, row);
    for (; row < end; ++row) band<F, 1>(job, row);
}

template <class F>
void decode_floats(const uint8_t* row, int64_t cols, float* out) {
    int64_t k = 0;
    for (; k + 8 <= cols; k += 8) _mm256_storeu_ps(out + k, F::load8(row + k * F::bytes));
    if (k < cols) {
        alignas(32) uint8_t last[32] = {};
        float values[8];
        std::memcpy(last, row + k * F::bytes, static_cast<size_t>(cols - k) * F::bytes);
        _mm256_storeu_ps(values, F::load8(last));
        std::memcpy(out + k, values, static_cast<size_t>(cols - k) * sizeof(float));
    }
}

}  // namespace

FormatKernels float_kernels(Type type) {
    switch (type) {
        case Type::f32: return {float_rows<F32>, decode_floats<F32>, Order::dwords};
        case Type::f16: return {float_rows<F16Weights>, decode_floats<F16Weights>, Order::dwords};
        case Type::bf16: return {float_rows<BF16>, decode_floats<BF16>, Order::dwords};
        default: return {};
    }
}

}  // namespace jubako::JUBAKO_ISA
