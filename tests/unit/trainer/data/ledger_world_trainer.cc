// The trainer's shell: its log, its steps and checkpoints, crashes and restores.

#include "tests/unit/trainer/data/ledger_world.h"

namespace syncopate::trainer {

void LedgerWorld::Start(PolicyVersion version, RestoredData data) {
  restored_at_[version.epoch] = version.step;
  ledger_ = make_ledger_(options_, prompts_.get(), version, std::move(data), Now());
  for (const DropRecord& drop : ledger_->UnloggedDrops()) {  // durable before any work begins
    dropped_[drop.lease] = drop.reason;
    log_.push_back({++last_sequence_, drop});
  }
  waits_since_ = now_;
  Publish();
  for (size_t r = 0; r < rollouters_.size(); ++r) Connect(r);
}

void LedgerWorld::Append(LogRecord record, std::function<void(bool, uint64_t)> done) {
  if (Chance(trouble_ * 0.1) && !std::holds_alternative<TakeRecord>(record)) {
    TrainerAfter(log_time_, [done] { done(false, 0); });
    return;
  }
  unwritten_.push_back(std::move(record));
  log_free_ = std::max(log_free_, now_) + Exponential(log_time_);
  TrainerAfter(log_free_ - now_, [this, done = std::move(done)] {
    log_.push_back({++last_sequence_, std::move(unwritten_.front())});
    unwritten_.pop_front();
    if (auto* drop = std::get_if<DropRecord>(&log_.back().record)) dropped_[drop->lease] = drop->reason;
    done(true, last_sequence_);
  });
}

void LedgerWorld::Pump() {
  if (ledger_ == nullptr) return;
  DropPastDeadline();
  for (const DropRecord& drop : ledger_->UnloggedDrops()) Append(drop, [](bool, uint64_t) {});  // the append may fail
  for (const IssuedLease& issued : ledger_->NextLeases(Now())) {
    CheckIssued(issued);
    for (size_t r = 0; r < rollouters_.size(); ++r) {
      if (rollouters_[r].session != issued.session) continue;
      After(0.001, [this, r, issued] { StartLease(r, issued.session, issued.lease); });
    }
  }
  CheckLiveAreOutstanding();
  if (std::optional<GroupLedger::Take> take = ledger_->TakeBatch()) BeginStep(*std::move(take));
}

void LedgerWorld::BeginStep(GroupLedger::Take take) {
  CheckTake(take);
  ledger_->OnBatchAwaited(absl::Seconds(now_ - waits_since_));
  auto train = [this, record = take.record](bool, uint64_t) {
    durable_takes_[record.produces.step] = record.groups;
    history_[record.produces.step] = record.groups;
    ledger_->OnTakeLogged(0);
    TrainerAfter(step_time_, [this] { EndStep(); });
  };
  if (take.is_replay) {
    ++outcome_.replays;
    train(true, 0);
  } else {
    Append(take.record, train);
  }
}

void LedgerWorld::EndStep() {
  ledger_->OnStepDone(Now());
  waits_since_ = now_;
  outcome_.step_ends.push_back(now_);
  outcome_.steps = std::max(outcome_.steps, ledger_->version().step);
  last_progress_ = now_;
  if (ledger_->version().step % checkpoint_every_ == 0) SaveCheckpoint();
  Publish();
}

void LedgerWorld::Publish() {
  published_ = ledger_->version();
  ledger_->OnPublished(published_);
  for (size_t r = 0; r < rollouters_.size(); ++r) {
    After(Exponential(lag_), [this, r, version = published_, life = rollouters_[r].life] {
      if (life != rollouters_[r].life) return;
      Serve(r, std::max(rollouters_[r].serving, version));
      SendState(r);
    });
  }
}

void LedgerWorld::SaveCheckpoint() {
  checkpoints_.push_back({ledger_->version().step, ledger_->Snapshot(), ledger_->OldestNeededSequence()});
  if (checkpoints_.size() > 2) checkpoints_.erase(checkpoints_.begin());
  while (!log_.empty() && log_.front().sequence < checkpoints_.front().oldest_needed) log_.pop_front();
}

void LedgerWorld::Crash() {
  if (ledger_ == nullptr) return;
  outcome_.duplicates += ledger_->counters().duplicate;
  outcome_.expired += ledger_->counters().expired;
  outcome_.reissued += ledger_->counters().reissued;
  outcome_.stalled += ledger_->counters().stalled;
  outcome_.timed_out += ledger_->counters().timed_out;
  outcome_.filtered += ledger_->counters().filtered;
  outcome_.dropped += ledger_->counters().past_deadline;
  outcome_.continued += ledger_->counters().continued;
  outcome_.kept_tokens += ledger_->counters().kept_tokens;
  ledger_ = nullptr;
  ++trainer_life_;
  // Records on disk that are not acknowledged.
  for (int64_t written = Int(0, std::ssize(unwritten_)); written > 0; --written) {
    log_.push_back({++last_sequence_, std::move(unwritten_.front())});
    unwritten_.pop_front();
    if (auto* drop = std::get_if<DropRecord>(&log_.back().record)) dropped_[drop->lease] = drop->reason;
    if (auto* take = std::get_if<TakeRecord>(&log_.back().record)) {
      durable_takes_[take->produces.step] = take->groups;
    }
  }
  unwritten_.clear();
  live_.clear();
  last_attempts_.clear();
  out_.clear();
  owes_.clear();
  for (Rollouter& rollouter : rollouters_) rollouter.session = 0;
  After(2, [this] { Restore(); });
}

void LedgerWorld::Restore() {
  ++outcome_.restores;
  if (checkpoints_.size() > 1 && Chance(0.3)) checkpoints_.pop_back();  // the newest checkpoint does not verify
  Checkpoint from = checkpoints_.empty() ? Checkpoint{} : checkpoints_.back();
  DataRestore restore(GroupLedger::QueueOptions(options_, *prompts_), from.state, from.step);
  for (const LoggedRecord& logged : log_) {
    absl::Status status = restore.Add(logged.record, logged.sequence);
    if (!status.ok()) Wrong(absl::StrCat("restore: ", std::string(status.message())));
  }
  history_.erase(history_.upper_bound(from.step), history_.end());
  log_free_ = now_;
  last_progress_ = now_;
  Start({published_.epoch + 1, from.step}, restore.Finish());
  for (size_t r = 0; r < rollouters_.size(); ++r) {
    if (Chance(0.3)) rollouters_[r].running.clear();
  }
}

}  // namespace syncopate::trainer
