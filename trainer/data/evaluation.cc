#include "trainer/data/evaluation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/reasons.h"
#include "base/status.h"

namespace syncopate::trainer {

using Result = GroupLedger::Result;

Evaluation::Evaluation(const Options& options, const PromptSource* prompts) : options_(options) {
  auto ask = [this](const PromptSource& source, int64_t count, int32_t set, int32_t samples) {
    for (int64_t ordinal = 0; ordinal < count; ++ordinal) {
      const auto prompt = std::make_shared<const Prompt>(source.At({PromptSource::kEvaluationPass, ordinal}));
      for (int32_t sample = 0; sample < samples; ++sample) {
        asked_.push_back({.prompt = prompt, .set = set, .ordinal = ordinal, .sample = sample});
      }
    }
  };
  ask(*prompts, options.prompts, /*set=*/-1, /*samples=*/1);
  for (size_t i = 0; i < options.sets.size(); ++i) {
    const EvaluationSet& set = options.sets[i];
    ask(*set.source, set.prompts, static_cast<int32_t>(i), set.samples);
  }
}

Lease Evaluation::MakeLease(int64_t index) const {
  const Asked& asked = asked_[index];
  Lease lease;
  // Each evaluation has its own pass below zero, which no training prompt has, so an answer to an earlier evaluation
  // matches no lease.
  lease.id = {{-1 - options_.index, index}, asked.attempt};
  lease.kind = LeaseKind::kEvaluation;
  lease.version = options_.version;
  lease.prompt_ids = asked.prompt->prompt_ids;
  lease.answer_ids = asked.prompt->answer_ids;
  lease.task = asked.prompt->task;
  lease.reward = asked.set < 0 ? options_.reward : options_.sets[asked.set].reward;
  lease.sampling = asked.set < 0 ? options_.sampling : options_.sets[asked.set].sampling;
  // The seed does not depend on the evaluation's index, so two evaluations differ only by their weights.
  const uint64_t seed = GroupSeed(options_.seed, {PromptSource::kEvaluationPass, asked.ordinal});
  lease.seed = asked.set < 0 ? seed : SampleSeed(seed, asked.sample);
  return lease;
}

bool Evaluation::IsRecorded(const Asked& asked) const {
  // Sets are passes of their own, so that one prompt in each is not chosen for being the first in one.
  return options_.recorded.Takes({PromptSource::kEvaluationPass - 1 - asked.set, asked.ordinal});
}

EvaluatedAnswer Evaluation::MakeRecord(int64_t index) const {
  const Asked& asked = asked_[index];
  return {.prompt = asked.prompt,
          .set = asked.set < 0 ? "" : options_.sets[asked.set].name,
          .ordinal = asked.ordinal,
          .sample = asked.sample,
          .lease = {{-1 - options_.index, index}, asked.attempt},
          .rollouter = asked.rollouter,
          .answer = asked.answer};
}

void Evaluation::SetStage(Asked* asked, Stage stage) {
  if (asked->stage == Stage::kLeased && --held_[asked->session] == 0) held_.erase(asked->session);
  asked->stage = stage;
  if (stage == Stage::kLeased) ++held_[asked->session];
  if (stage == Stage::kWaiting) first_waiting_ = std::min(first_waiting_, static_cast<int64_t>(asked - asked_.data()));
}

int64_t Evaluation::MostHolders(const RolloutSessions& sessions, absl::Time now) const {
  int64_t rollouters = 0;
  for (const auto& [id, session] : sessions.all()) rollouters += session.IsHeldBack(now) ? 0 : 1;
  // A lease pins its version: a rollouter with an evaluation lease installs no weights. Only half of the rollouters may
  // be pinned, so the other half continues to train.
  return std::max<int64_t>(rollouters / 2, 1);
}

std::vector<IssuedLease> Evaluation::NextLeases(RolloutSessions* sessions, absl::Time now) {
  std::vector<IssuedLease> issued;
  const int64_t most = MostHolders(*sessions, now), share = (this->asked() + most - 1) / most;
  while (first_waiting_ < this->asked() && asked_[first_waiting_].stage != Stage::kWaiting) ++first_waiting_;
  for (int64_t i = first_waiting_; i < this->asked(); ++i) {
    Asked& asked = asked_[i];
    if (asked.stage != Stage::kWaiting) continue;
    RolloutSession* best = nullptr;
    int64_t fewest = 0;
    for (auto& [id, session] : sessions->all()) {
      if (session.room < 1 || !IsAnsweredBy(session) || session.IsHeldBack(now)) continue;
      const auto holds = held_.find(id);
      const int64_t count = holds != held_.end() ? holds->second : 0;
      if (count >= share || (count == 0 && static_cast<int64_t>(held_.size()) >= most)) continue;
      if (best == nullptr || count < fewest) best = &session, fewest = count;
    }
    // Evaluation prompts differ in nothing that matters for dealing: if no rollouter can take this one, none can take
    // the next.
    if (best == nullptr) break;
    --best->room;
    ++asked.attempt;
    asked.session = best->id;
    SetStage(&asked, Stage::kLeased);
    asked.times = {now, now};
    issued.push_back({best->id, MakeLease(i)});
  }
  return issued;
}

void Evaluation::OnProgress(RolloutSessions* sessions, SessionId session, const LeaseId& lease, absl::Time now) {
  Asked* asked = Find(lease);
  if (asked == nullptr || !Holds(*asked, session, lease)) return;
  asked->times.progressed = now;
  sessions->OnProgress(session);
}

void Evaluation::OnBack(SessionId session, absl::Time since, absl::Time now) {
  for (Asked& asked : asked_) {
    if (asked.stage == Stage::kLeased && asked.session == session) asked.times.AddStandstill(since, now);
  }
}

std::vector<Revocation> Evaluation::ExpireLeases(RolloutSessions* sessions, absl::Time now) {
  std::vector<Revocation> revoked;
  for (int64_t i = 0; i < static_cast<int64_t>(asked_.size()); ++i) {
    Asked& asked = asked_[i];
    if (asked.stage != Stage::kLeased) continue;
    const RolloutSession* session = sessions->Find(asked.session);
    if (session != nullptr && session->IsAway()) continue;
    const std::optional<RevokeReason> reason = OverdueReason(asked.times, options_.lease_limits, now);
    if (!reason.has_value()) continue;
    SetStage(&asked, Stage::kWaiting);
    revoked.push_back({asked.session, {{-1 - options_.index, i}, asked.attempt}, *reason});
    sessions->OnRevoked(revoked.back());
  }
  return revoked;
}

Evaluation::Asked* Evaluation::Find(const LeaseId& lease) {
  const GroupId& group = lease.group;
  if (group.pass != -1 - options_.index || group.ordinal < 0 || group.ordinal >= asked()) return nullptr;
  return &asked_[group.ordinal];
}

bool Evaluation::Holds(const Asked& asked, SessionId session, const LeaseId& lease) const {
  return asked.stage == Stage::kLeased && asked.session == session && asked.attempt == lease.attempt;
}

absl::Status Evaluation::CheckAnswer(const TrajectoryGroup& group, SubmissionRules rules) const {
  if (NewestVersion(group) > options_.version) {
    return Error(absl::StatusCode::kInvalidArgument, reason::kWrongVersion,
                 absl::StrCat("the answer was made by ", NewestVersion(group).ToString(), ", but ",
                              options_.version.ToString(), " is evaluated; it is asked for again"));
  }
  // Training may have released this version already, so the known steps of the training rules do not apply.
  rules.known_steps = {options_.version.step};
  return CheckSubmission(group, MakeLease(group.lease.group.ordinal), options_.version, rules);
}

GroupLedger::Verdict Evaluation::Submit(SessionId session, const TrajectoryGroup& group, const SubmissionRules& rules) {
  Asked* asked = Find(group.lease);
  // The lease belongs to an evaluation that has ended.
  if (asked == nullptr) return {.result = Result::kExpired};
  if (asked->stage == Stage::kAnswered && asked->attempt == group.lease.attempt) {
    return {.result = Result::kAlreadyAccepted};
  }
  if (!Holds(*asked, session, group.lease)) return {.result = Result::kExpired};
  SetStage(asked, Stage::kWaiting);
  const absl::Status check = CheckAnswer(group, rules);
  if (!check.ok()) return {.result = Result::kInvalid, .error = check};
  SetStage(asked, Stage::kAnswered);
  const Trajectory& answer = group.samples[0];
  ++answered_;
  if (IsRecorded(*asked)) {
    asked->answer = answer;
    asked->rollouter = group.rollouter;
    return {.result = Result::kAccepted};
  }
  asked->answer.tokens = answer.tokens;
  // Only the lengths of these are reported, and there may be many.
  if (asked->set >= 0) std::fill(asked->answer.tokens.begin(), asked->answer.tokens.end(), 0);
  asked->answer.given = answer.given;
  asked->answer.turns = answer.turns;
  asked->answer.finish = answer.finish;
  asked->answer.reward = answer.reward;
  asked->answer.reward_parts = answer.reward_parts;
  asked->answer.extracted = answer.extracted;
  return {.result = Result::kAccepted};
}

std::optional<absl::Time> Evaluation::Return(SessionId session, const LeaseId& lease, const absl::Status& why) {
  Asked* asked = Find(lease);
  if (asked == nullptr || !Holds(*asked, session, lease)) return std::nullopt;
  SetStage(asked, Stage::kWaiting);
  // A row whose reward always fails must not keep the evaluation from ending.
  if (IsPromptsFault(why) && ++asked->reward_failures >= kMaxRewardFailures) {
    SetStage(asked, Stage::kFailed);
    ++failed_;
  }
  return asked->times.issued;
}

void Evaluation::OnSessionLost(SessionId session) {
  for (Asked& asked : asked_) {
    if (asked.stage == Stage::kLeased && asked.session == session) SetStage(&asked, Stage::kWaiting);
  }
}

void Evaluation::LeaveOutFailed() {
  for (Asked& asked : asked_) {
    const bool open = asked.stage == Stage::kWaiting || asked.stage == Stage::kLeased;
    if (!open || asked.reward_failures == 0) continue;
    SetStage(&asked, Stage::kFailed);
    ++failed_;
  }
}

bool Evaluation::IsOvertaken(const RolloutSessions& sessions) const {
  // Without rollouters the evaluation is not overtaken: a rollouter that connects later may still serve the version.
  if (done() || sessions.all().empty()) return false;
  return std::all_of(sessions.all().begin(), sessions.all().end(), [this](const auto& entry) {
    return entry.second.serving > options_.version && !IsAnsweredBy(entry.second);
  });
}

bool Evaluation::IsServed(const RolloutSessions& sessions) const {
  return std::any_of(sessions.all().begin(), sessions.all().end(),
                     [this](const auto& entry) { return IsAnsweredBy(entry.second); });
}

EvaluationResult Evaluation::Result() const {
  EvaluationResult result{.version = options_.version, .asked = options_.prompts};
  double right = 0, known = 0, reward = 0;
  EvaluationTally tally;
  for (const Asked& asked : asked_) {
    if (asked.stage != Stage::kAnswered || asked.set >= 0) continue;
    const Prompt& prompt = *asked.prompt;
    ++result.prompts;
    known += prompt.answer_ids.empty() ? 0 : 1;
    right += !prompt.answer_ids.empty() && asked.answer.tokens == prompt.answer_ids ? 1 : 0;
    reward += asked.answer.reward;
    tally.Add(prompt, asked.answer);
    if (static_cast<int64_t>(result.samples.size()) < options_.show_samples) {
      result.samples.push_back(
          {prompt.prompt_ids, asked.answer.tokens, prompt.answer_ids, prompt.task.row_json, asked.answer.reward});
    }
  }
  for (int64_t i = 0; i < this->asked(); ++i) {
    if (asked_[i].stage == Stage::kAnswered && IsRecorded(asked_[i])) result.recorded.push_back(MakeRecord(i));
  }
  result.figures = tally.Figures();
  if (known > 0) result.exact = right / known;
  if (result.prompts > 0) result.reward_mean = reward / static_cast<double>(result.prompts);
  for (size_t set = 0; set < options_.sets.size(); ++set)
    result.sets.push_back(FiguresOfSet(static_cast<int32_t>(set)));
  return result;
}

SampledFigures Evaluation::FiguresOfSet(int32_t set) const {
  const EvaluationSet& described = options_.sets[set];
  SampledFigures figures{.name = described.name, .samples = described.samples};
  std::vector<PromptTally> prompts(static_cast<size_t>(described.prompts));
  double tokens = 0, truncated = 0, answers = 0;
  for (const Asked& asked : asked_) {
    if (asked.set != set) continue;
    ++figures.asked;
    if (asked.stage != Stage::kAnswered) {
      ++figures.missing;
      continue;
    }
    PromptTally& prompt = prompts[static_cast<size_t>(asked.ordinal)];
    ++prompt.answers;
    const bool right = asked.answer.reward >= kRightReward;
    prompt.right += right ? 1 : 0;
    if (!asked.answer.extracted.empty()) {
      PromptTally::Votes& votes = prompt.votes[asked.answer.extracted];
      ++votes.all;
      votes.right += right ? 1 : 0;
    }
    prompt.reward += double{asked.answer.reward};
    tokens += static_cast<double>(asked.answer.tokens.size());
    truncated += asked.answer.finish == FinishReason::kLength ? 1 : 0;
    ++answers;
  }
  figures.prompts =
      std::count_if(prompts.begin(), prompts.end(), [](const PromptTally& one) { return one.answers > 0; });
  AddSampledMeans(prompts, &figures);
  if (answers == 0) return figures;
  figures.response_tokens_mean = tokens / answers;
  figures.truncated_ratio = truncated / answers;
  return figures;
}

}  // namespace syncopate::trainer
