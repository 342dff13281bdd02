#include "format_kernels.h"
#include "formats_k.h"
#include "matrix.h"

namespace jubako::JUBAKO_ISA {

FormatKernels ternary_kernels(Type type) {
    switch (type) {
        case Type::q1_0: return {multiply_format<Q1_0>, decode_format<Q1_0>, Q1_0::order};
        case Type::q2_0: return {multiply_format<Q2_0>, decode_format<Q2_0>, Q2_0::order};
        case Type::tq1_0: return {multiply_format<TQ1_0>, decode_format<TQ1_0>, TQ1_0::order};
        case Type::tq2_0: return {multiply_format<TQ2_0>, decode_format<TQ2_0>, TQ2_0::order};
        default: return {};
    }
}

}  // namespace jubako::JUBAKO_ISA
