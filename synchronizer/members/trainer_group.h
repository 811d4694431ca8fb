#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/manifest.h"
#include "synchronizer/messages.h"

namespace syncopate::synchronizer {

// Decides which processes are the trainer: the ranks of one start, all working in one epoch. The latest start wins and
// fences the earlier ones, which can never write again. Sans-IO, deterministic.
//
// The ranks of one start share its name and arrive in any order. A rank that starts (`held_epoch` 0) joins the group if
// the group has the same name and the rank's place has never been filled. A rank of another start begins a new group
// with a new epoch, unless its start has been fenced already. So if two starts run at the same time, the one whose
// first rank arrives last wins completely, and their ranks never mix. A rank that reconnects reports the epoch in which
// it works. Only the epoch is durable: after a restart of the synchronizer the group is empty. Running ranks then come
// back by their epoch. A rank that starts joins them if it has their name, otherwise it gets a new epoch.
class TrainerGroup {
 public:
  struct Admission {
    int64_t epoch = 0;             // the epoch in which the rank works
    bool raised = false;           // the epoch is new: make it durable before any member learns it
    std::vector<MemberId> fenced;  // ranks of the previous group, which are no longer the trainer
  };

  // `epoch`: the highest one ever allocated; 0 if none.
  explicit TrainerGroup(int64_t epoch) : epoch_(epoch) {}

  // FAILED_PRECONDITION reason FENCED if the rank works in a lower epoch, if another process of its start has had its
  // place, or if its start was fenced. `start`: the name that all ranks of one start share, and no other start has.
  // `checkpoint_epoch`: the highest epoch found in the run directory; a new epoch is above it.
  absl::StatusOr<Admission> Admit(const MemberId& id, const std::string& start, int64_t held_epoch,
                                  int64_t checkpoint_epoch);

  // Call when the rank is gone for good (dead, left, evicted). Its place stays taken: no starting process may fill it.
  void Remove(const MemberId& id);

  int64_t epoch() const { return epoch_; }
  bool Contains(const MemberId& id) const;
  // All ranks of the group in rank order; empty while one of them is missing.
  std::vector<MemberId> CompleteRanks() const;

 private:
  static constexpr size_t kFencedKept = 64;

  Admission Begin(const MemberId& id, const std::string& start, int64_t epoch);

  int64_t epoch_;
  std::string start_;               // name of the group's start; "" before the first join in this process
  std::deque<std::string> fenced_;  // names of starts whose ranks may not join any more, the newest last
  int32_t world_ = 0;
  struct Place {
    MemberId id;
    bool present = false;
  };
  std::map<int32_t, Place> places_;  // by rank
};

// Manifest::CheckSame (FAILED_PRECONDITION reason MODEL_MISMATCH), with the reason DTYPE_MISMATCH if the models differ
// in dtypes alone.
absl::Status CheckSameModel(const Manifest& ours, const Manifest& theirs);

// OK if there are no adapters, or if they are ascending, disjoint ranges of the model's tensors and base_digest is not
// 0; else INVALID_ARGUMENT reason BAD_SUBSET.
absl::Status CheckSubset(const Subset& subset, const Manifest& model);

}  // namespace syncopate::synchronizer
