#include "weight.h"

namespace jubako {

const BlockLayout* block_layout(int id) {
    static const BlockLayout layouts[43] = {
        /* 0*/ {"F32", 1, 4},        {"F16", 1, 2},        {"Q4_0", 32, 18},    {"Q4_1", 32, 20},   {}, {},
        /* 6*/ {"Q5_0", 32, 22},     {"Q5_1", 32, 24},     {"Q8_0", 32, 34},    {},
        /*10*/ {"Q2_K", 256, 84},    {"Q3_K", 256, 110},   {"Q4_K", 256, 144},  {"Q5_K", 256, 176}, {"Q6_K", 256, 210}, {},
        /*16*/ {"IQ2_XXS", 256, 66}, {"IQ2_XS", 256, 74},  {"IQ3_XXS", 256, 98}, {"IQ1_S", 256, 50}, {"IQ4_NL", 32, 18},
        /*21*/ {"IQ3_S", 256, 110},  {"IQ2_S", 256, 82},   {"IQ4_XS", 256, 136}, {}, {}, {}, {}, {},
        /*29*/ {"IQ1_M", 256, 56},   {"BF16", 1, 2},       {}, {}, {},
        /*34*/ {"TQ1_0", 256, 54},   {"TQ2_0", 256, 66},   {}, {}, {},
        /*39*/ {"MXFP4", 32, 17},    {"NVFP4", 64, 36},    {"Q1_0", 128, 18},   {"Q2_0", 64, 18},
    };
    if (id < 0 || id > 42 || layouts[id].name == nullptr) return nullptr;
    return &layouts[id];
}

}  // namespace jubako
