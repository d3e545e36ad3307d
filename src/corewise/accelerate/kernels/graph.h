// A program's calls as boxed calls of torch's dispatcher.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <string>
#include <vector>

namespace corewise {

using c10::IValue;
using torch::jit::Stack;

// One argument: a constant, a value, or a list that contains values.
struct Slot {
  IValue constant;
  int value = -1;
  // The element type of a list.
  c10::TypePtr element;
  std::vector<Slot> items;
};

struct Op {
  c10::OperatorHandle handle;
  std::vector<Slot> slots;
  // Each value appears once.
  std::vector<int> reads;
  std::vector<int> results;
  bool spreads;

  // Call the operator; `lookup` returns the value of a number, `keep` receives each result.
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
        values.size() == results.size(), handle.operator_name(), " gave ", values.size(), " values of ",
        results.size());
    for (size_t i = 0; i < values.size(); ++i) keep(results[i], IValue(values[i]));
  }
};

struct Graph {
  int num_values = 0;
  std::vector<Op> ops;
  // Values that a run receives: inputs, parameters, buffers, constants.
  std::vector<int> brought;
  // Values that a run returns, each once.
  std::vector<int> outputs;
  // For each value, the calls that read it, plus one if it is an output.
  std::vector<int> num_uses;
  // True if the program draws no random numbers and writes to nothing that outlives the run.
  bool may_repeat = true;
};

}  // namespace corewise
