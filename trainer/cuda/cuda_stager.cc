#include "trainer/cuda/cuda_stager.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/status.h"
#include "cuda/device.h"
#include "synchronizer/plan/layout_text.h"

namespace syncopate::trainer {
namespace {

// The kernels take milliseconds: after this long the GPU counts as not answering.
constexpr absl::Duration kStageDeadline = absl::Seconds(30);

}  // namespace

DType CudaStager::ReadDType(DType compute, const Manifest& wire) {
  return wire.HasOnly(compute) ? compute : DType::kFloat32;
}

absl::StatusOr<std::unique_ptr<CudaStager>> CudaStager::Create(PolicyTrainer* policy, Manifest wire, int device,
                                                               int slots, const StagedPart& part, bool lends_base,
                                                               std::shared_ptr<const cuda::CudaArena> base) {
  SYNCOPATE_CHECK(wire.tensors().size() == policy->manifest().tensors().size());
  const DType dtype = ReadDType(policy->compute_dtype(), wire);
  const bool has_adapters = policy->trained().tensors().size() < policy->manifest().tensors().size();
  if (has_adapters && dtype != policy->compute_dtype()) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_CONFIG",
                 absl::StrCat("with adapters the weights travel in the type that the trainer computes in, ",
                              DTypeName(policy->compute_dtype()), ": set model.dtype to it"));
  }
  SYNCOPATE_ASSIGN_OR_RETURN(const synchronizer::SyncPlan plan, PlanStaging(wire, part, dtype));
  const bool has_base_elsewhere = base != nullptr;
  SYNCOPATE_ASSIGN_OR_RETURN(
      auto arena, synchronizer::CudaSendArena::Create(
                      wire, plan, part.rank,
                      {.device = device, .slots = slots, .lends_base = lends_base, .base = std::move(base)}));
  synchronizer::ShardBases bases;
  if (has_base_elsewhere) {
    SYNCOPATE_ASSIGN_OR_RETURN(const synchronizer::Layout source,
                               synchronizer::BuildLayout(wire, SourceLayoutText(part.world, dtype)));
    bases = synchronizer::SplitShard(source, part.rank, policy->device_tensors());
  } else {
    bases = synchronizer::FlatShard(wire, policy->device_shard(dtype));
  }
  SYNCOPATE_ASSIGN_OR_RETURN(auto stream, cuda::Stream::Create(device, cuda::Stream::Priority::kLow));
  SYNCOPATE_ASSIGN_OR_RETURN(auto updated, cuda::Event::Create(device));
  return std::unique_ptr<CudaStager>(new CudaStager(policy, std::move(wire), SourceLayoutText(part.world, dtype),
                                                    std::move(bases), std::move(arena), std::move(stream),
                                                    std::move(updated)));
}

CudaStager::~CudaStager() {
  if (const absl::Status ended = policy_->SetReader(nullptr); !ended.ok()) {
    SYNCOPATE_LOG(kError, "the policy still has a reader that is gone: %s", ended.ToString());
  }
}

absl::Status CudaStager::Launch(const PolicyVersion& version) {
  {
    const cuda::DeviceScope scope(arena_->device());
    SYNCOPATE_RETURN_IF_ERROR(cuda::OrderAfter(stream_.get(), /*earlier=*/nullptr, updated_));
  }
  SYNCOPATE_RETURN_IF_ERROR(arena_->Launch(version, bases_, stream_.get()));
  return policy_->SetReader([this] { return arena_->OrderAfterRead(/*stream=*/nullptr); });
}

absl::StatusOr<CudaStager::Staged> CudaStager::Await() {
  SYNCOPATE_ASSIGN_OR_RETURN(auto staged, arena_->Await(kStageDeadline));
  const uint64_t digest = CombineDigests(staged.digests);
  return Staged{staged.version, std::move(staged.digests), digest, staged.seconds};
}

}  // namespace syncopate::trainer
