// Which instruction set the kernels use. Every file of csrc/kernels is compiled once per level, into
// jubako::avx2 and jubako::avx512; nothing outside those files is compiled for more than plain x86-64.
//
// In a kernel's header:   JUBAKO_KERNELS(void scale(float* x, int64_t n, float by);)
// In its .cpp:            namespace jubako::JUBAKO_ISA { void scale(float* x, int64_t n, float by) { … } }
// Where it is called:     JUBAKO_CALL(scale(x, n, by));
// Kernel files keep away from standard containers and other inline library code: the linker keeps one copy of an
// inline function, and it could be the one compiled for AVX-512.
#pragma once

#include <cstddef>
#include <cstdint>

namespace jubako {

enum class Isa { avx2, avx512 };

bool isa_supported(Isa isa);  // can this processor (and its system) run that level?
Isa isa();                    // the level in use: the best one supported, unless set_isa chose another
void set_isa(Isa isa);        // the caller has checked isa_supported

}  // namespace jubako

#define JUBAKO_KERNELS(...)    \
    namespace jubako::avx2 {   \
    __VA_ARGS__                \
    }                          \
    namespace jubako::avx512 { \
    __VA_ARGS__                \
    }

#define JUBAKO_CALL(...) \
    (::jubako::isa() == ::jubako::Isa::avx512 ? ::jubako::avx512::__VA_ARGS__ : ::jubako::avx2::__VA_ARGS__)
