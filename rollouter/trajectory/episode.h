#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/trajectory.h"

namespace syncopate::rollouter {

// What an environment says to its reset or to one action, in tokens. `content` is its text, which may be cut; `opening`
// and `closing` are the template's tokens around it, which end the policy's turn and begin the next one.
struct EnvironmentAnswer {
  std::vector<int32_t> opening = {};
  std::vector<int32_t> content = {};
  std::vector<int32_t> closing = {};
  std::optional<float> reward =
      std::nullopt;       // of the turn that it answers; of the whole episode if that has no turn yet
  bool done = false;      // no turn follows
  bool rejected = false;  // the sample shall have no loss and no advantage
  double seconds = 0;     // that the environment took
};

// One sample that plays with an environment, as a state machine: events in, actions out. No thread, clock or network,
// and no text: its owner encodes what the environment says, and decodes what the policy wrote.
//
//   kNew ─ Start() ─► kResetting ─ answered ─► kWriting ─ OnTurnEnded() ─► kStepping ─ answered ─► kWriting or kFinished
//                         ▲                                                   │
//                         └────── failed or timed out, and tries are left ◄───┘ (also from kResetting)
//   kHandedBack: no tries are left, or Drain().  kCancelled: Cancel(). Both from everywhere but kFinished.
//
// The environment is called once a turn, and has at most one call that is not cancelled. Every call gets a number, and
// ends once: by its answer, its failure, or the word that it was cancelled. What comes for a call that is no longer
// waited for only ends it. A failed call fails the play: the episode is played anew from its reset, with the same seed;
// its owner makes the sample draw the same numbers again.
class Episode {
 public:
  struct Options {
    int32_t max_turns = 1;
    // The limit of the sample's tokens, given ones counted; what the context leaves beside the prompt if that is less.
    int64_t max_total_tokens = 0;
    int32_t max_given_tokens = 0;  // the most tokens of `content`; more are cut
    bool keep_tail = false;        // what is cut is the beginning of `content`; false: its end
    int32_t max_retries = 3;
    absl::Status Validate() const;  // INVALID_ARGUMENT (reason BAD_OPTIONS)
  };

  struct Action {
    enum class Kind : uint8_t {
      kReset,       // call the environment's reset as call `call`, with `seed`
      kStep,        // call its step as call `call`, with the tokens `tokens` of the turn, without given ones
      kCancelCall,  // cancel call `call`
      kBegin,       // the sample may draw, behind the given tokens `tokens`, which may be none
      kExtend,      // the parked sample goes on behind the given tokens `tokens`
      kRewind,      // the parked sample loses all its tokens, given ones too, and waits for another kBegin
      kFinish,      // end the parked sample: result() is complete
      kAbort,       // end the sample in the engine, whatever it does: it does not count
      kHandBack,    // give the lease back to the trainer because of `why`
    };
    Kind kind = Kind::kReset;
    int64_t call = 0;
    uint64_t seed = 0;
    std::vector<int32_t> tokens = {};
    FinishReason finish = FinishReason::kStop;  // kStep: how the turn ended
    absl::Status why = {};
  };
  using Actions = std::vector<Action>;

  enum class Phase : uint8_t { kNew, kResetting, kWriting, kStepping, kFinished, kHandedBack, kCancelled };

  struct Result {
    float reward = 0;            // the sum of all rewards
    std::vector<Turn> answered;  // the turns that the environment has answered
    std::vector<TokenRange> given;
    int32_t turns = 0;  // that the policy wrote
    bool rejected = false;
    bool at_limit = false;  // a limit has ended it, not the environment
  };

  struct Counters {
    int64_t calls = 0;      // begun
    int64_t answers = 0;    // that counted
    int64_t failures = 0;   // errors and timeouts of calls that were waited for
    int64_t retries = 0;    // plays after the first
    int64_t cancelled = 0;  // calls that were to be cancelled
    int64_t ignored = 0;    // answers and failures that nobody waited for
  };

  // `seed` is the sample's. `options` must be valid.
  Episode(const Options& options, uint64_t seed) : options_(options), seed_(seed) {}
  virtual ~Episode() = default;

  // Events. Each returns what must be done now, in this order.

  // Precondition: the phase is kNew.
  Actions Start();
  // The engine has ended a turn and parked the sample; `turn` are the tokens that the policy wrote in it. An episode
  // that is over ignores it: its sample needs no parking.
  Actions OnTurnEnded(std::vector<int32_t> turn, FinishReason finish);
  Actions OnAnswered(int64_t call, const EnvironmentAnswer& answer);
  // The call has ended with an error of the environment.
  Actions OnFailed(int64_t call, const absl::Status& why);
  // The call has not ended within its budget. It is cancelled, and ends later.
  Actions OnTimedOut(int64_t call);
  // The environment says that it has cancelled the call.
  Actions OnCancelled(int64_t call);
  // The environment has lost its state, and will end no call: its worker has died.
  Actions OnLost(const absl::Status& why);
  // Nobody wants the episode any more: an abort, or the trainer has revoked the lease.
  Actions Cancel();
  // This process ends: the lease goes back to the trainer.
  Actions Drain(const absl::Status& why);

  Phase phase() const { return phase_; }
  bool is_over() const { return phase_ >= Phase::kFinished; }
  // True while the environment is doing something for this episode; an episode that is over still waits for its calls.
  bool has_open_calls() const { return !open_calls_.empty(); }
  // Precondition: the phase is kFinished.
  const Result& result() const { return result_; }
  const Counters& counters() const { return counters_; }

 protected:
  // Rules that tests override to prove that a check detects the fault.
  virtual bool MustCancel(int64_t call) const { return cancelled_calls_.count(call) == 0; }
  virtual bool IsDue(int64_t call) const { return call == due_call_; }
  virtual TokenRange MakeGiven(int32_t begin, int32_t end) const { return {begin, end}; }
  virtual uint64_t ResetSeed(uint64_t seed) const { return seed; }
  virtual Result AtRestart() const { return {}; }

 private:
  // Ends a call. Returns whether the episode waits for it.
  bool EndCall(int64_t call);
  Action Call(Action::Kind kind);
  void CancelCalls(Actions& actions);
  Actions Fail(const absl::Status& why);
  Actions Restart();
  Actions HandBack(const absl::Status& why);
  // What the environment says, cut.
  std::vector<int32_t> MakeGivenTokens(const EnvironmentAnswer& answer) const;
  Actions Finish();

  const Options options_;
  const uint64_t seed_;
  Phase phase_ = Phase::kNew;
  int64_t last_call_ = 0;
  int64_t due_call_ = 0;               // the call that the episode waits for; 0: none
  std::set<int64_t> open_calls_;       // begun, and not ended
  std::set<int64_t> cancelled_calls_;  // those of open_calls_ that were to be cancelled
  int32_t retries_ = 0;
  bool begun_ = false;  // the engine has tokens of this play
  absl::Status lost_;   // not OK: the environment was lost while the policy wrote
  int32_t tokens_ = 0;  // of the sample so far
  Result result_;
  Counters counters_;
};

// Sets reward, turns and `rejected` of a sample that has played. A last turn that the engine ended, so that the
// environment was not asked about it, gets no reward and no time.
void SetResult(const Episode::Result& result, Trajectory* sample);

}  // namespace syncopate::rollouter
