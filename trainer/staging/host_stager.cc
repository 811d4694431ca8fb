#include "trainer/staging/host_stager.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/half.h"
#include "base/status.h"

namespace syncopate::trainer {
namespace {

// Writes the tensors of `parameters`, float32 and laid out by `from`, to their places in `arena`, laid out by `to`.
void Pack(const Manifest& from, const char* parameters, const Manifest& to, char* arena) {
  if (from.fingerprint() == to.fingerprint()) {
    std::memcpy(arena, parameters, static_cast<size_t>(from.arena_bytes()));
    return;
  }
  for (size_t i = 0; i < to.tensors().size(); ++i) {
    const auto* source = reinterpret_cast<const float*>(parameters + from.ranges()[i].begin);
    char* destination = arena + to.ranges()[i].begin;
    const int64_t count = to.tensors()[i].NumElements();
    if (to.tensors()[i].dtype == DType::kBFloat16) {
      std::transform(source, source + count, reinterpret_cast<uint16_t*>(destination), RoundToBFloat16);
    } else {
      std::memcpy(destination, source, static_cast<size_t>(count) * sizeof(float));
    }
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<HostStager>> HostStager::Create(Policy* policy, Manifest wire, int slots) {
  SYNCOPATE_CHECK(wire.tensors().size() == policy->manifest().tensors().size());
  SYNCOPATE_ASSIGN_OR_RETURN(auto arena, synchronizer::SendArena::Create(std::move(wire), {.slots = slots}));
  return std::unique_ptr<HostStager>(new HostStager(policy, std::move(arena), slots));
}

absl::StatusOr<HostStager::Staged> HostStager::Stage(const PolicyVersion& version) {
  return arena_->Stage(version, [this](char* arena) -> absl::Status {
    SYNCOPATE_ASSIGN_OR_RETURN(const void* parameters, policy_->parameters());
    Pack(policy_->manifest(), static_cast<const char*>(parameters), manifest(), arena);
    return absl::OkStatus();
  });
}

}  // namespace syncopate::trainer
