#include "synchronizer/cuda/cuda_arena_pair.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "cuda/cuda_arena.h"
#include "cuda/device.h"

namespace syncopate::synchronizer {
namespace {

absl::Status Unmapped(const absl::Status& cause) {
  return Error(absl::StatusCode::kInternal, "WEIGHTS_UNMAPPED",
               absl::StrCat("the weights' memory could not be mapped again (", cause.message(),
                            "): nothing can serve here any more; restart this process"));
}

absl::Status Released() {
  return Error(absl::StatusCode::kFailedPrecondition, "RELEASED", "the weights' memory has been given back");
}

}  // namespace

// Two blocks of memory and two ranges of addresses. An install exchanges which block is mapped at which range: no byte
// moves, and CUDA graphs, which contain addresses, stay valid. Between Exchange() and MapShadow() both ranges map the
// block that serves: memory may be mapped more than once, so Exchange() leaves the shadow's range as it is.
absl::StatusOr<cuda::GpuMemoryBlock> RemappableArenas::MakeBlock(int64_t bytes, const Options& options,
                                                                 bool of_shadow) {
  const char* const what =
      of_shadow ? "the shadow arena (sync.install: in_place does without)" : "the live weights' arena";
  return cuda::GpuMemoryBlock::Create(options.device, bytes, options.chunk_bytes, what, options.driver);
}

absl::StatusOr<std::unique_ptr<RemappableArenas>> RemappableArenas::Create(int64_t bytes, const Options& options) {
  std::vector<cuda::GpuMemoryBlock> blocks;
  SYNCOPATE_ASSIGN_OR_RETURN(cuda::GpuMemoryBlock first, MakeBlock(bytes, options, /*of_shadow=*/false));
  blocks.push_back(std::move(first));
  const int64_t mapped = blocks[0].bytes();
  SYNCOPATE_ASSIGN_OR_RETURN(cuda::AddressRange live, cuda::AddressRange::Reserve(mapped, options.driver));
  SYNCOPATE_ASSIGN_OR_RETURN(cuda::AddressRange shadow, cuda::AddressRange::Reserve(mapped, options.driver));
  std::unique_ptr<RemappableArenas> arenas(
      new RemappableArenas(options, bytes, std::move(blocks), std::move(live), std::move(shadow)));
  arenas->mapped_bytes_ = mapped;
  SYNCOPATE_RETURN_IF_ERROR(arenas->MapLive(0));
  SYNCOPATE_RETURN_IF_ERROR(cuda::ZeroGpuMemory(options.device, arenas->live(), mapped));
  if (!options.shadow_later) SYNCOPATE_RETURN_IF_ERROR(arenas->AddShadow());
  return arenas;
}

absl::Status RemappableArenas::AddShadow() {
  if (blocks_.size() == 2) return absl::OkStatus();  // an engine is made again
  SYNCOPATE_CHECK(blocks_.size() == 1);
  SYNCOPATE_ASSIGN_OR_RETURN(cuda::GpuMemoryBlock second, MakeBlock(bytes_, options_, /*of_shadow=*/true));
  blocks_.push_back(std::move(second));
  SYNCOPATE_RETURN_IF_ERROR(MapShadow());
  return cuda::ZeroGpuMemory(options_.device, shadow(), mapped_bytes_);
}

// Whole blocks: who maps the spare one elsewhere uses all of it.
absl::Status RemappableArenas::MapAndZero() {
  SYNCOPATE_RETURN_IF_ERROR(MapAs(0));
  SYNCOPATE_RETURN_IF_ERROR(cuda::ZeroGpuMemory(options_.device, live(), mapped_bytes_));
  return cuda::ZeroGpuMemory(options_.device, shadow(), mapped_bytes_);
}

absl::Status RemappableArenas::Release() {
  if (broken_) return Unmapped(absl::InternalError("it failed before"));
  cuda::DeviceScope scope(options_.device);
  SYNCOPATE_RETURN_IF_ERROR(live_.Unmap());
  SYNCOPATE_RETURN_IF_ERROR(shadow_.Unmap());
  blocks_.clear();
  return absl::OkStatus();
}

absl::Status RemappableArenas::Restore() {
  if (!released()) return absl::OkStatus();
  std::vector<cuda::GpuMemoryBlock> blocks;
  for (const bool of_shadow : {false, true}) {
    SYNCOPATE_ASSIGN_OR_RETURN(cuda::GpuMemoryBlock block, MakeBlock(bytes_, options_, of_shadow));
    blocks.push_back(std::move(block));
  }
  blocks_ = std::move(blocks);
  const absl::Status mapped = MapAndZero();
  if (!mapped.ok()) Release().IgnoreError();  // `mapped` has the error
  return mapped;
}

absl::StatusOr<cuda::ExportedMemory> RemappableArenas::ExportShadow() const {
  if (released()) return Released();
  return blocks_[1 - live_block_].Export();
}

absl::Status RemappableArenas::MapAs(int live) {
  SYNCOPATE_RETURN_IF_ERROR(MapLive(live));
  return MapShadow();
}

absl::Status RemappableArenas::MapLive(int live) {
  cuda::DeviceScope scope(options_.device);
  SYNCOPATE_RETURN_IF_ERROR(live_.Unmap());
  SYNCOPATE_RETURN_IF_ERROR(live_.Map(blocks_[live], options_.device));
  live_block_ = live;
  return absl::OkStatus();
}

absl::Status RemappableArenas::MapShadow() {
  if (released()) return Released();
  if (broken_) return Unmapped(absl::InternalError("it failed before"));
  if (shadow_.mapped() && shadow_block_ != live_block_) return absl::OkStatus();
  cuda::DeviceScope scope(options_.device);
  SYNCOPATE_RETURN_IF_ERROR(shadow_.Unmap());
  SYNCOPATE_RETURN_IF_ERROR(shadow_.Map(blocks_[1 - live_block_], options_.device));
  shadow_block_ = 1 - live_block_;
  return absl::OkStatus();
}

absl::Status RemappableArenas::UnmapShadow() {
  cuda::DeviceScope scope(options_.device);
  return shadow_.Unmap();
}

absl::Status RemappableArenas::Exchange() {
  if (broken_) return Unmapped(absl::InternalError("it failed before"));
  absl::Status exchanged = MapLive(1 - live_block_);
  if (exchanged.ok()) return exchanged;
  // MapLive() sets live_block_ only after it has mapped, so this is still the old block.
  absl::Status restored = MapAs(live_block_);
  if (restored.ok()) return Annotate(exchanged, "the install was undone");
  broken_ = true;
  return Unmapped(exchanged);
}

absl::StatusOr<std::unique_ptr<CudaArenaPair>> CudaArenaPair::Create(int64_t bytes, BetweenSteps between_steps,
                                                                     const Options& options) {
  SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<RemappableArenas> arenas, RemappableArenas::Create(bytes, options.arenas));
  SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<CudaShadowChecker> checker,
                             CudaShadowChecker::Create({options.arenas.device, options.max_check_blocks}));
  return std::unique_ptr<CudaArenaPair>(
      new CudaArenaPair(std::move(arenas), std::move(checker), std::move(between_steps)));
}

PolicyVersion CudaArenaPair::serving() const {
  MutexLock lock(&mutex_);
  return serving_;
}

uint64_t CudaArenaPair::shadow_id() const {
  MutexLock lock(&mutex_);
  return arenas_->shadow_id();
}

absl::StatusOr<cuda::ExportedMemory> CudaArenaPair::ExportShadow() const {
  MutexLock lock(&mutex_);
  return arenas_->ExportShadow();
}

absl::StatusOr<InstallResult> CudaArenaPair::Install(const PolicyVersion& version, uint64_t, absl::Duration deadline) {
  auto remap = [this, &version] {
    MutexLock lock(&mutex_);
    SYNCOPATE_RETURN_IF_ERROR(arenas_->Exchange());
    serving_ = version;
    return absl::OkStatus();
  };
  SYNCOPATE_ASSIGN_OR_RETURN(absl::Duration pause, between_steps_(remap, deadline));
  return InstallResult{absl::ToDoubleSeconds(pause)};
}

void CudaArenaPair::RestoreShadow() {
  MutexLock lock(&mutex_);
  const absl::Status mapped = arenas_->MapShadow();
  // The next check tries again and returns the error.
  if (!mapped.ok()) SYNCOPATE_LOG(kError, "the shadow arena: %s", std::string(mapped.message()));
}

char* CudaArenaPair::shadow() {
  RestoreShadow();
  return arenas_->shadow();
}

absl::StatusOr<InstallResult> CudaArenaPair::Relabel(const PolicyVersion& version, absl::Duration) {
  MutexLock lock(&mutex_);
  serving_ = version;
  return InstallResult();
}

absl::StatusOr<std::unique_ptr<ShadowCheck>> CudaArenaPair::BeginCheck(ShadowContents contents) {
  {
    MutexLock lock(&mutex_);
    SYNCOPATE_RETURN_IF_ERROR(arenas_->MapShadow());
  }
  return checker_->Begin(arenas_->shadow(), std::move(contents));
}

}  // namespace syncopate::synchronizer
