// Run a graph's tasks, and measure single calls.
#pragma once

#include <numeric>

#include "graph.h"
#include "lanes.h"

namespace corewise {

inline Stack& own_stack() {
  static thread_local Stack stack;
  return stack;
}

// The calls of each task.
using Tasks = std::vector<std::vector<int>>;

// State of one run.
struct Values {
  explicit Values(const Graph& graph) : items(graph.num_values) {}
  std::vector<IValue> items;
};

class ForwardRun : public Run {
 public:
  ForwardRun(
      const Graph& graph,
      const Tasks& tasks,
      Values& values,
      const Schedule& schedule,
      Sleeper& caller)
      : Run(schedule, caller),
        graph_(graph),
        tasks_(tasks),
        values_(values),
        uses_(new std::atomic<int>[graph.num_values]) {
    for (int v = 0; v < graph.num_values; ++v) uses_[v].store(graph.num_uses[v], std::memory_order_relaxed);
  }

  void perform(int task) override {
    for (int call : tasks_[task]) {
      if (stopped(task)) return;
      do_call(call);
      for (int value : graph_.ops[call].reads) let_go(value);
      poll_signals();
    }
  }

 protected:
  virtual void do_call(int call) {
    graph_.ops[call].run(
        own_stack(),
        [&](int value) -> const IValue& { return values_.items[value]; },
        [&](int value, IValue&& result) { keep(value, std::move(result)); });
  }
  void keep(int value, IValue&& result) {
    if (graph_.num_uses[value] > 0) values_.items[value] = std::move(result);
  }
  // Free a value after its last use, as plain execution does.
  void let_go(int value) {
    if (uses_[value].fetch_sub(1, std::memory_order_acq_rel) == 1) values_.items[value] = IValue();
  }

  const Graph& graph_;
  const Tasks& tasks_;
  Values& values_;

 private:
  std::unique_ptr<std::atomic<int>[]> uses_;
};

// One action on one lane, with nothing else running.
class SoleRun : public Run {
 public:
  SoleRun(const Schedule& schedule, Sleeper& caller, std::function<void()> action)
      : Run(schedule, caller), action_(std::move(action)) {}
  void perform(int) override { action_(); }

 private:
  std::function<void()> action_;
};

inline Schedule sole_schedule(Lanes& lanes, const std::vector<int>& cpus) {
  Schedule schedule;
  const int lane = cpus.empty() ? 0 : 1;
  schedule.steps.push_back(Step{0, lane, lane, 0, true, 0, {}, false});
  schedule.helps.resize(lane + 1, false);
  schedule.lanes.resize(lane + 1);
  schedule.lanes[lane].push_back(0);
  schedule.workers.resize(lane + 1, nullptr);
  if (lane) schedule.workers[1] = lanes.worker(cpus, 0, schedule.claims);
  return schedule;
}

// Measure `repeats` runs of an action in nanoseconds, each after `prepare`; stop early when the time is up.
inline std::vector<int64_t> timed(
    int repeats,
    int64_t limit_ns,
    const std::function<void()>& prepare,
    const std::function<void()>& action) {
  std::vector<int64_t> found;
  const int64_t until = now_ns() + limit_ns;
  do {
    prepare();
    const int64_t start = now_ns();
    action();
    found.push_back(now_ns() - start);
  } while (static_cast<int>(found.size()) < repeats && now_ns() < until);
  return found;
}

inline void call_all(const Graph& graph, const std::vector<int>& calls, std::vector<IValue>& values) {
  for (int call : calls)
    graph.ops[call].run(
        own_stack(),
        [&](int value) -> const IValue& { return values[value]; },
        [&](int value, IValue&& result) { values[value] = std::move(result); });
}

}  // namespace corewise
