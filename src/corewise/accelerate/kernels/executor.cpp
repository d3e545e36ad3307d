// Training: the backward pass of a whole program as one node of torch's graph, run task by task on the lanes.
#include "executor.h"

#include <ATen/ops/ones_like.h>

#include <set>

#include "training.h"

namespace corewise {

void Executor::allow_training(Schedule schedule) {
  backward = std::move(schedule);
  borders = std::make_shared<Borders>(*graph, tasks);
}

// The whole program as one node of the caller's graph.
struct ProgramBackward : Node {
  ProgramBackward(std::shared_ptr<Executor> executor, Tape&& tape)
      : executor(std::move(executor)), tape(std::move(tape)) {}

  variable_list apply(variable_list&& arriving) override {
    TORCH_CHECK(!is_released, torch::autograd::ERR_BACKWARD_TWICE);
    if (c10::GradMode::is_enabled()) return differentiable(std::move(arriving));
    std::vector<bool> is_wanted(executor->borders->made_by.size(), true);
    for (size_t i = 0; i < sources.size(); ++i) is_wanted[sources[i]] = task_should_compute_output(i);
    const bool keeps = torch::autograd::get_current_graph_task_keep_graph();
    Warnings warnings;
    Warning<BackwardRun> run(
        warnings, *executor->borders, tape, is_wanted, keeps, executor->backward, executor->lanes->caller);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (arriving[i].defined() && !keeps) spent.insert(outputs[i]);
      run.gradients[outputs[i]] = std::move(arriving[i]);
    }
    executor->run_backward(run);
    for (const Warned& it : warnings.taken()) TORCH_WARN(it.message);
    variable_list found;
    for (int value : sources) found.push_back(is_wanted[value] ? run.summed(value) : at::Tensor());
    return found;
  }

  // Results with separate histories may be differentiated one after the other. The first one frees its history task by
  // task, and the next one raises where it needs a freed part.
  void release_variables() override {
    if (!spent.empty() && spent.size() < outputs.size()) return;
    is_released = true;
    tape.ends.clear();
    tape.begins.clear();
    originals.clear();
  }
  std::string name() const override { return "MalleableBackward"; }

  std::shared_ptr<Executor> executor;
  Tape tape;
  // Value numbers of this node's inputs.
  std::vector<int> outputs;
  // Value numbers that the gradients belong to.
  std::vector<int> sources;
  // The values that the run received, with constants.
  std::vector<IValue> originals;
  std::vector<int64_t> versions;
  // Outputs whose history has been freed.
  std::set<int> spent;
  bool is_released = false;

 private:
  // For gradients of gradients: run the whole program again in one piece, from its original inputs.
  variable_list differentiable(variable_list&& arriving) {
    TORCH_CHECK(
        executor->graph->may_repeat,
        "gradients of gradients need the program once more, and it draws random numbers or writes to "
        "buffers: call the model itself for them");
    std::vector<IValue> values = originals;
    edge_list ends, begins;
    for (size_t i = 0; i < sources.size(); ++i) {
      TORCH_CHECK(
          values[sources[i]].toTensor()._version() == versions[i],
          "one of the variables needed for gradient computation has been modified by an inplace operation");
      ends.push_back(torch::autograd::impl::gradient_edge(values[sources[i]].toTensor()));
    }
    call_all(*executor->graph, counted(executor->graph->ops.size(), false), values);
    variable_list wanted;
    for (size_t i = 0; i < outputs.size(); ++i)
      if (arriving[i].defined()) {
        begins.push_back(torch::autograd::impl::gradient_edge(values[outputs[i]].toTensor()));
        wanted.push_back(arriving[i]);
      }
    return torch::autograd::Engine::get_default_engine().execute(begins, wanted, true, true, false, ends);
  }
};

void Executor::run(
    const std::shared_ptr<Executor>& self, Values& values, Warnings& warnings) {
  if (wants_gradients(values)) return train(self, values, warnings);
  Warning<ForwardRun> run(warnings, *graph, tasks, values, forward_, lanes->caller);
  lanes->run(run, up_, check_signals);
  note(run, forward_timeline_);
}

void Executor::train(
    const std::shared_ptr<Executor>& self, Values& values, Warnings& warnings) {
  const std::vector<IValue> originals = values.items;
  Tape tape(*borders);
  Warning<TrainingForwardRun> run(
      warnings, *graph, tasks, *borders, values, tape, forward_, lanes->caller);
  lanes->run(run, up_, check_signals);
  note(run, forward_timeline_);
  auto node = make_node<ProgramBackward>(self, std::move(tape));
  for (int value : graph->brought) {
    const IValue& it = originals[value];
    if (!it.isTensor() || !it.toTensor().defined() || !it.toTensor().requires_grad()) continue;
    node->sources.push_back(value);
    node->versions.push_back(it.toTensor()._version());
    node->add_next_edge(torch::autograd::impl::gradient_edge(it.toTensor()));
  }
  for (int value : graph->outputs) {
    // Values that the run received leave unchanged.
    if (!node->tape.begins[value].is_valid()) continue;
    at::Tensor output = values.items[value].toTensor().tensor_data();
    node->outputs.push_back(value);
    const auto number = node->add_input_metadata(output);
    torch::autograd::impl::set_gradient_edge(output, Edge(node, number));
    values.items[value] = output;
  }
  node->originals = originals;
}

// Measure a task's backward pass in nanoseconds, for gradients of ones.
int64_t backward_ns(const Borders& borders, const Tape& tape, int task, const std::vector<IValue>& values) {
  c10::NoGradGuard no_grad;
  edge_list begins, ends;
  variable_list arriving;
  for (int value : borders.of_task[task].gives)
    if (tape.begins[value].is_valid()) {
      begins.push_back(tape.begins[value]);
      arriving.push_back(at::ones_like(values[value].toTensor()));
    }
  for (int use : borders.of_task[task].uses)
    if (tape.ends[use]) ends.emplace_back(tape.ends[use], 0);
  const int64_t start = now_ns();
  if (!begins.empty() && !ends.empty())
    torch::autograd::Engine::get_default_engine().execute(begins, arriving, false, false, false, ends);
  return now_ns() - start;
}

// Measure a task's forward and backward pass in nanoseconds, alone on these CPUs.
std::pair<std::vector<int64_t>, std::vector<int64_t>> measure_task(
    Executor& executor,
    std::vector<IValue> values,
    int task,
    const std::vector<int>& cpus,
    int repeats,
    int64_t limit_ns) {
  const Graph& graph = *executor.graph;
  const Borders& borders = *executor.borders;
  std::vector<int64_t> there, back;
  const Schedule schedule = sole_schedule(*executor.lanes, cpus);
  SoleRun run(schedule, executor.lanes->caller, [&] {
    Tape tape(borders);
    const auto forward = [&] {
      for (int call : executor.tasks[task])
        call_cut(
            graph, borders, tape, call, [&](int value) -> const IValue& { return values[value]; },
            [&](int value, IValue&& result) { values[value] = std::move(result); });
      note_begins(borders, tape, task, values);
    };
    const int64_t until = now_ns() + limit_ns;
    do {
      const int64_t start = now_ns();
      forward();
      there.push_back(now_ns() - start);
      back.push_back(backward_ns(borders, tape, task, values));
    } while (static_cast<int>(there.size()) < repeats && now_ns() < until);
  });
  executor.lanes->run(run, {0}, check_signals);
  return {there, back};
}

}  // namespace corewise
