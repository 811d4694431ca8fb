#include "synchronizer/cuda/cuda_shared_base.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/manifest.h"
#include "base/status.h"
#include "cuda/cuda_arena.h"
#include "cuda/device.h"

namespace syncopate::synchronizer {
namespace {

constexpr int64_t kStep = Manifest::kMappingBytes;
// More times would make the stand-in smaller, and each costs a call of the driver.
constexpr int64_t kStandInTimes = 32;

int64_t RoundUp(int64_t bytes) { return (bytes + kStep - 1) / kStep * kStep; }

absl::Status Unmappable(const std::string& why) {
  return Error(absl::StatusCode::kFailedPrecondition, "BASE_UNMAPPABLE",
               absl::StrCat("the base weights that the trainer lends cannot be mapped: ", why));
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaSharedBase>> CudaSharedBase::Create(const Options& options) {
  SYNCOPATE_CHECK(options.ranges > 0 && options.base_bytes > 0 && options.base_bytes % kStep == 0);
  SYNCOPATE_CHECK(options.rest_bytes > 0);
  SYNCOPATE_ASSIGN_OR_RETURN(cuda::GpuFacts facts, cuda::ReadGpuFacts(options.device));
  std::unique_ptr<CudaSharedBase> memory(new CudaSharedBase(options, std::move(facts.gpu_uuid)));
  for (int32_t i = 0; i < options.ranges; ++i) {
    const int64_t rest = RoundUp(options.rest_bytes);
    SYNCOPATE_ASSIGN_OR_RETURN(cuda::AddressRange range, cuda::AddressRange::Reserve(options.base_bytes + rest));
    memory->bases_.push_back(range.Part(0, options.base_bytes));
    memory->rests_.push_back(range.Part(options.base_bytes, rest));
    memory->ranges_.push_back(std::move(range));
  }
  SYNCOPATE_RETURN_IF_ERROR(memory->Restore(/*own_base=*/false));
  if (options.maps) SYNCOPATE_RETURN_IF_ERROR(memory->MapStandIn());
  return memory;
}

void CudaSharedBase::CountOwnBytes() {
  const int64_t base = base_ == Base::kOwn ? options_.base_bytes : base_ == Base::kStandIn ? stand_in_bytes_ : 0;
  own_bytes_ = base + (has_rests_ ? options_.ranges * options_.rest_bytes : int64_t{0});
}

absl::Status CudaSharedBase::UnmapBase() {
  const cuda::DeviceScope scope(options_.device);
  for (cuda::AddressRange& base : bases_) SYNCOPATE_RETURN_IF_ERROR(base.Unmap());
  base_ = Base::kNone;
  loan_ = FileDescriptor();  // this process's part of the memory has ended
  CountOwnBytes();
  return absl::OkStatus();
}

absl::Status CudaSharedBase::MapBase(const std::vector<Piece>& pieces, Base state) {
  SYNCOPATE_RETURN_IF_ERROR(UnmapBase());
  const cuda::DeviceScope scope(options_.device);
  for (cuda::AddressRange& base : bases_) {
    for (const Piece& piece : pieces) {
      for (int64_t i = 0; i < piece.times; ++i) {
        const absl::Status mapped = base.MapBehind(*piece.block, options_.device);
        if (mapped.ok()) continue;
        UnmapBase().IgnoreError();  // `mapped` has the error
        return mapped;
      }
    }
  }
  base_ = state;
  CountOwnBytes();
  return absl::OkStatus();
}

absl::Status CudaSharedBase::MapStandIn() {
  const int64_t steps = options_.base_bytes / kStep;
  const int64_t times =
      std::clamp(options_.base_bytes / std::max(options_.stand_in_bytes, kStep), int64_t{1}, kStandInTimes);
  const int64_t rest = steps % times;
  std::vector<cuda::GpuMemoryBlock> blocks;
  for (const int64_t size : {steps / times, rest}) {
    if (size == 0) continue;
    SYNCOPATE_ASSIGN_OR_RETURN(cuda::GpuMemoryBlock block,
                               cuda::GpuMemoryBlock::Create(options_.device, size * kStep, /*chunk_bytes=*/0,
                                                            "a stand-in for the base weights"));
    blocks.push_back(std::move(block));
  }
  stand_in_bytes_ = (steps / times + rest) * kStep;
  std::vector<Piece> pieces = {{&blocks.front(), times}};
  if (rest > 0) pieces.push_back({&blocks.back(), 1});
  SYNCOPATE_RETURN_IF_ERROR(MapBase(pieces, Base::kStandIn));
  return cuda::ZeroGpuMemory(options_.device, range(0), options_.base_bytes);
}

absl::Status CudaSharedBase::Release(bool keep_lent) {
  const cuda::DeviceScope scope(options_.device);
  for (cuda::AddressRange& rest : rests_) SYNCOPATE_RETURN_IF_ERROR(rest.Unmap());
  has_rests_ = false;
  CountOwnBytes();
  return keep_lent && base_ == Base::kLent ? absl::OkStatus() : UnmapBase();
}

absl::Status CudaSharedBase::Restore(bool own_base) {
  const bool had_rests = has_rests_;
  absl::Status restored = RestoreRests();
  if (restored.ok() && base_ == Base::kNone && (own_base || !options_.maps)) restored = Own();
  if (restored.ok() || had_rests) return restored;
  const cuda::DeviceScope scope(options_.device);
  for (cuda::AddressRange& rest : rests_) rest.Unmap().IgnoreError();  // `restored` has the error
  has_rests_ = false;
  CountOwnBytes();
  return restored;
}

absl::Status CudaSharedBase::RestoreRests() {
  if (has_rests_) return absl::OkStatus();
  const cuda::DeviceScope scope(options_.device);
  for (cuda::AddressRange& rest : rests_) {
    SYNCOPATE_ASSIGN_OR_RETURN(
        const cuda::GpuMemoryBlock block,
        cuda::GpuMemoryBlock::Create(options_.device, options_.rest_bytes, /*chunk_bytes=*/0, "an adapter set"));
    SYNCOPATE_RETURN_IF_ERROR(rest.Map(block, options_.device));
    SYNCOPATE_RETURN_IF_ERROR(cuda::ZeroGpuMemory(options_.device, rest.data(), options_.rest_bytes));
  }
  has_rests_ = true;
  CountOwnBytes();
  return absl::OkStatus();
}

absl::Status CudaSharedBase::Map(LentMemory memory) {
  if (memory.info.device != gpu_) {
    return Unmappable(absl::StrCat("they are on ", memory.info.device.empty() ? "the host" : memory.info.device,
                                   ", and this rollouter's are on ", gpu_));
  }
  if (memory.info.bytes() != options_.base_bytes) {
    return Unmappable(absl::StrCat("they have ", memory.info.bytes(), " bytes instead of ", options_.base_bytes));
  }
  const cuda::DeviceScope scope(options_.device);
  cuda::ExportedMemory exported;
  exported.id = memory.info.id;
  exported.chunks = std::move(memory.info.chunks);
  exported.fds = std::move(memory.handles);
  SYNCOPATE_ASSIGN_OR_RETURN(const cuda::GpuMemoryBlock block, cuda::GpuMemoryBlock::Import(exported));
  SYNCOPATE_RETURN_IF_ERROR(MapBase({{&block, 1}}, Base::kLent));
  loan_ = std::move(memory.loan);
  return absl::OkStatus();
}

absl::Status CudaSharedBase::Own() {
  if (base_ == Base::kOwn) return absl::OkStatus();
  SYNCOPATE_RETURN_IF_ERROR(UnmapBase());
  SYNCOPATE_ASSIGN_OR_RETURN(
      const cuda::GpuMemoryBlock block,
      cuda::GpuMemoryBlock::Create(options_.device, options_.base_bytes, /*chunk_bytes=*/0, "the base weights"));
  SYNCOPATE_RETURN_IF_ERROR(MapBase({{&block, 1}}, Base::kOwn));
  return cuda::ZeroGpuMemory(options_.device, range(0), options_.base_bytes);
}

}  // namespace syncopate::synchronizer
