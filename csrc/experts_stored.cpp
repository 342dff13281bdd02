#include "experts_stored.h"

#include <algorithm>
#include <vector>

#include "experts.h"
#include "pool.h"

namespace jubako {
namespace {

constexpr int STEP_TOKENS = 16;  // more are a prompt
constexpr int64_t BATCH = 8;     // experts computed together: enough rows for all threads
constexpr int AHEAD = 48;        // experts read ahead of the one at work

// Experts of a layer in the order they are computed in, and each one's uses among `members`.
struct Queue {
    std::vector<int32_t> experts;
    std::vector<int64_t> first, count, members;
};

// Those in memory first, so that reading goes on meanwhile; otherwise by number.
Queue queue_of(const ExpertStore& store, int layer, const int32_t* ids, int64_t uses) {
    const auto all = static_cast<size_t>(store.experts());
    std::vector<int64_t> counts(all, 0), starts(all, 0);
    for (int64_t i = 0; i < uses; ++i)
        if (ids[i] >= 0) ++counts[static_cast<size_t>(ids[i])];
    Queue queue;
    for (const bool here : {true, false})
        for (size_t e = 0; e < all; ++e)
            if (counts[e] > 0 && store.here(layer, static_cast<int>(e)) == here) queue.experts.push_back(static_cast<int32_t>(e));
    int64_t at = 0;
    for (int32_t e : queue.experts) {
        starts[static_cast<size_t>(e)] = at;
        queue.first.push_back(at);
        queue.count.push_back(counts[static_cast<size_t>(e)]);
        at += counts[static_cast<size_t>(e)];
    }
    queue.members.resize(static_cast<size_t>(at));
    for (int64_t i = 0; i < uses; ++i)
        if (ids[i] >= 0) queue.members[static_cast<size_t>(starts[static_cast<size_t>(ids[i])]++)] = i;
    return queue;
}

// Experts held from `done` up to `held`; let go in the end, whatever happens.
struct Holding {
    ExpertStore& store;
    int layer;
    const std::vector<int32_t>& experts;
    size_t done = 0, held = 0;

    void reach(size_t end) {
        if (end <= held) return;
        held += static_cast<size_t>(store.hold(layer, experts.data() + held, static_cast<int>(end - held)));
        if (held == done) throw ReadError("others hold all the memory that experts are read into");
    }
    void wait(size_t count) { store.wait(layer, experts.data() + done, static_cast<int>(count)); }
    void let_go(size_t count) {
        store.release(layer, experts.data() + done, static_cast<int>(count));
        done += count;
    }
    ~Holding() { let_go(held - done); }
};

// sigmoid(router · x) of every token.
void shared_weights(const Weight& router, const Columns& columns, int64_t tokens, float* out) {
    auto** outputs = scratch<float*>(Slot::outputs, tokens);
    for (int64_t t = 0; t < tokens; ++t) outputs[t] = out + t;
    RowsTimesColumns job = rows_job(router, 0, 1);
    job.columns = static_cast<int>(tokens);
    job.x = columns.of(router);
    job.out = outputs;
    JUBAKO_CALL(multiply(job));
    for (int64_t t = 0; t < tokens; ++t) out[t] = JUBAKO_CALL(sigmoid_of(out[t]));
}

}  // namespace

void stored_experts(ExpertStore& store, int layer, const ExpertWeights& weights, const float* x, int64_t tokens, const int32_t* ids,
                    const float* route_weights, int64_t chosen, const std::function<void()>& meanwhile, float* out) {
    const bool shared = weights.shared_gate != nullptr;
    const int64_t height = weights.down->rows, uses = tokens * chosen, all_uses = uses + (shared ? tokens : 0);
    if (tokens == 0) return;
    const Queue queue = queue_of(store, layer, ids, uses);
    const size_t count = queue.experts.size();
    size_t there = 0;
    while (there < count && store.here(layer, queue.experts[there])) ++there;
    Holding holding{store, layer, queue.experts};
    holding.reach(std::min(count, there + AHEAD));
    if (holding.held < count || there < count) meanwhile();

    Columns columns(false);
    for (const Weight* w : {weights.gate, weights.up, weights.shared_gate, weights.shared_up, weights.shared_router}) columns.want(w);
    columns.make(x, tokens, weights.gate->cols);
    auto* products = scratch<float>(Slot::products, all_uses * height);
    auto* shared_weight = scratch<float>(Slot::shared, tokens);
    if (shared) {
        std::vector<int64_t> members(static_cast<size_t>(tokens));
        for (int64_t t = 0; t < tokens; ++t) members[static_cast<size_t>(t)] = uses + t;
        const ExpertUses own{*weights.shared_gate, *weights.shared_up, *weights.shared_down, 0, tokens};
        expert_rows({&own, 1, members.data(), tokens, chosen}, columns, all_uses, products);
        shared_weights(*weights.shared_router, columns, tokens, shared_weight);
    }
    while (holding.done < count) {
        holding.reach(std::min(count, std::max(holding.done + 1, there) + AHEAD));
        const size_t end = holding.done < there ? std::min(there, holding.held) : std::min(holding.held, holding.done + BATCH);
        holding.wait(end - holding.done);
        std::vector<ExpertUses> batch;
        for (size_t i = holding.done; i < end; ++i) {
            const int e = queue.experts[i];
            auto matrix = [&](const Weight& stack, int part) { return matrix_of(stack, e, store.at(layer, e, part)); };
            batch.push_back({matrix(*weights.gate, 0), matrix(*weights.up, 1), matrix(*weights.down, 2), queue.first[i], queue.count[i]});
        }
        expert_rows({batch.data(), static_cast<int64_t>(batch.size()), queue.members.data(), tokens, chosen}, columns, all_uses, products);
        holding.let_go(end - holding.done);
    }
    parallel_for(tokens, [&](int64_t t) {
        float* sum = out + t * height;
        std::fill(sum, sum + height, 0.0f);
        for (int64_t k = 0; k < chosen; ++k)
            if (ids[t * chosen + k] >= 0) JUBAKO_CALL(add_scaled(route_weights[t * chosen + k], products + (t * chosen + k) * height, height, sum));
        if (shared) JUBAKO_CALL(add_scaled(shared_weight[t], products + (uses + t) * height, height, sum));
    });

    // A prompt's use of an expert is worth what as many steps would have left of it.
    const bool prompt = tokens > STEP_TOKENS;
    const double each = prompt ? std::min(1.0, HALF_LIFE / 0.6931 / static_cast<double>(tokens)) : 1.0;
    std::vector<double> worth;
    for (int64_t used : queue.count) worth.push_back(each * static_cast<double>(used));
    store.used(layer, queue.experts.data(), worth.data(), static_cast<int>(count), prompt);
}

}  // namespace jubako
