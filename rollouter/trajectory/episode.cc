#include "rollouter/trajectory/episode.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/reasons.h"
#include "base/status.h"

namespace syncopate::rollouter {

absl::Status Episode::Options::Validate() const {
  if (max_turns > 0 && max_total_tokens > 0 && max_given_tokens > 0 && max_retries >= 0) return absl::OkStatus();
  return Error(
      absl::StatusCode::kInvalidArgument, "BAD_OPTIONS",
      absl::StrCat("Episode: max_turns ", max_turns, ", max_total_tokens ", max_total_tokens, " and max_given_tokens ",
                   max_given_tokens, " must be positive, max_retries ", max_retries, " not negative"));
}

Episode::Actions Episode::Start() {
  SYNCOPATE_CHECK(phase_ == Phase::kNew);
  phase_ = Phase::kResetting;
  return {Call(Action::Kind::kReset)};
}

Episode::Action Episode::Call(Action::Kind kind) {
  due_call_ = ++last_call_;
  open_calls_.insert(due_call_);
  ++counters_.calls;
  Action action{.kind = kind, .call = due_call_};
  if (kind == Action::Kind::kReset) action.seed = ResetSeed(seed_);
  return action;
}

bool Episode::EndCall(int64_t call) {
  const bool is_due = IsDue(call);
  open_calls_.erase(call);
  cancelled_calls_.erase(call);
  if (!is_due || is_over()) {
    ++counters_.ignored;
    return false;
  }
  due_call_ = 0;
  return true;
}

Episode::Actions Episode::OnTurnEnded(std::vector<int32_t> turn, FinishReason finish) {
  if (phase_ != Phase::kWriting) return {};
  tokens_ += static_cast<int32_t>(turn.size());
  ++result_.turns;
  if (!lost_.ok()) return Fail(std::exchange(lost_, absl::OkStatus()));
  phase_ = Phase::kStepping;
  Action step = Call(Action::Kind::kStep);
  step.tokens = std::move(turn);
  step.finish = finish;
  return {std::move(step)};
}

Episode::Actions Episode::OnAnswered(int64_t call, const EnvironmentAnswer& answer) {
  if (!EndCall(call)) return {};
  if (answer.reward.has_value() && !IsPossibleReward(*answer.reward)) {
    return Fail(Error(absl::StatusCode::kInvalidArgument, "BAD_REWARD",
                      absl::StrCat("the environment gave a reward of ", *answer.reward)));
  }
  // A sample has at least one token of the policy.
  if (result_.turns == 0 && (answer.done || answer.rejected)) {
    return Fail(Error(absl::StatusCode::kInvalidArgument, "NO_TURN", "the environment ended before the first turn"));
  }
  ++counters_.answers;
  if (answer.reward.has_value()) result_.reward += *answer.reward;
  if (result_.turns > 0) {
    result_.answered.push_back({.end = tokens_, .reward = answer.reward.value_or(0), .seconds = answer.seconds});
  }
  result_.rejected = answer.rejected;
  if (answer.done || answer.rejected) return Finish();
  const std::vector<int32_t> given = MakeGivenTokens(answer);
  const auto room = options_.max_total_tokens - tokens_ - std::ssize(given);
  if (result_.turns > 0 && (result_.turns == options_.max_turns || room < 1)) {
    result_.at_limit = true;
    return Finish();
  }
  if (room < 1) {
    return HandBack(Error(absl::StatusCode::kFailedPrecondition, reason::kEnvironmentFailed,
                          absl::StrCat("the environment's reset said ", given.size(), " tokens, and a sample may have ",
                                       options_.max_total_tokens, ": raise rollout.max_total_tokens")));
  }
  if (given.empty() && begun_) {
    return Fail(
        Error(absl::StatusCode::kInvalidArgument, "NOTHING_SAID", "the environment neither ended nor said anything"));
  }
  if (!given.empty()) {
    const int32_t end = tokens_ + static_cast<int32_t>(given.size());
    result_.given.push_back(MakeGiven(tokens_, end));
    tokens_ = end;
  }
  phase_ = Phase::kWriting;
  const Action::Kind kind = std::exchange(begun_, true) ? Action::Kind::kExtend : Action::Kind::kBegin;
  return {{.kind = kind, .tokens = given}};
}

std::vector<int32_t> Episode::MakeGivenTokens(const EnvironmentAnswer& answer) const {
  std::vector<int32_t> given = answer.opening;
  const int64_t kept = std::min<int64_t>(std::ssize(answer.content), options_.max_given_tokens);
  const auto begin = options_.keep_tail ? answer.content.end() - kept : answer.content.begin();
  given.insert(given.end(), begin, begin + kept);
  given.insert(given.end(), answer.closing.begin(), answer.closing.end());
  return given;
}

Episode::Actions Episode::Finish() {
  phase_ = Phase::kFinished;
  return {{.kind = Action::Kind::kFinish}};
}

Episode::Actions Episode::OnFailed(int64_t call, const absl::Status& why) {
  return EndCall(call) ? Fail(why) : Actions();
}

Episode::Actions Episode::OnTimedOut(int64_t call) {
  if (!IsDue(call) || is_over()) return {};
  due_call_ = 0;
  Actions actions;
  CancelCalls(actions);
  for (Action& action : Fail(Error(absl::StatusCode::kDeadlineExceeded, "ENVIRONMENT_TIMEOUT",
                                   "the environment did not answer within its budget"))) {
    actions.push_back(std::move(action));
  }
  return actions;
}

Episode::Actions Episode::OnCancelled(int64_t call) {
  // An environment that cancels what nobody cancelled has failed.
  if (!EndCall(call)) return {};
  return Fail(
      Error(absl::StatusCode::kCancelled, "ENVIRONMENT_CANCELLED", "the environment cancelled the call itself"));
}

Episode::Actions Episode::OnLost(const absl::Status& why) {
  open_calls_.clear();
  cancelled_calls_.clear();
  due_call_ = 0;
  if (phase_ == Phase::kResetting || phase_ == Phase::kStepping) return Fail(why);
  // The turn cannot be stopped without its tokens; at its end nobody could answer it.
  if (phase_ == Phase::kWriting) lost_ = why;
  return {};
}

Episode::Actions Episode::Fail(const absl::Status& why) {
  ++counters_.failures;
  if (retries_ < options_.max_retries) return Restart();
  return HandBack(Error(absl::StatusCode::kAborted, reason::kEnvironmentFailed,
                        absl::StrCat("the environment failed ", retries_ + 1, " times, at last: ", why.message())));
}

Episode::Actions Episode::Restart() {
  ++retries_;
  ++counters_.retries;
  Actions actions;
  if (std::exchange(begun_, false)) actions.push_back({.kind = Action::Kind::kRewind});
  result_ = AtRestart();
  tokens_ = 0;
  phase_ = Phase::kResetting;
  actions.push_back(Call(Action::Kind::kReset));
  return actions;
}

void Episode::CancelCalls(Actions& actions) {
  for (int64_t call : open_calls_) {
    if (!MustCancel(call)) continue;
    cancelled_calls_.insert(call);
    ++counters_.cancelled;
    actions.push_back({.kind = Action::Kind::kCancelCall, .call = call});
  }
}

Episode::Actions Episode::Cancel() {
  if (is_over()) return {};
  Actions actions;
  CancelCalls(actions);
  if (begun_) actions.push_back({.kind = Action::Kind::kAbort});
  phase_ = Phase::kCancelled;
  return actions;
}

Episode::Actions Episode::Drain(const absl::Status& why) { return is_over() ? Actions() : HandBack(why); }

Episode::Actions Episode::HandBack(const absl::Status& why) {
  Actions actions = Cancel();
  phase_ = Phase::kHandedBack;
  actions.push_back({.kind = Action::Kind::kHandBack, .why = why});
  return actions;
}

void SetResult(const Episode::Result& result, Trajectory* sample) {
  sample->reward = result.reward;
  sample->rejected = result.rejected;
  sample->turns = result.answered;
  const auto end = static_cast<int32_t>(sample->tokens.size());
  if (sample->turns.empty() || sample->turns.back().end < end) sample->turns.push_back({.end = end});
}

}  // namespace syncopate::rollouter
