#include "row_server.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstring>

namespace jubako {
namespace {

constexpr int bell = 0, done = 16, error_word = 32, count_word = 48;
constexpr timespec nap{0, 20'000'000};  // a bell that nobody announced is heard after this

uint32_t load(const uint32_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
void store(uint32_t* word, uint32_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

}  // namespace

RowServer::RowServer(RowTable table, uint32_t* words, const int64_t* ids, int64_t most, uint8_t* rows)
    : table_(std::move(table)), words_(words), ids_(ids), most_(most), rows_(rows), thread_(&RowServer::run, this) {}

RowServer::~RowServer() {
    over_.store(true);
    begin();
    thread_.join();
}

void RowServer::begin() {
    awake_.fetch_add(1);
    wakes_.fetch_add(1);
    syscall(SYS_futex, &wakes_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

void RowServer::end() { awake_.fetch_sub(1); }

std::string RowServer::error() const {
    std::lock_guard lock(mutex_);
    return error_;
}

void RowServer::run() {
    uint32_t answered = load(words_ + done);
    while (!over_.load(std::memory_order_relaxed)) {
        const uint32_t wakes = wakes_.load();
        const uint32_t rung = load(words_ + bell);
        if (rung != answered) {
            const uint32_t trouble = answer();
            if (trouble != 0) store(words_ + error_word, trouble);
            store(words_ + done, answered = rung);
        } else if (awake_.load(std::memory_order_relaxed) > 0) {
            _mm_pause();
        } else {
            syscall(SYS_futex, &wakes_, FUTEX_WAIT_PRIVATE, wakes, &nap, nullptr, 0);
        }
    }
}

uint32_t RowServer::answer() {
    const int64_t count = load(words_ + count_word);
    if (count > most_) return 2;
    for (int64_t i = 0; i < count; ++i)
        if (ids_[i] < 0 || ids_[i] >= table_.rows) return 2;
    try {
        RowReads reads(table_, ids_, count);
        const auto& bytes = reads.take();
        std::memcpy(rows_, bytes.data(), bytes.size());
        return 0;
    } catch (const ReadError& refused) {
        std::lock_guard lock(mutex_);
        error_ = refused.what();
        return 1;
    }
}

}  // namespace jubako
