// What the threads that answer a GPU (expert_threads.h) ask for experts that are not in memory: an `ExpertStore`.
#pragma once

#include <memory>
#include <vector>

#include "expert_threads.h"
#include "store.h"

namespace jubako {

// Holds the experts of the latest request until the next one. Used by one thread.
class StoreSource : public ExpertSource {
public:
    explicit StoreSource(std::shared_ptr<ExpertStore> store) : store_(std::move(store)) {}
    ~StoreSource() override { let_go(); }

    void want(int layer, const int32_t* experts, int64_t count) override {
        let_go();
        if (layer <= layer_) store_->step();  // the network's next pass
        store_->used(layer, experts, std::vector<double>(static_cast<size_t>(count), 1.0).data(), static_cast<int>(count), false);
        const int held = store_->hold(layer, experts, static_cast<int>(count));
        layer_ = layer;
        held_.assign(experts, experts + held);
    }

    void end() override { let_go(); }

private:
    void let_go() {
        store_->release(layer_, held_.data(), static_cast<int>(held_.size()));
        held_.clear();
    }

    std::shared_ptr<ExpertStore> store_;
    int layer_ = 0;
    std::vector<int32_t> held_;
};

}  // namespace jubako
