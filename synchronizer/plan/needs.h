#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/manifest.h"
#include "synchronizer/plan/layout.h"
#include "synchronizer/plan/pack.h"

// The inside of SyncPlan: what has to go from each source rank to each destination rank.
namespace syncopate::synchronizer {

// A contiguous part of a destination's arena that comes from one source.
struct Message {
  int64_t destination_offset = 0;
  int64_t bytes = 0;
  friend bool operator==(const Message&, const Message&) = default;
};

// What one destination rank needs from one source rank. The operations' send offsets are still those of the
// destination.
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

// [destination][source]. Errors as of SyncPlan::Create.
absl::StatusOr<std::vector<std::vector<Need>>> FindNeeds(const Manifest& manifest, const Layout& source,
                                                         const Layout& destination);

}  // namespace syncopate::synchronizer
