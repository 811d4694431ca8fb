#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/manifest.h"
#include "synchronizer/plan/layout.h"
#include "synchronizer/plan/sync_plan.h"

namespace syncopate::synchronizer {

// A member's layout in the form that BuildLayout reads: `descriptor`, or the usual layout if it is empty. A source's
// usual layout is the manifest's arena cut at buckets; a destination's is all tensors on each rank.
std::string SourceLayoutName(const std::string& descriptor, int32_t ranks);
std::string DestinationLayoutName(const std::string& descriptor, int32_t ranks);

// OK if both names are the same layout; else FAILED_PRECONDITION reason DTYPE_MISMATCH if only the shards' dtypes
// differ, or LAYOUT_MISMATCH. `whose` is for people: "this receiver".
absl::Status CheckSameLayout(const std::string& ours, const std::string& theirs, const std::string& whose);

// The inputs of a plan besides the manifest. Descriptors may be empty, as above.
struct PlanKey {
  std::string source_layout;
  int32_t sources = 1;  // number of source ranks
  std::string destination_layout;
  int32_t world = 1;  // ranks of one replica; 0: the number in its layout
  friend auto operator<=>(const PlanKey&, const PlanKey&) = default;
};

// A plan with the two layouts from which it was made.
struct PlannedLayouts {
  Layout source;
  Layout destination;
  SyncPlan plan;
};

// Recently used plans of one manifest, so that each member computes a plan only once for each membership. Not
// thread-safe.
class PlanCache {
 public:
  static constexpr size_t kKept = 4;

  explicit PlanCache(std::shared_ptr<const Manifest> manifest) : manifest_(std::move(manifest)) {}

  // FAILED_PRECONDITION reason LAYOUT_MISMATCH if a descriptor is not valid for the model, or its number of ranks is
  // not that of `key`; else errors of SyncPlan::Create.
  absl::StatusOr<std::shared_ptr<const PlannedLayouts>> Get(const PlanKey& key);

 private:
  std::shared_ptr<const Manifest> manifest_;
  std::map<PlanKey, std::shared_ptr<const PlannedLayouts>> plans_;
};

}  // namespace syncopate::synchronizer
