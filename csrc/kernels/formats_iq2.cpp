#include "format_kernels.h"
#include "formats_grid.h"
#include "matrix.h"

namespace jubako::JUBAKO_ISA {

FormatKernels iq2_kernels(Type type) {
    switch (type) {
        case Type::iq1_s: return {multiply_format<IQ1_S>, decode_format<IQ1_S>, IQ1_S::order};
        case Type::iq1_m: return {multiply_format<IQ1_M>, decode_format<IQ1_M>, IQ1_M::order};
        case Type::iq2_xxs: return {multiply_format<IQ2_XXS>, decode_format<IQ2_XXS>, IQ2_XXS::order};
        case Type::iq2_xs: return {multiply_format<IQ2_XS>, decode_format<IQ2_XS>, IQ2_XS::order};
        case Type::iq2_s: return {multiply_format<IQ2_S>, decode_format<IQ2_S>, IQ2_S::order};
        default: return {};
    }
}

}  // namespace jubako::JUBAKO_ISA
