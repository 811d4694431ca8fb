#include "tests/unit/trainer_data/ledger_simulation.h"

#include <algorithm>
#include <map>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trainer/data/tasks.h"

namespace syncopate::trainer {
namespace {

using Result = GroupLedger::Result;

struct Rollouter {
  int64_t life = 0;       // rises when it is killed
  SessionId session = 0;  // 0: not connected
  PolicyVersion serving;
  std::map<LeaseId, Lease> running;
  std::map<LeaseId, SharedGroup> unacknowledged;
};

struct LoggedRecord {
  uint64_t sequence = 0;
  LogRecord record;
};

struct Checkpoint {
  int64_t step = 0;
  DataState state;
  uint64_t oldest_needed = 0;
};

class World {
 public:
  World(const SimulationConfig& config, const MakeLedger& make_ledger);
  SimulationOutcome Run();

 private:
  // Chance and time.
  double Uniform() { return std::uniform_real_distribution<double>(0, 1)(random_); }
  bool Chance(double p) { return config_.faults && Uniform() < p; }
  int64_t Int(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }
  double Exponential(double mean) { return mean == 0 ? 0 : std::exponential_distribution<double>(1 / mean)(random_); }
  template <typename T>
  T Choice(std::initializer_list<T> values) {
    return *(values.begin() + Int(0, static_cast<int64_t>(values.size()) - 1));
  }
  absl::Time Now() const { return absl::UnixEpoch() + absl::Seconds(now_); }
  void After(double delay, std::function<void()> act) { events_.push({now_ + delay, ++order_, std::move(act)}); }
  // The same, unless the trainer has crashed by then.
  void TrainerAfter(double delay, std::function<void()> act);

  // Rollouters.
  void Connect(size_t r);
  void Break(size_t r);
  void Kill(size_t r);
  void SendState(size_t r);
  void StartLease(size_t r, SessionId session, const Lease& lease);
  void FinishLease(size_t r, const LeaseId& id, const PolicyVersion& first);
  SharedGroup Answer(const Lease& lease, const PolicyVersion& first, const PolicyVersion& last);
  SharedGroup Spoil(const SharedGroup& group);
  void Deliver(size_t r, SessionId session, const SharedGroup& group);

  // The trainer's shell.
  void Start(PolicyVersion version, RestoredData data);
  void Append(LogRecord record, std::function<void(bool durable, uint64_t sequence)> done);
  void Pump();
  void BeginStep(GroupLedger::Take take);
  void EndStep();
  void Publish();
  void SaveCheckpoint();
  void Crash();
  void Restore();
  void Acknowledge(size_t r, const LeaseId& lease);

  // The book.
  void Forget(const LeaseId& lease, SessionId holder);
  void Wrong(std::string text) { outcome_.errors.push_back(absl::StrCat("t=", now_, ": ", text)); }
  void CheckVerdict(SessionId session, const SharedGroup& group, const GroupLedger::Verdict& verdict);
  void CheckTake(const GroupLedger::Take& take);
  void CheckEnd();
  bool WasAccepted(const LeaseId& lease) const;
  bool Survives(const PolicyVersion& version) const;

  struct Event {
    double time;
    int64_t order;
    std::function<void()> act;
    bool operator>(const Event& other) const { return std::tie(time, order) > std::tie(other.time, other.order); }
  };

  const SimulationConfig config_;
  const MakeLedger make_ledger_;
  std::mt19937_64 random_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  double now_ = 0;
  int64_t order_ = 0;

  GroupLedger::Options options_;
  std::unique_ptr<PromptSource> prompts_;
  double sigma_ = 1, lag_ = 0, step_time_ = 0.25, log_time_ = 0.01, equal_rewards_ = 0, trouble_ = 0, crash_ = 0;
  int64_t capacity_ = 4, checkpoint_every_ = 5;

  std::vector<Rollouter> rollouters_;
  std::unique_ptr<GroupLedger> ledger_;  // null while the trainer is down
  int64_t trainer_life_ = 0;
  PolicyVersion published_;
  std::deque<LoggedRecord> log_;     // durable
  std::deque<LogRecord> unwritten_;  // handed in, not durable
  uint64_t last_sequence_ = 0;
  double log_free_ = 0;
  std::vector<Checkpoint> checkpoints_;
  double last_progress_ = 0;

  std::map<GroupId, std::pair<int32_t, SessionId>> issued_;  // newest attempt and its holder; gone when that is lost
  std::set<LeaseId> acknowledged_;
  std::map<int64_t, std::vector<LeaseId>> history_;        // surviving steps
  std::map<int64_t, std::vector<LeaseId>> durable_takes_;  // logged takes by step
  std::map<LeaseId, DropReason> dropped_;
  std::map<int64_t, int64_t> restored_at_;  // epoch -> step it began at
  SimulationOutcome outcome_;
};

World::World(const SimulationConfig& config, const MakeLedger& make_ledger)
    : config_(config), make_ledger_(make_ledger), random_(config.seed) {
  const int64_t bound = config.on_policy ? 0 : Int(0, 6);
  options_.gate = {.batch_groups = Choice<int64_t>({1, 2, 4, 8}),
                   .target_staleness = static_cast<double>(Int(0, 2 * bound)) / 2,
                   .max_staleness = bound};
  options_.samples = static_cast<int32_t>(Int(2, 3));
  options_.sampling.max_new_tokens = 4;
  options_.lease_timeout = absl::Seconds(40);
  options_.max_failures = config.on_policy ? 1000 : 4;
  options_.refill_zero_variance = !config.on_policy && Chance(0.5);
  prompts_ = *MakeTask({.seed = config.seed});
  rollouters_.resize(Choice({1, 2, 4}));
  capacity_ = Choice({1, 2, 4, 8});
  sigma_ = Choice({0.3, 1.0, 1.5});
  lag_ = Choice({0.0, 0.1, 0.5, 2.0});
  step_time_ = Choice({0.02, 0.25, 1.0});
  log_time_ = Choice({0.001, 0.1, 0.5});
  equal_rewards_ = Choice({0.0, 0.3});
  trouble_ = config.faults ? Choice({0.0, 0.02, 0.1}) : 0;
  crash_ = config.faults ? Choice({0.0, 0.02, 0.08}) : 0;
  checkpoint_every_ = Choice({1, 3, 10});
  outcome_.bound = bound;
}

void World::TrainerAfter(double delay, std::function<void()> act) {
  After(delay, [this, life = trainer_life_, act = std::move(act)] {
    if (life == trainer_life_ && ledger_ != nullptr) act();
  });
}

// -- Rollouters

void World::Connect(size_t r) {
  if (ledger_ == nullptr || rollouters_[r].session != 0) return;
  MemberId member{.role = "rollouter",
                  .replica_id = absl::StrCat("rollouter-", r),
                  .incarnation = absl::StrCat(rollouters_[r].life)};
  rollouters_[r].session = ledger_->Connect(member).session;
  SendState(r);
  auto unacknowledged = rollouters_[r].unacknowledged;  // it does not know whether these arrived
  for (const auto& [id, group] : unacknowledged) Deliver(r, rollouters_[r].session, group);
}

void World::Break(size_t r) {
  Rollouter& rollouter = rollouters_[r];
  if (rollouter.session != 0 && ledger_ != nullptr) {
    const SessionId lost = rollouter.session;
    ledger_->Disconnect(lost);
    std::erase_if(issued_, [&](const auto& entry) { return entry.second.second == lost; });
  }
  rollouter.session = 0;
  // A sloppy rollouter goes on with leases of a broken stream and submits them on the next.
  if (Chance(0.5)) rollouter.running.clear();
  After(Exponential(0.5), [this, r, life = rollouter.life] {
    if (life == rollouters_[r].life) Connect(r);
  });
}

void World::Kill(size_t r) {
  Rollouter& rollouter = rollouters_[r];
  rollouter.running.clear();
  rollouter.unacknowledged.clear();
  rollouter.serving = {};
  ++rollouter.life;
  Break(r);
  After(1 + Exponential(lag_), [this, r, life = rollouter.life] {  // weights come by the next sync
    if (life != rollouters_[r].life) return;
    rollouters_[r].serving = std::max(rollouters_[r].serving, published_);
    SendState(r);
  });
}

void World::SendState(size_t r) {
  Rollouter& rollouter = rollouters_[r];
  if (ledger_ == nullptr || rollouter.session == 0) return;
  ledger_->OnServing(rollouter.session, rollouter.serving);
  ledger_->OnCredits(rollouter.session,
                     static_cast<int32_t>(std::max<int64_t>(0, capacity_ - std::ssize(rollouter.running))));
}

void World::StartLease(size_t r, SessionId session, const Lease& lease) {
  Rollouter& rollouter = rollouters_[r];
  if (rollouter.session != session) return;
  rollouter.running[lease.id] = lease;
  if (Chance(trouble_ * 0.1)) return;  // hangs: the lease will expire
  double time = std::min(std::lognormal_distribution<double>(0, sigma_)(random_), 20.0);
  After(time, [this, r, life = rollouter.life, id = lease.id, first = rollouter.serving] {
    if (life == rollouters_[r].life) FinishLease(r, id, first);
  });
}

SharedGroup World::Answer(const Lease& lease, const PolicyVersion& first, const PolicyVersion& last) {
  auto group = std::make_shared<TrajectoryGroup>();
  group->lease = lease.id;
  group->prompt_ids = lease.prompt_ids;
  const bool equal = Uniform() < equal_rewards_;
  for (int32_t i = 0; i < lease.samples; ++i) {
    Trajectory sample;
    const int32_t length = static_cast<int32_t>(Int(2, 4));
    sample.tokens.assign(length, 1);
    sample.logprobs.assign(length, -0.5f);
    sample.reward = equal ? 1.0f : static_cast<float>(i);
    const int32_t cut = first == last ? length : 1;
    sample.spans.push_back({first, 0, cut});
    if (cut < length) sample.spans.push_back({last, cut, length});
    group->samples.push_back(std::move(sample));
  }
  return group;
}

SharedGroup World::Spoil(const SharedGroup& group) {
  auto spoiled = std::make_shared<TrajectoryGroup>(*group);
  switch (Int(0, 4)) {
    case 0:
      spoiled->samples.pop_back();
      break;
    case 1:
      spoiled->samples[0].logprobs[0] = 0.5f;
      break;
    case 2:
      spoiled->samples[0].spans[0].version.step += 1000;
      break;
    case 3:
      spoiled->prompt_ids[0] += 1;
      break;
    default:
      spoiled->samples[0].tokens.push_back(0);
  }
  return spoiled;
}

void World::FinishLease(size_t r, const LeaseId& id, const PolicyVersion& first) {
  Rollouter& rollouter = rollouters_[r];
  auto found = rollouter.running.find(id);
  if (found == rollouter.running.end()) return;
  SharedGroup group = Answer(found->second, first, rollouter.serving);
  rollouter.running.erase(found);
  if (Chance(trouble_ * 0.5)) {
    if (ledger_ != nullptr && rollouter.session != 0) {
      Forget(id, rollouter.session);
      ledger_->Return(rollouter.session, id, Chance(0.5) ? absl::CancelledError("drained") : absl::InternalError("no"));
    }
  } else if (Chance(trouble_)) {
    Deliver(r, rollouter.session, Spoil(group));
  } else {
    rollouter.unacknowledged[id] = group;
    Deliver(r, rollouter.session, group);
    if (Chance(trouble_)) Deliver(r, rollouter.session, group);  // and once more
  }
  SendState(r);
}

void World::Deliver(size_t r, SessionId session, const SharedGroup& group) {
  if (session == 0) return;
  TrainerAfter(0.001, [this, r, session, group] {
    if (rollouters_[r].session != session) return;  // lost with the stream
    GroupLedger::Verdict verdict = ledger_->Submit(session, group, Now());
    CheckVerdict(session, group, verdict);
    const LeaseId lease = group->lease;
    if (verdict.result == Result::kAlreadyAccepted || verdict.result == Result::kExpired) {
      rollouters_[r].unacknowledged.erase(lease);
    }
    if (verdict.result == Result::kInvalid || verdict.result == Result::kFenced) {
      rollouters_[r].unacknowledged.erase(lease);
      Forget(lease, session);
    }
    if (!verdict.record.has_value()) return;
    Append(*verdict.record, [this, r, session, lease](bool durable, uint64_t sequence) {
      if (!durable) {
        ledger_->OnLogFailed(lease);
        Forget(lease, session);
        return;
      }
      ledger_->OnLogged(lease, sequence);
      Acknowledge(r, lease);
    });
  });
}

void World::Acknowledge(size_t r, const LeaseId& lease) {
  acknowledged_.insert(lease);
  if (!Chance(trouble_)) rollouters_[r].unacknowledged.erase(lease);  // else the acknowledgement is lost
}

// -- The trainer's shell

void World::Start(PolicyVersion version, RestoredData data) {
  restored_at_[version.epoch] = version.step;
  ledger_ = make_ledger_(options_, prompts_.get(), version, std::move(data), Now());
  for (const DropRecord& drop : ledger_->UnloggedDrops()) {  // durable before any work begins
    dropped_[drop.lease] = drop.reason;
    log_.push_back({++last_sequence_, drop});
  }
  Publish();
  for (size_t r = 0; r < rollouters_.size(); ++r) Connect(r);
}

void World::Append(LogRecord record, std::function<void(bool, uint64_t)> done) {
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

void World::Pump() {
  if (ledger_ == nullptr) return;
  for (const DropRecord& drop : ledger_->UnloggedDrops()) Append(drop, [](bool, uint64_t) {});  // may fail
  for (const IssuedLease& issued : ledger_->NextLeases(Now())) {
    issued_[issued.lease.id.group] = {issued.lease.id.attempt, issued.session};
    for (size_t r = 0; r < rollouters_.size(); ++r) {
      if (rollouters_[r].session != issued.session) continue;
      After(0.001, [this, r, issued] { StartLease(r, issued.session, issued.lease); });
    }
  }
  if (std::optional<GroupLedger::Take> take = ledger_->TakeBatch()) BeginStep(*std::move(take));
}

void World::BeginStep(GroupLedger::Take take) {
  CheckTake(take);
  auto train = [this, record = take.record](bool, uint64_t) {
    durable_takes_[record.produces.step] = record.groups;
    history_[record.produces.step] = record.groups;
    ledger_->OnTakeLogged();
    TrainerAfter(step_time_, [this] { EndStep(); });
  };
  if (take.is_replay) {
    ++outcome_.replays;
    train(true, 0);
  } else {
    Append(take.record, train);
  }
}

void World::EndStep() {
  ledger_->OnStepDone(Now());
  outcome_.steps = std::max(outcome_.steps, ledger_->version().step);
  last_progress_ = now_;
  if (ledger_->version().step % checkpoint_every_ == 0) SaveCheckpoint();
  Publish();
}

void World::Publish() {
  published_ = ledger_->version();
  ledger_->OnPublished(published_);
  for (size_t r = 0; r < rollouters_.size(); ++r) {
    After(Exponential(lag_), [this, r, version = published_, life = rollouters_[r].life] {
      if (life != rollouters_[r].life) return;
      rollouters_[r].serving = std::max(rollouters_[r].serving, version);
      SendState(r);
    });
  }
}

void World::SaveCheckpoint() {
  checkpoints_.push_back({ledger_->version().step, ledger_->Snapshot(), ledger_->OldestNeededSequence()});
  if (checkpoints_.size() > 2) checkpoints_.erase(checkpoints_.begin());
  while (!log_.empty() && log_.front().sequence < checkpoints_.front().oldest_needed) log_.pop_front();
}

void World::Crash() {
  if (ledger_ == nullptr) return;
  outcome_.duplicates += ledger_->counters().duplicate;
  outcome_.expired += ledger_->counters().expired;
  outcome_.reissued += ledger_->counters().reissued;
  outcome_.filtered += ledger_->counters().filtered;
  ledger_ = nullptr;
  ++trainer_life_;
  for (int64_t written = Int(0, std::ssize(unwritten_)); written > 0; --written) {  // on disk, though nobody knew
    log_.push_back({++last_sequence_, std::move(unwritten_.front())});
    unwritten_.pop_front();
    if (auto* drop = std::get_if<DropRecord>(&log_.back().record)) dropped_[drop->lease] = drop->reason;
    if (auto* take = std::get_if<TakeRecord>(&log_.back().record)) {
      durable_takes_[take->produces.step] = take->groups;
    }
  }
  unwritten_.clear();
  issued_.clear();
  for (Rollouter& rollouter : rollouters_) rollouter.session = 0;
  After(2, [this] { Restore(); });
}

void World::Restore() {
  ++outcome_.restores;
  if (checkpoints_.size() > 1 && Chance(0.3)) checkpoints_.pop_back();  // the newest does not verify
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

// -- The book

void World::Forget(const LeaseId& lease, SessionId holder) {
  auto found = issued_.find(lease.group);
  if (found != issued_.end() && found->second == std::make_pair(lease.attempt, holder)) issued_.erase(found);
}

void World::CheckVerdict(SessionId session, const SharedGroup& group, const GroupLedger::Verdict& verdict) {
  const LeaseId lease = group->lease;
  outcome_.invalid += verdict.result == Result::kInvalid;
  outcome_.fenced += verdict.result == Result::kFenced;
  if (verdict.result == Result::kAccepted) {
    auto found = issued_.find(lease.group);
    if (found == issued_.end() || found->second != std::make_pair(lease.attempt, session)) {
      ++outcome_.accepted_old_attempts;
    }
    if (static_cast<int32_t>(group->samples.size()) != options_.samples) Wrong("accepted a group that is not whole");
  }
  if (verdict.result == Result::kAlreadyAccepted && !WasAccepted(lease)) {
    Wrong(absl::StrCat("called ", lease.group.ToString(), " accepted, which it is not"));
  }
}

// Durable in the log under this lease, or the prompt is done with.
bool World::WasAccepted(const LeaseId& lease) const {
  if (acknowledged_.contains(lease)) return true;
  for (const LoggedRecord& logged : log_) {
    const auto* accepted = std::get_if<AcceptedRecord>(&logged.record);
    if (accepted != nullptr && accepted->group->lease == lease) return true;
  }
  auto of_group = [&](const LeaseId& other) { return other.group == lease.group; };
  for (const auto& [dropped, reason] : dropped_) {
    if (of_group(dropped) && !LeasedAgain(reason)) return true;
  }
  return std::any_of(history_.begin(), history_.end(),
                     [&](const auto& step) { return std::any_of(step.second.begin(), step.second.end(), of_group); });
}

// A version survives if no later epoch began before it.
bool World::Survives(const PolicyVersion& version) const {
  for (auto next = restored_at_.upper_bound(version.epoch); next != restored_at_.end(); ++next) {
    if (next->second < version.step) return false;
  }
  return true;
}

void World::CheckTake(const GroupLedger::Take& take) {
  const int64_t step = take.record.produces.step;
  auto known = durable_takes_.find(step);
  if (take.is_replay && (known == durable_takes_.end() || known->second != take.record.groups)) {
    Wrong(absl::StrCat("the replay of step ", step, " differs from its take"));
  }
  if (!take.is_replay && known != durable_takes_.end()) Wrong(absl::StrCat("step ", step, " is taken afresh"));
  if (!std::is_sorted(take.record.groups.begin(), take.record.groups.end())) Wrong("a batch is not in prompt order");
  if (std::ssize(take.groups) != options_.gate.batch_groups) Wrong("a batch is not full");
  for (size_t i = 0; i < take.groups.size(); ++i) {
    const TrajectoryGroup& group = *take.groups[i];
    const int64_t ordinal = (step - 1) * options_.gate.batch_groups + static_cast<int64_t>(i);
    if (config_.on_policy && group.lease.group.ordinal != ordinal) Wrong("on-policy prompts are out of order");
    if (dropped_.contains(group.lease)) Wrong(absl::StrCat("trains dropped group ", group.lease.group.ToString()));
    for (const Trajectory& sample : group.samples) {
      for (const VersionSpan& span : sample.spans) {
        outcome_.worst_staleness = std::max(outcome_.worst_staleness, step - 1 - span.version.step);
        if (!take.is_replay && !Survives(span.version)) Wrong("trains tokens of a version that was rolled back");
      }
    }
  }
}

void World::CheckEnd() {
  std::map<GroupId, int64_t> trained;
  for (const auto& [step, groups] : history_) {
    for (const LeaseId& lease : groups) {
      if (!trained.emplace(lease.group, step).second) {
        Wrong(absl::StrCat("group ", lease.group.ToString(), " trained twice"));
      }
    }
  }
  if (ledger_ == nullptr) return;
  int64_t queued = 0;
  for (const LeaseId& lease : acknowledged_) {
    auto found = trained.find(lease.group);
    const bool in_history = found != trained.end() &&
                            std::count(history_[found->second].begin(), history_[found->second].end(), lease) == 1;
    if (in_history || dropped_.contains(lease)) continue;
    ++queued;
  }
  const int64_t held = ledger_->queued_groups() + (ledger_->in_step() ? options_.gate.batch_groups : 0) +
                       ledger_->replays_left() * options_.gate.batch_groups;
  if (queued > held) Wrong(absl::StrCat(queued, " acknowledged groups are unaccounted for, ", held, " are queued"));
}

SimulationOutcome World::Run() {
  for (size_t r = 0; r < rollouters_.size(); ++r) rollouters_[r].serving = {};
  Start({1, 0}, {.queue = PromptQueue(GroupLedger::QueueOptions(options_, *prompts_))});
  std::function<void()> tick = [&] {
    if (ledger_ != nullptr) {
      for (const Revocation& revoked : ledger_->ExpireLeases(Now())) {
        Forget(revoked.lease, revoked.session);
        for (Rollouter& rollouter : rollouters_) {
          if (rollouter.session == revoked.session) rollouter.running.erase(revoked.lease);
        }
      }
    }
    for (size_t r = 0; r < rollouters_.size(); ++r) {
      SendState(r);
      if (Chance(trouble_ * 0.3)) Kill(r);
      if (Chance(trouble_ * 0.5)) Break(r);
      if (rollouters_[r].session == 0) Connect(r);
    }
    if (Chance(crash_)) Crash();
    After(1, tick);
  };
  After(1, tick);
  while (outcome_.steps < config_.steps && !outcome_.deadlock) {
    Event event = events_.top();
    events_.pop();
    now_ = event.time;
    event.act();
    Pump();
    outcome_.deadlock = now_ - last_progress_ > 400;
  }
  CheckEnd();
  Crash();  // adds up the counters
  return outcome_;
}

}  // namespace

SimulationOutcome Simulate(const SimulationConfig& config, const MakeLedger& make_ledger) {
  return World(config, make_ledger).Run();
}

}  // namespace syncopate::trainer
