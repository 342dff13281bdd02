#include "store.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <new>

namespace jubako {
namespace {

constexpr double MOST_WORTH = 1e200;
constexpr int64_t LARGE_PAGE = int64_t{1} << 21;

std::array<int64_t, PARTS + 1> areas_of(const StoredLayer& layer) {
    std::array<int64_t, PARTS + 1> starts{};
    // Wherever in a page a part begins, its pages are no more than this.
    for (int part = 0; part < PARTS; ++part) {
        const bool aligned = layer[part].offset % PAGE == 0 && layer[part].stride % PAGE == 0;
        starts[part + 1] = starts[part] + page_ceil(layer[part].bytes) + (aligned ? 0 : PAGE);
    }
    return starts;
}

}  // namespace

Pages::Pages(int64_t bytes) : bytes_(page_ceil(std::max<int64_t>(bytes, 1))), mapped_(bytes_ < LARGE_PAGE ? bytes_ : bytes_ + LARGE_PAGE) {
    map_ = mmap(nullptr, static_cast<size_t>(mapped_), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map_ == MAP_FAILED) throw std::bad_alloc();
    const auto start = reinterpret_cast<uintptr_t>(map_);
    data_ = reinterpret_cast<uint8_t*>(mapped_ == bytes_ ? start : (start + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE);
    if (mapped_ > bytes_) madvise(data_, static_cast<size_t>(bytes_), MADV_HUGEPAGE);
}

Pages::~Pages() {
    if (map_ != nullptr) munmap(map_, static_cast<size_t>(mapped_));
}

std::pair<std::vector<int>, std::vector<int64_t>> shapes_of(const std::vector<StoredLayer>& layers) {
    std::vector<int> shapes;
    std::vector<std::array<int64_t, PARTS + 1>> known;
    std::vector<int64_t> bytes;
    for (const StoredLayer& layer : layers) {
        const auto areas = areas_of(layer);
        const auto found = std::find(known.begin(), known.end(), areas);
        shapes.push_back(static_cast<int>(found - known.begin()));
        if (found != known.end()) continue;
        known.push_back(areas);
        bytes.push_back(areas[PARTS]);
    }
    return {shapes, bytes};
}

ExpertStore::ExpertStore(std::shared_ptr<Reader> reader, std::vector<StoredLayer> layers, int experts, std::vector<int64_t> frames_of_shape)
    : layers_(std::move(layers)),
      experts_(experts),
      whole_(frames_of_shape.empty()),
      table_(layers_.size() * PARTS * static_cast<size_t>(experts)),
      entries_(layers_.size() * static_cast<size_t>(experts)),
      reader_(std::move(reader)) {
    for (auto& place : table_) place.store(nullptr, std::memory_order_relaxed);
    shape_of_ = shapes_of(layers_).first;
    if (whole_) {
        whole_memory_.resize(layers_.size());
        for (size_t layer = 0; layer < layers_.size(); ++layer) {
            for (int part = 0; part < PARTS; ++part) {
                const StoredPart& p = layers_[layer][static_cast<size_t>(part)];
                const int64_t end = p.offset + (experts_ - 1) * p.stride + p.bytes;
                whole_memory_[layer][static_cast<size_t>(part)] = std::make_unique<Pages>(page_ceil(end) - page_floor(p.offset));
            }
        }
        return;
    }
    shapes_.resize(frames_of_shape.size());
    for (size_t layer = layers_.size(); layer-- > 0;) {
        Shape& shape = shapes_.at(static_cast<size_t>(shape_of_[layer]));
        const auto areas = areas_of(layers_[layer]);
        std::copy(areas.begin(), areas.begin() + PARTS, shape.areas.begin());
        shape.frame_bytes = areas[PARTS];
    }
    for (size_t i = 0; i < shapes_.size(); ++i) {
        Shape& shape = shapes_[i];
        shape.memory = std::make_unique<Pages>(frames_of_shape[i] * shape.frame_bytes);
        for (int frame = static_cast<int>(frames_of_shape[i]); frame-- > 0;) shape.free.push_back(frame);
    }
}

ExpertStore::~ExpertStore() {
    reader_->forget();
    std::unique_lock lock(mutex_);  // reads on their way write into frames
    arrived_.wait(lock, [&] {
        return std::none_of(entries_.begin(), entries_.end(), [](const Entry& e) { return e.state == State::loading; }) && expecting_ == 0;
    });
}

Piece ExpertStore::piece(int layer, int part, int expert, uint8_t* area) const {
    const StoredPart& p = layers_[static_cast<size_t>(layer)][static_cast<size_t>(part)];
    return {p.file, p.offset + expert * p.stride, p.bytes, area};
}

void ExpertStore::load(int layer) {
    std::vector<Piece> pieces;
    for (int part = 0; part < PARTS; ++part) {
        const StoredPart& p = layers_[static_cast<size_t>(layer)][static_cast<size_t>(part)];
        uint8_t* memory = whole_memory_[static_cast<size_t>(layer)][static_cast<size_t>(part)]->data();
        for (const Piece& piece : cut({p.file, p.offset, (experts_ - 1) * p.stride + p.bytes, memory})) pieces.push_back(piece);
    }
    reader_->read_all(pieces);
    for (int part = 0; part < PARTS; ++part) {
        const int64_t stride = layers_[static_cast<size_t>(layer)][static_cast<size_t>(part)].stride;
        for (int e = 0; e < experts_; ++e) table_[cell(layer, e, part)].store(first(layer, part) + e * stride, std::memory_order_release);
    }
}

const uint8_t* ExpertStore::first(int layer, int part) const {
    return whole_memory_[static_cast<size_t>(layer)][static_cast<size_t>(part)]->data() + layers_[static_cast<size_t>(layer)][static_cast<size_t>(part)].offset % PAGE;
}

std::vector<std::pair<uint8_t*, int64_t>> ExpertStore::regions() const {
    std::vector<std::pair<uint8_t*, int64_t>> found;
    for (const auto& layer : whole_memory_)
        for (const auto& part : layer) found.emplace_back(part->data(), part->bytes());
    for (const Shape& shape : shapes_) found.emplace_back(shape.memory->data(), shape.memory->bytes());
    return found;
}

void ExpertStore::step() {
    std::lock_guard lock(mutex_);
    worth_ *= std::exp2(1 / HALF_LIFE);
    for (int entry : later_) {
        Entry& e = entries_[static_cast<size_t>(entry)];
        rescore(entry, e.score + e.later * worth_);
        e.later = 0;
    }
    later_.clear();
    if (worth_ < MOST_WORTH) return;
    for (Shape& shape : shapes_) shape.order.clear();
    for (size_t i = 0; i < entries_.size(); ++i) {
        Entry& e = entries_[i];
        e.score /= worth_;
        if (e.state == State::there && e.holds == 0)
            shapes_[static_cast<size_t>(shape_of_[i / static_cast<size_t>(experts_)])].order.emplace(e.score, static_cast<int>(i));
    }
    worth_ = 1;
}

// The entry's place in the order of those that may go follows its score.
void ExpertStore::rescore(int entry, double score) {
    Entry& e = entries_[static_cast<size_t>(entry)];
    if (e.state == State::there && e.holds == 0 && !whole_) {
        auto& order = shapes_[static_cast<size_t>(shape_of_[static_cast<size_t>(entry / experts_)])].order;
        order.erase({e.score, entry});
        order.emplace(score, entry);
    }
    e.score = score;
}

void ExpertStore::used(int layer, const int32_t* ids, const double* worth, int count, bool later) {
    std::lock_guard lock(mutex_);
    for (int i = 0; i < count; ++i) {
        const int entry = entry_of(layer, ids[i]);
        Entry& e = entries_[static_cast<size_t>(entry)];
        if (!later) {
            rescore(entry, e.score + worth[i] * worth_);
            continue;
        }
        if (e.later == 0) later_.push_back(entry);
        e.later += worth[i];
    }
}

// Its rows can't be found any more.
void ExpertStore::clear(int entry) {
    for (int part = 0; part < PARTS; ++part)
        table_[cell(entry / experts_, entry % experts_, part)].store(nullptr, std::memory_order_release);
}

void ExpertStore::show(int entry) {
    const int layer = entry / experts_, expert = entry % experts_;
    const Shape& shape = shapes_[static_cast<size_t>(shape_of_[static_cast<size_t>(layer)])];
    uint8_t* frame = shape.memory->data() + entries_[static_cast<size_t>(entry)].frame * shape.frame_bytes;
    for (int part = 0; part < PARTS; ++part)
        table_[cell(layer, expert, part)].store(piece(layer, part, expert, frame + shape.areas[static_cast<size_t>(part)]).first(),
                                                            std::memory_order_release);
}

// A frame for the entry: a free one, or that of the entry of the lowest score if it lies below `above`.
bool ExpertStore::take_frame(int entry, double above) {
    Shape& shape = shapes_[static_cast<size_t>(shape_of_[static_cast<size_t>(entry / experts_)])];
    Entry& e = entries_[static_cast<size_t>(entry)];
    if (!shape.free.empty()) {
        e.frame = shape.free.back();
        shape.free.pop_back();
    } else {
        if (shape.order.empty() || shape.order.begin()->first >= above) return false;
        const int victim = shape.order.begin()->second;
        shape.order.erase(shape.order.begin());
        Entry& out = entries_[static_cast<size_t>(victim)];
        clear(victim);
        if (out.guessed) ++counts_.expected_in_vain;
        out.state = State::absent;
        out.guessed = false;
        e.frame = std::exchange(out.frame, -1);
    }
    return true;
}

int ExpertStore::hold(int layer, const int32_t* ids, int count) {
    if (whole_) return count;
    std::unique_lock lock(mutex_);
    Shape& shape = shapes_[static_cast<size_t>(shape_of_[static_cast<size_t>(layer)])];
    for (int i = 0; i < count; ++i) {
        const int entry = entry_of(layer, ids[i]);
        Entry& e = entries_[static_cast<size_t>(entry)];
        if (e.state == State::absent || e.state == State::broken) {
            bool taken = take_frame(entry, HUGE_VAL);
            while (!taken && i == 0 && expecting_ > 0) {  // what is expected frees a frame as soon as it is read
                arrived_.wait(lock);
                taken = take_frame(entry, HUGE_VAL);
            }
            if (!taken) return i;
            e.state = State::loading;
            e.pieces = PARTS;
            e.failed = false;
            ++counts_.missed;
            uint8_t* frame = shape.memory->data() + e.frame * shape.frame_bytes;
            for (int part = 0; part < PARTS; ++part) {
                const Piece wanted = piece(layer, part, ids[i], frame + shape.areas[static_cast<size_t>(part)]);
                reader_->post([this, wanted, entry] {
                    std::string error;
                    try {
                        reader_->read(wanted);
                    } catch (const ReadError& refused) {
                        error = refused.what();
                    }
                    finished(entry, error);
                });
            }
        } else if (e.state == State::there && e.holds == 0) {
            shape.order.erase({e.score, entry});
        }
        ++counts_.asked;
        e.guessed = false;
        ++e.holds;
    }
    return count;
}

// One piece of an entry has arrived, or can't be read.
void ExpertStore::finished(int entry, const std::string& error) {
    std::lock_guard lock(mutex_);
    Entry& e = entries_[static_cast<size_t>(entry)];
    if (!error.empty()) {
        error_ = error;
        e.failed = true;
    }
    if (--e.pieces > 0) return;
    Shape& shape = shapes_[static_cast<size_t>(shape_of_[static_cast<size_t>(entry / experts_)])];
    if (!e.failed) {
        e.state = State::there;
        show(entry);
        if (e.holds == 0) shape.order.emplace(e.score, entry);
    } else {
        e.state = State::broken;
        shape.free.push_back(std::exchange(e.frame, -1));
    }
    arrived_.notify_all();
}

void ExpertStore::wait(int layer, const int32_t* ids, int count) {
    if (whole_) return;
    std::unique_lock lock(mutex_);
    for (int i = 0; i < count; ++i) {
        Entry& e = entries_[static_cast<size_t>(entry_of(layer, ids[i]))];
        arrived_.wait(lock, [&] { return e.state != State::loading; });
        if (e.state == State::there) continue;
        throw ReadError(error_);
    }
}

void ExpertStore::release(int layer, const int32_t* ids, int count) {
    if (whole_) return;
    std::lock_guard lock(mutex_);
    Shape& shape = shapes_[static_cast<size_t>(shape_of_[static_cast<size_t>(layer)])];
    for (int i = 0; i < count; ++i) {
        const int entry = entry_of(layer, ids[i]);
        Entry& e = entries_[static_cast<size_t>(entry)];
        if (--e.holds == 0 && e.state == State::there) shape.order.emplace(e.score, entry);
    }
}

std::string ExpertStore::error() const {
    std::lock_guard lock(mutex_);
    return error_;
}

ExpertStore::Counts ExpertStore::counts() const {
    std::lock_guard lock(mutex_);
    return counts_;
}

}  // namespace jubako
