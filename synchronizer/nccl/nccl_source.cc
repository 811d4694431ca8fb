#include "synchronizer/nccl/nccl_source.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/reasons.h"
#include "base/status.h"
#include "synchronizer/nccl/rendezvous.h"
#include "synchronizer/plan/layout_text.h"
#include "synchronizer/superseded.h"
#include "synchronizer/transport/split_copies.h"

namespace syncopate::synchronizer {
namespace {

absl::Status Superseded() { return SupersededError("the send slot was taken for a newer version; join that"); }

}  // namespace

absl::Status NcclSource::Options::Validate() const {
  SYNCOPATE_RETURN_IF_ERROR(rounds.Validate());
  SYNCOPATE_RETURN_IF_ERROR(worker.Validate());
  if (rank >= 0 && manifest != nullptr && facts.version > 0 && !facts.gpu.empty()) return absl::OkStatus();
  return Error(absl::StatusCode::kInvalidArgument, "BAD_OPTIONS",
               "a source needs a rank, a manifest, and its NCCL version and GPU");
}

absl::StatusOr<std::unique_ptr<NcclSource>> NcclSource::Create(const Options& options, StagedMemory* memory,
                                                               nccl::GroupWorker::DeviceFactory device, NewId new_id) {
  SYNCOPATE_RETURN_IF_ERROR(options.Validate());
  return std::unique_ptr<NcclSource>(new NcclSource(options, memory, std::move(device), std::move(new_id)));
}

absl::StatusOr<std::string> NcclSource::Open(const Prepare& attempt) {
  Opened opened;
  opened.prepare = attempt;
  opened.deadline = options_.worker.clock->Now() + attempt.deadline;
  opened.superseded = std::make_shared<std::atomic<bool>>(false);
  auto mark = [flag = opened.superseded] { *flag = true; };
  if (!attempt.rehearsal) {
    SYNCOPATE_ASSIGN_OR_RETURN(opened.version, memory_->Pin(attempt.version, mark));
  }
  // Making communicators takes seconds, so a group that is used again keeps its communicators. Every member reports
  // whether it still has them; new ids are needed only if one has not.
  const std::string kept = Keeps(attempt.group) ? attempt.group : "";
  // Source rank 0 makes the ids at which a new group meets.
  if (options_.rank == 0 && kept.empty()) {
    SYNCOPATE_ASSIGN_OR_RETURN(opened.ids, IdsFor(attempt));
  }
  std::string rendezvous = nccl::Rendezvous{options_.facts.version, options_.facts.gpu, kept, opened.ids}.ToString();
  MutexLock lock(&mutex_);
  opened_[attempt.attempt] = std::move(opened);
  return rendezvous;
}

bool NcclSource::Keeps(const std::string& group) {
  MutexLock lock(&mutex_);
  return worker_.Has(group) && lost_group_ != group;
}

absl::StatusOr<std::vector<nccl::UniqueId>> NcclSource::IdsFor(const Prepare& attempt) {
  nccl::GroupShape shape{attempt.sources, attempt.receivers, 1};
  if (!attempt.destination_layout.empty()) {
    SYNCOPATE_ASSIGN_OR_RETURN(Layout destination, BuildLayout(*options_.manifest, attempt.destination_layout));
    shape.world = destination.ranks();
  }
  std::vector<nccl::UniqueId> ids;
  {
    MutexLock lock(&mutex_);
    // NCCL keeps a listening socket of this process for each id until the id is used, so unused ids are taken first.
    size_t count = std::min(spare_ids_.size(), static_cast<size_t>(shape.communicators()));
    ids.assign(spare_ids_.end() - static_cast<int64_t>(count), spare_ids_.end());
    spare_ids_.resize(spare_ids_.size() - count);
  }
  while (static_cast<int32_t>(ids.size()) < shape.communicators()) {
    SYNCOPATE_ASSIGN_OR_RETURN(nccl::UniqueId id, new_id_());
    ids.push_back(id);
  }
  return ids;
}

absl::Status NcclSource::Start(const Transfer& attempt, std::function<void(absl::Status)> on_done) {
  absl::Status checked = nccl::CheckMembers(attempt.sources, attempt.receivers, attempt.group);
  {
    MutexLock lock(&mutex_);
    // Another member has lost the group. At the next attempt this source must not report that it keeps the group;
    // otherwise no new one would be formed.
    lost_group_ = ErrorReason(checked) == reason::kGroupLost ? attempt.group : "";
  }
  SYNCOPATE_RETURN_IF_ERROR(checked);
  if (attempt.sources.empty() || attempt.receivers.empty()) {
    return Error(absl::StatusCode::kUnavailable, "PEER_LOST", "the attempt has no source or no receiver");
  }
  SYNCOPATE_ASSIGN_OR_RETURN(Opened opened, TakeToStart(attempt.attempt));
  SYNCOPATE_ASSIGN_OR_RETURN(nccl::Rendezvous first, nccl::Rendezvous::Parse(attempt.sources.front().rendezvous));
  const int32_t world = std::max(attempt.receivers.front().id.world, 1);
  SYNCOPATE_ASSIGN_OR_RETURN(std::shared_ptr<const PlannedLayouts> planned, PlanFor(opened.prepare, world));
  const bool rehearsal = opened.prepare.rehearsal;
  if (!rehearsal && planned->plan.send_bytes(options_.rank) > opened.version->bytes()) {
    return Error(absl::StatusCode::kFailedPrecondition, reason::kPlanMismatch,
                 absl::StrFormat("the plan sends %d bytes, %d are staged; stage for the receivers' layout",
                                 planned->plan.send_bytes(options_.rank), opened.version->bytes()));
  }
  nccl::GroupShape shape{static_cast<int32_t>(attempt.sources.size()),
                         static_cast<int32_t>(attempt.receivers.size()) / world, world};
  nccl::GroupWorker::Job job;
  job.attempt = attempt.attempt;
  job.group = attempt.group;
  job.ids = std::move(first.ids);
  // Receivers may have dropped out since the ids were made.
  KeepSpareIds(job.ids, shape.communicators());
  job.plan =
      nccl::PlanOfSource(shape, options_.rank,
                         CopiesFor(*planned, opened.prepare.subset, attempt.receivers.front().base), options_.rounds);
  job.warm_up = nccl::WarmUp(job.plan, shape, /*source=*/true, nccl::GroupDevice::kScratchBytes);
  if (rehearsal) {
    // A rehearsal only connects.
    job.plan.rounds.clear();
  } else {
    job.base = const_cast<char*>(opened.version->data());  // a source only reads it
  }
  job.deadline = opened.deadline;
  // The callback keeps the version pinned until the last byte has been sent. If its slot was taken meanwhile, the sent
  // bytes are wrong although NCCL reported no error.
  job.done = [version = opened.version, superseded = opened.superseded, on_done = std::move(on_done)](
                 const absl::Status& status) { on_done(status.ok() && *superseded ? Superseded() : status); };
  worker_.Submit(std::move(job));
  return absl::OkStatus();
}

void NcclSource::KeepSpareIds(std::vector<nccl::UniqueId>& ids, int32_t needed) {
  if (options_.rank != 0) return;
  MutexLock lock(&mutex_);
  for (; static_cast<int32_t>(ids.size()) > needed; ids.pop_back()) spare_ids_.push_back(ids.back());
}

absl::StatusOr<NcclSource::Opened> NcclSource::TakeToStart(int64_t attempt) {
  MutexLock lock(&mutex_);
  auto found = opened_.find(attempt);
  if (found == opened_.end() || found->second.started) {
    return Error(absl::StatusCode::kFailedPrecondition, reason::kNotPrepared,
                 absl::StrFormat("attempt %d is not open for sending", attempt));
  }
  found->second.started = true;
  return found->second;
}

absl::StatusOr<std::shared_ptr<const PlannedLayouts>> NcclSource::PlanFor(const Prepare& attempt, int32_t world) {
  MutexLock lock(&mutex_);
  return plans_.Get({attempt.source_layout, attempt.sources, attempt.destination_layout, world});
}

std::vector<Copy> NcclSource::CopiesFor(const PlannedLayouts& planned, const Subset& subset, bool base) const {
  if (base) return planned.plan.copies();
  std::vector<Copy> copies;
  // All receivers have the base weights, so only the adapters are sent. Receivers cut the same list from the same plan.
  for (int32_t slice = 0; slice < planned.plan.destinations(); ++slice) {
    std::vector<Copy> sent = Split(*options_.manifest, planned.destination, slice, planned.plan.CopiesTo(slice),
                                   subset.adapters, /*base=*/false)
                                 .sent;
    copies.insert(copies.end(), sent.begin(), sent.end());
  }
  return copies;
}

void NcclSource::Close(int64_t attempt) {
  Opened closed;  // unpins the version without the lock
  {
    MutexLock lock(&mutex_);
    auto found = opened_.find(attempt);
    if (found == opened_.end()) return;
    closed = std::move(found->second);
    opened_.erase(found);
    // No member was told to meet at the ids of an attempt that never started.
    if (!closed.started) spare_ids_.insert(spare_ids_.end(), closed.ids.begin(), closed.ids.end());
  }
  if (closed.started) worker_.Cancel(attempt, Error(absl::StatusCode::kAborted, "CLOSED", "the attempt has ended"));
}

}  // namespace syncopate::synchronizer
