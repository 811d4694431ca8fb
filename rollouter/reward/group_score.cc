#include "rollouter/reward/group_score.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/reasons.h"
#include "base/utf8.h"

// The states of a term: built-in terms are judged at once; samples that they leave undecided, and samples that a remote
// judges, wait in `waiting_`, one entry per term:
//
//   due --remote available, OnTick--> called --OnAnswer, all good--> gone
//                                       |--timeout, error, some missing--> due again after a pause; too often: failed
//
// The first failure becomes the failure of the group: its lease is returned with that reason.
namespace syncopate::rollouter {
namespace {

GroupScore::Remote RemoteFor(RewardTerm::Source source) {
  if (source == RewardTerm::Source::kHttp) return GroupScore::Remote::kHttp;
  if (source == RewardTerm::Source::kJudge) return GroupScore::Remote::kJudge;
  return GroupScore::Remote::kPython;  // of a built-in reward too: its judge of undecided answers
}

constexpr float kNotGiven = std::numeric_limits<float>::quiet_NaN();

absl::Status Impossible(float value) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_REWARD",
               absl::StrCat("it gave ", value, "; a reward must be a number within ", kMaxMagnitude));
}

absl::Status TimedOut(absl::Duration timeout) {
  return Error(absl::StatusCode::kDeadlineExceeded, "REWARD_TIMEOUT",
               absl::StrCat("no answer within reward.timeout ", absl::FormatDuration(timeout)));
}

}  // namespace

absl::StatusOr<RewardPlan> RewardPlan::Create(const std::string& formula, const RewardRegistry& registry,
                                              TextDecoder decode) {
  RewardPlan plan;
  SYNCOPATE_ASSIGN_OR_RETURN(const std::vector<RewardTerm> terms, ParseRewardFormula(formula));
  for (const RewardTerm& term : terms) {
    Term resolved{.term = term, .function = nullptr};
    bool reads_text = true;
    if (term.source == RewardTerm::Source::kBuiltIn) {
      SYNCOPATE_ASSIGN_OR_RETURN(const RewardRegistry::Reward* reward, registry.Find(term.name));
      resolved.function = reward->function;
      reads_text = reward->reads_text;
    }
    // The check is here so that a bad configuration fails when the run starts, not at the first answer.
    if (reads_text && decode == nullptr) {
      return Error(absl::StatusCode::kInvalidArgument, "NO_TEXT",
                   absl::StrCat("reward ", term.part,
                                " reads text, and this run has token ids alone; take dense, exact "
                                "or overlong, or train a model with a tokenizer on a file"));
    }
    plan.reads_text = plan.reads_text || reads_text;
    plan.terms.push_back(std::move(resolved));
  }
  if (plan.reads_text) plan.decode = std::move(decode);
  return plan;
}

absl::Status ScoringRules::Validate() const {
  if (timeout > absl::ZeroDuration() && attempts > 0 && pause >= absl::ZeroDuration()) return absl::OkStatus();
  return Error(absl::StatusCode::kInvalidArgument, "BAD_OPTIONS",
               "ScoringRules: timeout and attempts must be positive, and pause not negative");
}

GroupScore::GroupScore(std::string id, Lease lease, TrajectoryGroup group, const RewardPlan* plan,
                       const ScoringRules& rules)
    : id_(std::move(id)),
      lease_(std::move(lease)),
      group_(std::move(group)),
      plan_(plan),
      rules_(rules),
      values_(plan->terms.size(), std::vector<float>(group_.samples.size())) {}

RewardInput GroupScore::MakeInput(int32_t sample, const RewardRow& row) const {
  const auto i = static_cast<size_t>(sample);
  return {.prompt_ids = lease_.prompt_ids,
          .answer_ids = lease_.answer_ids,
          .response = group_.samples[i].tokens,
          .text = texts_.empty() ? std::string() : texts_[i],
          .row = row,
          .max_new_tokens = lease_.sampling.max_new_tokens,
          .environment = group_.samples[i].reward};
}

void GroupScore::JudgeBuiltIn(absl::Time now) {
  const absl::StatusOr<RewardRow> row = ParseRewardRow(lease_.task.row_json);
  if (!row.ok()) return Fail(plan_->terms[0].term.part, row.status());
  if (plan_->reads_text) {
    for (const Trajectory& sample : group_.samples) texts_.push_back(plan_->decode(sample.tokens));
  }
  for (size_t t = 0; t < plan_->terms.size(); ++t) {
    const RewardTerm& term = plan_->terms[t].term;
    Waiting waiting{.term = t,
                    .to = RemoteFor(term.source),
                    .reward = term.source == RewardTerm::Source::kPython ? term.name : rules_.judge,
                    .judges = term.source == RewardTerm::Source::kBuiltIn,
                    .samples = {},
                    .called = {},
                    .due = now,
                    .since = absl::InfiniteFuture()};
    if (waiting.to != Remote::kPython) waiting.reward.clear();
    for (int32_t i = 0; i < static_cast<int32_t>(group_.samples.size()); ++i) {
      if (!waiting.judges) {
        waiting.samples.push_back(i);
        continue;
      }
      const absl::StatusOr<RewardValue> judged = plan_->terms[t].function(MakeInput(i, *row));
      if (!judged.ok()) return Fail(term.part, judged.status());
      if (!IsPossibleReward(judged->value)) return Fail(term.part, Impossible(judged->value));
      values_[t][static_cast<size_t>(i)] = judged->value;
      KeepExtracted(i, judged->extracted);
      if (!judged->undecided) continue;
      // The judge decides each sample that a built-in reward left undecided; without a judge `undecided_fails` decides.
      if (!rules_.judge.empty()) {
        waiting.samples.push_back(i);
      } else if (rules_.undecided_fails) {
        return Fail(term.part, Error(absl::StatusCode::kInvalidArgument, "UNDECIDED",
                                     "it cannot tell whether an answer is right, and reward.undecided is fail"));
      }
    }
    if (!waiting.samples.empty()) waiting_.push_back(std::move(waiting));
  }
}

GroupScore::Actions GroupScore::OnTick(absl::Time now, const Availability& availability) {
  Actions actions;
  for (Waiting& waiting : waiting_) {
    if (!failure_.ok()) break;
    // The late answer may still come. The call is cancelled, and the next call has another id, so the answer is
    // ignored.
    if (!waiting.called.empty() && now >= waiting.due) {
      actions.cancels.emplace_back(waiting.to, std::exchange(waiting.called, ""));
      OnFailure(&waiting, TimedOut(rules_.timeout), now);
    }
    const bool paused = now < waiting.due && waiting.due != absl::InfiniteFuture();
    if (!waiting.called.empty() || paused || !failure_.ok()) continue;
    const absl::Status there = availability(waiting.to, waiting.reward);
    if (there.ok()) {
      // What was refused lets others go first: the refusal may be of what it asks.
      const bool yields = waiting.refused && waiting.since != absl::InfiniteFuture();
      waiting.since = absl::InfiniteFuture();
      if (yields) {
        waiting.due = now + rules_.pause;
        continue;
      }
      waiting.refused = false;
      waiting.due = now + rules_.timeout;
      // Each call has an id of its own, so that a late answer to an earlier call matches no entry.
      waiting.called = absl::StrCat(id_, "/", ++calls_);
      actions.calls.push_back({waiting.to, MakeItem(waiting)});
      continue;
    }
    if (absl::IsResourceExhausted(there)) {
      waiting.since = absl::InfiniteFuture();
      waiting.due = absl::InfiniteFuture();  // no timer: a change of availability calls OnTick
      continue;
    }
    // The remote is away. The wait has the same limit as an answer; otherwise the lease would be held forever.
    waiting.since = std::min(waiting.since, now);
    if (now < waiting.since + rules_.timeout) continue;
    failure_ = Error(absl::StatusCode::kUnavailable, "SCORER_AWAY",
                     absl::StrCat("the reward ", plan_->terms[waiting.term].term.part, " could not be asked for ",
                                  absl::FormatDuration(rules_.timeout), ": ", there.message()));
  }
  return actions;
}

RemoteItem GroupScore::MakeItem(const Waiting& waiting) {
  RemoteItem item{.id = waiting.called,
                  .reward = waiting.reward,
                  .row_json = lease_.task.row_json,
                  .texts = {},
                  .finishes = {},
                  .budget = rules_.timeout};
  for (const int32_t sample : waiting.samples) {
    const Trajectory& made = group_.samples[static_cast<size_t>(sample)];
    item.texts.push_back(texts_[static_cast<size_t>(sample)]);
    item.finishes.push_back(made.finish);
    if (waiting.to != Remote::kPython || waiting.judges) continue;
    item.tokens.push_back(made.tokens);
    item.logprobs.push_back(made.logprobs);
  }
  return item;
}

void GroupScore::OnAnswer(const std::string& item, const absl::StatusOr<RemoteScorer::Rewards>& rewards,
                          absl::Time now) {
  auto found = std::find_if(waiting_.begin(), waiting_.end(),
                            [&item](const Waiting& waiting) { return waiting.called == item; });
  if (found == waiting_.end() || !failure_.ok()) return;
  found->called.clear();
  if (ErrorReason(rewards.status()) == kScorerRefused) return Postpone(&*found, now);
  if (!rewards.ok()) return OnFailure(&*found, rewards.status(), now);
  if (rewards->size() != found->samples.size()) {
    return OnFailure(&*found,
                     Error(absl::StatusCode::kInternal, "BAD_ANSWER",
                           absl::StrCat("it judged ", rewards->size(), " answers of ", found->samples.size())),
                     now);
  }
  std::vector<int32_t> left;
  absl::Status failed;
  bool all_refused = true;
  for (size_t i = 0; i < rewards->size(); ++i) {
    absl::Status one = (*rewards)[i].status();
    if (one.ok() && !IsPossibleReward((*rewards)[i]->value)) one = Impossible((*rewards)[i]->value);
    if (one.ok()) {
      Keep(&*found, found->samples[i], *(*rewards)[i]);
      continue;
    }
    left.push_back(found->samples[i]);
    if (ErrorReason(one) == kScorerRefused) continue;
    all_refused = false;
    // If several samples failed, a permanent error wins, because it makes retrying useless.
    if (failed.ok() || absl::IsInvalidArgument(one)) failed = one;
  }
  found->samples = std::move(left);
  if (found->samples.empty()) {
    waiting_.erase(found);
  } else if (all_refused) {
    Postpone(&*found, now);
  } else {
    OnFailure(&*found, failed, now);
  }
}

// The remote is away, or will be found to be: that is seen before the next call.
void GroupScore::Postpone(Waiting* waiting, absl::Time now) const {
  waiting->refused = true;
  waiting->due = now + rules_.pause;
}

void GroupScore::Keep(Waiting* waiting, int32_t sample, const RemoteReward& reward) {
  values_[waiting->term][static_cast<size_t>(sample)] = reward.value;
  if (waiting->judges) return;
  KeepExtracted(sample, reward.extracted);
  const std::string& part = plan_->terms[waiting->term].term.part;
  for (const auto& [name, value] : reward.components) {
    const std::string full = absl::StrCat(part, "/", name);
    // User code chooses names and numbers: a component beyond the limits is dropped, and the reward itself still
    // counts.
    if (full.size() > kMaxRewardNameBytes || !IsPossibleReward(value)) continue;
    if (components_.size() + plan_->terms.size() >= kMaxRewardTerms && components_.count(full) == 0) continue;
    std::vector<float>& of = components_[full];
    of.resize(group_.samples.size(), kNotGiven);
    of[static_cast<size_t>(sample)] = value;
  }
}

void GroupScore::KeepExtracted(int32_t sample, absl::string_view extracted) {
  std::string& kept = group_.samples[static_cast<size_t>(sample)].extracted;
  if (!kept.empty()) return;
  const absl::string_view cut = extracted.substr(0, kMaxExtractedBytes);
  kept = std::string(cut.substr(0, WellFormedPrefix(cut)));
}

void GroupScore::OnFailure(Waiting* waiting, const absl::Status& why, absl::Time now) {
  if (++waiting->failures >= rules_.attempts || absl::IsInvalidArgument(why)) {
    Fail(plan_->terms[waiting->term].term.part, why);
    return;
  }
  waiting->due = now + rules_.pause;
}

void GroupScore::Fail(const std::string& part, const absl::Status& why) {
  failure_ =
      Error(absl::StatusCode::kInternal, reason::kRewardFailed,
            absl::StrCat("the reward ", part, " of group ", lease_.id.group.ToString(), " failed: ", why.message()));
}

std::vector<std::pair<GroupScore::Remote, std::string>> GroupScore::UnderWay() const {
  std::vector<std::pair<Remote, std::string>> items;
  for (const Waiting& waiting : waiting_) {
    if (!waiting.called.empty()) items.emplace_back(waiting.to, waiting.called);
  }
  return items;
}

absl::Time GroupScore::NextTick() const {
  absl::Time next = absl::InfiniteFuture();
  for (const Waiting& waiting : waiting_) {
    const bool away = waiting.since != absl::InfiniteFuture();
    next = std::min(next, away ? waiting.since + rules_.timeout : waiting.due);
  }
  return next;
}

absl::StatusOr<TrajectoryGroup> GroupScore::Finish() {
  SYNCOPATE_RETURN_IF_ERROR(failure_);
  for (size_t i = 0; i < group_.samples.size(); ++i) {
    Trajectory& sample = group_.samples[i];
    // The sum is in float64: the weights of a formula differ by orders of magnitude.
    double reward = 0;
    sample.reward_parts.clear();
    for (size_t t = 0; t < plan_->terms.size(); ++t) {
      const RewardTerm& term = plan_->terms[t].term;
      reward += term.weight * static_cast<double>(values_[t][i]);
      sample.reward_parts.push_back({term.part, values_[t][i]});
    }
    // A component that some samples lack is dropped: every sample of a group must have the same reward parts.
    for (const auto& [name, values] : components_) {
      const bool whole = std::none_of(values.begin(), values.end(), [](float value) { return std::isnan(value); });
      if (whole) sample.reward_parts.push_back({name, values[i]});
    }
    sample.reward = static_cast<float>(reward);
    if (!IsPossibleReward(sample.reward)) {
      Fail("sum", Impossible(sample.reward));
      return failure_;
    }
  }
  return std::move(group_);
}

}  // namespace syncopate::rollouter
