#include "trainer/staging/host_stager.h"

#include "base/status.h"

namespace syncopate::trainer {

absl::StatusOr<std::unique_ptr<HostStager>> HostStager::Create(const Policy* policy, Manifest wire, int slots,
                                                               const StagedPart& part) {
  SYNCOPATE_CHECK(wire.tensors().size() == policy->manifest().tensors().size());
  SYNCOPATE_ASSIGN_OR_RETURN(const synchronizer::SyncPlan plan, PlanStaging(wire, part, DType::kFloat32));
  SYNCOPATE_ASSIGN_OR_RETURN(
      auto arena, synchronizer::SendArena::CreateForPlan(std::move(wire), plan, part.rank, {.slots = slots}));
  return std::unique_ptr<HostStager>(new HostStager(
      policy, std::move(arena), slots, SourceLayoutText(part.world, DType::kFloat32), plan.pack(part.rank)));
}

absl::Status HostStager::Launch(const PolicyVersion& version) {
  return arena_->Launch(version, [this](char* arena) {
    return policy_->ReadShard([&](int64_t begin, absl::string_view bytes) {
      const ByteRange part{begin, begin + static_cast<int64_t>(bytes.size())};
      synchronizer::PackPartOnHost(pack_, part, bytes.data(), arena);
      return absl::OkStatus();
    });
  });
}

}  // namespace syncopate::trainer
