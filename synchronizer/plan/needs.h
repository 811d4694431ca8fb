#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/manifest.h"
#include "synchronizer/plan/layout.h"
#include "synchronizer/plan/pack.h"

// Internal to SyncPlan: the data that each source rank must send to each destination rank.
namespace syncopate::synchronizer {

// A contiguous part of a destination's arena that comes from one source.
struct Message {
  int64_t destination_offset = 0;
  int64_t bytes = 0;
  friend bool operator==(const Message&, const Message&) = default;
};

// The data that one destination rank needs from one source rank. The send offsets in `ops` are still offsets in the
// destination's arena.
struct Need {
  struct Op {
    PackOp op;
    size_t message = 0;
    friend bool operator==(const Op&, const Op&) = default;
  };
  std::vector<Message> messages;  // ascending
  std::vector<Op> ops;
  friend bool operator==(const Need&, const Need&) = default;
};

// Indexed [destination][source]. Errors: see SyncPlan::Create.
absl::StatusOr<std::vector<std::vector<Need>>> FindNeeds(const Manifest& manifest, const Layout& source,
                                                         const Layout& destination);

}  // namespace syncopate::synchronizer
