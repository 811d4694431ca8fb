#include "synchronizer/transport/plan_cache.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/reasons.h"
#include "base/status.h"
#include "synchronizer/plan/layout_text.h"

namespace syncopate::synchronizer {
namespace {

absl::Status Mismatch(const std::string& message) {
  return Error(absl::StatusCode::kFailedPrecondition, reason::kLayoutMismatch, message);
}

absl::StatusOr<Layout> Build(const Manifest& manifest, const std::string& name, int32_t ranks) {
  absl::StatusOr<Layout> layout = BuildLayout(manifest, name);
  if (!layout.ok()) return Mismatch(std::string(layout.status().message()));
  if (ranks == 0 || layout->ranks() == ranks) return layout;
  return Mismatch(absl::StrFormat("layout \"%s\" is of %d ranks, the group has %d", name, layout->ranks(), ranks));
}

// "flat:2:fp32" without its dtype: "flat:2".
std::string WithoutDType(const std::string& name) {
  const bool has_dtype = absl::EndsWith(name, ":fp32") || absl::EndsWith(name, ":bf16");
  return has_dtype ? name.substr(0, name.size() - 5) : name;
}

}  // namespace

std::string SourceLayoutName(const std::string& descriptor, int32_t ranks) {
  return descriptor.empty() ? absl::StrCat("buckets:", ranks) : descriptor;
}

std::string DestinationLayoutName(const std::string& descriptor, int32_t ranks) {
  if (descriptor == "whole") return "whole:1";
  return descriptor.empty() ? absl::StrCat("whole:", std::max(ranks, 1)) : descriptor;
}

absl::Status CheckSameLayout(const std::string& ours, const std::string& theirs, const std::string& whose) {
  if (ours == theirs) return absl::OkStatus();
  const bool dtype_alone = WithoutDType(ours) == WithoutDType(theirs);
  return Error(absl::StatusCode::kFailedPrecondition, dtype_alone ? reason::kDtypeMismatch : reason::kLayoutMismatch,
               absl::StrFormat("the layout of %s is \"%s\", not \"%s\"; give all members the same parallelism", whose,
                               ours, theirs));
}

absl::StatusOr<std::shared_ptr<const PlannedLayouts>> PlanCache::Get(const PlanKey& key) {
  auto known = plans_.find(key);
  if (known != plans_.end()) return known->second;
  SYNCOPATE_ASSIGN_OR_RETURN(Layout source,
                             Build(*manifest_, SourceLayoutName(key.source_layout, key.sources), key.sources));
  SYNCOPATE_ASSIGN_OR_RETURN(Layout destination,
                             Build(*manifest_, DestinationLayoutName(key.destination_layout, key.world), key.world));
  SYNCOPATE_ASSIGN_OR_RETURN(SyncPlan plan, SyncPlan::Create(*manifest_, source, destination));
  if (plans_.size() >= kKept) plans_.clear();  // memberships change rarely
  auto planned = std::make_shared<const PlannedLayouts>(
      PlannedLayouts{std::move(source), std::move(destination), std::move(plan)});
  plans_[key] = planned;
  return planned;
}

}  // namespace syncopate::synchronizer
