#include "synchronizer/cuda/cuda_send_arena.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "cuda/cuda_status.h"
#include "cuda/device.h"
#include "synchronizer/cuda/findings.h"
#include "synchronizer/superseded.h"
#include "synchronizer/transport/send_arena.h"

namespace syncopate::synchronizer {
namespace {

// The numbers that each operation writes, by arena byte; elements count from the operation's first.
std::vector<TypedRange> GetNumbers(const Manifest& manifest, const std::vector<PackOp>& ops) {
  std::vector<TypedRange> numbers;
  for (const PackOp& op : ops) {
    // The range extends from the first to the last byte of the operation; gaps between its rows belong to other
    // operations, which have ranges of their own.
    const int64_t last_row = op.rows == 1 ? 0 : (op.rows - 1) * op.send_stride;
    const int64_t end = op.send_offset + last_row + op.row_elements * DTypeBytes(op.to);
    numbers.push_back({{op.send_offset, end}, op.to, manifest.tensors()[op.tensor].name});
  }
  std::sort(numbers.begin(), numbers.end(),
            [](const TypedRange& a, const TypedRange& b) { return a.range.begin < b.range.begin; });
  return numbers;
}

template <typename Item>
absl::StatusOr<cuda::DeviceBuffer> Upload(int device, const std::vector<Item>& items, const std::string& what) {
  const int64_t bytes = static_cast<int64_t>(items.size() * sizeof(Item));
  SYNCOPATE_ASSIGN_OR_RETURN(cuda::DeviceBuffer buffer, cuda::DeviceBuffer::Create(device, bytes, what));
  if (bytes == 0) return buffer;
  SYNCOPATE_RETURN_IF_ERROR(cuda::CudaStatus(
      cudaMemcpy(buffer.data(), items.data(), static_cast<size_t>(bytes), cudaMemcpyHostToDevice), "loading " + what));
  return buffer;
}

absl::Status Superseded() {
  return SupersededError("the send slot was needed for a newer version; the next attempt brings that one");
}

}  // namespace

class CudaSendArena::Reader final : public DeviceReader {
 public:
  Reader(CudaSendArena* arena, Slot* slot, std::shared_ptr<const cuda::CudaArena> memory, uint64_t occupancy,
         std::function<void()> on_superseded)
      : arena_(arena),
        slot_(slot),
        memory_(std::move(memory)),
        occupancy_(occupancy),
        on_superseded_(std::move(on_superseded)) {}
  ~Reader() override { arena_->Unpin(slot_, occupancy_, this); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  absl::Status Read(ByteRange range, char* to) override { return arena_->Read(slot_, occupancy_, range, to); }
  const cuda::CudaArena& arena() const override { return *memory_; }
  absl::Status CheckCurrent() const override { return arena_->CheckCurrent(slot_, occupancy_); }
  const std::function<void()>& on_superseded() const { return on_superseded_; }

 private:
  CudaSendArena* const arena_;
  Slot* const slot_;
  const std::shared_ptr<const cuda::CudaArena> memory_;  // also of a superseded reader whose slot has left the device
  const uint64_t occupancy_;
  const std::function<void()> on_superseded_;
};

absl::Status CudaSendArena::Options::Validate() const {
  if (slots >= 1 && slots <= 16) return absl::OkStatus();
  return Error(absl::StatusCode::kInvalidArgument, "BAD_OPTIONS",
               absl::StrFormat("%d send slots: 1 to 16 are possible", slots));
}

absl::StatusOr<std::unique_ptr<CudaSendArena>> CudaSendArena::Create(const Manifest& manifest, const SyncPlan& plan,
                                                                     int32_t source, const Options& options) {
  SYNCOPATE_RETURN_IF_ERROR(options.Validate());
  SYNCOPATE_RETURN_IF_ERROR(cuda::CheckGpu(options.device));
  const std::vector<PackOp>& ops = plan.pack(source);
  std::vector<ByteRange> buckets = plan.StagedBuckets(source);
  const StageProgram program = MakeStageProgram(ops, buckets);
  std::unique_ptr<CudaSendArena> arena(
      new CudaSendArena(manifest.fingerprint(), plan.send_bytes(source),
                        options.lends_base ? SendArena::LendableBytes(manifest, plan) : 0, std::move(buckets),
                        plan.StagedAdapters(manifest, source), GetNumbers(manifest, ops), options));
  SYNCOPATE_RETURN_IF_ERROR(arena->Allocate(program, manifest));
  return arena;
}

absl::Status CudaSendArena::Allocate(const StageProgram& program, const Manifest& manifest) {
  const int device = options_.device;
  cuda::DeviceScope scope(device);
  SYNCOPATE_ASSIGN_OR_RETURN(gpu_, cuda::ReadGpuUuid(device));
  if (base_bytes_ > 0 && options_.base != nullptr) {
    SYNCOPATE_CHECK(options_.base->bytes() == base_bytes_);
    base_ = options_.base;
  } else if (base_bytes_ > 0) {
    SYNCOPATE_ASSIGN_OR_RETURN(base_,
                               cuda::CudaArena::Create(base_bytes_, {device, /*chunk_bytes=*/0, "the base weights"}));
  }
  {
    MutexLock lock(&mutex_);
    slots_.resize(options_.slots);
    for (Slot& slot : slots_) {
      SYNCOPATE_ASSIGN_OR_RETURN(slot.arena, MakeSlotMemory());
    }
  }
  blocks_ = BlocksThatFill(device);
  // Loaded now: a kernel that is loaded at its first launch would stall that training step.
  SYNCOPATE_RETURN_IF_ERROR(cuda::CudaStatus(LoadPackKernels(), "loading the stage's kernels"));
  SYNCOPATE_ASSIGN_OR_RETURN(copies_, cuda::Stream::Create(device));
  SYNCOPATE_ASSIGN_OR_RETURN(begun_, cuda::Event::Create(device, cuda::Event::Timing::kOn));
  SYNCOPATE_ASSIGN_OR_RETURN(read_, cuda::Event::Create(device));
  SYNCOPATE_ASSIGN_OR_RETURN(done_, cuda::Event::Create(device, cuda::Event::Timing::kOn));
  return LoadTables(program, manifest);
}

absl::StatusOr<std::unique_ptr<cuda::CudaArena>> CudaSendArena::MakeSlotMemory() const {
  // A rank that sends nothing still needs an address that peers can ask for.
  const int64_t bytes = std::max<int64_t>(send_bytes_, Manifest::kAlignment);
  const cuda::CudaArena::Options options{options_.device, options_.chunk_bytes, "the send arena"};
  return base_ != nullptr ? cuda::CudaArena::CreateBehind(base_, bytes, options)
                          : cuda::CudaArena::Create(bytes, options);
}

absl::StatusOr<CudaSendArena::Work> CudaSendArena::LoadWork(int device, const StageProgram& program) {
  const std::string what = "the stage's tables";
  Work work;
  SYNCOPATE_ASSIGN_OR_RETURN(work.vectors, Upload(device, program.vectors, what));
  SYNCOPATE_ASSIGN_OR_RETURN(work.elements, Upload(device, program.elements, what));
  SYNCOPATE_ASSIGN_OR_RETURN(work.words, Upload(device, program.words, what));
  work.vector_items = static_cast<int64_t>(program.vectors.size());
  work.element_items = static_cast<int64_t>(program.elements.size());
  work.word_items = static_cast<int64_t>(program.words.size());
  return work;
}

absl::Status CudaSendArena::LoadTables(const StageProgram& program, const Manifest& manifest) {
  const int device = options_.device;
  const std::string what = "the stage's tables";
  const auto tensors = static_cast<int64_t>(manifest.tensors().size());
  const int64_t findings = static_cast<int64_t>(buckets_.size() + 1) * 8;
  SYNCOPATE_ASSIGN_OR_RETURN(all_, LoadWork(device, program));
  StageProgram adapters = program;
  const auto is_base = [&manifest](const auto& item) { return !manifest.tensors()[item.tensor].adapter; };
  std::erase_if(adapters.vectors, is_base);
  std::erase_if(adapters.elements, is_base);
  std::erase_if(adapters.words, [this](const CheckItem& item) { return !adapters_[static_cast<size_t>(item.digest)]; });
  SYNCOPATE_ASSIGN_OR_RETURN(adapters_alone_, LoadWork(device, adapters));
  SYNCOPATE_ASSIGN_OR_RETURN(tables_.bases, cuda::DeviceBuffer::Create(device, tensors * 8, what));
  SYNCOPATE_ASSIGN_OR_RETURN(tables_.findings, cuda::DeviceBuffer::Create(device, findings, what));
  SYNCOPATE_ASSIGN_OR_RETURN(tables_.host_bases, cuda::PinnedBuffer::Create(tensors * 8));
  SYNCOPATE_ASSIGN_OR_RETURN(tables_.host_findings, cuda::PinnedBuffer::Create(findings));
  return absl::OkStatus();
}

CudaSendArena::~CudaSendArena() {
  // Kernels that were launched and not awaited still write to the slots.
  constexpr absl::Duration kDeadline = absl::Seconds(10);
  if (staging_.has_value()) done_.Wait(kDeadline, "ending a stage").IgnoreError();
  MutexLock lock(&mutex_);
  for (const Slot& slot : slots_) SYNCOPATE_CHECK(slot.readers.empty() && slot.copies == 0);
}

int64_t CudaSendArena::scratch_bytes() const {
  return all_.bytes() + adapters_alone_.bytes() + tables_.bases.bytes() + tables_.findings.bytes();
}

absl::Status CudaSendArena::Launch(PolicyVersion version, const ShardBases& bases, cudaStream_t stream) {
  if (staging_.has_value()) {
    return Error(absl::StatusCode::kFailedPrecondition, "STAGING",
                 absl::StrFormat("version %s is still being staged", staging_->version.ToString()));
  }
  SYNCOPATE_CHECK(static_cast<int64_t>(bases.size()) * 8 == tables_.bases.bytes());
  {
    MutexLock lock(&mutex_);
    if (version <= newest_) {
      return Error(absl::StatusCode::kFailedPrecondition, "VERSION_ORDER",
                   absl::StrFormat("version %s is not above %s, which was staged before", version.ToString(),
                                   newest_.ToString()));
    }
  }
  SYNCOPATE_ASSIGN_OR_RETURN(Slot* const slot, TakeSlot());
  char* memory = nullptr;
  bool adapters_alone = false;
  {
    MutexLock lock(&mutex_);
    memory = slot->arena->data();
    const bool has_adapters = std::find(adapters_.begin(), adapters_.end(), true) != adapters_.end();
    const bool has_base = base_ != nullptr ? !newest_.IsNone() : slot->has_base;
    adapters_alone = has_base && has_adapters;
    slot->has_base = adapters_alone;  // while it is overwritten
  }
  // The slot is empty now: nothing else touches its bytes, except superseded copies, whose results are not used.
  cuda::DeviceScope scope(options_.device);
  // The parameters may move between stages (a policy's state leaves the device and comes back), so each launch passes
  // their addresses.
  std::copy(bases.begin(), bases.end(), tables_.host_bases.as<uint64_t>());
  SYNCOPATE_RETURN_IF_ERROR(RunKernels(adapters_alone ? adapters_alone_ : all_, memory, stream));
  staging_ = Staging{version, slot, adapters_alone};
  return absl::OkStatus();
}

absl::Status CudaSendArena::RunKernels(const Work& work, char* arena, cudaStream_t stream) {
  const Findings findings{tables_.findings.as<uint64_t>(), tables_.findings.as<uint64_t>() + buckets_.size()};
  const uint64_t* bases = tables_.bases.as<uint64_t>();
  SYNCOPATE_RETURN_IF_ERROR(begun_.Record(stream));
  SYNCOPATE_RETURN_IF_ERROR(
      cuda::CudaStatus(cudaMemcpyAsync(tables_.bases.data(), tables_.host_bases.data(),
                                       static_cast<size_t>(tables_.bases.bytes()), cudaMemcpyHostToDevice, stream),
                       "staging weights"));
  // All work is on one stream, in this order: clear the findings, pack and check for numbers that are not finite,
  // digest what was packed, read back. Nothing waits here.
  SYNCOPATE_RETURN_IF_ERROR(ClearFindings(findings, static_cast<int64_t>(buckets_.size()), stream));
  SYNCOPATE_RETURN_IF_ERROR(cuda::CudaStatus(
      LaunchPackElements(work.elements.as<ElementItem>(), work.element_items, bases, arena, findings, blocks_, stream),
      "staging weights"));
  SYNCOPATE_RETURN_IF_ERROR(cuda::CudaStatus(
      LaunchPack(work.vectors.as<PackItem>(), work.vector_items, bases, arena, findings, blocks_, stream),
      "staging weights"));
  // What follows reads the arena alone.
  SYNCOPATE_RETURN_IF_ERROR(read_.Record(stream));
  SYNCOPATE_RETURN_IF_ERROR(cuda::CudaStatus(
      LaunchCheck(work.words.as<CheckItem>(), work.word_items, arena, findings, blocks_, stream), "digesting weights"));
  SYNCOPATE_RETURN_IF_ERROR(
      cuda::CudaStatus(cudaMemcpyAsync(tables_.host_findings.data(), tables_.findings.data(),
                                       static_cast<size_t>(tables_.findings.bytes()), cudaMemcpyDeviceToHost, stream),
                       "reading digests"));
  return done_.Record(stream);
}

absl::Status CudaSendArena::OrderAfterRead(cudaStream_t stream) const {
  cuda::DeviceScope scope(options_.device);
  return cuda::CudaStatus(cudaStreamWaitEvent(stream, read_.get(), /*flags=*/0), "ordering an update after a stage");
}

absl::StatusOr<CudaSendArena::Staged> CudaSendArena::Await(absl::Duration deadline) {
  if (!staging_.has_value()) {
    return Error(absl::StatusCode::kFailedPrecondition, "STAGING", "nothing is being staged");
  }
  absl::Status ended = done_.Wait(deadline, "staging weights");
  // The stage is still in progress and may be awaited again.
  if (ended.code() == absl::StatusCode::kDeadlineExceeded) return ended;
  const Staging staging = *std::exchange(staging_, std::nullopt);
  SYNCOPATE_RETURN_IF_ERROR(ended);
  char* memory = nullptr;
  {
    MutexLock lock(&mutex_);
    memory = staging.slot->arena->data();
  }
  const int64_t first = tables_.host_findings.as<int64_t>()[buckets_.size()];
  if (first != kAllFinite) {
    return NonFiniteError(numbers_, first, memory, options_.device, " (counted in what this rank sends of it)");
  }
  Staged staged;
  staged.version = staging.version;
  staged.digests = FinishDigests(tables_.host_findings.as<uint64_t>(), buckets_);
  for (size_t i = 0; staging.adapters_alone && i < staged.digests.size(); ++i) {
    if (!adapters_[i]) staged.digests[i] = first_digests_[i];
  }
  if (first_digests_.empty()) first_digests_ = staged.digests;
  SYNCOPATE_ASSIGN_OR_RETURN(staged.seconds, cuda::Event::SecondsBetween(begun_, done_));
  MutexLock lock(&mutex_);
  // Only now can the version be opened: before, its bytes were not known to be good.
  staging.slot->version = newest_ = staging.version;
  staging.slot->has_base = true;
  return staged;
}

absl::StatusOr<CudaSendArena::Staged> CudaSendArena::Stage(PolicyVersion version, const ShardBases& bases,
                                                           cudaStream_t stream, absl::Duration deadline) {
  SYNCOPATE_RETURN_IF_ERROR(Launch(version, bases, stream));
  return Await(deadline);
}

absl::StatusOr<CudaSendArena::Slot*> CudaSendArena::TakeSlot() {
  Slot* slot = nullptr;
  std::vector<std::function<void()>> tell;
  {
    MutexLock lock(&mutex_);
    // Prefers slots without readers, then older versions; an empty slot counts as the oldest version.
    slot = &*std::min_element(slots_.begin(), slots_.end(), [](const Slot& a, const Slot& b) {
      return std::pair(!a.readers.empty(), a.version) < std::pair(!b.readers.empty(), b.version);
    });
    superseded_readers_ += static_cast<int64_t>(slot->readers.size());
    for (const Reader* reader : slot->readers) tell.push_back(reader->on_superseded());
    slot->readers.clear();
    ++slot->occupancy;
    slot->version = PolicyVersion();
  }
  // Outside the lock: it ends a sender's NCCL calls, which call this arena.
  for (const std::function<void()>& on_superseded : tell) on_superseded();
  bool has_left = false;
  {
    MutexLock lock(&mutex_);
    // Bounded: a copy is at most one chunk, a move one slot, and no new one begins.
    auto is_unused = [slot] { return slot->copies == 0 && !slot->moving; };
    mutex_.Await(Condition(&is_unused));
    has_left = slot->arena == nullptr;
  }
  if (!has_left) return slot;
  // Its bytes are not wanted any more. Only this thread moves or stages a slot without a version.
  SYNCOPATE_ASSIGN_OR_RETURN(auto memory, MakeSlotMemory());
  MutexLock lock(&mutex_);
  slot->arena = std::move(memory);
  slot->has_base = false;
  return slot;
}

absl::StatusOr<bool> CudaSendArena::LeaveDevice() {
  if (staging_.has_value()) {
    return Error(absl::StatusCode::kFailedPrecondition, "STAGING",
                 absl::StrFormat("version %s is being staged on the device", staging_->version.ToString()));
  }
  std::vector<Slot*> leaving;
  bool all = true;
  {
    MutexLock lock(&mutex_);
    for (Slot& slot : slots_) {
      if (slot.moving || slot.copies > 0 || !slot.readers.empty()) {
        all = all && !slot.moving && slot.arena == nullptr;
        continue;
      }
      if (slot.arena == nullptr) continue;
      slot.moving = true;
      leaving.push_back(&slot);
    }
  }
  absl::Status left;
  for (Slot* slot : leaving) left.Update(MoveToHost(slot));
  SYNCOPATE_RETURN_IF_ERROR(left);
  return all;
}

absl::Status CudaSendArena::MoveToHost(Slot* slot) {
  char* memory = nullptr;
  bool is_empty = false, has_room = false;
  {
    MutexLock lock(&mutex_);
    memory = slot->arena->data();
    is_empty = slot->version.IsNone() || send_bytes_ == 0;
    has_room = slot->kept.bytes() >= own_bytes();
  }
  absl::StatusOr<cuda::PinnedBuffer> kept = cuda::PinnedBuffer();
  if (!is_empty && !has_room) kept = cuda::PinnedBuffer::Create(own_bytes());
  absl::Status copied = kept.status();
  std::shared_ptr<cuda::CudaArena> released;  // without the lock
  {
    MutexLock lock(&mutex_);
    if (copied.ok() && kept->bytes() > 0) slot->kept = *std::move(kept);
  }
  // Nobody else uses a slot that is moving.
  if (copied.ok() && !is_empty) copied = CopySlot(slot->kept.data(), memory + base_bytes_, cudaMemcpyDeviceToHost);
  MutexLock lock(&mutex_);
  slot->moving = false;
  if (copied.ok()) released = std::move(slot->arena);
  return copied;
}

absl::Status CudaSendArena::MoveToDevice(Slot* slot) {
  absl::StatusOr<std::unique_ptr<cuda::CudaArena>> memory = MakeSlotMemory();
  absl::Status copied = memory.status();
  if (copied.ok() && send_bytes_ > 0) {
    copied = CopySlot((*memory)->data() + base_bytes_, slot->kept.data(), cudaMemcpyHostToDevice);
  }
  MutexLock lock(&mutex_);
  slot->moving = false;
  if (copied.ok()) slot->arena = *std::move(memory);
  return copied;
}

absl::Status CudaSendArena::CopySlot(char* to, const char* from, cudaMemcpyKind kind) const {
  constexpr char kWhat[] = "moving a send slot between GPU and host";
  constexpr absl::Duration kDeadline = absl::Seconds(60);  // 100 GB take 2 to 4 s
  const cuda::DeviceScope scope(options_.device);
  SYNCOPATE_ASSIGN_OR_RETURN(const cuda::Stream stream,
                             cuda::Stream::Create(options_.device, cuda::Stream::Priority::kLow));
  SYNCOPATE_ASSIGN_OR_RETURN(const cuda::Event done, cuda::Event::Create(options_.device));
  SYNCOPATE_RETURN_IF_ERROR(
      cuda::CudaStatus(cudaMemcpyAsync(to, from, static_cast<size_t>(own_bytes()), kind, stream.get()), kWhat));
  SYNCOPATE_RETURN_IF_ERROR(done.Record(stream.get()));
  return done.Wait(kDeadline, kWhat);
}

void CudaSendArena::AwaitMovedLocked(Slot* slot) const {
  auto is_still = [slot] { return !slot->moving; };
  mutex_.Await(Condition(&is_still));  // bounded by CopySlot's deadline
}

int64_t CudaSendArena::device_bytes() const {
  MutexLock lock(&mutex_);
  int64_t bytes = base_bytes_;
  for (const Slot& slot : slots_) bytes += slot.arena == nullptr ? 0 : own_bytes();
  return bytes;
}

absl::StatusOr<SharedMemory> CudaSendArena::LendBase() {
  MutexLock lock(&mutex_);
  if (base_ == nullptr || newest_.IsNone()) {
    return Error(absl::StatusCode::kFailedPrecondition, "NOT_LENT", "this source has no base weights to lend");
  }
  if (lent_ != nullptr) return lent_;
  SYNCOPATE_ASSIGN_OR_RETURN(cuda::ExportedMemory exported, base_->Export());
  auto lent = std::make_shared<LentMemory>();
  lent->info = {exported.id, gpu_, std::move(exported.chunks)};
  lent->handles = std::move(exported.fds);
  return lent_ = std::move(lent);
}

absl::StatusOr<std::unique_ptr<WeightReader>> CudaSendArena::Open(PolicyVersion version) {
  SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<WeightReader> reader, Pin(version, /*on_device=*/false, [] {}));
  return reader;
}

absl::StatusOr<std::unique_ptr<DeviceReader>> CudaSendArena::OpenOnDevice(PolicyVersion version,
                                                                          std::function<void()> on_superseded) {
  SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<DeviceReader> reader,
                             Pin(version, /*on_device=*/true, std::move(on_superseded)));
  return reader;
}

absl::StatusOr<std::unique_ptr<CudaSendArena::Reader>> CudaSendArena::Pin(PolicyVersion version, bool on_device,
                                                                          std::function<void()> on_superseded) {
  constexpr int kMostMoves = 3;  // LeaveDevice() may take the slot back before this call pins it
  for (int moves = 0; !version.IsNone(); ++moves) {
    Slot* back = nullptr;
    {
      MutexLock lock(&mutex_);
      const auto slot =
          std::find_if(slots_.begin(), slots_.end(), [&version](const Slot& one) { return one.version == version; });
      if (slot == slots_.end()) break;
      AwaitMovedLocked(&*slot);
      if (slot->version != version) break;
      if (!on_device || slot->arena != nullptr) {
        auto reader = std::make_unique<Reader>(this, &*slot, slot->arena, slot->occupancy, std::move(on_superseded));
        slot->readers.push_back(reader.get());
        return reader;
      }
      if (moves == kMostMoves) break;
      slot->moving = true;
      back = &*slot;
    }
    SYNCOPATE_RETURN_IF_ERROR(MoveToDevice(back));
  }
  MutexLock lock(&mutex_);
  return Error(absl::StatusCode::kNotFound, kVersionNotStaged,
               absl::StrFormat("version %s is not staged; the newest is %s", version.ToString(), newest_.ToString()));
}

absl::Status CudaSendArena::CheckCurrent(const Slot* slot, uint64_t occupancy) const {
  MutexLock lock(&mutex_);
  return slot->occupancy == occupancy ? absl::OkStatus() : Superseded();
}

absl::Status CudaSendArena::Read(Slot* slot, uint64_t occupancy, ByteRange range, char* to) {
  if (range.begin < 0 || range.end < range.begin || range.end > send_bytes_) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_RANGE",
                 absl::StrFormat("bytes [%d, %d) of an arena of %d", range.begin, range.end, send_bytes_));
  }
  const char* own = nullptr;  // the slot's bytes from base_bytes_ on
  bool on_device = false;
  {
    MutexLock lock(&mutex_);
    AwaitMovedLocked(slot);
    if (slot->occupancy != occupancy) return Superseded();
    ++slot->copies;
    on_device = slot->arena != nullptr;
    own = on_device ? slot->arena->data() + base_bytes_ : slot->kept.data();
  }
  // A base that the slots share is on the device always.
  const ByteRange base{range.begin, std::min(range.end, base_bytes_)};
  const ByteRange rest{std::max(range.begin, base_bytes_), range.end};
  absl::Status copied;
  if (base.begin < base.end) copied = CopyToHost(to, base_->data() + base.begin, base.size());
  if (rest.begin < rest.end && copied.ok()) {
    char* const behind = to + (rest.begin - range.begin);
    const char* const from = own + (rest.begin - base_bytes_);
    if (on_device) {
      copied = CopyToHost(behind, from, rest.size());
    } else {
      std::memcpy(behind, from, static_cast<size_t>(rest.size()));
    }
  }
  MutexLock lock(&mutex_);
  --slot->copies;
  return copied;
}

absl::Status CudaSendArena::CopyToHost(char* to, const char* from, int64_t bytes) const {
  constexpr char kWhat[] = "copying weights to host memory";
  const cuda::DeviceScope scope(options_.device);
  // The target is pageable memory: the bytes have arrived when this returns.
  SYNCOPATE_RETURN_IF_ERROR(cuda::CudaStatus(
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, copies_.get()), kWhat));
  return cuda::CudaStatus(cudaStreamSynchronize(copies_.get()), kWhat);
}

void CudaSendArena::Unpin(Slot* slot, uint64_t occupancy, Reader* reader) {
  MutexLock lock(&mutex_);
  if (slot->occupancy == occupancy) std::erase(slot->readers, reader);
}

int64_t CudaSendArena::superseded_readers() const {
  MutexLock lock(&mutex_);
  return superseded_readers_;
}

}  // namespace syncopate::synchronizer
