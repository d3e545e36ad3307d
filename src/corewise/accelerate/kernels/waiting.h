// How threads wait for each other: a short spin, then a futex.
#pragma once

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace corewise {

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// What a thread sleeps for.
constexpr uint32_t kAwake = 0, kIdle = 1, kAtEnd = 2, kFirstStep = 3;
// Spin time between runs; longer waits release the core.
constexpr int64_t kIdleSpinNs = 20000;
// Spin time within a run: several times the cost of a wake-up.
constexpr int64_t kSpinNs = 100000;
// Be awake this long before the expected time.
constexpr int64_t kAheadNs = 100000;
// Stay awake this long after the expected time.
constexpr int64_t kLateNs = 50000;
// A thread that wakes this early needs no wake-up call, which would cost the waking thread time.
constexpr int64_t kInTimeNs = 30000;
// How often a waiting caller checks for Ctrl-C.
constexpr int64_t kSignalNs = 50000000;

// Where one thread waits for others: a short spin that yields the core, then a futex.
class Sleeper {
 public:
  // Return true once it is ready, false after the limit if there is one. `expected` predicts when it becomes ready, 0 if
  // unknown: a wake-up takes longer than many tasks, so the thread wakes early.
  template <class Ready, class Expected>
  bool wait(uint32_t reason, const Ready& ready, const Expected& expected, int64_t spin_ns, int64_t limit_ns) {
    const int64_t began = now_ns();
    for (int64_t now = began; !limit_ns || now < began + limit_ns; now = now_ns()) {
      const int64_t at = expected();
      const bool is_soon = at && now >= at - kAheadNs && now < at + kLateNs;
      if (now < began + spin_ns || is_soon) {
        if (spun(ready)) return true;
        continue;
      }
      int64_t sleep_ns = limit_ns;
      if (at > now && (!sleep_ns || at - kAheadNs - now < sleep_ns)) sleep_ns = at - kAheadNs - now;
      wakes_ns_.store(sleep_ns ? now + sleep_ns : 0);
      word_.store(reason);
      if (!ready() && expected() == at) sleep(reason, sleep_ns);
      word_.store(kAwake);
      if (ready()) return true;
    }
    return ready();
  }

  // Wake the thread for something that is ready at ready_ns at the earliest; leave it asleep if its timer wakes it in time.
  void wake_for(uint32_t reason, int64_t ready_ns) {
    const int64_t at = wakes_ns_.load();
    if (!at || at > ready_ns - kInTimeNs || word_.load() != reason || wakes_ns_.load() != at) wake(reason);
  }

  // Wake the thread if it sleeps for this reason. What it waits for, or when, must have been published before.
  void wake(uint32_t reason) {
    if (word_.load() == reason && word_.compare_exchange_strong(reason, kAwake))
      syscall(SYS_futex, &word_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  }

 private:
  template <class Ready>
  static bool spun(const Ready& ready) {
    for (int i = 0; i < 32; ++i) {
      if (ready()) return true;
      pause_briefly();
    }
    sched_yield();
    return false;
  }
  void sleep(uint32_t reason, int64_t limit_ns) {
    timespec limit{limit_ns / 1000000000, limit_ns % 1000000000};
    syscall(SYS_futex, &word_, FUTEX_WAIT_PRIVATE, reason, limit_ns ? &limit : nullptr, nullptr, 0);
  }

  std::atomic<uint32_t> word_{kAwake};
  // When its timer wakes the sleeping thread; 0 if there is no timer.
  std::atomic<int64_t> wakes_ns_{0};
};

}  // namespace corewise
