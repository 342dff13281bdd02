#include "rows.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

namespace jubako {
namespace {

constexpr size_t MOST_TASKS = 64;

// Pages of the calling thread for one row.
uint8_t* page_room(size_t bytes) {
    struct Free {
        void operator()(uint8_t* p) const { std::free(p); }
    };
    static thread_local std::unique_ptr<uint8_t, Free> room;
    static thread_local size_t size = 0;
    if (bytes > size) {
        room.reset(static_cast<uint8_t*>(std::aligned_alloc(PAGE, bytes)));
        size = room ? bytes : 0;
        if (!room) throw std::bad_alloc();
    }
    return room.get();
}

}  // namespace

RowReads::RowReads(const RowTable& table, const int64_t* ids, int64_t count)
    : table_(table), ids_(ids, ids + count), bytes_(static_cast<size_t>(count * table.row_bytes)) {
    const size_t each = (ids_.size() + MOST_TASKS - 1) / MOST_TASKS;
    for (size_t first = 0; first < ids_.size(); first += each) {
        const size_t last = std::min(ids_.size(), first + each);
        {
            std::lock_guard lock(mutex_);
            ++left_;
        }
        table_.reader->post([this, first, last] { read(first, last); });
    }
}

void RowReads::read(size_t first, size_t last) {
    std::string error;
    try {
        for (size_t i = first; i < last; ++i) {
            Piece piece{table_.file, table_.offset + ids_[i] * table_.row_bytes, table_.row_bytes};
            piece.area = page_room(static_cast<size_t>(piece.page_span()));
            table_.reader->read(piece);
            std::memcpy(bytes_.data() + i * static_cast<size_t>(table_.row_bytes), piece.first(), static_cast<size_t>(table_.row_bytes));
        }
    } catch (const std::exception& refused) {
        error = refused.what();
    }
    std::lock_guard lock(mutex_);
    if (error_.empty()) error_ = error;
    if (--left_ == 0) done_.notify_all();
}

void RowReads::settle() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return left_ == 0; });
}

const std::vector<uint8_t>& RowReads::take() {
    settle();
    if (!error_.empty()) throw ReadError(error_);
    return bytes_;
}

}  // namespace jubako
