#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/trajectory.h"

namespace syncopate::trainer {

// What happens when a group that still runs is so old that it keeps a full batch from being taken. None of them trains
// a token beyond the bound.
enum class OnDeadline : uint8_t {
  kStall,  // the trainer waits for that group: nothing is thrown away
  kMask,   // the batch is taken; when that group is trained, its tokens beyond the bound have no loss
  kDrop,   // that group is revoked and its prompt consumed: no wait, and long answers are trained less often
};

// Decides when a group may be started and when a batch may be taken, so that no group is ever older than
// `max_staleness` steps when it is trained, nothing is thrown away, and training never blocks for good.
//
// Every outstanding group (running, or completed and not taken) was started with the weights of step `start` and has
// the deadline start + max_staleness: the last step at which it may be taken. With N(d) the number of outstanding
// groups whose deadline is at most d, P = batch_groups, v the trainer's step, and e = 1 between steps and 0 while a
// step runs, the gate keeps
//     N(d) <= P (d - v + e)   for all d >= v, and no deadline is before v,
// which by Hall's theorem is exactly the condition under which some schedule of P groups a step meets all deadlines.
//   admit  iff outstanding < (target_staleness + e) P and the new group's deadline keeps the invariant;
//   take   the P completed groups of earliest deadline, iff afterwards N(d) <= P (d - v) for all d >= v.
// With OnDeadline::kMask the bound is on tokens and kept by the loss, so a group has no deadline and there is no such
// invariant:
//   admit  iff outstanding < (target_staleness + e) P and a token made now could still be trained by the next batch;
//   take   the P completed groups of earliest start.
// target_staleness sets what is outstanding, and so the mean: mean staleness = outstanding / P (Little's law), whatever
// the order of consumption, and on top of it what rollouters lag behind `step` when a group is admitted.
//
// Plain state: no thread, no clock, no lock. An owner that shares it holds its own lock. Memory is that of the
// outstanding groups; MayAdmit and Pick cost O(max_staleness + P).
class StalenessGate {
 public:
  struct Options {
    int64_t batch_groups = 16;    // P
    double target_staleness = 1;  // batches outstanding during a step; may be a fraction; at most max_staleness
    int64_t max_staleness = 4;    // the bound, in steps; 0 is strictly on-policy
    OnDeadline on_deadline = OnDeadline::kStall;

    absl::Status Validate() const;  // INVALID_ARGUMENT (reason BAD_OPTIONS)
  };

  // `options` have been validated. The gate starts between steps, at `step`.
  explicit StalenessGate(const Options& options, int64_t step = 0);
  virtual ~StalenessGate() = default;

  // Whether one group may be started by a rollouter that serves the weights of `start`.
  bool MayAdmit(int64_t start) const;
  // Checks the bound alone, without the limit that sets the mean staleness.
  bool Fits(int64_t start) const;
  // Whether an answer that was completed before a restore may be outstanding again.
  bool MayKeep(int64_t start) const;
  // MayAdmit(start) or, when restoring, MayKeep(start) holds, and `group` is not outstanding.
  void Admit(const GroupId& group, int64_t start);

  // The group's answer is complete and durable: it may be taken. It is outstanding and running.
  void Complete(const GroupId& group);

  // The group is filtered, failed or lost: it is outstanding no more.
  void Release(const GroupId& group);

  // The batch that may be trained now: `size` completed groups (P of them unless the data end), earliest deadline first
  // and among equals the lowest prompt. Empty: wait. Changes nothing.
  std::vector<GroupId> Pick() const { return Pick(options_.batch_groups); }
  std::vector<GroupId> Pick(int64_t size) const;

  // The step that produces version step()+1 begins with `batch`, as picked, or replayed from a log (then empty).
  void BeginStep(const std::vector<GroupId>& batch);
  // The step of BeginStep is done: step() rises by one.
  void EndStep();

  // The running group whose deadline keeps a full batch from being taken, if that is what the trainer waits for.
  std::optional<GroupId> Blocker() const;
  // The running group of earliest deadline, among equals the lowest prompt.
  std::optional<GroupId> EarliestRunning() const;

  int64_t step() const { return step_; }
  bool training() const { return training_; }
  int64_t outstanding() const { return static_cast<int64_t>(groups_.size()); }
  int64_t completed() const { return static_cast<int64_t>(completed_.size()); }
  // The least start of the outstanding groups; step() if there are none.
  int64_t OldestStart() const;
  bool IsOutstanding(const GroupId& group) const { return groups_.contains(group); }
  int64_t GetDeadline(const GroupId& group) const { return groups_.at(group).start + options_.max_staleness; }
  const Options& options() const { return options_; }

 protected:
  // Outstanding groups by deadline.
  using Deadlines = std::map<int64_t, int64_t>;
  // The two checks of the proof are separate functions, so that a test can show that neither can be left out.
  virtual bool KeepsBoundAtAdmission(const Deadlines& with_new_group) const;
  virtual bool KeepsBoundAtTake(const Deadlines& without_batch) const;

 private:
  struct Entry {
    int64_t start = 0;
    bool completed = false;
  };

  // N(d) <= P (d - step + slack) for all d >= step, and nothing is overdue.
  bool HallHolds(const Deadlines& deadlines, int64_t slack) const;
  void Remove(const GroupId& group);

  Options options_;
  int64_t step_ = 0;
  bool training_ = false;
  std::map<GroupId, Entry> groups_;
  Deadlines deadlines_;
  std::set<std::pair<int64_t, GroupId>> completed_;  // by deadline, then by prompt
};

}  // namespace syncopate::trainer
