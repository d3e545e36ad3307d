// Threads that run tasks: one per set of CPUs, each with an OpenMP team that is never resized.
#pragma once

#include <ATen/ThreadLocalState.h>
#include <c10/util/Exception.h>
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "waiting.h"
#include "widths.h"

namespace corewise {

struct Step {
  int task = 0;
  // The lane of the thread; 0 is the caller.
  int lane = 0;
  // The lane in the plan; the caller may run several of them.
  int planned_lane = 0;
  // The caller's thread width for this step; 0 leaves it unchanged.
  int width = 0;
  // True for the first step of its thread.
  bool first = false;
  // How many steps of other lanes must have ended.
  int num_after = 0;
  // Steps of other lanes that wait for this one.
  std::vector<int> dependents;
  // An idle single-core thread may take this step.
  bool shared = false;
  // The `num_after` steps themselves.
  std::vector<int> needs;
  // The preceding step in its lane.
  int before = -1;
};

class Worker;

struct Schedule {
  std::vector<Step> steps;
  // The steps of each lane; lane 0 is the caller.
  std::vector<std::vector<int>> lanes;
  // The worker of each lane; none for lane 0.
  std::vector<Worker*> workers;
  // Claims on the workers, held while the schedule exists.
  std::vector<std::shared_ptr<int>> claims;
  // Steps that idle threads may take.
  std::vector<int> shared;
  // For each lane, whether its thread takes shared steps.
  std::vector<bool> helps;
  // Typical duration of each step in earlier runs; 0 if there was none.
  std::shared_ptr<std::atomic<int64_t>[]> typical_ns;
};

struct Event {
  int task, lane;
  int64_t start_ns, end_ns;
};

inline thread_local bool inside_a_run = false;

// The most steps inspected to predict when a step becomes ready.
constexpr int kMaxInspectedSteps = 24;

// One pass over a schedule. Every step is visited, so no thread waits forever. Once a task has raised, the bodies
// of later tasks are skipped, so the error is the first one in program order.
class Run {
 public:
  Run(const Schedule& schedule, Sleeper& caller)
      : timeline(schedule.steps.size()),
        schedule_(schedule),
        caller_(caller),
        remaining_(new std::atomic<int>[schedule.steps.size()]),
        taken_(new std::atomic<bool>[schedule.steps.size()]),
        not_begun_(new std::atomic<int>[schedule.steps.size()]),
        begun_ns_(new std::atomic<int64_t>[schedule.steps.size()]) {
    for (size_t s = 0; s < schedule.steps.size(); ++s) {
      remaining_[s].store(schedule.steps[s].num_after, std::memory_order_relaxed);
      not_begun_[s].store(schedule.steps[s].num_after, std::memory_order_relaxed);
      taken_[s].store(false, std::memory_order_relaxed);
      begun_ns_[s].store(0, std::memory_order_relaxed);
    }
  }
  virtual ~Run() = default;
  virtual void perform(int task) = 0;
  // Position in program order.
  virtual int rank(int task) const { return task; }

  void on_caller();
  void on_lane(int lane);
  bool may_start(int lane) const { return remaining_[schedule_.lanes[lane].front()].load() == 0; }
  int64_t expected_start_ns(int lane) const { return expected_ns(schedule_.lanes[lane].front()); }

  void set_caller(const std::function<void()>& check_signals) {
    check_signals_ = check_signals;
    caller_thread_ = std::this_thread::get_id();
    last_check_ns_ = now_ns();
  }
  // Run without other threads, in the order of the steps' tasks.
  void inline_on_caller(const std::vector<int>& order) {
    for (int task : order) guarded(task);
    rethrow();
  }
  bool stopped(int task) const { return rank(task) > failed_.load(std::memory_order_relaxed); }

  // One event per step.
  std::vector<Event> timeline;

 protected:
  // Let the caller check for Ctrl-C from time to time, as plain execution would.
  void poll_signals() {
    if (std::this_thread::get_id() == caller_thread_ && now_ns() - last_check_ns_ > kSignalNs) check();
  }

 private:
  void guarded(int task) {
    if (stopped(task)) return;
    try {
      perform(task);
    } catch (...) {
      fail(rank(task), std::current_exception());
    }
  }
  void fail(int rank, std::exception_ptr error) {
    std::lock_guard<std::mutex> guard(error_mutex_);
    if (rank < failed_.load()) {
      failed_.store(rank);
      error_ = std::move(error);
    }
  }
  void rethrow() {
    if (error_) std::rethrow_exception(error_);
  }
  void do_step(int step, int planned_lane) {
    const Step& it = schedule_.steps[step];
    const int64_t start = now_ns();
    begun_ns_[step].store(start, std::memory_order_release);
    for (int dependent : it.dependents)
      if (not_begun_[dependent].fetch_sub(1) == 1) announce_for(dependent, expected_ns(dependent));
    const bool is_last = it.lane != 0 && step == schedule_.lanes[it.lane].back();
    if (is_last && lanes_before_last_.fetch_sub(1) == 1) caller_.wake(kAtEnd);
    guarded(it.task);
    const int64_t end = now_ns();
    timeline[step] = Event{it.task, planned_lane, start, end};
    if (!stopped(it.task)) note_typical(step, end - start);
    for (int dependent : it.dependents)
      if (remaining_[dependent].fetch_sub(1) == 1) announce(dependent);
  }
  void announce(int step);
  // Announce early, so that a sleeping thread wakes while its inputs are still being computed.
  void announce_for(int step, int64_t ready_ns);
  // Follow a decrease immediately and an increase slowly, because a disturbed step says little.
  void note_typical(int step, int64_t took_ns) {
    if (!schedule_.typical_ns) return;
    const int64_t before = schedule_.typical_ns[step].load(std::memory_order_relaxed);
    const int64_t most_ns = before + before / 4;
    schedule_.typical_ns[step].store(before && took_ns > most_ns ? most_ns : took_ns, std::memory_order_relaxed);
  }
  int64_t typical_ns(int step) const {
    return schedule_.typical_ns ? schedule_.typical_ns[step].load(std::memory_order_relaxed) : 0;
  }
  int64_t expected_end_ns(int step) const { return begun_ns_[step].load() + typical_ns(step); }
  // Predict when a step becomes ready. If an input has not started, assume typical durations; return 0 if they are
  // unknown.
  int64_t expected_ns(int step) const {
    int budget = kMaxInspectedSteps;
    return not_begun_[step].load() > 0 ? foreseen_ns(step, budget) : expected_end_of_needs_ns(step);
  }
  int64_t expected_end_of_needs_ns(int step) const {
    int64_t found = 0;
    for (int need : schedule_.steps[step].needs) found = std::max(found, expected_end_ns(need));
    return found;
  }
  int64_t foreseen_ns(int step, int& budget) const {
    int64_t found = 0;
    for (int need : schedule_.steps[step].needs) {
      const int64_t end = foreseen_end_ns(need, budget);
      if (!end) return 0;
      found = std::max(found, end);
    }
    return found;
  }
  int64_t foreseen_end_ns(int step, int& budget) const {
    const int64_t typical = typical_ns(step), begun = begun_ns_[step].load();
    if (!typical || --budget < 0) return 0;
    if (begun) return begun + typical;
    const int before = schedule_.steps[step].before;
    const int64_t in_lane = before < 0 ? 0 : foreseen_end_ns(before, budget);
    if (before >= 0 && !in_lane) return 0;
    const bool has_needs = !schedule_.steps[step].needs.empty();
    const int64_t ready = has_needs ? foreseen_ns(step, budget) : 0;
    // No step that has started leads to this one.
    if (has_needs ? !ready : before < 0) return 0;
    return std::max(in_lane, ready) + typical;
  }
  // Predict when the last steps of all lanes end; 0 before they have started.
  int64_t expected_end_of_lanes_ns() const {
    int64_t found = 0;
    if (lanes_before_last_.load() > 0) return 0;
    for (size_t lane = 1; lane < schedule_.lanes.size(); ++lane)
      if (!schedule_.lanes[lane].empty()) found = std::max(found, expected_end_ns(schedule_.lanes[lane].back()));
    return found;
  }
  bool caller_helped(int& width) {
    if (!helped(0)) return false;
    width = 1;
    return true;
  }
  void do_own(int step) {
    if (take(step)) do_step(step, schedule_.steps[step].planned_lane);
  }
  bool take(int step) { return !schedule_.steps[step].shared || !taken_[step].exchange(true); }
  // Run a step that waits for another thread and return true. Take the last such step, because that thread starts with
  // its first. Cores of one machine may differ in speed, and virtual cores change speed at any time.
  bool helped(int lane) {
    if (!schedule_.helps[lane]) return false;
    for (auto it = schedule_.shared.rbegin(); it != schedule_.shared.rend(); ++it)
      if (!taken_[*it].load() && remaining_[*it].load() == 0 && take(*it)) {
        if (lane == 0) set_width(1);
        do_step(*it, own_lane(lane));
        return true;
      }
    return false;
  }
  // Return the plan's lane number of a thread's lane; for the caller, the lane that it runs at width 1.
  int own_lane(int lane) const {
    for (int step : schedule_.lanes[lane])
      if (lane != 0 || schedule_.steps[step].width == 1) return schedule_.steps[step].planned_lane;
    return lane;
  }
  void check() {
    try {
      check_signals_();
    } catch (...) {
      fail(-1, std::current_exception());
    }
    last_check_ns_ = now_ns();
  }

  const Schedule& schedule_;
  Sleeper& caller_;
  std::unique_ptr<std::atomic<int>[]> remaining_;
  // For shared steps.
  std::unique_ptr<std::atomic<bool>[]> taken_;
  // For each step, the inputs that have not started.
  std::unique_ptr<std::atomic<int>[]> not_begun_;
  std::unique_ptr<std::atomic<int64_t>[]> begun_ns_;
  std::atomic<int> working_lanes_{0}, lanes_before_last_{0};
  std::atomic<int> failed_{INT32_MAX};
  std::mutex error_mutex_;
  std::exception_ptr error_;
  at::ThreadLocalState caller_state_;
  std::function<void()> check_signals_;
  std::thread::id caller_thread_;
  int64_t last_check_ns_ = 0;
};

// A thread on its own CPUs. Its width is set first and never changed.
class Worker {
 public:
  explicit Worker(std::vector<int> cpus) : cpus_(std::move(cpus)) {
    thread_ = std::thread([this] { main(); });
    std::unique_lock<std::mutex> lock(mutex_);
    started_.wait(lock, [this] { return is_started_; });
  }
  ~Worker() {
    stop_.store(true);
    sleeper.wake(kIdle);
    thread_.join();
  }
  void give(Run* run, int lane) {
    lane_ = lane;
    run_.store(run);
  }

  Sleeper sleeper;

 private:
  void main() {
    prepare();
    for (;;) {
      const auto ready = [this] {
        Run* run = run_.load();
        return stop_.load() || (run && run->may_start(lane_));
      };
      const auto expected = [this] {
        Run* run = run_.load();
        return run ? run->expected_start_ns(lane_) : 0;
      };
      sleeper.wait(kIdle, ready, expected, kIdleSpinNs, 0);
      Run* run = run_.load();
      if (!run) return;
      run_.store(nullptr);
      // The run must not be used after this call.
      run->on_lane(lane_);
    }
  }
  void prepare() {
    cpu_set_t mask;
    CPU_ZERO(&mask);
    for (int cpu : cpus_) CPU_SET(cpu, &mask);
    // This fails for CPUs that are gone; the allocation monitor notices them.
    sched_setaffinity(0, sizeof mask, &mask);
    pthread_setname_np(pthread_self(), "corewise-lane");
    // Sleep with less than the default timer slack.
    prctl(PR_SET_TIMERSLACK, 1);
    // Let torch initialise the thread now, or it would set the width again later.
    at::get_num_threads();
    set_width(static_cast<int>(cpus_.size()));
    inside_a_run = true;
    std::lock_guard<std::mutex> guard(mutex_);
    is_started_ = true;
    started_.notify_one();
  }

  const std::vector<int> cpus_;
  std::mutex mutex_;
  std::condition_variable started_;
  bool is_started_ = false;
  std::atomic<bool> stop_{false};
  std::atomic<Run*> run_{nullptr};
  int lane_ = 0;
  std::thread thread_;
};

inline void Run::announce(int step) {
  const Step& it = schedule_.steps[step];
  if (it.lane == 0) return caller_.wake(kFirstStep + step);
  Sleeper& sleeper = schedule_.workers[it.lane]->sleeper;
  sleeper.wake(kFirstStep + step);
  if (it.first) sleeper.wake(kIdle);
}

inline void Run::announce_for(int step, int64_t ready_ns) {
  const Step& it = schedule_.steps[step];
  if (it.lane == 0) return caller_.wake_for(kFirstStep + step, ready_ns);
  Sleeper& sleeper = schedule_.workers[it.lane]->sleeper;
  sleeper.wake_for(kFirstStep + step, ready_ns);
  if (it.first) sleeper.wake_for(kIdle, ready_ns);
}

inline void Run::on_lane(int lane) {
  Sleeper& caller = caller_;
  {
    at::ThreadLocalStateGuard as_caller(caller_state_);
    Sleeper& sleeper = schedule_.workers[lane]->sleeper;
    for (int step : schedule_.lanes[lane]) {
      const auto ready = [&] { return remaining_[step].load() == 0; };
      const auto expected = [&] { return expected_ns(step); };
      while (!ready() && (helped(lane) || !sleeper.wait(kFirstStep + step, ready, expected, kSpinNs, 0))) {
      }
      do_own(step);
    }
    while (helped(lane)) {
    }
  }
  if (working_lanes_.fetch_sub(1) == 1) caller.wake(kAtEnd);
}

inline void Run::on_caller() {
  int num_lanes = 0;
  for (size_t lane = 1; lane < schedule_.lanes.size(); ++lane) num_lanes += !schedule_.lanes[lane].empty();
  working_lanes_.store(num_lanes);
  lanes_before_last_.store(num_lanes);
  for (size_t lane = 1; lane < schedule_.lanes.size(); ++lane)
    if (!schedule_.lanes[lane].empty()) schedule_.workers[lane]->give(this, static_cast<int>(lane));
  for (size_t lane = 1; lane < schedule_.lanes.size(); ++lane)
    if (!schedule_.lanes[lane].empty() && schedule_.steps[schedule_.lanes[lane].front()].num_after == 0)
      schedule_.workers[lane]->sleeper.wake(kIdle);
  const int full_width = at::get_num_threads();
  int width = full_width;
  for (int step : schedule_.lanes[0]) {
    const auto ready = [&] { return remaining_[step].load() == 0; };
    const auto expected = [&] { return expected_ns(step); };
    while (!ready() &&
           (caller_helped(width) || !caller_.wait(kFirstStep + step, ready, expected, kSpinNs, kSignalNs)))
      check();
    const int wanted = schedule_.steps[step].width ? schedule_.steps[step].width : full_width;
    if (wanted != width) set_width(width = wanted);
    do_own(step);
  }
  while (caller_helped(width)) check();
  if (width != full_width) set_width(full_width);
  const auto ended = [&] { return working_lanes_.load() == 0; };
  const auto expected = [this] { return expected_end_of_lanes_ns(); };
  while (!ended() && !caller_.wait(kAtEnd, ended, expected, kSpinNs, kSignalNs)) check();
  rethrow();
}

// All workers of a part of the process; they execute one run at a time.
class Lanes {
 public:
  Lanes() : pid_(getpid()) {}
  ~Lanes() { close(); }

  bool usable() const { return !closed_ && getpid() == pid_; }
  bool forked() const { return getpid() != pid_; }

  // Return the worker on these CPUs and create it if needed. `number` distinguishes workers on equal CPUs.
  Worker* worker(const std::vector<int>& cpus, int number, std::vector<std::shared_ptr<int>>& claims) {
    std::lock_guard<std::timed_mutex> guard(mutex_);
    TORCH_CHECK(usable(), "these lanes are closed");
    auto& found = workers_[{cpus, number}];
    if (!found.worker) {
      const int width = at::get_num_threads();
      found.worker = std::make_unique<Worker>(cpus);
      // MKL must not choose widths, and future threads must not start with another width.
      at::set_num_threads(width);
    }
    claims.push_back(found.claim);
    return found.worker.get();
  }

  // End the workers that no schedule needs.
  void end_unused() {
    if (!usable()) return;
    std::lock_guard<std::timed_mutex> guard(mutex_);
    for (auto it = workers_.begin(); it != workers_.end();)
      it = it->second.claim.use_count() == 1 ? workers_.erase(it) : std::next(it);
  }

  // Run on the lanes after the runs that other threads have started; run inline where that is impossible.
  void run(Run& run, const std::vector<int>& order, const std::function<void()>& check_signals) {
    TORCH_CHECK(!forked(), "malleable threads do not survive a fork: create the object again in the child");
    run.set_caller(check_signals);
    if (inside_a_run || closed_) return run.inline_on_caller(order);
    std::unique_lock<std::timed_mutex> lock(mutex_, std::defer_lock);
    while (!lock.try_lock_for(std::chrono::nanoseconds(kSignalNs))) check_signals();
    if (closed_) {
      lock.unlock();
      return run.inline_on_caller(order);
    }
    struct Inside {
      Inside() { inside_a_run = true; }
      ~Inside() { inside_a_run = false; }
    } inside;
    run.on_caller();
  }

  void close() {
    // The threads belong to the parent process; their handles stay as they are.
    if (forked()) {
      closed_ = true;
      for (auto& item : workers_) item.second.worker.release();
      workers_.clear();
      return;
    }
    std::lock_guard<std::timed_mutex> guard(mutex_);
    closed_ = true;
    workers_.clear();
  }
  size_t num_threads() const { return workers_.size(); }

  Sleeper caller;

 private:
  const pid_t pid_;
  std::atomic<bool> closed_{false};
  std::timed_mutex mutex_;
  struct Held {
    std::unique_ptr<Worker> worker;
    std::shared_ptr<int> claim = std::make_shared<int>(0);
  };
  std::map<std::pair<std::vector<int>, int>, Held> workers_;
};

}  // namespace corewise
