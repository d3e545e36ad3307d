// The forward pass builds a separate autograd graph per task, so that the tasks' backward passes can run concurrently.
#pragma once

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include "execution.h"

namespace corewise {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;
// Torch versions differ in how they hold nodes.
using NodePtr = decltype(Edge::function);

template <class T, class... Args>
auto make_node(Args&&... args) {
  if constexpr (std::is_same_v<NodePtr, std::shared_ptr<Node>>)
    return std::make_shared<T>(std::forward<Args>(args)...);
  else
    return c10::make_intrusive<T>(std::forward<Args>(args)...);
}

// The end of a task's backward pass: the gradient of one use of a value from outside the task.
struct Sink : Node {
  variable_list apply(variable_list&&) override { return {}; }
};

// A value from outside the task, read by one call.
struct Use {
  int call, value;
};

// What the backward pass needs to know of a partition into tasks.
struct Borders {
  Borders(const Graph& graph, const Tasks& tasks)
      : of_task(tasks.size()), made_by(graph.num_values, -1) {
    std::vector<int> task_of(graph.ops.size());
    for (size_t t = 0; t < tasks.size(); ++t)
      for (int call : tasks[t]) {
        task_of[call] = static_cast<int>(t);
        for (int value : graph.ops[call].results) made_by[value] = static_cast<int>(t);
      }
    uses_of_value.resize(graph.num_values);
    first_use.resize(graph.ops.size() + 1);
    for (size_t call = 0; call < graph.ops.size(); ++call) {
      first_use[call] = static_cast<int>(uses.size());
      for (int value : graph.ops[call].reads)
        if (made_by[value] != task_of[call]) {
          uses_of_value[value].push_back(static_cast<int>(uses.size()));
          of_task[task_of[call]].uses.push_back(static_cast<int>(uses.size()));
          uses.push_back(Use{static_cast<int>(call), value});
        }
    }
    first_use[graph.ops.size()] = static_cast<int>(uses.size());
    std::vector<bool> leaves(graph.num_values, false);
    for (int value : graph.outputs)
      leaves[value] = true;
    for (int value = 0; value < graph.num_values; ++value)
      if (made_by[value] >= 0 && (leaves[value] || !uses_of_value[value].empty()))
        of_task[made_by[value]].gives.push_back(value);
  }
  struct OfTask {
    // Uses of values from outside the task.
    std::vector<int> uses;
    // Values used outside the task.
    std::vector<int> gives;
  };
  // In program order.
  std::vector<Use> uses;
  // The first use of each call.
  std::vector<int> first_use;
  // In program order.
  std::vector<std::vector<int>> uses_of_value;
  std::vector<OfTask> of_task;
  // The task that computes a value; -1 for values that the run receives.
  std::vector<int> made_by;
};

// The graphs of one forward pass: where each begins (gradients enter) and ends (gradients leave).
struct Tape {
  explicit Tape(const Borders& borders) : ends(borders.uses.size()), begins(borders.made_by.size()) {}
  // One per use; null where no gradient is needed.
  std::vector<NodePtr> ends;
  // One per value that other tasks or the caller use.
  std::vector<Edge> begins;
};

// Return a value as one use sees it: same memory and version, with a graph that begins here.
inline IValue cut(const IValue& value, NodePtr& end) {
  if (!value.isTensor() || !value.toTensor().defined() || !value.toTensor().requires_grad()) return value;
  at::Tensor alias = value.toTensor().tensor_data();
  end = make_node<Sink>();
  const auto number = end->add_input_metadata(alias);
  torch::autograd::impl::set_gradient_edge(alias, Edge(end, number));
  return alias;
}

// Call an operator with its outside values detached.
template <class Lookup, class Keep>
void call_cut(
    const Graph& graph,
    const Borders& borders,
    Tape& tape,
    int call,
    const Lookup& lookup,
    const Keep& keep) {
  const int first = borders.first_use[call], last = borders.first_use[call + 1];
  std::vector<IValue> cuts(last - first);
  for (int use = first; use < last; ++use)
    cuts[use - first] = cut(lookup(borders.uses[use].value), tape.ends[use]);
  graph.ops[call].run(
      own_stack(),
      [&](int value) -> const IValue& {
        for (int use = first; use < last; ++use)
          if (borders.uses[use].value == value) return cuts[use - first];
        return lookup(value);
      },
      keep);
}

inline void note_begins(const Borders& borders, Tape& tape, int task, const std::vector<IValue>& values) {
  for (int value : borders.of_task[task].gives) {
    const IValue& it = values[value];
    if (it.isTensor() && it.toTensor().defined() && it.toTensor().requires_grad())
      tape.begins[value] = torch::autograd::impl::gradient_edge(it.toTensor());
  }
}

class TrainingForwardRun : public ForwardRun {
 public:
  TrainingForwardRun(
      const Graph& graph,
      const Tasks& tasks,
      const Borders& borders,
      Values& values,
      Tape& tape,
      const Schedule& schedule,
      Sleeper& caller)
      : ForwardRun(graph, tasks, values, schedule, caller), borders_(borders), tape_(tape) {}

  void perform(int task) override {
    ForwardRun::perform(task);
    if (!stopped(task)) note_begins(borders_, tape_, task, values_.items);
  }

 protected:
  void do_call(int call) override {
    call_cut(
        graph_,
        borders_,
        tape_,
        call,
        [&](int value) -> const IValue& { return values_.items[value]; },
        [&](int value, IValue&& result) { keep(value, std::move(result)); });
  }

 private:
  const Borders& borders_;
  Tape& tape_;
};

inline at::Tensor added(const at::Tensor& one, const at::Tensor& other) {
  if (!one.defined()) return other;
  if (!other.defined()) return one;
  return one.layout() == c10::kStrided ? at::add(one, other) : at::add(other, one);
}

// The backward pass of all tasks: the steps of a separate schedule, in which the program's first task is last.
class BackwardRun : public Run {
 public:
  BackwardRun(
      const Borders& borders,
      const Tape& tape,
      const std::vector<bool>& is_wanted,
      bool keep_graph,
      const Schedule& schedule,
      Sleeper& caller)
      : Run(schedule, caller),
        gradients(borders.made_by.size()),
        borders_(borders),
        tape_(tape),
        is_wanted_(is_wanted),
        keep_graph_(keep_graph),
        of_use_(borders.uses.size()) {}

  // Gradients of values; the caller provides those of the outputs.
  std::vector<at::Tensor> gradients;

  int rank(int task) const override { return static_cast<int>(borders_.of_task.size()) - task; }

  void perform(int task) override {
    edge_list begins, ends;
    variable_list arriving;
    std::vector<int> uses;
    for (int value : borders_.of_task[task].gives) {
      if (!tape_.begins[value].is_valid()) continue;
      at::Tensor gradient = summed(value);
      if (!gradient.defined()) continue;
      begins.push_back(tape_.begins[value]);
      arriving.push_back(std::move(gradient));
    }
    for (int use : borders_.of_task[task].uses)
      if (tape_.ends[use] && is_wanted_[borders_.uses[use].value]) {
        uses.push_back(use);
        ends.emplace_back(tape_.ends[use], 0);
      }
    if (begins.empty() || ends.empty()) return;
    auto found = torch::autograd::Engine::get_default_engine().execute(
        begins, arriving, keep_graph_, /*create_graph=*/false, /*accumulate_grad=*/false, ends);
    for (size_t i = 0; i < uses.size(); ++i) of_use_[uses[i]] = std::move(found[i]);
    poll_signals();
  }

  // Sum a value's gradient: the outside part first, then its uses from last to first, in the order of torch's engine.
  at::Tensor summed(int value) {
    at::Tensor sum = std::move(gradients[value]);
    // True for memory that nobody else references.
    bool is_own = false;
    const auto& uses = borders_.uses_of_value[value];
    for (auto use = uses.rbegin(); use != uses.rend(); ++use) {
      const at::Tensor one = std::move(of_use_[*use]);
      if (is_own && one.defined() && sum.layout() == c10::kStrided && one.layout() == c10::kStrided) {
        sum.add_(one);
      } else {
        is_own = sum.defined() && one.defined();
        sum = added(sum, one);
      }
    }
    return sum;
  }

 private:
  const Borders& borders_;
  const Tape& tape_;
  const std::vector<bool>& is_wanted_;
  const bool keep_graph_;
  std::vector<at::Tensor> of_use_;
};

}  // namespace corewise
