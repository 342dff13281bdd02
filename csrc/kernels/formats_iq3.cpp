#include "format_kernels.h"
#include "formats_grid.h"
#include "matrix.h"

namespace jubako::JUBAKO_ISA {

FormatKernels iq3_kernels(Type type) {
    switch (type) {
        case Type::iq3_xxs: return {multiply_format<IQ3_XXS>, decode_format<IQ3_XXS>, IQ3_XXS::order};
        case Type::iq3_s: return {multiply_format<IQ3_S>, decode_format<IQ3_S>, IQ3_S::order};
        default: return {};
    }
}

}  // namespace jubako::JUBAKO_ISA
