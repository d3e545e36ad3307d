// The threads that torch has, for loops of our own.
#pragma once

#include <ATen/Parallel.h>

extern "C" {  // of the OpenMP that torch has loaded: a library of one's own would bring threads of its own
__attribute__((weak)) void GOMP_parallel(void (*)(void*), void*, unsigned, unsigned);
}

namespace corewise {

// How many threads a loop may use: as many as the calling thread's team always has, so that it is not resized.
inline int64_t own_width() { return !GOMP_parallel || at::in_parallel_region() ? 1 : at::get_num_threads(); }

}  // namespace corewise
