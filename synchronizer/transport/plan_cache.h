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

// A member's layout as BuildLayout knows it: `descriptor`, or if that is empty what such members usually have (the
// manifest's arena cut at buckets; everything).
std::string SourceLayoutName(const std::string& descriptor, int32_t ranks);
std::string DestinationLayoutName(const std::string& descriptor, int32_t ranks);

// OK if both names are of the same layout; else FAILED_PRECONDITION reason DTYPE_MISMATCH if they differ in the dtype
// of the shards alone, or LAYOUT_MISMATCH. `whose` is for people: "this receiver".
absl::Status CheckSameLayout(const std::string& ours, const std::string& theirs, const std::string& whose);

// What a plan is a function of, besides the manifest. Descriptors may be empty, as above.
struct PlanKey {
  std::string source_layout;
  int32_t sources = 1;  // ranks
  std::string destination_layout;
  int32_t world = 1;  // ranks of one replica; 0: as many as its layout has
  friend auto operator<=>(const PlanKey&, const PlanKey&) = default;
};

// A plan with the layouts it was made from.
struct PlannedLayouts {
  Layout source;
  Layout destination;
  SyncPlan plan;
};

// The plans of one manifest that were asked for last, so that each member computes a plan once a membership. Not
// thread-safe.
class PlanCache {
 public:
  static constexpr size_t kKept = 4;

  explicit PlanCache(std::shared_ptr<const Manifest> manifest) : manifest_(std::move(manifest)) {}

  // FAILED_PRECONDITION reason LAYOUT_MISMATCH if a descriptor cannot be, or is of another number of ranks than `key`
  // says; else errors of SyncPlan::Create.
  absl::StatusOr<std::shared_ptr<const PlannedLayouts>> Get(const PlanKey& key);

 private:
  std::shared_ptr<const Manifest> manifest_;
  std::map<PlanKey, std::shared_ptr<const PlannedLayouts>> plans_;
};

}  // namespace syncopate::synchronizer
