// Detect whether tensors changed: a checksum over every byte of each tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "team.h"

namespace corewise {

// Bytes that one thread processes at a time.
constexpr size_t kBlock = 64 * 1024;
constexpr size_t kStripe = 64;
// An extra thread is used only if it gets at least this many bytes.
constexpr size_t kWorthThread = 512 * 1024;

inline uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

constexpr int kLanes = kStripe / sizeof(uint64_t);
constexpr uint64_t kSteps[2] = {0x9e3779b97f4a7c15ull, 0xd1b54a32d192ed03ull};

// Sum products of halves, each combined with a key of its position, so that moved or swapped numbers change the sum.
// A product with a zero half would lose the other half, so each half is also added to its neighbour.
struct Sums {
  alignas(32) uint64_t sums[kLanes], keys[kLanes];

  explicit Sums(uint64_t place) {
    for (int i = 0; i < kLanes; ++i) {
      sums[i] = mixed(kSteps[0] * place + i + 1);
      keys[i] = mixed(kSteps[1] * place + i + 101);
    }
  }

  void take(const unsigned char* bytes, size_t num_stripes) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) return take_quads(bytes, num_stripes);
#endif
    for (size_t stripe = 0; stripe < num_stripes; ++stripe, bytes += kStripe) {
      uint64_t given[kLanes];
      std::memcpy(given, bytes, kStripe);
      for (int i = 0; i < kLanes; ++i) {
        const uint64_t keyed = given[i] ^ keys[i];
        sums[i] += (keyed & 0xffffffffull) * (keyed >> 32) + given[i ^ 1];
        keys[i] += kSteps[i % 2];
      }
    }
  }

#if defined(__x86_64__)
  // The same, four lanes at a time.
  __attribute__((target("avx2"))) void take_quads(const unsigned char* bytes, size_t num_stripes) {
    auto* const to = reinterpret_cast<__m256i*>(sums);
    auto* const from = reinterpret_cast<__m256i*>(keys);
    __m256i sum0 = to[0], sum1 = to[1], key0 = from[0], key1 = from[1];
    const __m256i step = _mm256_set_epi64x(kSteps[1], kSteps[0], kSteps[1], kSteps[0]);
    for (size_t stripe = 0; stripe < num_stripes; ++stripe, bytes += kStripe) {
      const __m256i given0 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
      const __m256i given1 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes + kStripe / 2));
      const __m256i keyed0 = _mm256_xor_si256(given0, key0), keyed1 = _mm256_xor_si256(given1, key1);
      const __m256i product0 = _mm256_mul_epu32(keyed0, _mm256_srli_epi64(keyed0, 32));
      const __m256i product1 = _mm256_mul_epu32(keyed1, _mm256_srli_epi64(keyed1, 32));
      sum0 = _mm256_add_epi64(sum0, _mm256_add_epi64(product0, _mm256_shuffle_epi32(given0, 0x4e)));
      sum1 = _mm256_add_epi64(sum1, _mm256_add_epi64(product1, _mm256_shuffle_epi32(given1, 0x4e)));
      key0 = _mm256_add_epi64(key0, step);
      key1 = _mm256_add_epi64(key1, step);
    }
    to[0] = sum0, to[1] = sum1, from[0] = key0, from[1] = key1;
  }
#endif
};

inline uint64_t number_of(const unsigned char* bytes, size_t size, uint64_t place) {
  Sums sums(place);
  const size_t num = size / kStripe, rest = size % kStripe;
  sums.take(bytes, num);
  if (rest) {
    unsigned char last[kStripe] = {};
    std::memcpy(last, bytes + num * kStripe, rest);
    sums.take(last, 1);
  }
  uint64_t found = mixed(size);
  for (uint64_t sum : sums.sums) found = mixed(found ^ sum) + sum;
  return mixed(found);
}

struct Blocks {
  struct Block {
    const unsigned char* bytes;
    size_t size;
    uint64_t place;
    size_t tensor;
  };
  std::vector<Block> blocks;
  // One sum per tensor; the order of its blocks does not matter.
  std::unique_ptr<std::atomic<uint64_t>[]> sums;
  std::atomic<size_t> next{0};

  void work() {
    for (size_t i = next++; i < blocks.size(); i = next++) {
      const Block& it = blocks[i];
      sums[it.tensor] += mixed(number_of(it.bytes, it.size, it.place) + it.place);
    }
  }
};

inline void work_on(void* blocks) { static_cast<Blocks*>(blocks)->work(); }

// Compute a checksum for each tensor; empty if one has no readable memory or has gaps in it.
inline std::optional<std::vector<uint64_t>> contents_of(const std::vector<at::Tensor>& tensors) {
  Blocks work;
  work.sums.reset(new std::atomic<uint64_t>[tensors.size()]);
  size_t total = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& it = tensors[i];
    if (!it.is_cpu() || it.layout() != c10::kStrided || it.is_neg() || it.is_conj()) return std::nullopt;
    uint64_t form = mixed(uint64_t(it.scalar_type()));
    for (int64_t dim = 0; dim < it.dim(); ++dim)
      form = mixed(mixed(form + uint64_t(it.size(dim))) + uint64_t(it.stride(dim)));
    work.sums[i].store(form);
    const size_t size = it.numel() * it.element_size();
    const auto* bytes = static_cast<const unsigned char*>(it.numel() ? it.const_data_ptr() : nullptr);
    if (size && (!bytes || !it.is_non_overlapping_and_dense())) return std::nullopt;
    for (size_t at = 0; at < size; at += kBlock)
      work.blocks.push_back({bytes + at, std::min(kBlock, size - at), at / kBlock, i});
    total += size;
  }
  const int64_t width = own_width();
  if (width > 1 && total >= kWorthThread)
    GOMP_parallel(work_on, &work, unsigned(width), 0);
  else
    work.work();
  std::vector<uint64_t> found;
  for (size_t i = 0; i < tensors.size(); ++i) found.push_back(work.sums[i].load());
  return found;
}

}  // namespace corewise
