#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>

#include "base/trajectory.h"
#include "trainer/data/records.h"

namespace syncopate::trainer {

// The order in which prompts are leased, which of them are done with, and how often each was leased. Prompts come in
// ascending order; one that is put back is leased before all new ones, the lowest first. A consumed prompt is
// remembered for ever: as a low watermark plus the exceptions above it, so memory is bounded by what is outstanding.
// Which attempt at it was accepted is remembered of the kRemembered that were consumed last. Plain state, no lock.
class PromptQueue {
 public:
  static constexpr size_t kRemembered = 65536;

  struct Options {
    int64_t prompts_per_pass = 0;  // 0: one endless pass
    int64_t max_groups = 0;        // prompts of the whole run; 0: endless
  };

  explicit PromptQueue(const Options& options, const DataState& state = {});

  // The prompt that is leased next; none when the data have ended (those put back included, but for those that rest).
  std::optional<GroupId> Head() const;
  // Takes the head off and names its next attempt. Head() has a value.
  LeaseId Lease();
  // Names one more attempt at a prompt that is leased. It is below next() and neither waiting nor consumed.
  LeaseId NextAttempt(const GroupId& group);
  // Puts back the prompt of a lease without result. It is below next() and neither waiting nor consumed.
  void PutBack(const GroupId& group);
  // A waiting prompt is passed over until Wake(). Checkpoints do not store this: after a restore it waits like the
  // others.
  void Rest(const GroupId& group);
  void Wake(const GroupId& group);
  int64_t resting() const { return static_cast<int64_t>(resting_.size()); }

  // The prompt is consumed: it is never leased again.
  void Consume(const GroupId& group);
  // Consumes the group because this attempt at it was accepted.
  void ConsumeAccepted(const LeaseId& lease);
  // True if this attempt was accepted and is among the kRemembered groups that were consumed last.
  bool WasAccepted(const LeaseId& lease) const;
  bool IsConsumed(const GroupId& group) const;

  // Leases issued of this prompt so far; 0 for new and for consumed ones.
  int32_t Attempts(const GroupId& group) const;

  // Restoring: the log knows of this attempt. Prompts that are thereby passed over wait to be leased.
  void SawAttempt(const LeaseId& lease);
  // Restoring: this prompt is accepted, so it does not wait. Undone by PutBack.
  void MarkAccepted(const GroupId& group);

  const GroupId& next() const { return next_; }
  int64_t waiting() const { return static_cast<int64_t>(put_back_.size() + resting_.size()); }
  DataState State() const;

 private:
  GroupId After(const GroupId& group) const;
  bool Ended() const;  // no new prompts
  void Remember(const LeaseId& lease);

  Options options_;
  GroupId next_;
  std::set<GroupId> put_back_;
  std::set<GroupId> resting_;  // put back too, but not to be leased yet
  GroupId consumed_below_;
  std::set<GroupId> consumed_above_;
  std::map<GroupId, int32_t> attempts_;
  std::deque<GroupId> remembered_;                // in the order of consumption
  std::map<GroupId, int32_t> accepted_attempts_;  // of those
};

}  // namespace syncopate::trainer
