#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/trajectory.h"
#include "rollouter/reward/remote_scorer.h"
#include "rollouter/reward/reward.h"
#include "rollouter/reward/reward_formula.h"

namespace syncopate::rollouter {

// What a run makes of answers: its formula, resolved. Immutable.
struct RewardPlan {
  struct Term {
    RewardTerm term;
    RewardFunction function;  // of built-in ones
  };
  std::vector<Term> terms;
  bool reads_text = false;
  TextDecoder decode;  // null if nothing reads text

  // Errors of ParseRewardFormula and RewardRegistry::Find; INVALID_ARGUMENT (reason NO_TEXT) if a term reads text and
  // `decode` is null. What it finds in `registry` is copied.
  static absl::StatusOr<RewardPlan> Create(const std::string& formula, const RewardRegistry& registry,
                                           TextDecoder decode);
};

// How rewards outside this process are asked, and what stays undecided counts.
struct ScoringRules {
  absl::Duration timeout = absl::Seconds(30);      // of one call
  int32_t attempts = 3;                            // calls that fail before the group does
  absl::Duration pause = absl::Milliseconds(200);  // between them
  bool undecided_fails = false;                    // else it counts as the reward said
  std::string judge = {};                          // Python reward that decides; "": nobody
  // INVALID_ARGUMENT (reason BAD_OPTIONS).
  absl::Status Validate() const;
};

// One group on its way from its tokens to its rewards.
//
//   each term:   (built in) judged
//                (remote)   waits -> called -> judged
//                             ^---- failed, or no answer within the timeout; `attempts` times, then the group fails
//   While the remote is away its terms wait, for `timeout` at most; then the group is handed back unharmed. While it has
//   its hands full they wait for as long as it takes.
//   Undecided answers of a term wait for the judge in the same way.
//
// Sans-IO: events in, actions out; no thread, lock or clock. Equal events give equal actions.
class GroupScore {
 public:
  enum class Remote : uint8_t { kHttp, kPython };
  struct Call {
    Remote to = Remote::kPython;
    RemoteItem item;
  };
  struct Actions {
    std::vector<Call> calls;
    std::vector<std::pair<Remote, std::string>> cancels;  // ids of items
  };
  // Asked before a call: RemoteScorer::Availability.
  using Availability = std::function<absl::Status(Remote, const std::string& reward)>;

  // `id` begins the ids of its items. `plan` must outlive it.
  GroupScore(std::string id, Lease lease, TrajectoryGroup group, const RewardPlan* plan, const ScoringRules& rules);

  // Judges what needs nobody else: decodes, computes. Call it once, first, where it may take milliseconds.
  void JudgeBuiltIn(absl::Time now);
  // The time has come, or availability has changed.
  Actions OnTick(absl::Time now, const Availability& availability);
  // The answer to a call; of calls that are over, nothing.
  void OnAnswer(const std::string& item, const absl::StatusOr<RemoteScorer::Rewards>& rewards, absl::Time now);

  // Done: the group with its rewards and their parts, or
  //   INTERNAL (reason REWARD_FAILED)         a reward failed, hung, or was no number: the prompt's or the code's
  //   fault UNAVAILABLE (reason SCORER_AWAY)        nobody's fault
  bool done() const { return !failure_.ok() || waiting_.empty(); }
  // Call once, when it is done. Cancels of what is under way come with the last OnTick or from here.
  absl::StatusOr<TrajectoryGroup> Finish();
  std::vector<std::pair<Remote, std::string>> UnderWay() const;
  // When OnTick is due; InfiniteFuture while only answers or availability can change something.
  absl::Time NextTick() const;

 private:
  // Samples of one term that somebody else judges.
  struct Waiting {
    size_t term = 0;
    Remote to = Remote::kPython;
    std::string reward;
    bool judges = false;  // decides what was undecided
    std::vector<int32_t> samples;
    int32_t failures = 0;
    std::string called;  // id of the item under way; "" while it waits
    absl::Time due;      // called: when its time is up; else when it may be called; InfiniteFuture: when there is room
    absl::Time since;    // not called: since when it waits for a remote that is away; InfiniteFuture if it is there
  };
  using Components = std::map<std::string, std::vector<float>>;  // by sample; NaN where none was given

  RewardInput MakeInput(int32_t sample, const RewardRow& row) const;
  void OnFailure(Waiting* waiting, const absl::Status& why, absl::Time now);
  void Keep(Waiting* waiting, int32_t sample, const RemoteReward& reward);
  RemoteItem MakeItem(const Waiting& waiting);
  void Fail(const std::string& part, const absl::Status& why);

  const std::string id_;
  const Lease lease_;
  TrajectoryGroup group_;
  const RewardPlan* const plan_;
  const ScoringRules rules_;
  std::vector<std::string> texts_;          // by sample; empty if nothing reads text
  std::vector<std::vector<float>> values_;  // [term][sample]
  Components components_;                   // of remote rewards, "part/name"
  std::vector<Waiting> waiting_;
  absl::Status failure_;
  int64_t calls_ = 0;
};

}  // namespace syncopate::rollouter
