#include "store_source.h"

#include <algorithm>

#include "kernels/route.h"
#include "linear.h"
#include "pool.h"

namespace jubako {
namespace {

// As ops/cpu/stored.py has them.
constexpr int most_expected = 48;       // experts read ahead for the next layer
constexpr int64_t trial = 256;          // experts read ahead before it is judged whether that pays
constexpr double worthwhile = 0.3;      // share of them that must be asked for

}  // namespace

void StoreSource::want(int layer, const int32_t* experts, int64_t count) {
    let_go();
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

bool StoreSource::pays() const {
    const ExpertStore::Counts counts = store_->counts();
    return counts.missed > 0 && (counts.expected <= trial || counts.expected_in_vain <= (1 - worthwhile) * static_cast<double>(counts.expected));
}

void StoreSource::foresee(int layer, const float* x, int64_t tokens) {
    const int next = layer + 1;
    if (next >= static_cast<int>(routers_.size()) || !pays()) return;
    const Weight& router = routers_[static_cast<size_t>(next)];
    const auto count = static_cast<size_t>(router.rows);
    logits_.resize(static_cast<size_t>(tokens) * count);
    ids_.resize(static_cast<size_t>(chosen_));
    weights_.resize(static_cast<size_t>(chosen_));
    uses_.assign(count, 0);
    likely_.clear();
    const LinearTask task{&router, 0, logits_.data()};
    linear(&task, 1, x, tokens, router.cols);
    int32_t* keys = scratch<int32_t>(Slot::ops_c, router.rows + 16);
    for (int64_t t = 0; t < tokens; ++t) {
        JUBAKO_CALL(route(logits_.data() + t * router.rows, static_cast<int>(router.rows), chosen_, keys, ids_.data(), weights_.data()));
        for (const int32_t id : ids_) {
            if (uses_[static_cast<size_t>(id)]++ == 0 && !store_->here(next, id)) likely_.push_back(id);
        }
    }
    std::stable_sort(likely_.begin(), likely_.end(), [&](int32_t a, int32_t b) { return uses_[static_cast<size_t>(a)] > uses_[static_cast<size_t>(b)]; });
    if (!likely_.empty()) store_->expect(next, likely_.data(), std::min(static_cast<int>(likely_.size()), most_expected), false);
}

}  // namespace jubako
