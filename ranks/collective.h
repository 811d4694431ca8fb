#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/status.h"
#include "ranks/element.h"

namespace syncopate {

int64_t ElementBytes(Element element);

enum class Reduction : uint8_t { kSum = 1, kMax = 2 };

// One call that all ranks of a group make together. It is an error if two ranks make calls that are not equal.
struct Collective {
  enum class Kind : uint8_t { kAllGather = 1, kReduceScatter, kAllReduce, kBroadcast, kBarrier };
  Kind kind = Kind::kBarrier;
  int64_t bytes = 0;  // size of one rank's part
  Element element = Element::kFloat32;
  Reduction reduction = Reduction::kSum;
  int32_t root = 0;

  // Bytes of a rank's input and of its output.
  int64_t bytes_in(int32_t rank, int32_t world) const;
  int64_t bytes_out(int32_t world) const;

  // "all-reduce (sum) of 3 float64".
  std::string ToString() const;
  friend bool operator==(const Collective&, const Collective&) = default;
};

// accumulated := accumulated + values (or the larger of the two), element by element; `bytes`: size of each array. NaN
// stays NaN. Each sum of bfloat16 is rounded to bfloat16.
void Combine(const Collective& call, void* accumulated, const void* values, int64_t bytes);

// Makes an error UNAVAILABLE reason RANK_LOST.
absl::Status RankLost(const std::string& message);
// Makes an error INTERNAL reason RANK_MISMATCH: as call `sequence`, two ranks make calls that differ.
absl::Status RankMismatch(int32_t rank, const Collective& call, int32_t other_rank, const Collective& other_call,
                          uint64_t sequence);

// Copies `bytes` from `from` to `to`, which do not overlap or are equal. Both may be null if `bytes` is 0, which memcpy
// does not allow.
inline void CopyBytes(void* to, const void* from, size_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

}  // namespace syncopate
