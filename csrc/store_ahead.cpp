// Experts that are read before they are asked for.
#include <cmath>

#include "store.h"

namespace jubako {

void ExpertStore::expect(int layer, const int32_t* ids, int count, bool sure) {
    if (whole_) return;
    reader_->forget();  // what was expected before is known by now
    for (int i = 0; i < count; ++i) {
        const int entry = entry_of(layer, ids[i]);
        if (here(layer, ids[i])) continue;
        reader_->post([this, entry, sure] { read_expected(entry, sure); }, false);
    }
}

void ExpertStore::read_expected(int entry, bool sure) {
    const int layer = entry / experts_, expert = entry % experts_;
    uint8_t* frame;
    Shape& shape = shapes_[static_cast<size_t>(shape_of_[static_cast<size_t>(layer)])];
    {
        std::lock_guard lock(mutex_);
        Entry& e = entries_[static_cast<size_t>(entry)];
        if (e.state != State::absent || !take_frame(entry, sure ? HUGE_VAL : e.score + worth_)) return;
        e.state = State::loading;
        e.guessed = true;
        e.pieces = 1;
        e.failed = false;
        ++counts_.expected;
        ++expecting_;
        frame = shape.memory->data() + e.frame * shape.frame_bytes;
    }
    std::string error;
    try {
        for (int part = 0; part < PARTS; ++part) reader_->read(piece(layer, part, expert, frame + shape.areas[static_cast<size_t>(part)]));
    } catch (const ReadError& refused) {
        error = refused.what();
    }
    finished(entry, error);
    std::lock_guard lock(mutex_);
    --expecting_;
    arrived_.notify_all();
}

}  // namespace jubako
