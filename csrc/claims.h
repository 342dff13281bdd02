// Rows of experts shared out among the pool's threads: each takes its own part of every expert first, then what others have not begun.
#pragma once

#include <algorithm>
#include <atomic>

#include "experts.h"
#include "pool.h"

namespace jubako {

struct Rows {
    int64_t first, last;
};

// The rows of a matrix that are a thread's own, whole units of them. They depend on nothing but where the matrix lies: what a thread
// read ahead is what it works on later, and nobody has the larger part of all.
inline Rows own_rows(const uint8_t* weights, int64_t rows, int64_t unit, int64_t thread, int64_t threads) {
    const auto number = static_cast<int64_t>((reinterpret_cast<uintptr_t>(weights) / 64 + static_cast<uintptr_t>(thread)) % static_cast<uintptr_t>(threads));
    const int64_t units = (rows + unit - 1) / unit;
    return {std::min(units * number / threads * unit, rows), std::min(units * (number + 1) / threads * unit, rows)};
}

// One matrix of every expert of `work`, whose rows are taken `rows` at a time. Lies in scratch memory of the thread that makes it.
class Claims {
public:
    Claims(const Work& work, Weight ExpertUses::*matrix, int64_t unit, int64_t rows, Slot slot)
        : work_(work), matrix_(matrix), unit_(unit), rows_(rows), threads_(threads()), stride_((work.count + 15) / 16 * 16), taken_(scratch<std::atomic<int32_t>>(slot, threads_ * stride_)) {
        for (int64_t i = 0; i < threads_ * stride_; ++i) taken_[i].store(0, std::memory_order_relaxed);
    }

    // Calls fn(g, first, rows) for rows of experts until all have been taken by somebody.
    template <class F>
    void take(F&& fn) const {
        const int64_t own = thread_number() % threads_;
        for (int64_t turn = 0; turn < threads_; ++turn) {
            const int64_t thread = (own + turn) % threads_;
            for (int64_t g = 0; g < work_.count; ++g) {
                const Weight& weight = work_.experts[g].*matrix_;
                const Rows part = own_rows(weight.data, weight.rows, unit_, thread, threads_);
                std::atomic<int32_t>& taken = taken_[thread * stride_ + g];
                while (part.first + rows_ * taken.load(std::memory_order_relaxed) < part.last) {
                    const int64_t first = part.first + rows_ * taken.fetch_add(1, std::memory_order_relaxed);
                    if (first < part.last) fn(g, first, std::min(rows_, part.last - first));
                }
            }
        }
    }

private:
    const Work& work_;
    Weight ExpertUses::*matrix_;
    int64_t unit_, rows_, threads_, stride_;
    std::atomic<int32_t>* taken_;  // of each thread's part of each expert's rows, how often
};

}  // namespace jubako
