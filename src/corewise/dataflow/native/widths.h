// The width of the calling thread alone. torch's own call also sets what threads to come begin with: one that
// starts while a branch runs on one core would stay on one core for ever.
#pragma once

#include <ATen/Context.h>
#include <ATen/Parallel.h>

extern "C" {  // of the libraries that torch has loaded, where they show them
__attribute__((weak)) void omp_set_num_threads(int);
__attribute__((weak)) int MKL_Set_Num_Threads_Local(int);
}

namespace corewise {

// The thread must have asked torch for its width before, which is how torch starts a thread.
inline void set_width(int width) {
  if (omp_set_num_threads && (MKL_Set_Num_Threads_Local || !at::hasMKL())) {
    omp_set_num_threads(width);
    if (MKL_Set_Num_Threads_Local) MKL_Set_Num_Threads_Local(width);
    if (at::get_num_threads() == width) return;
  }
  at::set_num_threads(width);
}

}  // namespace corewise
