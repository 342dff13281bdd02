// Reads of files past the page cache, on threads of their own: `Reader` takes pieces, its threads read them in parallel.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace jubako {

constexpr int64_t PAGE = 4096;  // bytes; direct reads begin and end on it, in the file and in memory

inline int64_t page_floor(int64_t at) { return at / PAGE * PAGE; }
inline int64_t page_ceil(int64_t at) { return (at + PAGE - 1) / PAGE * PAGE; }

// What a file refused to give: its name, the place, and why.
class ReadError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

// Bytes [offset, offset + bytes) of a file, read in whole pages: `area`, on a page border, gets them from
// offset mod PAGE on and must hold page_span() bytes.
struct Piece {
    int file = 0;
    int64_t offset = 0, bytes = 0;
    uint8_t* area = nullptr;

    int64_t page_span() const { return page_ceil(offset + bytes) - page_floor(offset); }
    const uint8_t* first() const { return area + offset % PAGE; }
};

// A long stretch as pieces that are read in parallel into memory laid out like one piece.
std::vector<Piece> cut(const Piece& stretch);

class Reader {
public:
    // Opens the files directly where the file system lets it, else with the page cache given back after each read.
    Reader(std::vector<std::string> paths, int threads);
    ~Reader();
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;

    // Reads now, in the calling thread. Throws ReadError.
    void read(const Piece& piece);
    // Runs `work` on one of the threads: urgent work first, in order; other work on at most a quarter of them.
    void post(std::function<void()> work, bool urgent = true);
    // Forgets the work that is not urgent and has not begun.
    void forget();
    // Reads all pieces in parallel and returns when they are there. Throws the first ReadError.
    void read_all(const std::vector<Piece>& pieces);

    bool direct() const { return direct_; }
    int64_t bytes_read() const { return bytes_read_.load(std::memory_order_relaxed); }

private:
    struct File {
        std::string path;
        int descriptor = -1;
        bool direct = false;
    };
    void end();  // of the threads and files there are
    void work();

    std::vector<File> files_;
    bool direct_ = true;
    std::atomic<int64_t> bytes_read_{0};
    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<std::function<void()>> urgent_, idle_;
    int idle_running_ = 0, idle_limit_ = 1;
    bool closing_ = false;
    std::vector<std::thread> threads_;
};

}  // namespace jubako
