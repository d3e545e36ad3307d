// A graph bound to a schedule: inference, or training with a backward pass that also runs on the lanes.
#pragma once

#include <ATen/core/grad_mode.h>

#include "execution.h"

namespace corewise {

struct Warned {
  std::string message;
  bool is_deprecation;
};

// Collect the warnings of all lanes; the caller issues them once it holds Python's lock.
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

// A run whose tasks send their warnings to one place.
template <class Base>
struct Warning : Base {
  template <class... Args>
  explicit Warning(Warnings& warnings, Args&&... args)
      : Base(std::forward<Args>(args)...), warnings_(warnings) {}
  void perform(int task) override {
    c10::WarningUtils::WarningHandlerGuard guard(&warnings_);
    Base::perform(task);
  }
  Warnings& warnings_;
};

// Throw what a signal's handler raised in Python.
void check_signals();

inline std::vector<int> counted(size_t num, bool down) {
  std::vector<int> found(num);
  std::iota(found.begin(), found.end(), 0);
  if (down) std::reverse(found.begin(), found.end());
  return found;
}

struct Borders;

class Executor {
 public:
  Executor(
      std::shared_ptr<Graph> graph, std::shared_ptr<Lanes> lanes, Tasks tasks, Schedule forward)
      : graph(std::move(graph)),
        lanes(std::move(lanes)),
        tasks(std::move(tasks)),
        forward_(std::move(forward)),
        up_(counted(this->tasks.size(), false)),
        down_(counted(this->tasks.size(), true)) {}

  void allow_training(Schedule backward);
  // Compute the graph's outputs; in grad mode they are tied to a backward pass on the other schedule.
  void run(const std::shared_ptr<Executor>& self, Values& values, Warnings& warnings);
  // Run tasks of the backward pass; the last task of the program runs first.
  void run_backward(Run& run) {
    lanes->run(run, down_, check_signals);
    note(run, backward_timeline_);
  }

  std::vector<Event> timeline(bool is_backward) {
    std::lock_guard<std::mutex> guard(mutex_);
    return is_backward ? backward_timeline_ : forward_timeline_;
  }

  const std::shared_ptr<Graph> graph;
  const std::shared_ptr<Lanes> lanes;
  const Tasks tasks;
  Schedule backward;
  // Set where training is allowed.
  std::shared_ptr<const Borders> borders;

 private:
  bool wants_gradients(const Values& values) const {
    if (!borders || !c10::GradMode::is_enabled()) return false;
    for (int value : graph->brought) {
      const IValue& it = values.items[value];
      if (it.isTensor() && it.toTensor().defined() && it.toTensor().requires_grad()) return true;
    }
    return false;
  }
  void note(Run& run, std::vector<Event>& timeline) {
    std::lock_guard<std::mutex> guard(mutex_);
    timeline.swap(run.timeline);
  }
  void train(const std::shared_ptr<Executor>& self, Values& values, Warnings& warnings);

  const Schedule forward_;
  const std::vector<int> up_, down_;
  std::mutex mutex_;
  std::vector<Event> forward_timeline_, backward_timeline_;
};

// Measure calls in nanoseconds, alone on these CPUs (the caller's CPUs if none are given). The first time is not warm.
inline std::vector<int64_t> measure_calls(
    Lanes& lanes,
    const Graph& graph,
    std::vector<IValue> values,
    const std::vector<int>& calls,
    const std::vector<int>& before,
    const std::vector<int>& cpus,
    int repeats,
    int64_t limit_ns) {
  std::vector<int64_t> found;
  const Schedule schedule = sole_schedule(lanes, cpus);
  SoleRun run(schedule, lanes.caller, [&] {
    found = timed(
        repeats, limit_ns, [&] { call_all(graph, before, values); }, [&] { call_all(graph, calls, values); });
  });
  lanes.run(run, {0}, check_signals);
  return found;
}

// Measure a task's forward and backward pass in nanoseconds, alone on these CPUs.
std::pair<std::vector<int64_t>, std::vector<int64_t>> measure_task(
    Executor& executor,
    std::vector<IValue> values,
    int task,
    const std::vector<int>& cpus,
    int repeats,
    int64_t limit_ns);

}  // namespace corewise
