// The thread pool of the CPU kernels: persistent threads that spin for a moment after work and then sleep.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace jubako {

int default_threads();     // physical cores this process may use (affinity and container quota respected)
int threads();             // threads that parallel_for uses, the caller included
void set_threads(int count);
void keep_awake(bool awake);  // while asked for more often than taken back, the pool's threads spin instead of sleeping

using Task = void (*)(void* context, int64_t item);
int thread_number();  // of the calling thread among the pool's, 0 for one that is none of them

void parallel_run(int64_t items, Task task, void* context);

// Calls fn(i) for every i in [0, items), items < 2^20, on the caller and the pool's threads, each item once, in no
// fixed order, and returns when all are done. Inside of another parallel_for it runs the items one after the other.
template <class F>
void parallel_for(int64_t items, F&& fn) {
    parallel_run(
        items, [](void* context, int64_t item) { (*static_cast<std::remove_reference_t<F>*>(context))(item); },
        const_cast<void*>(static_cast<const void*>(&fn)));
}

// Memory of the calling thread, 64-byte aligned, for one purpose (`slot`): it keeps its address and contents until
// the same thread asks the same slot for more.
enum class Slot {
    pointers, input, input_planar, input_floats, inputs, outputs, group, members, hidden, hidden_floats, product, shared, panel,
    ops_a, ops_b, ops_c, ops_d, starts, products, claims, down_claims, missing, halves, count
};
void* scratch_bytes(Slot slot, size_t bytes);

template <class T>
T* scratch(Slot slot, int64_t count) {
    return static_cast<T*>(scratch_bytes(slot, static_cast<size_t>(count) * sizeof(T)));
}

}  // namespace jubako
