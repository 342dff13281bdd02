// Cosines and sines of every position, made once when they are first needed and shared by all layers.
#pragma once

#include <atomic>
#include <cmath>
#include <mutex>

#include "arrays.h"

namespace jubako {

class Rope {
public:
    // frequencies: radians per position of each pair; cosines and sines are multiplied by magnitude.
    Rope(const Floats<1>& frequencies, float magnitude, int64_t positions)
        : frequencies_(copy(frequencies)),
          magnitude_(magnitude),
          positions_(positions),
          table_(size_t(positions) * 2 * frequencies_.size() * sizeof(float)) {
        require(positions > 0 && !frequencies_.empty(), "a rope needs positions and frequencies");
    }

    int pairs() const { return static_cast<int>(frequencies_.size()); }
    int64_t positions() const { return positions_; }

    // Makes the rows of all positions below `end`.
    void prepare(int64_t end) {
        require(end <= positions_, "position beyond the context");
        if (ready_.load(std::memory_order_acquire) >= end) return;
        std::lock_guard lock(mutex_);
        int64_t position = ready_.load();
        for (; position < end; ++position) {
            float* turn = table_.as<float>() + size_t(position) * 2 * frequencies_.size();
            for (size_t i = 0; i < frequencies_.size(); ++i) {
                const float angle = static_cast<float>(position) * frequencies_[i];  // rounded as the official code does
                turn[i] = static_cast<float>(std::cos(static_cast<double>(angle))) * magnitude_;
                turn[frequencies_.size() + i] = static_cast<float>(std::sin(static_cast<double>(angle))) * magnitude_;
            }
        }
        if (position > ready_.load()) ready_.store(position, std::memory_order_release);
    }

    // Cosines, then sines, of a prepared position.
    const float* at(int64_t position) const { return table_.as<float>() + size_t(position) * 2 * frequencies_.size(); }

private:
    std::vector<float> frequencies_;
    float magnitude_;
    int64_t positions_;
    Region table_;
    std::mutex mutex_;
    std::atomic<int64_t> ready_{0};
};

}  // namespace jubako
