#include "expert_threads.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "claims.h"
#include "experts.h"
#include "pool.h"

namespace jubako {
namespace {

using Clock = std::chrono::steady_clock;

constexpr timespec nap{0, 20'000'000};  // a bell that nobody announced is heard after this
constexpr auto awake_time = std::chrono::milliseconds(1);  // from one step to the next, as in pool.cpp
constexpr int lines_called = 16;  // of a cache, between two looks at the bell
constexpr auto patience = std::chrono::seconds(10);  // for an expert to come into memory

uint32_t load(const uint32_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
void store(uint32_t* word, uint32_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
uint64_t load(const uint64_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

}  // namespace

ExpertThreads::ExpertThreads(Mailbox mailbox, std::vector<ExpertLayer> layers)
    : mailbox_(mailbox), layers_(std::move(layers)), thread_(&ExpertThreads::run, this) {}

ExpertThreads::~ExpertThreads() {
    over_.store(true);
    begin();
    thread_.join();
    end();
}

void ExpertThreads::begin() {
    keep_awake(true);
    awake_.fetch_add(1);
    wakes_.fetch_add(1);
    syscall(SYS_futex, &wakes_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

void ExpertThreads::end() {
    awake_.fetch_sub(1);
    keep_awake(false);
}

void ExpertThreads::run() {
    uint32_t answered = load(mailbox_.words + done_word), heard = 0, seen = load(mailbox_.words + came_word);
    Clock::time_point until{};
    while (!over_.load(std::memory_order_relaxed)) {
        const uint32_t wakes = wakes_.load();
        const uint32_t rung = load(mailbox_.words + bell_word);
        if (rung != answered) {
            const auto start = Clock::now();
            const Trouble trouble = answer();
            if (trouble != Trouble::none) store(mailbox_.words + error_word, static_cast<uint32_t>(trouble));
            store(mailbox_.words + done_word, answered = rung);
            seconds.store(seconds.load() + std::chrono::duration<double>(Clock::now() - start).count());
            requests.fetch_add(1);
            if (trouble == Trouble::none) foresee();
        } else if (awake_.load(std::memory_order_relaxed) > 0) {
            until = Clock::now() + awake_time;
            if (const uint32_t came = load(mailbox_.words + came_word); came != seen) {
                if (ready(came)) seen = came;
            } else if (const uint32_t named = load(mailbox_.words + named_word); named != heard) {
                heard = named;
                read_ahead(answered, seen);
            } else {
                _mm_pause();
            }
        } else if (Clock::now() < until) {
            _mm_pause();
        } else {
            syscall(SYS_futex, &wakes_, FUTEX_WAIT_PRIVATE, wakes, &nap, nullptr, 0);
        }
    }
}

Trouble ExpertThreads::answer() {
    const int64_t layer = load(mailbox_.words + layer_word), tokens = load(mailbox_.words + tokens_word);
    if (layer >= static_cast<int64_t>(layers_.size()) || tokens < 1 || tokens > mailbox_.tokens) return Trouble::bad_request;
    const ExpertLayer& own = layers_[layer];
    const int64_t uses = tokens * mailbox_.chosen;

    // Members in the order of their experts, those of one expert in their own. A request has at most some hundred.
    auto* members = scratch<int64_t>(Slot::members, uses);
    int64_t count = 0;
    for (int64_t use = 0; use < uses; ++use) {
        if (mailbox_.ids[use] >= own.experts) return Trouble::bad_request;
        if (mailbox_.ids[use] >= 0) members[count++] = use;
    }
    std::stable_sort(members, members + count, [&](int64_t a, int64_t b) { return mailbox_.ids[a] < mailbox_.ids[b]; });
    auto* ids = scratch<int32_t>(Slot::ops_a, count);
    auto* found = scratch<ExpertUses>(Slot::ops_b, count);  // what `foresee` computes meanwhile takes other slots
    int64_t groups = 0;
    for (int64_t i = 0; i < count; ++i) {
        const int32_t id = mailbox_.ids[members[i]];
        if (groups == 0 || ids[groups - 1] != id) {
            found[groups] = {own.gate, own.up, own.down, i, 0};
            ids[groups++] = id;
        }
        ++found[groups - 1].count;
    }
    if (!in_memory(static_cast<int>(layer), ids, groups)) return Trouble::not_in_memory;
    for (int64_t g = 0; g < groups; ++g) {
        Weight* const weights[3] = {&found[g].gate, &found[g].up, &found[g].down};
        for (int part = 0; part < 3; ++part) {
            weights[part]->data = reinterpret_cast<const uint8_t*>(load(own.addresses + 3 * ids[g] + part));
            weights[part]->scale = own.scales == nullptr ? nullptr : own.scales + 3 * ids[g] + part;
            weights[part]->scales = own.scales == nullptr ? 0 : 1;
        }
    }
    const uint32_t number = load(mailbox_.words + read_word);
    if (number == 0) make_columns(own, tokens, 0);
    for (const auto until = Clock::now() + patience; number != 0 && made_ != number;) {
        if (ready(number)) break;
        _mm_pause();
        if (over_.load(std::memory_order_relaxed) || Clock::now() > until) return Trouble::gpu_waited;
    }
    expert_rows({found, groups, members, tokens, mailbox_.chosen}, columns_, uses, mailbox_.rows);
    if (ExpertSource* source = source_.load()) source->end();
    experts.fetch_add(groups);
    return Trouble::none;
}

// Quantise x with that number, if all of it is there.
bool ExpertThreads::ready(uint32_t number) {
    const uint32_t layer = load(mailbox_.words + came_layer_word), tokens = load(mailbox_.words + came_tokens_word);
    if (layer >= layers_.size() || tokens < 1 || tokens > mailbox_.tokens) return false;
    for (uint32_t t = 0; t < tokens; ++t)
        if (load(mailbox_.words + came_word + t) != number) return false;
    make_columns(layers_[layer], tokens, number);
    return true;
}

void ExpertThreads::make_columns(const ExpertLayer& layer, int64_t tokens, uint32_t number) {
    columns_ = Columns(false);
    for (const Weight* weight : {&layer.gate, &layer.up}) columns_.want(weight);
    columns_.make(mailbox_.x, tokens, layer.gate.cols);
    made_ = number;
}

// What is read may be half of one guess and half of the next: then some of it is called in vain.
void ExpertThreads::read_ahead(uint32_t answered, uint32_t seen) {
    const uint32_t layer = load(mailbox_.words + named_layer_word), count = load(mailbox_.words + named_count_word);
    if (layer >= layers_.size() || count > most_names) return;
    const ExpertLayer& own = layers_[layer];
    int32_t ids[most_names];
    for (uint32_t i = 0; i < count; ++i) {
        ids[i] = static_cast<int32_t>(load(mailbox_.words + names_word + i));
        if (ids[i] < 0 || ids[i] >= own.experts) return;
    }
    const Weight* const matrices[3] = {&own.gate, &own.up, &own.down};
    parallel_for(threads(), [&](int64_t) {
        for (uint32_t i = 0; i < count; ++i) {
            for (int part = 0; part < 3; ++part) {
                const Weight& matrix = *matrices[part];
                const auto* data = reinterpret_cast<const uint8_t*>(load(own.addresses + 3 * ids[i] + part));
                const int place = part == 1 ? 0 : part;  // up's rows are computed with gate's
                const auto* first = reinterpret_cast<const uint8_t*>(load(own.addresses + 3 * ids[i] + place));
                const Rows mine = own_rows(first, matrix.rows, row_unit, thread_number(), threads());
                const uint8_t* const end = data + mine.last * matrix.row_stride;
                for (const uint8_t* at = data + mine.first * matrix.row_stride; data != nullptr && at < end; at += 64 * lines_called) {
                    if (load(mailbox_.words + bell_word) != answered) return;
                    if (thread_number() == 0 && load(mailbox_.words + came_word) != seen) return;
                    for (int line = 0; line < lines_called; ++line) _mm_prefetch(reinterpret_cast<const char*>(at + 64 * line), _MM_HINT_T1);
                }
            }
        }
    });
    named.fetch_add(count);
}

void ExpertThreads::foresee() {
    ExpertSource* source = source_.load();
    if (source == nullptr || std::exchange(foreseen_, true)) return;
    const int64_t tokens = load(mailbox_.words + tokens_word), hidden = layers_[0].gate.cols;
    read_.clear();
    made_ = 0;  // the guess takes the same room
    for (int64_t t = 0; t < tokens; ++t) {
        const int32_t* ids = mailbox_.ids + t * mailbox_.chosen;
        if (std::any_of(ids, ids + mailbox_.chosen, [](int32_t id) { return id >= 0; })) read_.insert(read_.end(), mailbox_.x + t * hidden, mailbox_.x + (t + 1) * hidden);
    }
    source->foresee(static_cast<int>(load(mailbox_.words + layer_word)), read_.data(), static_cast<int64_t>(read_.size()) / hidden);
}

bool ExpertThreads::in_memory(int layer, const int32_t* experts, int64_t count) {
    const uint64_t* addresses = layers_[layer].addresses;
    foreseen_ = false;
    auto missing = [&](int32_t e) { return load(addresses + 3 * e) == 0 || load(addresses + 3 * e + 1) == 0 || load(addresses + 3 * e + 2) == 0; };
    if (ExpertSource* source = source_.load()) source->want(layer, experts, count);
    else return std::none_of(experts, experts + count, missing);
    if (std::any_of(experts, experts + count, missing)) foresee();
    const auto until = Clock::now() + patience;
    while (std::any_of(experts, experts + count, missing)) {
        if (over_.load(std::memory_order_relaxed) || Clock::now() > until) return false;
        _mm_pause();
    }
    return true;
}

}  // namespace jubako
