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
// what that says is read when the disk has nothing else to do, for ranks whose guesses mostly come true, read or not.
// slots: [layers, experts] or null, not negative where the GPU has the expert itself and asks nobody for it.
class StoreSource : public ExpertSource {
public:
    explicit StoreSource(std::shared_ptr<ExpertStore> store, std::vector<Weight> routers = {}, int chosen = 0, const int32_t* slots = nullptr)
        : store_(std::move(store)), routers_(std::move(routers)), chosen_(chosen), slots_(slots), ranks_(static_cast<size_t>(chosen)) {}
    ~StoreSource() override { let_go(); }

    void want(int layer, const int32_t* experts, int64_t count) override;
    void foresee(int layer, const float* x, int64_t tokens) override;
    void end() override { let_go(); }

private:
    struct Rank {  // of guesses that neither box held: how many there were lately, and how many were asked for
        double tried = 4, right = 3;
    };

    void let_go();
    void judge(int layer, const int32_t* experts, int64_t count);

    std::shared_ptr<ExpertStore> store_;
    std::vector<Weight> routers_;
    int chosen_;
    const int32_t* slots_;
    std::vector<Rank> ranks_;
    int layer_ = 0, guessed_layer_ = -1;
    std::vector<int32_t> held_, ids_, likely_;
    std::vector<std::pair<int32_t, size_t>> guessed_;  // expert, rank
    std::vector<int> uses_;
    std::vector<float> logits_, weights_;
};

}  // namespace jubako
