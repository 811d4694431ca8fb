#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/trajectory.h"
#include "rollouter/reward/remote_scorer.h"
#include "rollouter/reward/reward.h"
#include "rollouter/reward/reward_formula.h"

namespace syncopate::rollouter {

// The resolved reward formula of a run. Immutable.
struct RewardPlan {
  struct Term {
    RewardTerm term;
    RewardFunction function;  // set for built-in terms only
  };
  std::vector<Term> terms;
  bool reads_text = false;
  TextDecoder decode;  // null if no term reads text

  // Resolves `formula`. Errors of ParseRewardFormula and RewardRegistry::Find; INVALID_ARGUMENT (reason NO_TEXT) if a
  // term reads text and `decode` is null. The plan keeps copies of the functions in `registry`.
  static absl::StatusOr<RewardPlan> Create(const std::string& formula, const RewardRegistry& registry,
                                           TextDecoder decode);
};

// How rewards outside this process are called, and how an undecided answer counts.
struct ScoringRules {
  // The time limit of one call, and of waiting for a remote that is away.
  absl::Duration timeout = absl::Seconds(30);
  int32_t attempts = 3;                            // the number of failed calls after which the group fails
  absl::Duration pause = absl::Milliseconds(200);  // the pause between two calls
  // True: an undecided answer fails the group; false: it counts as the built-in reward said.
  bool undecided_fails = false;
  std::string judge = {};  // the Python reward that decides undecided answers; "" for none
  // INVALID_ARGUMENT (reason BAD_OPTIONS) unless timeout and attempts are positive and pause is not negative.
  absl::Status Validate() const;
};

// The scoring of one group, from its tokens to its rewards.
//
//   each term:   (built in) judged
//                (remote)   waits -> called -> judged
//                             ^---- failed, or no answer within the timeout; `attempts` times, then the group fails
//   While the remote is away its terms wait, for `timeout` at most; then the group fails with SCORER_AWAY. While the
//   remote is busy (RESOURCE_EXHAUSTED) its terms wait without a limit. A call that the remote refused (kScorerRefused)
//   has not failed: its term waits again, and when the remote is back it lets terms of other groups go first.
//   The undecided answers of a built-in term wait for the judge by the same rules.
//
// Sans-IO: events in, actions out; no thread, lock or clock. Equal events give equal actions.
class GroupScore {
 public:
  enum class Remote : uint8_t { kHttp, kPython, kJudge };
  struct Call {
    Remote to = Remote::kPython;
    RemoteItem item;
  };
  struct Actions {
    std::vector<Call> calls;
    std::vector<std::pair<Remote, std::string>> cancels;  // ids of items
  };
  // The query made before each call; answers as RemoteScorer::Availability does.
  using Availability = std::function<absl::Status(Remote, const std::string& reward)>;

  // The ids of the items begin with `id`. `plan` must outlive this object.
  GroupScore(std::string id, Lease lease, TrajectoryGroup group, const RewardPlan* plan, const ScoringRules& rules);

  // Decodes the samples and computes the built-in terms. Call it once, before any other method, on a thread where it
  // may take milliseconds.
  void JudgeBuiltIn(absl::Time now);
  // Call when NextTick is due or availability has changed. Returns the calls to make and to cancel.
  Actions OnTick(absl::Time now, const Availability& availability);
  // The answer to the call `item`. An answer to a call that is over has no effect.
  void OnAnswer(const std::string& item, const absl::StatusOr<RemoteScorer::Rewards>& rewards, absl::Time now);

  // True once Finish may be called. Finish returns the group with its rewards and their parts, or
  //   INTERNAL (reason REWARD_FAILED)    a reward failed, timed out or was not a valid number: the fault of the prompt
  //                                      or of the reward's code
  //   UNAVAILABLE (reason SCORER_AWAY)   a remote stayed away for `timeout`: nothing is wrong with the group
  bool done() const { return !failure_.ok() || waiting_.empty(); }
  // Call once, when done() is true. Then cancel the calls in UnderWay().
  absl::StatusOr<TrajectoryGroup> Finish();
  // The remote and the item id of each call that is in progress.
  std::vector<std::pair<Remote, std::string>> UnderWay() const;
  // The time at which OnTick is due; InfiniteFuture while only an answer or a change of availability matters.
  absl::Time NextTick() const;

 private:
  // The samples of one term that a remote must judge.
  struct Waiting {
    size_t term = 0;
    Remote to = Remote::kPython;
    std::string reward;
    bool judges = false;  // true: the remote is the judge of undecided answers
    std::vector<int32_t> samples;
    int32_t failures = 0;
    bool refused = false;  // the remote refused the last call
    std::string called;    // the id of the item in progress; "" while the term waits
    absl::Time due;        // called: its deadline; else: when it may be called; InfiniteFuture: when there is room
    absl::Time since;      // when the remote was first found away; InfiniteFuture while it is available
  };
  using Components = std::map<std::string, std::vector<float>>;  // by sample; NaN where a sample has none

  RewardInput MakeInput(int32_t sample, const RewardRow& row) const;
  void OnFailure(Waiting* waiting, const absl::Status& why, absl::Time now);
  void Postpone(Waiting* waiting, absl::Time now) const;
  void Keep(Waiting* waiting, int32_t sample, const RemoteReward& reward);
  RemoteItem MakeItem(const Waiting& waiting);
  // The first term that finds an answer in the text says what it is.
  void KeepExtracted(int32_t sample, absl::string_view extracted);
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
