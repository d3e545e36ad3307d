// A graph bound to a schedule: inference, or training with a backward pass that runs on the lanes as well.
#pragma once

#include <ATen/ops/ones_like.h>

#include "training.h"

namespace corewise {

struct Warned {
  std::string message;
  bool is_deprecation;
};

// Warnings of all lanes, to be given by the caller once it holds Python's lock.
class Warnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    std::lock_guard<std::mutex> guard(mutex_);
    found_.push_back({warning.msg(), std::holds_alternative<c10::DeprecationWarning>(warning.type())});
  }
  std::vector<Warned> taken() { return std::move(found_); }

 private:
  std::mutex mutex_;
  std::vector<Warned> found_;
};

// A run whose tasks warn into one place.
template <class Base>
struct Warning : Base {
  template <class... Args>
  explicit Warning(Warnings& warnings, Args&&... args) : Base(std::forward<Args>(args)...), warnings_(warnings) {}
  void perform(int task) override {
    c10::WarningUtils::WarningHandlerGuard guard(&warnings_);
    Base::perform(task);
  }
  Warnings& warnings_;
};

inline void check_signals() {
  py::gil_scoped_acquire lock;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

inline std::vector<int> counted(size_t num, bool down) {
  std::vector<int> found(num);
  std::iota(found.begin(), found.end(), 0);
  if (down) std::reverse(found.begin(), found.end());
  return found;
}

class Executor {
 public:
  Executor(
      std::shared_ptr<Graph> graph, std::shared_ptr<Lanes> lanes, std::vector<std::vector<int>> tasks, Schedule forward)
      : graph(std::move(graph)),
        lanes(std::move(lanes)),
        tasks(std::move(tasks)),
        forward_(std::move(forward)),
        up_(counted(this->tasks.size(), false)),
        down_(counted(this->tasks.size(), true)) {}

  void allow_training(Schedule backward) {
    backward_ = std::move(backward);
    borders = std::make_unique<Borders>(*graph, tasks);
  }

  void run(const std::shared_ptr<Executor>& self, Values& values, std::vector<Event>* timeline, Warnings& warnings);
  variable_list backward(const Tape& tape, std::vector<bool> is_wanted, variable_list&& arriving,
                         const std::vector<int>& outputs, const std::vector<int>& sources, bool keep_graph);

  std::vector<Event> backward_timeline() {
    std::lock_guard<std::mutex> guard(mutex_);
    return backward_timeline_;
  }

  const std::shared_ptr<Graph> graph;
  const std::shared_ptr<Lanes> lanes;
  const std::vector<std::vector<int>> tasks;
  std::unique_ptr<Borders> borders;  // where training is allowed

 private:
  bool wants_gradients(const Values& values) const {
    if (!borders || !c10::GradMode::is_enabled()) return false;
    for (int value : graph->brought) {
      const IValue& it = values.items[value];
      if (it.isTensor() && it.toTensor().defined() && it.toTensor().requires_grad()) return true;
    }
    return false;
  }
  void train(const std::shared_ptr<Executor>& self, Values& values, std::vector<Event>* timeline, Warnings& warnings);

  const Schedule forward_;
  Schedule backward_;
  const std::vector<int> up_, down_;
  std::mutex mutex_;
  std::vector<Event> backward_timeline_;
  std::atomic<bool> wants_timeline_{false};
};

// The whole program as one node of the caller's graph.
struct ProgramBackward : Node {
  ProgramBackward(std::shared_ptr<Executor> executor, Tape&& tape) : executor(std::move(executor)), tape(std::move(tape)) {}

  variable_list apply(variable_list&& arriving) override {
    TORCH_CHECK(!is_released, torch::autograd::ERR_BACKWARD_TWICE);
    if (c10::GradMode::is_enabled()) return differentiable(std::move(arriving));
    std::vector<bool> is_wanted(executor->borders->made_by.size(), true);
    for (size_t i = 0; i < sources.size(); ++i) is_wanted[sources[i]] = task_should_compute_output(i);
    return executor->backward(
        tape, std::move(is_wanted), std::move(arriving), outputs, sources,
        torch::autograd::get_current_graph_task_keep_graph());
  }

  void release_variables() override {
    is_released = true;
    tape.ends.clear();
    tape.begins.clear();
    originals.clear();
  }
  std::string name() const override { return "MalleableBackward"; }

  std::shared_ptr<Executor> executor;
  Tape tape;
  std::vector<int> outputs;  // value numbers of this node's inputs
  std::vector<int> sources;  // value numbers of what the gradients are for
  std::vector<IValue> originals;  // what was brought, with constants
  std::vector<int64_t> versions;
  bool is_released = false;

 private:
  // For gradients of gradients: the program once more in one piece, from what it was given.
  variable_list differentiable(variable_list&& arriving) {
    TORCH_CHECK(
        !executor->graph->is_random,
        "gradients of gradients of a malleable model that draws random numbers: use the model itself");
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

inline void Executor::run(
    const std::shared_ptr<Executor>& self, Values& values, std::vector<Event>* timeline, Warnings& warnings) {
  if (wants_gradients(values)) return train(self, values, timeline, warnings);
  Warning<ForwardRun> run(warnings, *graph, tasks, values, forward_, lanes->caller, timeline);
  lanes->run(run, up_, check_signals);
}

inline void Executor::train(
    const std::shared_ptr<Executor>& self, Values& values, std::vector<Event>* timeline, Warnings& warnings) {
  wants_timeline_ = timeline != nullptr;
  const std::vector<IValue> originals = values.items;
  Tape tape(*borders);
  Warning<TrainingForwardRun> run(
      warnings, *graph, tasks, *borders, values, tape, forward_, lanes->caller, timeline);
  lanes->run(run, up_, check_signals);
  auto node = make_node<ProgramBackward>(self, std::move(tape));
  for (int value : graph->brought) {
    const IValue& it = originals[value];
    if (!it.isTensor() || !it.toTensor().defined() || !it.toTensor().requires_grad()) continue;
    node->sources.push_back(value);
    node->versions.push_back(it.toTensor()._version());
    node->add_next_edge(torch::autograd::impl::gradient_edge(it.toTensor()));
  }
  for (int value : graph->outputs) {
    if (!node->tape.begins[value].is_valid()) continue;  // what was brought goes out as it is
    at::Tensor output = values.items[value].toTensor().tensor_data();
    node->outputs.push_back(value);
    const auto number = node->add_input_metadata(output);
    torch::autograd::impl::set_gradient_edge(output, Edge(node, number));
    values.items[value] = output;
  }
  node->originals = originals;
}

inline variable_list Executor::backward(
    const Tape& tape, std::vector<bool> is_wanted, variable_list&& arriving, const std::vector<int>& outputs,
    const std::vector<int>& sources, bool keep_graph) {
  std::vector<Event> timeline;
  BackwardRun run(
      *borders, tape, is_wanted, keep_graph, backward_, lanes->caller, wants_timeline_ ? &timeline : nullptr);
  for (size_t i = 0; i < outputs.size(); ++i) run.gradients[outputs[i]] = std::move(arriving[i]);
  lanes->run(run, down_, check_signals);
  if (wants_timeline_) {
    std::lock_guard<std::mutex> guard(mutex_);
    backward_timeline_ = std::move(timeline);
  }
  variable_list found;
  for (int value : sources) found.push_back(is_wanted[value] ? run.summed(value) : at::Tensor());
  return found;
}

// Nanoseconds of the calls alone on these CPUs (the caller's where none are given); the first is not warm.
inline std::vector<int64_t> measure_calls(
    Lanes& lanes, const Graph& graph, std::vector<IValue> values, const std::vector<int>& calls,
    const std::vector<int>& before, const std::vector<int>& cpus, int repeats, int64_t limit_ns) {
  std::vector<int64_t> found;
  const Schedule schedule = sole_schedule(lanes, cpus);
  SoleRun run(schedule, lanes.caller, [&] {
    found = timed(
        repeats, limit_ns, [&] { call_all(graph, before, values); }, [&] { call_all(graph, calls, values); });
  });
  lanes.run(run, {0}, check_signals);
  return found;
}

// Nanoseconds of a task's backward, for gradients of ones.
inline int64_t backward_ns(const Borders& borders, const Tape& tape, int task, const std::vector<IValue>& values) {
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

// Nanoseconds of a task's forward and of its backward, alone on these CPUs.
inline std::pair<std::vector<int64_t>, std::vector<int64_t>> measure_task(
    Executor& executor, std::vector<IValue> values, int task, const std::vector<int>& cpus, int repeats, int64_t limit_ns) {
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
