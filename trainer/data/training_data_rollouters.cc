// TrainingData's calls of rollouters: streams, credits, submissions and what becomes of them.
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/reasons.h"
#include "base/status.h"
#include "trainer/data/training_data.h"

namespace syncopate::trainer {

namespace {

constexpr size_t kMaxReasonBytes = 200;   // of what a peer says
constexpr size_t kShownRunIdBytes = 128;  // peers choose it

// For people; what the rollouter says about it may hold anything.
absl::Status ReturnedFault(const LeaseId& lease, const absl::Status& why) {
  const absl::string_view text = why.message().substr(0, kMaxReasonBytes);
  return Error(why.code(), IsPromptsFault(why) ? ErrorReason(why) : "RETURNED",
               absl::StrCat("handed back group ", lease.group.ToString(), ": ", absl::CHexEscape(text)));
}

}  // namespace

absl::StatusOr<SessionId> TrainingData::Connect(const MemberId& member, const std::string& run_id,
                                                std::shared_ptr<RolloutSink> sink) {
  if (run_id != run_id_) {
    return Error(absl::StatusCode::kFailedPrecondition, "RUN_MISMATCH",
                 absl::StrCat("this is the trainer of run '", run_id_, "', not of '",
                              absl::CEscape(run_id.substr(0, kShownRunIdBytes)), "'"));
  }
  if (member.role != "rollouter") {
    return Error(absl::StatusCode::kInvalidArgument, "NOT_A_ROLLOUTER",
                 absl::StrCat("a ", member.role, " takes no prompts"));
  }
  Actions actions;
  SessionId session = 0;
  {
    MutexLock lock(&mutex_);
    if (stopped_) return StoppedError();
    auto connected = ledger_->Connect(member);
    session = connected.session;
    if (connected.replaced.has_value()) {
      actions.closed = SinkLocked(*connected.replaced);
      DisconnectLocked(*connected.replaced);
    }
    sinks_[session] = std::move(sink);
    roster_.OnConnected(member);
    CollectLocked(&actions);
  }
  Perform(std::move(actions));
  return session;
}

void TrainingData::OnServing(SessionId session, const PolicyVersion& version) {
  Actions actions;
  {
    MutexLock lock(&mutex_);
    ledger_->OnServing(session, version);
    if (auto* known = ledger_->sessions().Find(session)) roster_.OnServing(known->member.incarnation, version);
    CollectLocked(&actions);
  }
  Perform(std::move(actions));
}

void TrainingData::OnCredits(SessionId session, int32_t groups) {
  Actions actions;
  {
    MutexLock lock(&mutex_);
    ledger_->OnCredits(session, groups);
    CollectLocked(&actions);
  }
  Perform(std::move(actions));
}

void TrainingData::OnWork(SessionId session, const RolloutRoster::Work& work) {
  MutexLock lock(&mutex_);
  if (auto* known = ledger_->sessions().Find(session)) roster_.OnWork(known->member.incarnation, work);
}

void TrainingData::OnProgress(SessionId session, const std::vector<LeaseId>& leases) {
  Actions actions;
  {
    MutexLock lock(&mutex_);
    const absl::Time now = parts_.clock->Now();
    for (const LeaseId& lease : leases) {
      if (!Evaluation::IsEvaluation(lease)) {
        ledger_->OnProgress(session, lease, now);
      } else if (evaluation_.has_value()) {
        evaluation_->OnProgress(&ledger_->sessions(), session, lease, now);
      }
    }
    CollectLocked(&actions);
  }
  Perform(std::move(actions));
}

void TrainingData::NoteAnswerLocked(SessionId session, const absl::Status& judgement) {
  if (!judgement.ok()) ++invalid_[ErrorReason(judgement)];
  if (ledger_->sessions().OnAnswer(session, judgement, parts_.clock->Now())) SayQuarantinedLocked(session);
}

void TrainingData::SayQuarantinedLocked(SessionId session) {
  ++quarantines_;
  const RolloutSession& found = *ledger_->sessions().Find(session);
  SYNCOPATE_LOG(kError, "%s gets no prompts for %s: its last %d answers were all of no use, the latest: %s",
                found.member.replica_id, absl::FormatDuration(RolloutSessions::kQuarantine),
                RolloutSessions::kInvalidInRow, found.conduct.last_fault.ToString());
}

GroupLedger::Verdict TrainingData::JudgeLocked(SessionId session, const SharedGroup& group) {
  GroupLedger::Verdict verdict{.result = Ledger::Result::kExpired};
  if (!Evaluation::IsEvaluation(group->lease)) {
    verdict = ledger_->Submit(session, group, parts_.clock->Now());
  } else if (evaluation_.has_value()) {
    ledger_->sessions().OnHeard(session, group->lease);
    verdict = evaluation_->Submit(session, *group, ledger_->rules());
  }
  // An install in the middle of an evaluation is nobody's fault.
  const bool invalid =
      verdict.result == Ledger::Result::kInvalid && ErrorReason(verdict.error) != reason::kWrongVersion;
  if (invalid || verdict.result == Ledger::Result::kAccepted) NoteAnswerLocked(session, verdict.error);
  return verdict;
}

void TrainingData::Submit(SessionId session, TrajectoryGroup submitted) {
  auto group = std::make_shared<const TrajectoryGroup>(std::move(submitted));
  const LeaseId lease = group->lease;
  Actions actions;
  GroupLedger::Verdict verdict;
  {
    MutexLock lock(&mutex_);
    if (stopped_) return;
    verdict = JudgeLocked(session, group);
    const bool waits = verdict.record.has_value() || verdict.result == Ledger::Result::kPending;
    if (waits) {
      waiting_acks_[lease].push_back(session);
    } else {
      actions.acks.push_back({SinkLocked(session), {lease, verdict.result, verdict.error}});
    }
    CollectLocked(&actions);
  }
  Perform(std::move(actions));
  if (!verdict.record.has_value()) return;
  auto durable = [this, lease](const absl::Status& status, uint64_t sequence) { OnDurable(lease, status, sequence); };
  absl::Status handed_in = log_->Append(parts_.codec->EncodeLogRecord(*verdict.record), durable);
  if (!handed_in.ok()) OnDurable(lease, handed_in, 0);
}

void TrainingData::OnDurable(const LeaseId& lease, const absl::Status& status, uint64_t sequence) {
  if (!status.ok()) SYNCOPATE_LOG(kWarning, "a group cannot be logged: %s", status.ToString());
  Actions actions;
  {
    MutexLock lock(&mutex_);
    NoteDiskLocked(status);
    if (status.ok()) {
      ledger_->OnLogged(lease, sequence);
      sums_before_.counted_to = sequence;
    } else {
      ledger_->OnLogFailed(lease);
    }
    auto result = status.ok() ? Ledger::Result::kAccepted : Ledger::Result::kInvalid;
    for (SessionId session : waiting_acks_[lease]) {
      actions.acks.push_back({SinkLocked(session), {lease, result, status}});
    }
    waiting_acks_.erase(lease);
    CollectLocked(&actions);
  }
  Perform(std::move(actions));
}

std::optional<absl::Time> TrainingData::TakeBackLocked(SessionId session, const LeaseId& lease,
                                                       const absl::Status& why) {
  if (!Evaluation::IsEvaluation(lease)) return ledger_->Return(session, lease, why);
  ledger_->sessions().OnHeard(session, lease);
  return evaluation_.has_value() ? evaluation_->Return(session, lease, why) : std::nullopt;
}

void TrainingData::ReturnLease(SessionId session, const LeaseId& lease, const absl::Status& why) {
  Actions actions;
  {
    MutexLock lock(&mutex_);
    const std::optional<absl::Time> issued = TakeBackLocked(session, lease, why);
    const absl::Status fault = ReturnedFault(lease, why);
    if (issued.has_value() && ledger_->sessions().OnReturn(session, fault, *issued, parts_.clock->Now())) {
      SayQuarantinedLocked(session);
    }
    CollectLocked(&actions);
  }
  Perform(std::move(actions));
}

void TrainingData::Reject(SessionId session, const LeaseId& lease, const absl::Status& why) {
  Actions actions;
  {
    MutexLock lock(&mutex_);
    NoteAnswerLocked(session, why);
    TakeBackLocked(session, lease, why);
    actions.acks.push_back({SinkLocked(session), {lease, Ledger::Result::kInvalid, why}});
    CollectLocked(&actions);
  }
  Perform(std::move(actions));
}

void TrainingData::DisconnectLocked(SessionId session) {
  if (sinks_.erase(session) == 0) return;
  ledger_->Disconnect(session);
  if (evaluation_.has_value()) evaluation_->OnSessionLost(session);
}

void TrainingData::Disconnect(SessionId session) {
  Actions actions;
  {
    MutexLock lock(&mutex_);
    DisconnectLocked(session);
    CollectLocked(&actions);
  }
  Perform(std::move(actions));
}

}  // namespace syncopate::trainer
