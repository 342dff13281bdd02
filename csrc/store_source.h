// What the threads that answer a GPU (expert_threads.h) ask for experts that are not in memory: an `ExpertStore`.
#pragma once

#include <memory>
#include <vector>

#include "expert_threads.h"
#include "store.h"

namespace jubako {

// Holds the experts of the latest request until the next one. Used by one thread.
//
// routers: of each layer [experts, hidden], or none. What a layer's experts read goes through the next layer's router, too;
// what that says is read when the disk has nothing else to do. Guessing ends when too few guesses are asked for.
class StoreSource : public ExpertSource {
public:
    explicit StoreSource(std::shared_ptr<ExpertStore> store, std::vector<Weight> routers = {}, int chosen = 0)
        : store_(std::move(store)), routers_(std::move(routers)), chosen_(chosen) {}
    ~StoreSource() override { let_go(); }

    void want(int layer, const int32_t* experts, int64_t count) override;
    void foresee(int layer, const float* x, int64_t tokens) override;
    void end() override { let_go(); }

private:
    void let_go();
    bool pays() const;

    std::shared_ptr<ExpertStore> store_;
    std::vector<Weight> routers_;
    int chosen_;
    int layer_ = 0;
    std::vector<int32_t> held_, ids_, likely_;
    std::vector<int> uses_;
    std::vector<float> logits_, weights_;
};

}  // namespace jubako
