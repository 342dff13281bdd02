// Reads rows of a table for a GPU that asks for them through memory which both see.
//
// The GPU writes the rows' numbers, their count and then the bell (release); a thread that watches the bell reads the
// rows into `rows` and then writes `done` (release). Both count requests. Words are 32 bits, 16 to a cache line:
//   0   bell    number of the latest request
//   16  done    number of the latest one answered
//   32  error   0, or 1: the file can't be read (error() says why), 2: no such row
//   48  count   rows asked for
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <thread>

#include "rows.h"

namespace jubako {

constexpr int row_words = 64;

class RowServer {
public:
    // Up to `most` rows a request.
    RowServer(RowTable table, uint32_t* words, const int64_t* ids, int64_t most, uint8_t* rows);
    ~RowServer();
    void begin();  // requests may come from now on: the thread spins
    void end();    // none until the next begin
    std::string error() const;

private:
    void run();
    uint32_t answer();

    RowTable table_;
    uint32_t* words_;
    const int64_t* ids_;
    int64_t most_;
    uint8_t* rows_;
    mutable std::mutex mutex_;
    std::string error_;
    std::atomic<int> awake_{0};
    std::atomic<uint32_t> wakes_{0};
    std::atomic<bool> over_{false};
    std::thread thread_;
};

}  // namespace jubako
