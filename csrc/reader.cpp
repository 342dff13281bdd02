#include "reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>

namespace jubako {
namespace {

// Reads end where the kernel may have to stop: long ones would come back short at 2 GiB.
constexpr int64_t MOST_AT_ONCE = int64_t{1} << 26;

int64_t size_of(int descriptor) {
    struct stat status;
    return fstat(descriptor, &status) == 0 ? status.st_size : 0;
}

// Some file systems take the flag and refuse the reads.
bool reads_directly(int descriptor) {
    void* page = std::aligned_alloc(PAGE, PAGE);
    const bool fine = page != nullptr && (pread(descriptor, page, PAGE, 0) >= 0 || errno != EINVAL);
    std::free(page);
    return fine;
}

std::string with_commas(int64_t number) {
    std::string text = std::to_string(number);
    for (int at = static_cast<int>(text.size()) - 3; at > 0; at -= 3) text.insert(static_cast<size_t>(at), ",");
    return text;
}

}  // namespace

std::vector<Piece> cut(const Piece& stretch) {
    constexpr int64_t LONG = int64_t{1} << 23;
    const int64_t start = page_floor(stretch.offset), end = stretch.offset + stretch.bytes;
    std::vector<Piece> pieces;
    for (int64_t page = start; page < end; page += LONG) {
        const int64_t first = std::max(page, stretch.offset);
        pieces.push_back({stretch.file, first, std::min(page + LONG, end) - first, stretch.area + (page - start)});
    }
    return pieces;
}

Reader::Reader(std::vector<std::string> paths, int threads) : idle_limit_(std::max(1, threads / 4)) {
    try {
        for (std::string& path : paths) {
            File file{std::move(path)};
            file.descriptor = open(file.path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
            file.direct = file.descriptor >= 0 && reads_directly(file.descriptor);
            if (!file.direct && file.descriptor >= 0) close(file.descriptor);
            if (!file.direct) file.descriptor = open(file.path.c_str(), O_RDONLY | O_CLOEXEC);
            if (file.descriptor < 0) throw ReadError(file.path + ": can't be opened: " + std::strerror(errno));
            direct_ = direct_ && file.direct;
            files_.push_back(std::move(file));
        }
        for (int i = 0; i < threads; ++i) threads_.emplace_back(&Reader::work, this);
    } catch (const std::system_error& refused) {
        end();
        throw ReadError(std::string("threads to read with: ") + refused.what());
    } catch (...) {
        end();
        throw;
    }
}

Reader::~Reader() { end(); }

void Reader::end() {
    {
        std::lock_guard lock(mutex_);
        closing_ = true;
        idle_.clear();
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    for (File& file : files_) close(file.descriptor);
}

void Reader::read(const Piece& piece) {
    const File& file = files_.at(static_cast<size_t>(piece.file));
    const int64_t start = page_floor(piece.offset), span = piece.page_span(), needed = piece.offset + piece.bytes - start;
    int64_t done = 0;
    while (done < needed) {
        const auto size = static_cast<size_t>(std::min(span - done, MOST_AT_ONCE));
        const ssize_t got = pread(file.descriptor, piece.area + done, size, start + done);
        if (got < 0 && errno == EINTR) continue;
        const std::string place = file.path + ": reading " + with_commas(piece.bytes) + " bytes at " + with_commas(piece.offset);
        if (got < 0) throw ReadError(place + " failed: " + std::strerror(errno) + "; is the disk still there?");
        done += got;
        // A direct read stops within a page only where the file does.
        if (got == 0 || (file.direct && done < needed && done % PAGE != 0))
            throw ReadError(place + " failed: the file ends after " + with_commas(size_of(file.descriptor)) + " bytes; it was cut while in use");
    }
    if (!file.direct) posix_fadvise(file.descriptor, start, span, POSIX_FADV_DONTNEED);
    bytes_read_.fetch_add(done, std::memory_order_relaxed);
}

void Reader::post(std::function<void()> work, bool urgent) {
    {
        std::lock_guard lock(mutex_);
        (urgent ? urgent_ : idle_).push_back(std::move(work));
    }
    wake_.notify_one();
}

void Reader::forget() {
    std::lock_guard lock(mutex_);
    idle_.clear();
}

void Reader::read_all(const std::vector<Piece>& pieces) {
    struct Progress {
        std::mutex mutex;
        std::condition_variable done;
        size_t left;
        std::string error;
    };
    auto progress = std::make_shared<Progress>();
    progress->left = pieces.size();
    for (const Piece& piece : pieces) {
        post([this, piece, progress] {
            std::string error;
            try {
                read(piece);
            } catch (const ReadError& refused) {
                error = refused.what();
            }
            std::lock_guard lock(progress->mutex);
            if (progress->error.empty()) progress->error = error;
            if (--progress->left == 0) progress->done.notify_all();
        });
    }
    std::unique_lock lock(progress->mutex);
    progress->done.wait(lock, [&] { return progress->left == 0; });
    if (!progress->error.empty()) throw ReadError(progress->error);
}

void Reader::work() {
    std::unique_lock lock(mutex_);
    for (;;) {
        wake_.wait(lock, [&] { return closing_ || !urgent_.empty() || (!idle_.empty() && idle_running_ < idle_limit_); });
        if (urgent_.empty() && closing_) return;
        const bool urgent = !urgent_.empty();
        auto& queue = urgent ? urgent_ : idle_;
        if (queue.empty()) continue;
        std::function<void()> task = std::move(queue.front());
        queue.pop_front();
        idle_running_ += urgent ? 0 : 1;
        lock.unlock();
        task();
        lock.lock();
        if (!urgent && --idle_running_ < idle_limit_ && !idle_.empty()) wake_.notify_one();
    }
}

}  // namespace jubako
