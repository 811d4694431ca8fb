#include "rollouter/engine/serving_policy.h"

#include "base/status.h"

namespace syncopate::rollouter {

absl::Status ServingPolicy::Install(const PolicyVersion& version, uint64_t digest, absl::Duration deadline) {
  SYNCOPATE_CHECK(version > version_);
  SYNCOPATE_RETURN_IF_ERROR(arenas_->Exchange(version, digest, deadline));
  version_ = version;
  digest_ = digest;
  return absl::OkStatus();
}

void ServingPolicy::Relabel(const PolicyVersion& version) {
  SYNCOPATE_CHECK(has_weights() && version > version_);
  version_ = version;
}

void ServingPolicy::Invalidate() {
  version_ = PolicyVersion();
  digest_ = 0;
}

}  // namespace syncopate::rollouter
