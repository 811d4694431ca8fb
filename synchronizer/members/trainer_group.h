#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "synchronizer/messages.h"

namespace syncopate::synchronizer {

// Which processes are *the* trainer: the ranks of one start, all working in one epoch. Whoever starts last wins and
// fences the others; nobody else ever writes. Sans-IO, deterministic.
//
// A rank that starts (held epoch 0) joins the group that is forming if its rank is still free there, and begins a new
// group, with a new epoch, otherwise; so the ranks of one start may arrive in any order. A rank that reconnects says
// which epoch it works in. Only the epoch is durable: after a restart of the synchronizer the group is empty, running
// ranks come back by their epoch, and a rank that starts gets a new one.
class TrainerGroup {
 public:
  struct Admission {
    int64_t epoch = 0;             // the rank works in this one
    bool raised = false;           // the epoch is new: make it durable before telling anybody
    std::vector<MemberId> fenced;  // ranks of the group before, no longer the trainer
  };

  // `epoch`: the highest one ever allocated; 0 if none.
  explicit TrainerGroup(int64_t epoch) : epoch_(epoch) {}

  // FAILED_PRECONDITION reason FENCED if the rank works in a lower epoch, or in this one while another process holds
  // its place. `checkpoint_epoch`: the highest epoch found in the run directory; a new epoch is above it.
  absl::StatusOr<Admission> Admit(const MemberId& id, int64_t held_epoch, int64_t checkpoint_epoch);

  // The rank has gone for good (dead, left, evicted). A place that was filled once is not filled by another start.
  void Remove(const MemberId& id);

  int64_t epoch() const { return epoch_; }
  bool Contains(const MemberId& id) const;
  // All ranks of the group in rank order, or nothing while one of them is missing.
  std::vector<MemberId> CompleteRanks() const;

 private:
  Admission Begin(const MemberId& id, int64_t epoch);

  int64_t epoch_;
  bool forming_ = false;  // begun in this life of the synchronizer: free places may be filled by ranks that start
  int32_t world_ = 0;
  struct Place {
    MemberId id;
    bool present = false;
  };
  std::map<int32_t, Place> places_;  // by rank
};

}  // namespace syncopate::synchronizer
