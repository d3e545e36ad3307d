// Collectives among the processes of one node, through a shared segment. Plain C interface, called through ctypes.
//
// This is the allreduce; the other collectives have the same stages. A buffer is cut into chunks that fit into the cache. Every rank has a few slots, each as large as a chunk. The work
// on a chunk has three stages, and three chunks are in flight at a time:
//   1. copy in:  a rank copies its chunk into its slot, except for the slice that it owns;
//   2. reduce:   the owner of a slice adds the slices of all ranks in the order of ranks, and writes the sum into its
//                buffer and into its slot;
//   3. copy out: a rank copies the other slices' sums from their owners' slots.
// Inputs are read from memory once and results are written once, while the lines are still in the cache.

#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#define EXPORT extern "C" __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))
// One version of each reduction per instruction set. The loader chooses among them.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define VERSIONS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define VERSIONS
#endif

namespace {

constexpr int kMaxRanks = 1024;
constexpr int kSlots = 4;
constexpr size_t kLine = 64;
// Elements that are accumulated at a time. Their sums stay in the first-level cache.
constexpr size_t kBlock = 1024;

// Results of the exported functions. The rank at fault is returned separately.
enum Status { kDone = 0, kTimedOut = 1, kPeerDied = 2, kMismatch = 3, kFailedBefore = 4 };

// A counter that other ranks wait for. Its number of waiters tells the writer whether to wake anybody.
struct alignas(64) Counter {
  std::atomic<uint32_t> value;
  std::atomic<uint32_t> waiters;
};

// What one rank publishes.
struct alignas(64) RankState {
  Counter arrived;
  Counter reduced;
  Counter copied;
  // The size and type of the last two operations. A rank is at most one operation ahead of the others.
  alignas(64) std::atomic<uint64_t> signature[2];
};

struct alignas(64) Header {
  // One more than the rank that reported a failure, or zero.
  std::atomic<uint32_t> failed;
};

struct Group {
  int rank, num_ranks;
  size_t chunk_bytes;
  Header* header;
  RankState* states;
  char* slots;
  int pids[kMaxRanks];
  int pidfds[kMaxRanks];
  uint32_t next_chunk;
  uint32_t next_operation;
  double timeout_s;
  int culprit;

  char* slot(int rank, uint32_t chunk) const {
    return slots + (size_t(rank) * kSlots + chunk % kSlots) * chunk_bytes;
  }
};

double read_clock() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

inline void pause_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Counters wrap around, so they are compared by their difference.
inline bool has_reached(const Counter& counter, uint32_t target) {
  return int32_t(counter.value.load(std::memory_order_acquire) - target) >= 0;
}

void publish(Counter& counter, uint32_t value) {
  counter.value.store(value, std::memory_order_seq_cst);
  if (counter.waiters.load(std::memory_order_seq_cst) != 0) {
    syscall(SYS_futex, &counter.value, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
  }
}

bool has_died(const Group& group, int rank) {
  // Without pidfd_open, a rank that its parent has not reaped yet seems to live. The timeout ends the wait then.
  if (group.pidfds[rank] < 0) return kill(group.pids[rank], 0) != 0 && errno == ESRCH;
  pollfd entry{group.pidfds[rank], POLLIN, 0};
  return poll(&entry, 1, 0) == 1 && (entry.revents & POLLIN);
}

Status report_failure(Group& group, Status status, int culprit) {
  group.culprit = culprit;
  uint32_t expected = 0;
  group.header->failed.compare_exchange_strong(expected, uint32_t(culprit) + 1);
  return status;
}

// Sleeps until the counter reaches the target. Wakes up regularly to look for dead ranks and for the timeout.
Status sleep_until(Group& group, int rank, Counter& counter, uint32_t target) {
  const double deadline = read_clock() + group.timeout_s;
  Status status = kDone;
  counter.waiters.fetch_add(1, std::memory_order_seq_cst);
  while (true) {
    const uint32_t seen = counter.value.load(std::memory_order_seq_cst);
    if (int32_t(seen - target) >= 0) break;
    const timespec nap{0, 20 * 1000 * 1000};
    const long result = syscall(SYS_futex, &counter.value, FUTEX_WAIT, seen, &nap, nullptr, 0);
    if (result == 0 || errno != ETIMEDOUT) continue;
    if (has_reached(counter, target)) break;
    if (group.header->failed.load() != 0) {
      group.culprit = int(group.header->failed.load()) - 1;
      status = kFailedBefore;
    } else if (has_died(group, rank)) {
      status = report_failure(group, kPeerDied, rank);
    } else if (read_clock() > deadline) {
      status = report_failure(group, kTimedOut, rank);
    }
    if (status != kDone) break;
  }
  counter.waiters.fetch_sub(1, std::memory_order_seq_cst);
  return status;
}

Status wait_for_rank(Group& group, int rank, Counter& counter, uint32_t target, int spins) {
  for (int i = 0; i < spins; ++i) {
    if (has_reached(counter, target)) return kDone;
    pause_core();
  }
  // Another thread of this core may have to run first.
  for (int i = 0; i < 2; ++i) {
    if (has_reached(counter, target)) return kDone;
    sched_yield();
  }
  return sleep_until(group, rank, counter, target);
}

Status wait_for_all(Group& group, Counter RankState::*counter, uint32_t target, int spins) {
  for (int i = 1; i < group.num_ranks; ++i) {
    // Every rank starts with its neighbour, so that not all of them read the same line at once.
    const int rank = (group.rank + i) % group.num_ranks;
    const Status status = wait_for_rank(group, rank, group.states[rank].*counter, target, spins);
    if (status != kDone) return status;
  }
  return kDone;
}

struct BFloat16 {
  uint16_t bits;
};

INLINE float load(const float* from, size_t i) { return from[i]; }
INLINE double load(const double* from, size_t i) { return from[i]; }
INLINE float load(const BFloat16* from, size_t i) {
  const uint32_t bits = uint32_t(from[i].bits) << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
INLINE void store(float* to, size_t i, float value) { to[i] = value; }
INLINE void store(double* to, size_t i, double value) { to[i] = value; }
INLINE void store(BFloat16* to, size_t i, float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  // Round to nearest even. NaN keeps a bit of its mantissa.
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  to[i].bits = uint16_t((bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16) | 0x40 : rounded);
}

// Adds the sources in their order, multiplies the sum by the scale, and writes it to both places. The first place may
// be one of the sources.
template <typename Element, typename Sum>
INLINE void reduce_elements(const void* const* sources, int num_sources, size_t count, double factor, void* first,
                            void* second) {
  const Sum scale = Sum(factor);
  if (num_sources == 2) {
    const Element* a = static_cast<const Element*>(sources[0]);
    const Element* b = static_cast<const Element*>(sources[1]);
    Element* x = static_cast<Element*>(first);
    Element* y = static_cast<Element*>(second);
    // An element is only overwritten by its own sum, so the iterations are independent.
#pragma GCC ivdep
    for (size_t i = 0; i < count; ++i) {
      const Sum sum = (load(a, i) + load(b, i)) * scale;
      store(x, i, sum);
      store(y, i, sum);
    }
    return;
  }
  for (size_t start = 0; start < count; start += kBlock) {
    const size_t size = std::min(kBlock, count - start);
    alignas(64) Sum sum[kBlock];
    const Element* a = static_cast<const Element*>(sources[0]) + start;
    for (size_t i = 0; i < size; ++i) sum[i] = load(a, i);
    int k = 1;
    for (; k + 3 < num_sources; k += 4) {
      const Element* b = static_cast<const Element*>(sources[k]) + start;
      const Element* c = static_cast<const Element*>(sources[k + 1]) + start;
      const Element* d = static_cast<const Element*>(sources[k + 2]) + start;
      const Element* e = static_cast<const Element*>(sources[k + 3]) + start;
      for (size_t i = 0; i < size; ++i) sum[i] = (((sum[i] + load(b, i)) + load(c, i)) + load(d, i)) + load(e, i);
    }
    for (; k < num_sources; ++k) {
      const Element* b = static_cast<const Element*>(sources[k]) + start;
      for (size_t i = 0; i < size; ++i) sum[i] += load(b, i);
    }
    Element* x = static_cast<Element*>(first) + start;
    Element* y = static_cast<Element*>(second) + start;
    for (size_t i = 0; i < size; ++i) sum[i] *= scale;
    for (size_t i = 0; i < size; ++i) store(x, i, sum[i]);
    for (size_t i = 0; i < size; ++i) store(y, i, sum[i]);
  }
}

#define DEFINE_REDUCTION(name, Element, Sum)                                                            \
  VERSIONS void name(const void* const* sources, int num_sources, size_t count, double scale, void* x, void* y) { \
    reduce_elements<Element, Sum>(sources, num_sources, count, scale, x, y);                             \
  }
DEFINE_REDUCTION(reduce_float32, float, float)
DEFINE_REDUCTION(reduce_float64, double, double)
DEFINE_REDUCTION(reduce_bfloat16, BFloat16, float)

using Reduction = void (*)(const void* const*, int, size_t, double, void*, void*);
struct Type {
  Reduction reduce;
  size_t size;
};
// The last type is that of bytes that are only copied.
const Type kTypes[] = {{reduce_float32, 4}, {reduce_float64, 8}, {reduce_bfloat16, 2}, {nullptr, 1}};

// The slice of a chunk that a rank owns. Slices begin at cache lines.
struct Slice {
  size_t begin, end;
};
Slice find_slice(size_t bytes, int rank, int num_ranks) {
  const size_t lines = (bytes + kLine - 1) / kLine;
  const size_t begin = lines * size_t(rank) / size_t(num_ranks) * kLine;
  const size_t end = lines * size_t(rank + 1) / size_t(num_ranks) * kLine;
  return {std::min(begin, bytes), std::min(end, bytes)};
}

void copy(char* to, const char* from, size_t begin, size_t end) {
  if (end > begin) memcpy(to + begin, from + begin, end - begin);
}

Status check_signatures(Group& group, uint32_t operation, uint64_t signature) {
  for (int rank = 0; rank < group.num_ranks; ++rank) {
    if (group.states[rank].signature[operation % 2].load(std::memory_order_relaxed) != signature) {
      return report_failure(group, kMismatch, rank);
    }
  }
  return kDone;
}

enum Collective { kAllreduce, kBroadcast, kAllgather, kReduceScatter, kAllToAll };

// One call of a collective. Allreduce and broadcast work in place: their input is their output.
struct Call {
  int collective, root;
  const Type& type;
  double scale;
  const char* input;
  char* output;
  // What is cut into chunks: the buffer of an allreduce or broadcast, the piece of one rank otherwise.
  size_t bytes;
  size_t chunk_bytes;
};

// The size of a chunk of this call. Short buffers are cut into a few chunks, so that the stages overlap.
size_t choose_chunk(const Group& group, int collective, size_t bytes) {
  const bool has_slot_per_piece = collective == kReduceScatter || collective == kAllToAll;
  // A slot holds a chunk for every other rank.
  const size_t largest = group.chunk_bytes / (has_slot_per_piece ? group.num_ranks : 1) / kLine * kLine;
  const size_t smallest = std::max<size_t>(32 << 10, size_t(group.num_ranks) << 12);
  const size_t chunk = std::max(smallest, bytes / 4);
  return std::min((chunk + kLine - 1) / kLine * kLine, largest);
}

// Stage 1: copies what other ranks need of a chunk into the slot of this rank.
void copy_in(const Group& group, const Call& call, size_t start, size_t size, char* slot) {
  const int me = group.rank;
  const char* from = call.input + start;
  if (call.collective == kAllreduce) {
    const Slice own = find_slice(size, me, group.num_ranks);
    copy(slot, from, 0, own.begin);
    copy(slot, from, own.end, size);
  } else if (call.collective == kAllgather || (call.collective == kBroadcast && call.root == me)) {
    copy(slot, from, 0, size);
  } else if (call.collective == kReduceScatter || call.collective == kAllToAll) {
    for (int rank = 0; rank < group.num_ranks; ++rank) {
      if (rank != me) copy(slot + size_t(rank) * call.chunk_bytes, from + size_t(rank) * call.bytes, 0, size);
    }
  }
}

// Stage 2: combines what all ranks have for this one.
void combine(const Group& group, const Call& call, uint32_t chunk, size_t start, size_t size) {
  const int me = group.rank, num_ranks = group.num_ranks;
  const void* sources[kMaxRanks];
  char* slot = group.slot(me, chunk);
  if (call.collective == kAllreduce) {
    const Slice own = find_slice(size, me, num_ranks);
    char* to = call.output + start + own.begin;
    for (int rank = 0; rank < num_ranks; ++rank) {
      sources[rank] = rank == me ? to : group.slot(rank, chunk) + own.begin;
    }
    call.type.reduce(sources, num_ranks, (own.end - own.begin) / call.type.size, call.scale, to, slot + own.begin);
  } else if (call.collective == kAllgather) {
    char* to = call.output + size_t(me) * call.bytes + start;
    if (to != call.input + start) copy(to, call.input + start, 0, size);
  } else if (call.collective == kReduceScatter || call.collective == kAllToAll) {
    const size_t offset = size_t(me) * call.chunk_bytes;
    for (int rank = 0; rank < num_ranks; ++rank) {
      sources[rank] =
          rank == me ? call.input + size_t(me) * call.bytes + start : group.slot(rank, chunk) + offset;
    }
    if (call.collective == kReduceScatter) {
      char* to = call.output + start;
      call.type.reduce(sources, num_ranks, size / call.type.size, call.scale, to, slot + offset);
      return;
    }
    for (int rank = 0; rank < num_ranks; ++rank) {
      copy(call.output + size_t(rank) * call.bytes + start, static_cast<const char*>(sources[rank]), 0, size);
    }
  }
}

// Stage 3: copies the result that another rank has in its slot.
void copy_out(const Group& group, const Call& call, int rank, uint32_t chunk, size_t start, size_t size) {
  const char* slot = group.slot(rank, chunk);
  if (call.collective == kAllreduce) {
    const Slice slice = find_slice(size, rank, group.num_ranks);
    copy(call.output + start, slot, slice.begin, slice.end);
  } else if (call.collective == kBroadcast && rank == call.root) {
    copy(call.output + start, slot, 0, size);
  } else if (call.collective == kAllgather) {
    copy(call.output + size_t(rank) * call.bytes + start, slot, 0, size);
  }
}

// Runs the three stages with three chunks in flight.
Status run_pipeline(Group& group, const Call& call, uint64_t signature, int spins) {
  RankState& mine = group.states[group.rank];
  // An empty buffer still takes one chunk, so that differing sizes are found.
  const uint32_t num_chunks = uint32_t(std::max<size_t>(1, (call.bytes + call.chunk_bytes - 1) / call.chunk_bytes));
  const uint32_t first = group.next_chunk, operation = group.next_operation++;
  group.next_chunk += num_chunks;
  mine.signature[operation % 2].store(signature, std::memory_order_relaxed);
  auto start_of = [&](uint32_t step) { return size_t(step) * call.chunk_bytes; };
  auto size_of = [&](uint32_t step) {
    return std::min(call.chunk_bytes, call.bytes - std::min(call.bytes, start_of(step)));
  };
  for (uint32_t step = 0; step < num_chunks + 2; ++step) {
    if (step < num_chunks) {
      const uint32_t chunk = first + step;
      // The slot's previous chunk must have been copied out by all ranks.
      const Status status = wait_for_all(group, &RankState::copied, chunk + 1 - kSlots, spins);
      if (status != kDone) return status;
      copy_in(group, call, start_of(step), size_of(step), group.slot(group.rank, chunk));
      publish(mine.arrived, chunk + 1);
    }
    if (step >= 1 && step <= num_chunks) {
      const uint32_t chunk = first + step - 1;
      Status status = wait_for_all(group, &RankState::arrived, chunk + 1, spins);
      if (status == kDone && step == 1) status = check_signatures(group, operation, signature);
      if (status != kDone) return status;
      combine(group, call, chunk, start_of(step - 1), size_of(step - 1));
      publish(mine.reduced, chunk + 1);
    }
    if (step >= 2) {
      const uint32_t chunk = first + step - 2;
      for (int i = 1; i < group.num_ranks; ++i) {
        const int rank = (group.rank + i) % group.num_ranks;
        const Status status = wait_for_rank(group, rank, group.states[rank].reduced, chunk + 1, spins);
        if (status != kDone) return status;
        copy_out(group, call, rank, chunk, start_of(step - 2), size_of(step - 2));
      }
      publish(mine.copied, chunk + 1);
    }
  }
  return kDone;
}

}  // namespace

EXPORT size_t corewise_segment_bytes(int num_ranks, size_t chunk_bytes) {
  return sizeof(Header) + size_t(num_ranks) * sizeof(RankState) + 4096 + size_t(num_ranks) * kSlots * chunk_bytes;
}

EXPORT Group* corewise_open(void* segment, int rank, int num_ranks, size_t chunk_bytes, const int* pids,
                            double timeout_s) {
  if (num_ranks > kMaxRanks) return nullptr;
  Group* group = new Group();
  group->rank = rank;
  group->num_ranks = num_ranks;
  group->chunk_bytes = chunk_bytes;
  group->timeout_s = timeout_s;
  group->header = static_cast<Header*>(segment);
  group->states = reinterpret_cast<RankState*>(group->header + 1);
  const uintptr_t end = reinterpret_cast<uintptr_t>(group->states + num_ranks);
  group->slots = reinterpret_cast<char*>((end + 4095) / 4096 * 4096);
  for (int i = 0; i < num_ranks; ++i) {
    group->pids[i] = pids[i];
#ifdef SYS_pidfd_open
    group->pidfds[i] = i == rank ? -1 : int(syscall(SYS_pidfd_open, pids[i], 0));
#else
    group->pidfds[i] = -1;
#endif
  }
  // The first touch places a rank's slots on its NUMA node.
  memset(group->slot(rank, 0), 0, kSlots * chunk_bytes);
  return group;
}

EXPORT void corewise_close(Group* group) {
  for (int i = 0; i < group->num_ranks; ++i) {
    if (group->pidfds[i] >= 0) close(group->pidfds[i]);
  }
  delete group;
}

// Marks the group as failed, so that no rank waits for this one any longer.
EXPORT void corewise_fail(Group* group) { report_failure(*group, kFailedBefore, group->rank); }

EXPORT int corewise_culprit(const Group* group) { return group->culprit; }

// Runs a collective. The count is that of the buffer of an allreduce or broadcast, and that of the piece of one rank
// otherwise. Sums are multiplied by the scale. Only a broadcast looks at the root.
EXPORT int corewise_run(Group* group, int collective, const void* input, void* output, size_t count, int type_code,
                        double scale, int root, int spins) {
  if (group->header->failed.load() != 0) {
    group->culprit = int(group->header->failed.load()) - 1;
    return kFailedBefore;
  }
  const Type& type = kTypes[type_code];
  const size_t bytes = count * type.size;
  const Call call{collective,
                  root,
                  type,
                  scale,
                  static_cast<const char*>(input),
                  static_cast<char*>(output),
                  bytes,
                  choose_chunk(*group, collective, bytes)};
  const uint64_t signature =
      uint64_t(bytes) << 20 | uint64_t(collective) << 16 | uint64_t(root) << 4 | uint64_t(type_code);
  return run_pipeline(*group, call, signature, spins);
}

// One sweep of a[i] = b[i] + s * c[i], for the bandwidth of memory with all ranks.
EXPORT VERSIONS void corewise_triad(double* a, const double* b, const double* c, size_t count) {
  for (size_t i = 0; i < count; ++i) a[i] = b[i] + 3.0 * c[i];
}
