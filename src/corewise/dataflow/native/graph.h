// A program's calls as boxed calls of torch's dispatcher.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <pybind11/pybind11.h>

#include <optional>
#include <string>
#include <vector>

namespace torch::jit {
// Declared here, because the header that does so takes longer to read than all of this does to build.
c10::IValue toIValue(pybind11::handle obj, const c10::TypePtr& type, std::optional<int32_t> N);
pybind11::object toPyObject(c10::IValue ivalue);
}  // namespace torch::jit

namespace corewise {

namespace py = pybind11;
using c10::IValue;
using torch::jit::Stack;

// One argument: a constant, a value, or a list with values in it.
struct Slot {
  IValue constant;
  int value = -1;
  c10::TypePtr element;  // of a list
  std::vector<Slot> items;
};

struct Op {
  c10::OperatorHandle handle;
  std::vector<Slot> slots;
  std::vector<int> reads;  // each value once
  std::vector<int> results;
  bool spreads;

  // Calls it; `lookup` gives the value of a number, `keep` takes each result.
  template <class Lookup, class Keep>
  void run(Stack& stack, const Lookup& lookup, const Keep& keep) const {
    stack.clear();
    for (const Slot& slot : slots) stack.push_back(filled(slot, lookup));
    handle.callBoxed(&stack);
    if (!spreads) {
      if (!results.empty() && !stack.empty()) keep(results[0], std::move(stack.front()));
    } else if (stack.size() == 1 && stack[0].isList()) {
      spread(stack[0].toListRef(), keep);
    } else {
      spread(stack, keep);
    }
    stack.clear();
  }

 private:
  template <class Lookup>
  static IValue filled(const Slot& slot, const Lookup& lookup) {
    if (slot.value >= 0) return lookup(slot.value);
    if (!slot.element) return slot.constant;
    c10::impl::GenericList list(slot.element);
    list.reserve(slot.items.size());
    for (const Slot& item : slot.items) list.push_back(filled(item, lookup));
    return list;
  }
  template <class Keep>
  void spread(c10::ArrayRef<IValue> values, const Keep& keep) const {
    TORCH_CHECK(
        values.size() == results.size(), handle.operator_name(), " gave ", values.size(), " values, not ", results.size());
    for (size_t i = 0; i < values.size(); ++i) keep(results[i], IValue(values[i]));
  }
};

struct Graph {
  int num_values = 0;
  std::vector<Op> ops;
  std::vector<int> brought;  // values a run is given: inputs, parameters, buffers, constants
  std::vector<int> outputs;  // values a run gives, each once
  std::vector<int> num_uses;  // of each value: calls that read it, and one more for an output
  bool is_random = false;
};

inline c10::TypePtr bare(c10::TypePtr type) {
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  return type->kind() == c10::TypeKind::SymIntType ? c10::TypePtr(c10::IntType::get()) : type;
}

inline bool holds_ref(py::handle tree, py::handle ref) {
  if (py::isinstance(tree, ref)) return true;
  if (!py::isinstance<py::list>(tree) && !py::isinstance<py::tuple>(tree)) return false;
  for (py::handle branch : tree)
    if (holds_ref(branch, ref)) return true;
  return false;
}

inline Slot make_slot(py::handle given, const c10::TypePtr& type, std::optional<int32_t> N, py::handle ref) {
  Slot slot;
  if (py::isinstance(given, ref)) {
    slot.value = given.attr("value").cast<int>();
  } else if (holds_ref(given, ref)) {
    auto list = bare(type)->cast<c10::ListType>();
    TORCH_CHECK(list, "an argument of type ", type->str(), " holds values");
    slot.element = list->getElementType()->kind() == c10::TypeKind::SymIntType ? c10::TypePtr(c10::IntType::get())
                                                                                : list->getElementType();
    for (py::handle item : given) slot.items.push_back(make_slot(item, slot.element, std::nullopt, ref));
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

// The call of an operator: (name, overload, args, kwargs, results, spreads).
inline Op make_op(py::handle call, py::handle ref) {
  const auto it = py::reinterpret_borrow<py::tuple>(call);
  auto found = c10::Dispatcher::singleton().findSchema({it[0].cast<std::string>(), it[1].cast<std::string>()});
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
