#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/manifest.h"
#include "base/mutex.h"
#include "synchronizer/nccl/group_plan.h"
#include "synchronizer/nccl/group_worker.h"
#include "synchronizer/nccl/nccl_receiver.h"
#include "synchronizer/nccl/staged_memory.h"
#include "synchronizer/transport/plan_cache.h"
#include "synchronizer/transport/transport.h"

namespace syncopate::synchronizer {

// The source's end of the transport "nccl": sends its part of a staged version to all receivers of an attempt, on a
// thread of its own. Source rank 0 makes the ids by which the members of a new group meet. Thread-safe.
//
// If the trainer takes the memory for a newer version meanwhile, messages under way are still sent to their end, so
// that no communicator is lost. This source then reports ABORTED reason SUPERSEDED, and receivers find that the digests
// differ.
class NcclSource final : public SourceTransport {
 public:
  using NewId = std::function<absl::StatusOr<nccl::UniqueId>()>;

  struct Options {
    int32_t rank = -1;  // rank among the sources; must be set
    std::shared_ptr<const Manifest> manifest;
    NcclFacts facts;
    nccl::RoundOptions rounds;
    nccl::GroupWorker::Options worker;

    absl::Status Validate() const;  // INVALID_ARGUMENT reason BAD_OPTIONS
  };

  // `memory` is borrowed.
  static absl::StatusOr<std::unique_ptr<NcclSource>> Create(const Options& options, StagedMemory* memory,
                                                            nccl::GroupWorker::DeviceFactory device, NewId new_id);

  std::string name() const override { return "nccl"; }
  absl::StatusOr<std::string> Open(const Prepare& attempt) override;
  // Errors: see NcclReceiver::Receive, here returned or passed to `on_done`.
  absl::Status Start(const Transfer& attempt, std::function<void(absl::Status)> on_done) override;
  void Close(int64_t attempt) override;

 private:
  // The state of an attempt between Open and Close.
  struct Opened {
    Prepare prepare;
    absl::Time deadline;
    std::shared_ptr<StagedVersion> version;  // a transfer under way shares it; null in a rehearsal
    std::shared_ptr<std::atomic<bool>> superseded;
    bool started = false;
    std::vector<nccl::UniqueId> ids;  // made for this attempt
  };

  NcclSource(const Options& options, StagedMemory* memory, nccl::GroupWorker::DeviceFactory device, NewId new_id)
      : options_(options),
        memory_(memory),
        new_id_(std::move(new_id)),
        plans_(options.manifest),
        worker_(std::move(device), options.worker) {}

  bool Keeps(const std::string& group);
  absl::StatusOr<std::vector<nccl::UniqueId>> IdsFor(const Prepare& attempt);
  absl::StatusOr<std::shared_ptr<const PlannedLayouts>> PlanFor(const Prepare& attempt, int32_t world);
  // The messages of all pairs, in the receivers' view: all weights, or only the adapters.
  std::vector<Copy> CopiesFor(const PlannedLayouts& planned, const Subset& subset, bool base) const;
  // Keeps unused ids: if fewer receivers take part than were asked, fewer communicators than ids may be needed.
  void KeepSpareIds(std::vector<nccl::UniqueId>& ids, int32_t needed);
  absl::StatusOr<Opened> TakeToStart(int64_t attempt);

  const Options options_;
  StagedMemory* const memory_;
  const NewId new_id_;

  Mutex mutex_;
  PlanCache plans_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, Opened> opened_ ABSL_GUARDED_BY(mutex_);  // by attempt
  std::string lost_group_ ABSL_GUARDED_BY(mutex_);            // a group that some member does not keep any more
  // Ids that no member was told to use. NCCL listens at each id until the process ends, so they are reused.
  std::vector<nccl::UniqueId> spare_ids_ ABSL_GUARDED_BY(mutex_);

  nccl::GroupWorker worker_;  // last: ends before the members that its jobs use
};

}  // namespace syncopate::synchronizer
