#include "format_kernels.h"
#include "formats_legacy.h"
#include "matrix.h"

namespace jubako::JUBAKO_ISA {

FormatKernels fp4_kernels(Type type) {
    switch (type) {
        case Type::iq4_nl: return {multiply_format<IQ4_NL>, decode_format<IQ4_NL>, IQ4_NL::order};
        case Type::mxfp4: return {multiply_format<MXFP4>, decode_format<MXFP4>, MXFP4::order};
        case Type::nvfp4: return {multiply_format<NVFP4>, decode_format<NVFP4>, NVFP4::order};
        default: return {};
    }
}

}  // namespace jubako::JUBAKO_ISA
