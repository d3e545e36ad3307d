// The same convolution for each instruction set, and the choice for this processor.
#pragma once

#include "winograd.h"

#include <ATen/Version.h>

#include <string>

#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,fma")
#endif
#define COREWISE_LANES 16
#define COREWISE_ROWS 6
#define COREWISE_VECTORS 4
namespace corewise::winograd::avx512 {
#include "winograd_kernel.h"
}
#undef COREWISE_LANES
#undef COREWISE_ROWS
#undef COREWISE_VECTORS
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#define COREWISE_LANES 8
#define COREWISE_ROWS 6
#define COREWISE_VECTORS 2
namespace corewise::winograd::avx2 {
#include "winograd_kernel.h"
}
#undef COREWISE_LANES
#undef COREWISE_ROWS
#undef COREWISE_VECTORS
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif

#define COREWISE_LANES 4
// AArch64 has 32 vector registers.
#if defined(__aarch64__)
#define COREWISE_ROWS 6
#define COREWISE_VECTORS 4
#else
#define COREWISE_ROWS 4
#define COREWISE_VECTORS 2
#endif
namespace corewise::winograd::plain {
#include "winograd_kernel.h"
}

namespace corewise::winograd {

// Use what torch itself would use, so that ATEN_CPU_CAPABILITY applies here too.
inline const Version& version() {
  static const Version found = [] {
#if defined(__x86_64__)
    const std::string capability = at::get_cpu_capability();
    const bool has_wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
    if (capability.rfind("AVX512", 0) == 0 && has_wide) return avx512::kVersion;
    const bool has_middle = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (capability.rfind("AVX", 0) == 0 && has_middle) return avx2::kVersion;
#endif
    return plain::kVersion;
  }();
  return found;
}

}  // namespace corewise::winograd
