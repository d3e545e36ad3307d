// Set the thread width of the calling thread only. torch's call also sets the width of future threads: a thread that
// starts while a branch runs on one core would stay on one core.
#pragma once

#include <ATen/Context.h>
#include <ATen/Parallel.h>

// Functions of the libraries that torch has loaded, where they export them.
extern "C" {
__attribute__((weak)) void omp_set_num_threads(int);
__attribute__((weak)) int MKL_Set_Num_Threads_Local(int);
}

namespace corewise {

// The thread must have asked torch for its width before: this is how torch initialises a thread.
inline void set_width(int width) {
  if (omp_set_num_threads && (MKL_Set_Num_Threads_Local || !at::hasMKL())) {
    omp_set_num_threads(width);
    if (MKL_Set_Num_Threads_Local) MKL_Set_Num_Threads_Local(width);
    if (at::get_num_threads() == width) return;
  }
  at::set_num_threads(width);
}

}  // namespace corewise
