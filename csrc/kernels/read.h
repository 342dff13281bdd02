// Reading memory as fast as it comes, to know what a memory-bound kernel could reach.
#pragma once

#include "../isa.h"

// Exclusive or of the n/8 64-bit words at p. n is a multiple of 256.
JUBAKO_KERNELS(uint64_t read_fold(const uint8_t* p, size_t n);)
