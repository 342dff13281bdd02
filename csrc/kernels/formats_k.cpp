#include "format_kernels.h"
#include "formats_k.h"
#include "matrix.h"

namespace jubako::JUBAKO_ISA {

FormatKernels k_kernels(Type type) {
    switch (type) {
        case Type::q2_k: return {multiply_format<Q2_K>, decode_format<Q2_K>, Q2_K::order};
        case Type::q3_k: return {multiply_format<Q3_K>, decode_format<Q3_K>, Q3_K::order};
        case Type::q4_k: return {multiply_format<Q4_K>, decode_format<Q4_K>, Q4_K::order};
        case Type::q5_k: return {multiply_format<Q5_K>, decode_format<Q5_K>, Q5_K::order};
        case Type::q6_k: return {multiply_format<Q6_K>, decode_format<Q6_K>, Q6_K::order};
        case Type::iq4_xs: return {multiply_format<IQ4_XS>, decode_format<IQ4_XS>, IQ4_XS::order};
        default: return {};
    }
}

}  // namespace jubako::JUBAKO_ISA
