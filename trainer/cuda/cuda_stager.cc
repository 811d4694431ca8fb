#include "trainer/cuda/cuda_stager.h"

#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/digest.h"
#include "base/status.h"
#include "synchronizer/plan/layout_text.h"

namespace syncopate::trainer {
namespace {

// The kernels take milliseconds: after this long the GPU counts as not answering.
constexpr absl::Duration kStageDeadline = absl::Seconds(30);

// One rank that holds every parameter in `dtype`, whatever they travel in.
std::string SourceLayout(DType dtype) { return dtype == DType::kFloat32 ? "replicated:1:fp32" : "replicated:1:bf16"; }

// Where each tensor of an arena of elements of `dtype`, laid out as `policy`, lies.
std::vector<const void*> Addresses(const Manifest& policy, const void* arena, DType dtype) {
  std::vector<const void*> addresses;
  for (const ByteRange& range : policy.ranges()) {
    addresses.push_back(static_cast<const char*>(arena) +
                        range.begin / DTypeBytes(DType::kFloat32) * DTypeBytes(dtype));
  }
  return addresses;
}

// What parameters are gathered in: as they travel, if all travel in what the policy computes in.
DType GatheredDType(const PolicyTrainer& policy, const Manifest& wire) {
  for (const TensorSpec& tensor : wire.tensors()) {
    if (tensor.dtype != policy.compute_dtype()) return DType::kFloat32;
  }
  return policy.compute_dtype();
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaStager>> CudaStager::Create(const PolicyTrainer* policy, const Policy* leading,
                                                               Manifest wire, int device, int slots,
                                                               const std::string& destination) {
  SYNCOPATE_CHECK(policy->is_sharded() == (leading != nullptr));
  SYNCOPATE_CHECK(wire.tensors().size() == policy->manifest().tensors().size());
  const DType dtype = leading == nullptr ? DType::kFloat32 : GatheredDType(*policy, wire);
  const int64_t elements = policy->manifest().arena_bytes() / DTypeBytes(DType::kFloat32);
  SYNCOPATE_ASSIGN_OR_RETURN(auto gathered,
                             cuda::DeviceBuffer::Create(device, leading == nullptr ? 0 : elements * DTypeBytes(dtype),
                                                        "the weights of all ranks, gathered to be sent"));
  const void* const arena_of_source = leading == nullptr ? policy->device_parameters() : gathered.data();
  SYNCOPATE_ASSIGN_OR_RETURN(auto source, synchronizer::BuildLayout(wire, SourceLayout(dtype)));
  SYNCOPATE_ASSIGN_OR_RETURN(const synchronizer::Layout receivers,
                             synchronizer::BuildLayout(wire, destination.empty() ? "whole:1" : destination));
  SYNCOPATE_ASSIGN_OR_RETURN(auto plan, synchronizer::SyncPlan::Create(wire, source, receivers));
  SYNCOPATE_ASSIGN_OR_RETURN(
      auto arena, synchronizer::CudaSendArena::Create(wire, plan, /*source=*/0, {.device = device, .slots = slots}));
  auto bases = synchronizer::SplitShard(source, /*rank=*/0, Addresses(policy->manifest(), arena_of_source, dtype));
  std::unique_ptr<CudaStager> stager(new CudaStager(leading, dtype, std::move(gathered), std::move(wire),
                                                    std::move(plan), std::move(bases), slots, std::move(arena)));
  if (!destination.empty()) stager->layout_ = SourceLayout(dtype);
  return stager;
}

absl::StatusOr<CudaStager::Staged> CudaStager::Stage(const PolicyVersion& version) {
  const absl::Time begin = Clock::Real()->Now();
  if (leading_ != nullptr) SYNCOPATE_RETURN_IF_ERROR(leading_->CopyParameters(gathered_dtype_, gathered_.data()));
  const double gathering = absl::ToDoubleSeconds(Clock::Real()->Now() - begin);
  SYNCOPATE_ASSIGN_OR_RETURN(auto staged, arena_->Stage(version, bases_, /*stream=*/nullptr, kStageDeadline));
  const uint64_t digest = CombineDigests(staged.digests);
  return Staged{staged.version, std::move(staged.digests), digest, staged.seconds + gathering};
}

}  // namespace syncopate::trainer
