#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "base/trajectory.h"
#include "trainer/data/sample_choice.h"
#include "trainer/data/training_sums.h"

// What the trainer remembers about its data: records of its log, in the order of events, and the position that a
// checkpoint contains. Plain; how they look on disk is the codec's business.
namespace syncopate::trainer {

using SharedGroup = std::shared_ptr<const TrajectoryGroup>;

enum class DropReason : uint8_t {
  kFiltered = 1,    // all rewards equal and such groups are replaced: the prompt is done with
  kFailed = 2,      // failed too often: the prompt is done with
  kStale = 3,       // cannot be trained within the bound any more: the prompt is leased again
  kRolledBack = 4,  // made by versions that a restore undid: the prompt is leased again
  kSkipped = 5,     // its row is no prompt: never leased, and done with
  // The trainer waited for it and its deadline alone, and OnDeadline::kDrop was asked for: the prompt is done with.
  kPastDeadline = 6,
};
const char* DropReasonName(
    DropReason reason);  // "filtered", "failed", "dropped_stale", "rolled_back", "skipped", "past_deadline"

// Whether the prompt of a group dropped for this reason goes back to the queue.
constexpr bool LeasedAgain(DropReason reason) {
  return reason == DropReason::kStale || reason == DropReason::kRolledBack;
}

// A group that may be acknowledged once this record is durable.
struct AcceptedRecord {
  PolicyVersion admitted = {};  // what the gate admitted its lease for
  SharedGroup group = {};
};

// The step that produces `produces` trains exactly these groups. Durable before the step begins.
struct TakeRecord {
  PolicyVersion produces;
  std::vector<LeaseId> groups = {};  // ordered by prompt
  // It trains the answers of the data: these prompts were never leased, and the log contains no group of them.
  bool supervised = false;
};

struct DropRecord {
  LeaseId lease;
  DropReason reason = DropReason::kFiltered;
  // What was dropped, for those who look at it; null if it was not answered. The log has neither.
  SharedGroup group = {};
  PromptOrigin origin = {};
};

using LogRecord = std::variant<AcceptedRecord, TakeRecord, DropRecord>;

// The data position inside a checkpoint, valid together with the log. Prompts below `next` that are neither consumed
// nor accepted in the log wait to be leased again; they need no list.
struct DataState {
  GroupId next = {};                         // first prompt never leased
  GroupId consumed_below = {};               // every group below it is consumed: trained, or dropped for good
  std::vector<GroupId> consumed_above = {};  // consumed groups at or above consumed_below, ascending
  std::map<GroupId, int32_t> attempts = {};  // leases issued so far, of groups not consumed
  std::vector<LeaseId> accepted = {};        // which attempt counted, of the groups consumed last, in that order
  TrainingSums sums = {};
  friend bool operator==(const DataState&, const DataState&) = default;
};

}  // namespace syncopate::trainer
