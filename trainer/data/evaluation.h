#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "trainer/data/evaluation_figures.h"
#include "trainer/data/group_ledger.h"
#include "trainer/data/prompts.h"
#include "trainer/data/rollout_sessions.h"
#include "trainer/data/submission_check.h"

namespace syncopate::trainer {

struct EvaluationResult {
  struct Sample {
    std::vector<int32_t> prompt_ids;
    std::vector<int32_t> answer_ids;
    std::vector<int32_t> expected_ids;  // none where only the reward knows
    std::string row_json;               // of a data file; empty for built-in tasks
    float reward = 0;
  };
  PolicyVersion version;
  int64_t asked = 0;       // prompts
  int64_t prompts = 0;     // of them, those that were answered and judged
  double reward_mean = 0;  // of those; 0 without any
  // Share of answers that are wholly right, of prompts with answer ids; none without any.
  std::optional<double> exact = std::nullopt;
  EvaluationFigures figures = {};
  std::vector<Sample> samples = {};  // the first prompts, for people
};

// One evaluation of one policy version: each prompt is answered once, greedily, by a rollouter that serves exactly this
// version. An answer that is lost, spoilt or made by another version is asked for again; a prompt whose reward has
// failed kMaxRewardFailures times is left out. Evaluation uses neither the staleness gate nor the log: a restarted
// trainer evaluates anew. Sans-IO, as GroupLedger.
//
// Its leases are told apart by their pass: the i-th evaluation of a trainer's life has pass -1-i, training has passes
// from 0.
class Evaluation {
 public:
  static constexpr int32_t kMaxRewardFailures = 8;

  struct Options {
    int64_t index = 0;  // counts evaluations of this trainer's life
    PolicyVersion version;
    int64_t prompts = 256;
    int64_t show_samples = 4;
    std::string reward = "dense";
    SamplingParams sampling;  // greedy: temperature 0
    uint64_t seed = 0;
    LeaseLimits lease_limits = {};
  };

  // `prompts` must outlive it; PromptSource::kEvaluationPass of it is asked.
  Evaluation(const Options& options, const PromptSource* prompts);

  static bool IsEvaluation(const LeaseId& lease) { return lease.group.pass < 0; }

  // All leases that may go out now. One takes the room of one sample. Whoever holds one takes no weights, so at most half
  // of the rollouters do at a time, if there are several; each of them no more than its share of the prompts, so that those
  // who come to serve the version a moment later find work, too. Who is quarantined or has stalled gets none.
  std::vector<IssuedLease> NextLeases(RolloutSessions* sessions, absl::Time now);
  // As GroupLedger's.
  void OnProgress(RolloutSessions* sessions, SessionId session, const LeaseId& lease, absl::Time now);
  std::vector<Revocation> ExpireLeases(RolloutSessions* sessions, absl::Time now);
  // kAccepted, kAlreadyAccepted, kExpired, or kInvalid with the reason (WRONG_VERSION, which is nobody's fault: a newer
  // version was installed meanwhile; else those of CheckSubmission); nothing is logged. Of `rules` the known steps do
  // not matter: training may have left this version behind.
  GroupLedger::Verdict Submit(SessionId session, const TrajectoryGroup& group, const SubmissionRules& rules);
  // Gives when the lease was issued; none if this session does not hold it.
  std::optional<absl::Time> Return(SessionId session, const LeaseId& lease, const absl::Status& why);
  void OnSessionLost(SessionId session);
  // Leaves out the prompts whose reward has failed: nobody is there any more to try them again.
  void LeaveOutFailed();

  bool done() const { return answered_ + failed_ == static_cast<int64_t>(asked_.size()); }
  // Every rollouter there is has gone on to a newer version, and not all prompts are answered.
  bool IsOvertaken(const RolloutSessions& sessions) const;
  // Somebody there serves the version, so that answers can be expected.
  bool IsServed(const RolloutSessions& sessions) const;
  int64_t answered() const { return answered_; }
  EvaluationResult Result() const;  // of what has been answered
  const Options& options() const { return options_; }

 private:
  enum class Stage : uint8_t { kWaiting, kLeased, kAnswered, kFailed };
  struct Asked {
    Stage stage = Stage::kWaiting;
    int32_t attempt = 0;
    int32_t reward_failures = 0;
    SessionId session = 0;
    LeaseTimes times = {};
    Prompt prompt = {};
    Trajectory answer = {};  // tokens, reward, its parts and how it ended
  };

  Lease MakeLease(int64_t ordinal) const;
  absl::Status CheckAnswer(const TrajectoryGroup& group, SubmissionRules rules) const;
  std::map<SessionId, int64_t> Held() const;  // leases by holder
  // How many rollouters may hold leases at a time.
  int64_t MostHolders(const RolloutSessions& sessions, absl::Time now) const;
  Asked* Find(const LeaseId& lease);
  bool Holds(const Asked& asked, SessionId session, const LeaseId& lease) const;

  const Options options_;
  std::vector<Asked> asked_;
  int64_t answered_ = 0;
  int64_t failed_ = 0;
};

}  // namespace syncopate::trainer
