// Experts in main memory, read from the file as they are needed: `ExpertStore`.
//
//   all fit       each layer's gate, up and down experts lie side by side as in the file; nothing ever moves
//   they do not   frames of one size for layers of one shape; an expert is read into a free frame or into that of the
//                 expert with the lowest score:  frame = gate's pages | up's pages | down's pages
//
// A table of addresses [layer, expert, part] tells where rows are; null where an expert is absent.
// Scores: every use adds 1, and what was added counts half after HALF_LIFE steps (LRFU: Lee et al. 2001). They are kept
// multiplied by 2^(step / HALF_LIFE), so that they change only when an expert is used.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "reader.h"

namespace jubako {

constexpr int PARTS = 3;          // gate, up, down
constexpr double HALF_LIFE = 64;  // steps

// The experts of one part of a layer in a file: expert e's `bytes` lie at offset + e·stride.
struct StoredPart {
    int file;
    int64_t offset, stride, bytes;
};
using StoredLayer = std::array<StoredPart, PARTS>;

// Pages that cost nothing until they are written to; large ones where the system gives them.
class Pages {
public:
    explicit Pages(int64_t bytes);
    Pages(const Pages&) = delete;
    Pages& operator=(const Pages&) = delete;
    ~Pages();
    uint8_t* data() const { return data_; }
    int64_t bytes() const { return bytes_; }

private:
    int64_t bytes_, mapped_;
    void* map_ = nullptr;
    uint8_t* data_;
};

class ExpertStore {
public:
    // frames: of each layer's shape, 0: all experts fit and lie as in the file.
    ExpertStore(std::shared_ptr<Reader> reader, std::vector<StoredLayer> layers, int experts, std::vector<int64_t> frames_of_shape);
    ~ExpertStore();

    int layers() const { return static_cast<int>(layers_.size()); }
    int experts() const { return experts_; }
    bool whole() const { return whole_; }
    const uint8_t* at(int layer, int expert, int part) const { return table_[cell(layer, expert, part)].load(std::memory_order_acquire); }
    bool here(int layer, int expert) const { return at(layer, expert, 0) != nullptr; }
    const std::atomic<const uint8_t*>* table() const { return table_.data(); }

    // Reads a layer of a store that holds all, in parallel. Throws ReadError.
    void load(int layer);
    // Memory of a layer's part when all fit: first byte of expert 0.
    const uint8_t* first(int layer, int part) const;
    // The areas that were laid out, for those who pin them: address and bytes.
    std::vector<std::pair<uint8_t*, int64_t>> regions() const;

    // A step of the network begins. Scores age, and what prompts used counts.
    void step();
    // Experts, each once, that the layer's kernel is about to read: reading of absent ones begins, none goes until
    // `release`. How many of them, from the first on: fewer than all when no frame is left, but at least one.
    int hold(int layer, const int32_t* ids, int count);
    // Until those held are there. Throws ReadError.
    void wait(int layer, const int32_t* ids, int count);
    void release(int layer, const int32_t* ids, int count);
    // Adds to the experts' scores; `later`: from the next step on, so that a pass over all experts does not make each
    // that it has read dearer than those it will read next.
    void used(int layer, const int32_t* ids, const double* worth, int count, bool later);
    // Experts a layer may ask for soon: read when nothing else is; unless sure, only into frames of experts used less.
    void expect(int layer, const int32_t* ids, int count, bool sure);

    struct Counts {
        int64_t asked = 0, missed = 0, expected = 0, expected_in_vain = 0;
    };
    Counts counts() const;
    std::string error() const;

private:
    enum class State : uint8_t { absent, loading, there, broken };
    struct Entry {
        State state = State::absent;
        bool guessed = false;  // read because expected, not asked for yet
        bool failed = false;   // a piece could not be read
        uint8_t pieces = 0;    // still to be read
        int frame = -1;
        int holds = 0;
        double score = 0, later = 0;
    };
    struct Shape {
        std::array<int64_t, PARTS> areas;  // where each part's pages begin in a frame
        int64_t frame_bytes = 0;
        std::unique_ptr<Pages> memory;
        std::vector<int> free;                   // frames never used, or given back
        std::set<std::pair<double, int>> order;  // entries that may go, lowest score first
    };

    size_t cell(int layer, int expert, int part) const { return static_cast<size_t>(entry_of(layer, expert) * PARTS + part); }
    int entry_of(int layer, int expert) const { return layer * experts_ + expert; }
    Piece piece(int layer, int part, int expert, uint8_t* area) const;
    void clear(int entry);
    void show(int entry);
    bool take_frame(int entry, double above);
    void rescore(int entry, double score);
    void finished(int entry, const std::string& error);
    void read_expected(int entry, bool sure);

    std::vector<StoredLayer> layers_;
    int experts_;
    bool whole_;
    std::vector<int> shape_of_;  // of a layer
    std::vector<Shape> shapes_;
    std::vector<std::atomic<const uint8_t*>> table_;  // [layer, expert, part]
    std::vector<std::array<std::unique_ptr<Pages>, PARTS>> whole_memory_;
    std::vector<Entry> entries_;  // [layer, expert]
    double worth_ = 1;            // 2^(step / HALF_LIFE)
    std::vector<int> later_;      // entries whose uses count from the next step on
    Counts counts_;
    std::string error_;  // why the last read failed
    mutable std::mutex mutex_;
    std::condition_variable arrived_;
    int expecting_ = 0;  // expected experts being read
    std::shared_ptr<Reader> reader_;
};

// Shapes of a store's layers, as numbers from 0 on, and the bytes of each shape's frames.
std::pair<std::vector<int>, std::vector<int64_t>> shapes_of(const std::vector<StoredLayer>& layers);

}  // namespace jubako
