#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/manifest.h"
#include "synchronizer/plan/layout.h"

namespace syncopate::synchronizer {

// One message of a weight sync: `bytes` bytes from a source rank's send arena to a destination rank's shadow arena.
struct Copy {
  int32_t source = 0;
  int32_t destination = 0;
  int64_t source_offset = 0;
  int64_t destination_offset = 0;
  int64_t bytes = 0;
  friend bool operator==(const Copy&, const Copy&) = default;
};

// Which bytes go from where to where in every weight sync between two layouts of one manifest. A pure function of the
// three: every party computes it and compares hashes, nobody is told offsets by a peer. Shard to shard, nothing is
// gathered; neighbours are merged over equal padding, so that unsharded weights are one message. Where several source
// ranks hold an element, destination ranks take turns. Immutable.
class SyncPlan {
 public:
  // FAILED_PRECONDITION reason PLAN_INCOMPLETE, naming the tensor, if a destination wants elements that no source has.
  static absl::StatusOr<SyncPlan> Create(const Manifest& manifest, const Layout& source, const Layout& destination);

  const std::vector<Copy>& copies() const { return copies_; }  // by (destination, destination_offset)
  std::vector<Copy> CopiesTo(int32_t destination) const;
  int64_t bytes() const;  // moved in all
  // Equal iff manifest, arena sizes and copies are equal.
  uint64_t hash() const { return hash_; }
  // One line a copy, for people.
  std::string ToString() const;

 private:
  SyncPlan(std::vector<Copy> copies, uint64_t hash) : copies_(std::move(copies)), hash_(hash) {}

  std::vector<Copy> copies_;
  uint64_t hash_;
};

}  // namespace syncopate::synchronizer
