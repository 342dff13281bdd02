// Computes experts for a GPU that asks for them through memory which both see.
//
// The GPU writes a request and then the bell (release); a thread that watches the bell computes on the pool's threads,
// writes the rows and then `done` (release). Both count requests, so a captured graph can be replayed without any reset.
// What the experts read comes before the bell, as soon as it is there, whether they will be asked for or not: it is quantised meanwhile.
// Words are 32 bits, 16 to a cache line:
//   0   bell    number of the latest request
//   16  done    number of the latest one answered
//   32  error   0, or why nothing of this can be trusted (Trouble)
//   48  layer, 49  tokens, 50  number of what they read, 0 if it came with the request
//   80 …        for each token number of the latest x that is there, 96  its layer, 97  tokens
//   64  named   number of the latest guess, 65  its layer, 66  how many experts it names, 67 …  which
// A guess names experts that the layer will probably ask for: while no bell has rung, each thread calls its part of their weights into
// its cache. Nothing answers it, and a later one may take its place at any time.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "linear.h"

namespace jubako {

constexpr int bell_word = 0, done_word = 16, error_word = 32, layer_word = 48, tokens_word = 49, read_word = 50;
constexpr int named_word = 64, named_layer_word = 65, named_count_word = 66, names_word = 67, most_names = 12;
constexpr int came_word = 80, came_layer_word = 96, came_tokens_word = 97, mailbox_words = 112;

enum class Trouble : uint32_t { none, gpu_waited, not_in_memory, bad_request };

// Brings experts into main memory. `want` is told all that a request needs, each once, those in memory too: they stay there until the
// next `want` or `end`. It may return before they are there; their addresses tell. Called by the thread that answers.
class ExpertSource {
public:
    virtual ~ExpertSource() = default;
    virtual void want(int layer, const int32_t* experts, int64_t count) = 0;
    virtual void end() = 0;
    // x [tokens, hidden] is what a layer's experts read: once a request, when there is time, between `want` and the wait for what
    // it brings, or when the answer is given. For guessing what comes next.
    virtual void foresee(int /*layer*/, const float* /*x*/, int64_t /*tokens*/) {}
};

// A layer's experts. gate, up and down tell types and sizes; addresses[3e], [3e + 1] and [3e + 2] where the matrices of expert e
// lie now, zero where they are not in memory; scales likewise, or null.
struct ExpertLayer {
    Weight gate, up, down;
    const uint64_t* addresses;
    const float* scales;
    int64_t experts;
};

// The memory: words, ids int32 [tokens, chosen] (negative: somebody else's), x float32 [tokens, hidden], rows float32
// [tokens · chosen, hidden]. It must live as long as the threads.
struct Mailbox {
    uint32_t* words;
    const int32_t* ids;
    const float* x;
    float* rows;
    int64_t tokens, chosen;
};

class ExpertThreads {
public:
    ExpertThreads(Mailbox mailbox, std::vector<ExpertLayer> layers);
    ~ExpertThreads();
    void begin();  // requests may come from now on: threads spin
    void end();    // none until the next begin
    void set_source(ExpertSource* source) { source_.store(source); }

    // Since the start: requests, experts computed (of a request each once), experts named by guesses that were heard; seconds spent on
    // requests.
    std::atomic<int64_t> requests{0}, experts{0}, named{0};
    std::atomic<double> seconds{0};

private:
    void run();
    Trouble answer();
    void read_ahead(uint32_t answered, uint32_t seen);
    bool ready(uint32_t number);
    void make_columns(const ExpertLayer& layer, int64_t tokens, uint32_t number);
    bool in_memory(int layer, const int32_t* experts, int64_t count);
    void foresee();

    Mailbox mailbox_;
    std::vector<ExpertLayer> layers_;
    Columns columns_{false};  // of the x with that number, 0: of none
    uint32_t made_ = 0;
    bool foreseen_ = true;    // what the latest request means for the next
    std::vector<float> read_;  // x of the tokens that it is about
    std::atomic<ExpertSource*> source_{nullptr};
    std::atomic<int> awake_{0};
    std::atomic<uint32_t> wakes_{0};
    std::atomic<bool> over_{false};
    std::thread thread_;
};

}  // namespace jubako
