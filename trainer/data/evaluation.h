#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "trainer/data/evaluation_figures.h"
#include "trainer/data/group_ledger.h"
#include "trainer/data/prompts.h"
#include "trainer/data/rollout_sessions.h"
#include "trainer/data/sample_choice.h"
#include "trainer/data/sampled_figures.h"
#include "trainer/data/submission_check.h"

namespace syncopate::trainer {

// One answer of an evaluation, whole.
struct EvaluatedAnswer {
  std::shared_ptr<const Prompt> prompt;
  std::string set = {};  // its name; "" of the evaluation's own prompts
  int64_t ordinal = 0;   // of the prompt, in its source
  int32_t sample = 0;
  LeaseId lease = {};
  std::string rollouter = {};
  Trajectory answer = {};
};

struct EvaluationResult {
  struct Sample {
    std::vector<int32_t> prompt_ids;
    std::vector<int32_t> answer_ids;
    std::vector<int32_t> expected_ids;  // empty if only the reward can judge the answer
    std::string row_json;               // the data file's row as JSON; empty for built-in tasks
    float reward = 0;
  };
  PolicyVersion version;
  int64_t asked = 0;       // number of prompts of the evaluation
  int64_t prompts = 0;     // number of prompts that were answered and judged
  double reward_mean = 0;  // mean over `prompts` answers; 0 without any
  // Share of the prompts with answer ids whose answer equals those ids; nullopt without such prompts.
  std::optional<double> exact = std::nullopt;
  EvaluationFigures figures = {};
  std::vector<Sample> samples = {};            // the first answered prompts, for display
  std::vector<SampledFigures> sets = {};       // of Evaluation::Options::sets, in their order
  std::vector<EvaluatedAnswer> recorded = {};  // to the prompts that Evaluation::Options::recorded takes, and the sets'
};

// Prompts that an evaluation asks beside its own, with a number of drawn answers to each.
struct EvaluationSet {
  std::string name;
  const PromptSource* source = nullptr;  // borrowed; its pass PromptSource::kEvaluationPass supplies the prompts
  int64_t prompts = 0;
  int32_t samples = 1;  // of each prompt
  std::string reward;
  SamplingParams sampling;
};

// One evaluation of one policy version: a rollouter that serves exactly this version, or has pinned it for the
// evaluation's earlier prompts (RolloutSession::pinned), answers each prompt once,
// greedily, and those of the sets as often as they ask for. The evaluation's own prompts come first. The prompt is
// leased again if its answer is lost, invalid or made by another version; a prompt whose reward has failed
// kMaxRewardFailures times is left out. An evaluation passes neither the staleness gate nor the log: a restarted
// trainer begins the evaluation again. Sans-IO, like GroupLedger.
//
// The pass number identifies the leases: the i-th evaluation of a trainer's incarnation has pass -1-i; training passes
// start at 0.
class Evaluation {
 public:
  static constexpr int32_t kMaxRewardFailures = 8;

  struct Options {
    int64_t index = 0;  // number of the evaluation within this trainer's incarnation, from 0
    PolicyVersion version;
    int64_t prompts = 256;
    int64_t show_samples = 4;
    std::string reward = "dense";
    SamplingParams sampling;  // greedy: temperature is 0
    uint64_t seed = 0;
    LeaseLimits lease_limits = {};
    std::vector<EvaluationSet> sets = {};
    SampleChoice recorded = {};  // prompts whose answers are kept whole for EvaluationResult::recorded
  };

  // `prompts` must outlive this object; its pass PromptSource::kEvaluationPass supplies the prompts.
  Evaluation(const Options& options, const PromptSource* prompts);

  static bool IsEvaluation(const LeaseId& lease) { return lease.group.pass < 0; }

  // Returns all leases that may go out now. One lease takes the room of one sample. A rollouter with an evaluation
  // lease installs no weights, so with several rollouters at most half of them get leases at a time. Each gets at most
  // its share of the prompts, so that rollouters that serve the version a moment later find work too. Rollouters that
  // are quarantined or stalled get none.
  std::vector<IssuedLease> NextLeases(RolloutSessions* sessions, absl::Time now);
  // OnProgress and ExpireLeases behave like those of GroupLedger.
  void OnProgress(RolloutSessions* sessions, SessionId session, const LeaseId& lease, absl::Time now);
  std::vector<Revocation> ExpireLeases(RolloutSessions* sessions, absl::Time now);
  // The rollouter was away (RolloutSessions::SetAway) since `since`.
  void OnBack(SessionId session, absl::Time since, absl::Time now);
  // Returns kAccepted, kAlreadyAccepted, kExpired, or kInvalid with the reason. The reason WRONG_VERSION blames no
  // rollouter (a newer version was installed meanwhile); the other reasons are those of CheckSubmission. Nothing is
  // logged. The known steps of `rules` are ignored, because training may have released this version already.
  GroupLedger::Verdict Submit(SessionId session, const TrajectoryGroup& group, const SubmissionRules& rules);
  // Puts the prompt back and returns when the lease was issued; nullopt if this session does not hold the lease.
  std::optional<absl::Time> Return(SessionId session, const LeaseId& lease, const absl::Status& why);
  void OnSessionLost(SessionId session);
  // Leaves out the open prompts whose reward has failed. Call when no rollouter remains that could try them again.
  void LeaveOutFailed();

  bool done() const { return answered_ + failed_ == static_cast<int64_t>(asked_.size()); }
  // True if every connected rollouter serves a newer version, none has pinned this one, and some prompts are not
  // answered.
  bool IsOvertaken(const RolloutSessions& sessions) const;
  // True if a connected rollouter serves the version, or has pinned it, so that answers can be expected.
  bool IsServed(const RolloutSessions& sessions) const;
  int64_t answered() const { return answered_; }
  int64_t asked() const { return static_cast<int64_t>(asked_.size()); }  // answers, of the sets too
  EvaluationResult Result() const;                                       // over the prompts answered so far
  const Options& options() const { return options_; }

 private:
  enum class Stage : uint8_t { kWaiting, kLeased, kAnswered, kFailed };
  struct Asked {
    Stage stage = Stage::kWaiting;
    int32_t attempt = 0;
    int32_t reward_failures = 0;
    SessionId session = 0;
    LeaseTimes times = {};
    std::shared_ptr<const Prompt> prompt = {};  // that of all its samples
    int32_t set = -1;                           // -1: the evaluation's own
    int64_t ordinal = 0;                        // of the prompt, in its source
    int32_t sample = 0;
    // Unless it is recorded: only tokens, finish reason, reward and reward parts are filled, and of an answer to a set
    // tokens are zeros.
    Trajectory answer = {};
    std::string rollouter = {};  // that gave it, if it is recorded
  };

  bool IsRecorded(const Asked& asked) const;
  // Whether the rollouter answers an evaluation by this version: a pinned version answers all of them, else the one that
  // serves.
  bool IsAnsweredBy(const RolloutSession& session) const {
    return (session.pinned.IsNone() ? session.serving : session.pinned) == options_.version;
  }
  EvaluatedAnswer MakeRecord(int64_t index) const;  // of asked_
  Lease MakeLease(int64_t index) const;             // of asked_
  SampledFigures FiguresOfSet(int32_t set) const;
  absl::Status CheckAnswer(const TrajectoryGroup& group, SubmissionRules rules) const;
  void SetStage(Asked* asked, Stage stage);
  // The number of rollouters that may hold evaluation leases at a time.
  int64_t MostHolders(const RolloutSessions& sessions, absl::Time now) const;
  Asked* Find(const LeaseId& lease);
  bool Holds(const Asked& asked, SessionId session, const LeaseId& lease) const;

  const Options options_;
  std::vector<Asked> asked_;
  std::map<SessionId, int64_t> held_;  // number of leases per session
  int64_t first_waiting_ = 0;          // none before it waits
  int64_t answered_ = 0;
  int64_t failed_ = 0;
};

}  // namespace syncopate::trainer
