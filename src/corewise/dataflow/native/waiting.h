// Where threads wait for each other: a short spin, then the kernel.
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

constexpr uint32_t kAwake = 0, kIdle = 1, kAtEnd = 2, kFirstStep = 3;  // what a thread sleeps for
constexpr int64_t kSpinNs = 20000;  // longer waits give the core away
constexpr int64_t kSignalNs = 50000000;  // how often a waiting caller looks for Ctrl-C

// Where one thread waits for others: a short spin that yields the core to whoever needs it, then the kernel.
class Sleeper {
 public:
  template <class Ready>
  bool wait(uint32_t reason, const Ready& ready, int64_t limit_ns) {
    const int64_t until = now_ns() + kSpinNs;
    do {
      for (int i = 0; i < 32; ++i) {
        if (ready()) return true;
        pause_briefly();
      }
      sched_yield();
    } while (now_ns() < until);
    word_.store(reason);
    if (!ready()) {
      timespec limit{limit_ns / 1000000000, limit_ns % 1000000000};
      syscall(SYS_futex, &word_, FUTEX_WAIT_PRIVATE, reason, limit_ns ? &limit : nullptr, nullptr, 0);
    }
    word_.store(kAwake);
    return ready();
  }

  // Wakes the thread if it sleeps for this; what it waits for must have been made true before.
  void wake(uint32_t reason) {
    if (word_.load() == reason && word_.compare_exchange_strong(reason, kAwake))
      syscall(SYS_futex, &word_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  }

 private:
  std::atomic<uint32_t> word_{kAwake};
};

}  // namespace corewise
