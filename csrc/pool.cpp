#include "pool.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <new>
#include <set>
#include <string>
#include <thread>

namespace jubako {
namespace {

constexpr auto spin_time = std::chrono::microseconds(50);
constexpr auto awake_time = std::chrono::milliseconds(1);  // of threads that were kept awake: from one step of a GPU to the next
constexpr int item_bits = 20;
constexpr uint64_t item_mask = (1u << item_bits) - 1;

thread_local bool inside = false;
thread_local int number = 0;

template <class Word>
void futex(Word* word, int operation, int64_t value) {
    syscall(SYS_futex, word, operation, value, nullptr, nullptr, 0);
}

// One job at a time. `ticket` packs epoch | items | next item, so that a thread that wakes up late can neither take
// an item of a job that is over nor make the caller wait: only claimed items are waited for.
class Pool {
public:
    void resize(int count) {
        std::lock_guard lock(job_mutex_);
        limit_.store(count);
        futex(&limit_, FUTEX_WAKE_PRIVATE, 1 << 30);
        for (; started_ < count - 1; ++started_) std::thread(&Pool::work, this, started_).detach();
    }

    void keep_awake(bool awake) {
        awake_.fetch_add(awake ? 1 : -1);
        if (awake) wake();
    }

    int size() const { return limit_.load(std::memory_order_relaxed); }

    void run(int64_t items, Task task, void* context) {
        std::lock_guard lock(job_mutex_);
        task_ = task;
        context_ = context;
        done_.store(0, std::memory_order_relaxed);
        uint64_t epoch = (ticket_.load(std::memory_order_relaxed) >> (2 * item_bits)) + 1;
        ticket_.store(epoch << (2 * item_bits) | static_cast<uint64_t>(items) << item_bits);
        wake();
        inside = true;
        while (claim_and_run()) {
        }
        inside = false;
        for (int spins = 0; done_.load(std::memory_order_acquire) != items; ++spins) {
            if (spins < 20000) _mm_pause();
            else std::this_thread::yield();
        }
    }

private:
    void wake() {
        sequence_.fetch_add(1);
        if (sleepers_.load() > 0) futex(&sequence_, FUTEX_WAKE_PRIVATE, 1 << 30);
    }

    bool needed(int index) const { return index < limit_.load(std::memory_order_relaxed) - 1; }

    bool claim_and_run() {
        uint64_t ticket = ticket_.load(std::memory_order_acquire);
        for (;;) {
            uint64_t next = ticket & item_mask;
            if (next >= (ticket >> item_bits & item_mask)) return false;
            if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel)) continue;
            task_(context_, static_cast<int64_t>(next));
            done_.fetch_add(1, std::memory_order_release);
            return true;
        }
    }

    void work(int index) {
        inside = true;
        number = index + 1;
        for (;;) {
            uint32_t sequence = sequence_.load();
            auto until = std::chrono::steady_clock::now() + spin_time;
            while (needed(index) && (awake_.load(std::memory_order_relaxed) > 0 || std::chrono::steady_clock::now() < until)) {
                bool worked = false;
                while (claim_and_run()) worked = true;
                if (worked) {
                    sequence = sequence_.load();
                    until = std::max(until, std::chrono::steady_clock::now() + spin_time);
                }
                const bool awake = awake_.load(std::memory_order_relaxed) > 0;
                if (awake) until = std::chrono::steady_clock::now() + awake_time;
                for (int i = 0; i < (awake ? 4 : 16); ++i) _mm_pause();
            }
            for (int limit = limit_.load(); index >= limit - 1; limit = limit_.load()) futex(&limit_, FUTEX_WAIT_PRIVATE, limit);
            sleepers_.fetch_add(1);
            if (sequence_.load() == sequence)
                futex(&sequence_, FUTEX_WAIT_PRIVATE, sequence);
            sleepers_.fetch_sub(1);
        }
    }

    std::mutex job_mutex_;
    Task task_ = nullptr;
    void* context_ = nullptr;
    alignas(64) std::atomic<uint64_t> ticket_{0};
    alignas(64) std::atomic<int64_t> done_{0};
    alignas(64) std::atomic<uint32_t> sequence_{0};
    std::atomic<int> sleepers_{0}, awake_{0};
    std::atomic<int> limit_{1};
    int started_ = 0;
};

// Never destroyed: its threads may still sleep in it when the process ends.
Pool& pool() {
    static Pool* instance = [] {
        auto* made = new Pool;
        made->resize(default_threads());
        return made;
    }();
    return *instance;
}

struct Memory {
    void* data = nullptr;
    size_t bytes = 0;
    ~Memory() { std::free(data); }
};

}  // namespace

int default_threads() {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
    std::set<std::string> cores;
    int cpus = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (!CPU_ISSET(cpu, &allowed)) continue;
        ++cpus;
        std::string siblings;
        std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list");
        std::getline(file, siblings);
        cores.insert(siblings.empty() ? std::to_string(cpu) : siblings);
    }
    int count = std::max(1, std::min<int>(cpus, static_cast<int>(cores.size())));
    std::ifstream quota_file("/sys/fs/cgroup/cpu.max");
    std::string quota;
    double period = 0;
    if (quota_file >> quota >> period && quota != "max" && period > 0)
        count = std::max(1, std::min(count, static_cast<int>(std::atof(quota.c_str()) / period + 0.5)));
    return count;
}

int threads() { return pool().size(); }

int thread_number() { return number; }

void set_threads(int count) { pool().resize(std::clamp(count, 1, 1024)); }

void keep_awake(bool awake) { pool().keep_awake(awake); }

void parallel_run(int64_t items, Task task, void* context) {
    if (items > 1 && !inside && threads() > 1) return pool().run(items, task, context);
    for (int64_t item = 0; item < items; ++item) task(context, item);
}

void* scratch_bytes(Slot slot, size_t bytes) {
    static thread_local Memory memory[static_cast<int>(Slot::count)];
    Memory& own = memory[static_cast<int>(slot)];
    if (bytes > own.bytes) {
        std::free(own.data);
        own.bytes = (bytes + bytes / 4 + 127) / 64 * 64;
        own.data = std::aligned_alloc(64, own.bytes);
        if (own.data == nullptr) {
            own.bytes = 0;
            throw std::bad_alloc();
        }
    }
    return own.data;
}

}  // namespace jubako
