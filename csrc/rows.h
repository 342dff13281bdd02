// Rows of a matrix that stays in its file, read one by one: the n-gram table.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "reader.h"

namespace jubako {

// `rows` rows of `row_bytes` bytes, one after the other from `offset` on.
struct RowTable {
    std::shared_ptr<Reader> reader;
    int file;
    int64_t offset, row_bytes, rows;
};

// Rows on their way. Reading begins with the constructor; the destructor waits for it.
class RowReads {
public:
    RowReads(const RowTable& table, const int64_t* ids, int64_t count);
    ~RowReads() { settle(); }
    RowReads(const RowReads&) = delete;
    RowReads& operator=(const RowReads&) = delete;

    // Waits. The rows [count, row_bytes] in the order asked for. Throws ReadError.
    const std::vector<uint8_t>& take();

private:
    void settle();
    void read(size_t first, size_t last);

    RowTable table_;
    std::vector<int64_t> ids_;
    std::vector<uint8_t> bytes_;
    std::mutex mutex_;
    std::condition_variable done_;
    int left_ = 0;
    std::string error_;
};

}  // namespace jubako
