#include "trainer/staging/host_stager.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"

namespace syncopate::trainer {

absl::StatusOr<std::unique_ptr<HostStager>> HostStager::Create(Policy* policy, Manifest wire, int slots,
                                                               const StagedPart& part, bool lends_base) {
  SYNCOPATE_CHECK(wire.tensors().size() == policy->manifest().tensors().size());
  const DType dtype = policy->GetShardDType(wire);
  SYNCOPATE_ASSIGN_OR_RETURN(const synchronizer::SyncPlan plan, PlanStaging(wire, part, dtype));
  SYNCOPATE_ASSIGN_OR_RETURN(auto arena,
                             synchronizer::SendArena::CreateForPlan(std::move(wire), plan, part.rank,
                                                                    {.slots = slots, .lends_base = lends_base}));
  return std::unique_ptr<HostStager>(new HostStager(policy, std::move(arena), dtype, part.world, plan.pack(part.rank)));
}

HostStager::~HostStager() {
  if (const absl::Status ended = policy_->SetReader(nullptr); !ended.ok()) {
    SYNCOPATE_LOG(kError, "the policy still has a reader that is gone: %s", ended.ToString());
  }
}

absl::Status HostStager::Launch(const PolicyVersion& version) {
  const auto packs_into = [](const std::vector<synchronizer::PackOp>& ops, char* arena) {
    return [&ops, arena](int64_t begin, absl::string_view bytes) {
      const ByteRange part{begin, begin + static_cast<int64_t>(bytes.size())};
      synchronizer::PackPartOnHost(ops, part, bytes.data(), arena);
      return absl::OkStatus();
    };
  };
  synchronizer::SendArena::Fill adapters;
  if (!adapter_pack_.empty()) {
    adapters = [this, packs_into](char* arena) {
      return policy_->ReadTrained(dtype_, packs_into(adapter_pack_, arena));
    };
  }
  SYNCOPATE_RETURN_IF_ERROR(arena_->Launch(
      version, [this, packs_into](char* arena) { return policy_->ReadShard(dtype_, packs_into(pack_, arena)); },
      std::move(adapters)));
  return policy_->SetReader([this] { return FinishRead(); });
}

absl::Status HostStager::FinishRead() {
  const absl::Time begun = Clock::Real()->Now();
  const absl::Status read = arena_->FinishCopy();
  wait_seconds_ += absl::ToDoubleSeconds(Clock::Real()->Now() - begun);
  return read;
}

}  // namespace syncopate::trainer
