#include "format_kernels.h"
#include "formats_legacy.h"
#include "matrix.h"

namespace jubako::JUBAKO_ISA {

FormatKernels legacy_kernels(Type type) {
    switch (type) {
        case Type::q4_0: return {multiply_format<Q4_0>, decode_format<Q4_0>, Q4_0::order};
        case Type::q4_1: return {multiply_format<Q4_1>, decode_format<Q4_1>, Q4_1::order};
        case Type::q5_0: return {multiply_format<Q5_0>, decode_format<Q5_0>, Q5_0::order};
        case Type::q5_1: return {multiply_format<Q5_1>, decode_format<Q5_1>, Q5_1::order};
        case Type::q8_0: return {multiply_format<Q8_0>, decode_format<Q8_0>, Q8_0::order};
        default: return {};
    }
}

}  // namespace jubako::JUBAKO_ISA
