#include "isa.h"

#include <atomic>

namespace jubako {

bool isa_supported(Isa level) {
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    if (level == Isa::avx2) return avx2;
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi") &&
           __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("avx512bitalg") &&
           __builtin_cpu_supports("avx512vpopcntdq") && __builtin_cpu_supports("gfni");
}

static std::atomic<Isa>& current() {
    static std::atomic<Isa> level{isa_supported(Isa::avx512) ? Isa::avx512 : Isa::avx2};
    return level;
}

Isa isa() { return current().load(std::memory_order_relaxed); }

void set_isa(Isa level) { current().store(level); }

}  // namespace jubako
