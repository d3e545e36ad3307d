// Convert a program's calls from Python objects to boxed calls.
#pragma once

#include <ATen/ScalarOps.h>
#include <pybind11/pybind11.h>

#include <optional>

#include "graph.h"

namespace torch::jit {
// Declared here because including torch's header takes longer than compiling this whole file.
c10::IValue toIValue(pybind11::handle obj, const c10::TypePtr& type, std::optional<int32_t> N);
pybind11::object toPyObject(c10::IValue ivalue);
}  // namespace torch::jit

namespace corewise {

namespace py = pybind11;

inline c10::TypePtr without_symbols(c10::TypePtr type) {
  return type->kind() == c10::TypeKind::SymIntType ? c10::TypePtr(c10::IntType::get()) : type;
}

inline c10::TypePtr bare(c10::TypePtr type) {
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  return without_symbols(std::move(type));
}

inline bool holds_ref(py::handle tree, py::handle ref) {
  if (py::isinstance(tree, ref)) return true;
  if (!py::isinstance<py::list>(tree) && !py::isinstance<py::tuple>(tree)) return false;
  for (py::handle branch : tree)
    if (holds_ref(branch, ref)) return true;
  return false;
}

// Wrap a Python number where a tensor is expected, as torch does: it leaves the other operand's type unchanged.
inline bool is_number(py::handle given) {
  return PyLong_Check(given.ptr()) || PyFloat_Check(given.ptr()) || PyComplex_Check(given.ptr());
}

inline IValue as_tensor(py::handle number) {
  at::Tensor tensor =
      c10::scalar_to_tensor(torch::jit::toIValue(number, c10::NumberType::get(), std::nullopt).toScalar());
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

inline Slot make_slot(py::handle given, const c10::TypePtr& type, std::optional<int32_t> N, py::handle ref) {
  Slot slot;
  if (py::isinstance(given, ref)) {
    slot.value = given.attr("value").cast<int>();
  } else if (holds_ref(given, ref)) {
    auto list = bare(type)->cast<c10::ListType>();
    TORCH_CHECK(list, "an argument of type ", type->str(), " holds values");
    slot.element = without_symbols(list->getElementType());
    for (py::handle item : given) slot.items.push_back(make_slot(item, slot.element, std::nullopt, ref));
  } else if (bare(type)->kind() == c10::TypeKind::TensorType && is_number(given)) {
    slot.constant = as_tensor(given);
  } else {
    slot.constant = torch::jit::toIValue(given, type, N);
  }
  return slot;
}

inline void note_reads(const Slot& slot, std::vector<int>& reads) {
  if (slot.value >= 0 && std::find(reads.begin(), reads.end(), slot.value) == reads.end())
    reads.push_back(slot.value);
  for (const Slot& item : slot.items) note_reads(item, reads);
}

// Build the call of an operator from (name, overload, args, kwargs, results, spreads).
inline Op make_op(py::handle call, py::handle ref) {
  const auto it = py::reinterpret_borrow<py::tuple>(call);
  const c10::OperatorName name(it[0].cast<std::string>(), it[1].cast<std::string>());
  const auto found = c10::Dispatcher::singleton().findSchema(name);
  TORCH_CHECK(found, "the dispatcher does not know it");
  const auto args = py::reinterpret_borrow<py::tuple>(it[2]);
  const auto kwargs = py::reinterpret_borrow<py::dict>(it[3]);
  Op op{*found, {}, {}, {}, it[5].cast<bool>()};
  const auto& arguments = found->schema().arguments();
  TORCH_CHECK(args.size() <= arguments.size(), "it has more arguments than its schema");
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::Argument& argument = arguments[i];
    if (i < args.size()) {
      op.slots.push_back(make_slot(args[i], argument.real_type(), argument.N(), ref));
    } else if (kwargs.contains(argument.name().c_str())) {
      op.slots.push_back(make_slot(kwargs[argument.name().c_str()], argument.real_type(), argument.N(), ref));
    } else {
      TORCH_CHECK(argument.default_value(), "it lacks ", argument.name());
      op.slots.emplace_back();
      op.slots.back().constant = *argument.default_value();
    }
    note_reads(op.slots.back(), op.reads);
  }
  for (py::handle result : it[4]) op.results.push_back(result.cast<int>());
  return op;
}

}  // namespace corewise
