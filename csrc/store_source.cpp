#include "store_source.h"

#include <algorithm>

#include "kernels/route.h"
#include "linear.h"
#include "pool.h"

namespace jubako {
namespace {

constexpr int most_expected = 48;   // experts read ahead for the next layer, as ops/cpu/stored.py has it
constexpr double worthwhile = 0.6;  // share of a rank's guesses that must come true: a wrong one keeps the disk from right ones
constexpr double fade = 1.0 / 128;  // of what is known of a rank, with each guess

}  // namespace

void StoreSource::want(int layer, const int32_t* experts, int64_t count) {
    let_go();
    judge(layer, experts, count);
    if (layer <= layer_) store_->step();  // the network's next pass
    const std::vector<double> once(static_cast<size_t>(count), 1.0);
    store_->used(layer, experts, once.data(), static_cast<int>(count), false);
    const int held = store_->hold(layer, experts, static_cast<int>(count));
    layer_ = layer;
    held_.assign(experts, experts + held);
}

void StoreSource::let_go() {
    store_->release(layer_, held_.data(), static_cast<int>(held_.size()));
    held_.clear();
}

void StoreSource::judge(int layer, const int32_t* experts, int64_t count) {
    if (layer == guessed_layer_) {
        for (const auto& [id, rank] : guessed_) {
            Rank& known = ranks_[rank];
            known.tried += 1 - fade * known.tried;
            known.right += (std::find(experts, experts + count, id) != experts + count ? 1.0 : 0.0) - fade * known.right;
        }
    }
    guessed_.clear();
}

void StoreSource::foresee(int layer, const float* x, int64_t tokens) {
    const int next = layer + 1;
    if (next >= static_cast<int>(routers_.size()) ) return;
    const Weight& router = routers_[static_cast<size_t>(next)];
    const auto count = static_cast<size_t>(router.rows);
    logits_.resize(static_cast<size_t>(tokens) * count);
    ids_.resize(static_cast<size_t>(chosen_));
    weights_.resize(static_cast<size_t>(chosen_));
    uses_.assign(count, 0);
    likely_.clear();
    guessed_.clear();
    guessed_layer_ = next;
    const LinearTask task{&router, 0, logits_.data()};
    linear(&task, 1, x, tokens, router.cols);
    int32_t* keys = scratch<int32_t>(Slot::ops_c, router.rows + 16);
    for (int64_t t = 0; t < tokens; ++t) {
        JUBAKO_CALL(route(logits_.data() + t * router.rows, static_cast<int>(router.rows), chosen_, keys, ids_.data(), weights_.data()));
        for (size_t rank = 0; rank < ids_.size(); ++rank) {
            const int32_t id = ids_[rank];
            if (uses_[static_cast<size_t>(id)]++ > 0 || store_->here(next, id)) continue;
            if (slots_ && slots_[next * router.rows + id] >= 0) continue;
            guessed_.emplace_back(id, rank);
            if (ranks_[rank].right >= worthwhile * ranks_[rank].tried) likely_.push_back(id);
        }
    }
    std::stable_sort(likely_.begin(), likely_.end(), [&](int32_t a, int32_t b) { return uses_[static_cast<size_t>(a)] > uses_[static_cast<size_t>(b)]; });
    if (!likely_.empty()) store_->expect(next, likely_.data(), std::min(static_cast<int>(likely_.size()), most_expected), false);
}

}  // namespace jubako
