// Corewise operators in torch's dispatcher.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <memory>

namespace corewise {

// Register operators unless another build has done so: torch accepts each name once.
inline std::unique_ptr<torch::Library> library_without(const char* name) {
  if (c10::Dispatcher::singleton().findSchema(c10::OperatorName(name, ""))) return nullptr;
  return std::make_unique<torch::Library>(torch::Library::FRAGMENT, "corewise", std::nullopt, __FILE__, __LINE__);
}

}  // namespace corewise
