#include "trainer/staging/host_stager.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/string_view.h"
#include "base/half.h"
#include "base/status.h"
#include "synchronizer/plan/layout_text.h"
#include "synchronizer/plan/sync_plan.h"

namespace syncopate::trainer {
namespace {

// Puts pieces of a float32 tensor one behind the other, in the dtype of the place.
class PiecePacker {
 public:
  PiecePacker(DType dtype, char* place) : dtype_(dtype), place_(place) {}

  void Add(absl::string_view piece) {
    if (dtype_ == DType::kFloat32) {
      std::memcpy(place_, piece.data(), piece.size());
      place_ += piece.size();
      return;
    }
    const auto* numbers = reinterpret_cast<const float*>(piece.data());
    const size_t count = piece.size() / sizeof(float);
    std::transform(numbers, numbers + count, reinterpret_cast<uint16_t*>(place_), RoundToBFloat16);
    place_ += count * sizeof(uint16_t);
  }

 private:
  const DType dtype_;
  char* place_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HostStager>> HostStager::Create(Policy* policy, Manifest wire, int slots,
                                                               const std::string& destination) {
  SYNCOPATE_CHECK(wire.tensors().size() == policy->manifest().tensors().size());
  if (!destination.empty()) {
    const synchronizer::Layout source = synchronizer::Layout::FlatShards(wire, /*ranks=*/1);
    SYNCOPATE_ASSIGN_OR_RETURN(const synchronizer::Layout receivers, synchronizer::BuildLayout(wire, destination));
    SYNCOPATE_ASSIGN_OR_RETURN(const synchronizer::SyncPlan plan,
                               synchronizer::SyncPlan::Create(wire, source, receivers));
    const int64_t bytes = wire.arena_bytes();
    SYNCOPATE_ASSIGN_OR_RETURN(
        auto arena, synchronizer::SendArena::CreateForPlan(std::move(wire), plan, /*source=*/0, {.slots = slots}));
    std::unique_ptr<HostStager> stager(new HostStager(policy, std::move(arena), slots));
    stager->whole_ = synchronizer::HostBuffer(bytes);
    stager->pack_ = plan.pack(0);
    return stager;
  }
  SYNCOPATE_ASSIGN_OR_RETURN(auto arena, synchronizer::SendArena::Create(std::move(wire), {.slots = slots}));
  return std::unique_ptr<HostStager>(new HostStager(policy, std::move(arena), slots));
}

absl::StatusOr<HostStager::Staged> HostStager::Stage(const PolicyVersion& version) {
  return arena_->Stage(version, [this](char* arena) -> absl::Status {
    if (pack_.empty()) return WriteWeights(arena);
    SYNCOPATE_RETURN_IF_ERROR(WriteWeights(whole_.data()));
    synchronizer::PackOnHost(pack_, whole_.data(), arena);
    return absl::OkStatus();
  });
}

absl::Status HostStager::WriteWeights(char* arena) const {
  for (size_t i = 0; i < manifest().tensors().size(); ++i) {
    PiecePacker packer(manifest().tensors()[i].dtype, arena + manifest().ranges()[i].begin);
    SYNCOPATE_RETURN_IF_ERROR(policy_->WriteTensor(PolicyPart::kParameters, i, [&packer](absl::string_view piece) {
      packer.Add(piece);
      return absl::OkStatus();
    }));
  }
  return absl::OkStatus();
}

}  // namespace syncopate::trainer
