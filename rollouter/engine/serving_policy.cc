#include "rollouter/engine/serving_policy.h"

#include "base/status.h"

namespace syncopate::rollouter {

absl::Status ServingPolicy::Install(const PolicyVersion& version, uint64_t digest, absl::Duration deadline) {
  SYNCOPATE_CHECK(version > version_);
  SYNCOPATE_RETURN_IF_ERROR(arenas_->Exchange(version, digest, deadline));
  version_ = version;
  digest_ = digest;
  if (has_sets_) sets_.Install();
  ChooseShadow();
  return absl::OkStatus();
}

void ServingPolicy::ChooseShadow() {
  if (has_sets_ && arenas_->shadow_set() != sets_.shadow()) arenas_->ChooseShadow(sets_.shadow());
}

void ServingPolicy::BeginPlan() {
  if (has_sets_) sets_.BeginPlan();
}

void ServingPolicy::EndPlan() {
  if (has_sets_) sets_.EndPlan();
  ChooseShadow();
}

ServingPolicy::Pinned ServingPolicy::Pin() {
  SYNCOPATE_CHECK(has_sets_ && has_weights());
  if (sets_.pinned() == AdapterSets::kNone) pinned_ = version_;
  return {sets_.Pin(), pinned_};
}

void ServingPolicy::Unpin() {
  sets_.Unpin();
  ChooseShadow();
}

void ServingPolicy::Relabel(const PolicyVersion& version) {
  SYNCOPATE_CHECK(has_weights() && version > version_);
  version_ = version;
  if (has_sets_ && sets_.pinned() == sets_.live()) pinned_ = version;  // the same set by its new name
}

void ServingPolicy::Invalidate() {
  version_ = PolicyVersion();
  digest_ = 0;
}

}  // namespace syncopate::rollouter
