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

// Which processes are *the* trainer: the ranks of one start, all working in one epoch. Whoever starts last wins and
// fences the others; nobody else ever writes. Sans-IO, deterministic.
//
// The ranks of one start have its name in common, and arrive in any order. A rank that starts (held epoch 0) joins the
// group if that has the same name and its place there has never been filled. A rank of another start begins a new
// group, with a new epoch, unless its start has been fenced already: so of two starts at the same time the one that is
// heard of last wins whole, and ranks of both never mix. A rank that reconnects says which epoch it works in. Only the
// epoch is durable: after a restart of the synchronizer the group is empty, running ranks come back by their epoch, and
// a rank that starts joins them if it has their name, else gets a new epoch.
class TrainerGroup {
 public:
  struct Admission {
    int64_t epoch = 0;             // the rank works in this one
    bool raised = false;           // the epoch is new: make it durable before telling anybody
    std::vector<MemberId> fenced;  // ranks of the group before, no longer the trainer
  };

  // `epoch`: the highest one ever allocated; 0 if none.
  explicit TrainerGroup(int64_t epoch) : epoch_(epoch) {}

  // FAILED_PRECONDITION reason FENCED if the rank works in a lower epoch, if another process of its start has had its
  // place, or if its start was fenced. `start`: the name that all ranks of one start have in common, and no other
  // start. `checkpoint_epoch`: the highest epoch found in the run directory; a new epoch is above it.
  absl::StatusOr<Admission> Admit(const MemberId& id, const std::string& start, int64_t held_epoch,
                                  int64_t checkpoint_epoch);

  // The rank has gone for good (dead, left, evicted). A place that was filled once is not filled by another start.
  void Remove(const MemberId& id);

  int64_t epoch() const { return epoch_; }
  bool Contains(const MemberId& id) const;
  // All ranks of the group in rank order, or nothing while one of them is missing.
  std::vector<MemberId> CompleteRanks() const;

 private:
  static constexpr size_t kFencedKept = 64;

  Admission Begin(const MemberId& id, const std::string& start, int64_t epoch);

  int64_t epoch_;
  std::string start_;               // of the group's ranks; "" while nobody has joined in this life
  std::deque<std::string> fenced_;  // starts whose ranks may not join any more, the newest last
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

// OK if there are no adapters, or they are ascending, disjoint ranges of the model's tensors and the base weights have
// a name; else INVALID_ARGUMENT reason BAD_SUBSET.
absl::Status CheckSubset(const Subset& subset, const Manifest& model);

}  // namespace syncopate::synchronizer
