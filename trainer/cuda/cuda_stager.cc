#include "trainer/cuda/cuda_stager.h"

#include <utility>
#include <vector>

#include "base/digest.h"
#include "base/status.h"
#include "synchronizer/plan/layout_text.h"

namespace syncopate::trainer {
namespace {

// The kernels take milliseconds: whoever waits longer waits for a GPU that does not answer.
constexpr absl::Duration kStageDeadline = absl::Seconds(30);
// One rank that holds every parameter in float32, whatever they travel in.
constexpr char kSourceLayout[] = "replicated:1:fp32";

// Where each tensor of the policy's float32 arena lies.
std::vector<const void*> Addresses(const PolicyTrainer& policy) {
  std::vector<const void*> addresses;
  for (const ByteRange& range : policy.manifest().ranges()) {
    addresses.push_back(static_cast<const char*>(policy.device_parameters()) + range.begin);
  }
  return addresses;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaStager>> CudaStager::Create(const PolicyTrainer* policy, Manifest wire, int device,
                                                               int slots) {
  SYNCOPATE_CHECK(wire.tensors().size() == policy->manifest().tensors().size());
  SYNCOPATE_ASSIGN_OR_RETURN(auto source, synchronizer::BuildLayout(wire, kSourceLayout));
  SYNCOPATE_ASSIGN_OR_RETURN(
      auto plan, synchronizer::SyncPlan::Create(wire, source, synchronizer::Layout::Whole(wire, /*ranks=*/1)));
  SYNCOPATE_ASSIGN_OR_RETURN(
      auto arena, synchronizer::CudaSendArena::Create(wire, plan, /*source=*/0, {.device = device, .slots = slots}));
  auto bases = synchronizer::SplitShard(source, /*rank=*/0, Addresses(*policy));
  return std::unique_ptr<CudaStager>(
      new CudaStager(std::move(wire), std::move(plan), std::move(bases), slots, std::move(arena)));
}

absl::StatusOr<CudaStager::Staged> CudaStager::Stage(const PolicyVersion& version) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto staged, arena_->Stage(version, bases_, /*stream=*/nullptr, kStageDeadline));
  const uint64_t digest = CombineDigests(staged.digests);
  return Staged{staged.version, std::move(staged.digests), digest, staged.seconds};
}

}  // namespace syncopate::trainer
