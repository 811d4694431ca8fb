#include "tests/unit/trainer/data/ledger_simulation.h"

#include "tests/unit/trainer/data/ledger_world.h"
#include "trainer/data/tasks.h"

namespace syncopate::trainer {

LedgerWorld::LedgerWorld(const SimulationConfig& config, const MakeLedger& make_ledger)
    : config_(config), make_ledger_(make_ledger), random_(config.seed) {
  const int64_t drawn = config.on_policy ? 0 : Int(0, 6), bound = config.fixed_bound < 0 ? drawn : config.fixed_bound;
  options_.gate = {.batch_groups = Choice<int64_t>({1, 2, 4, 8}),
                   .target_staleness = static_cast<double>(Int(0, 2 * bound)) / 2,
                   .max_staleness = bound};
  options_.samples = static_cast<int32_t>(Int(2, 3));
  options_.sampling.max_new_tokens = 4;
  options_.lease_limits = {.stall = absl::Seconds(8), .timeout = absl::Seconds(19)};
  options_.max_failures = config.on_policy ? 1000 : 4;
  options_.refill_zero_variance = !config.on_policy && Chance(0.5);
  prompts_ = *MakeTask({.seed = config.seed});
  rollouters_.resize(Choice({1, 2, 4}));
  capacity_ = Choice({1, 2, 4, 8});
  usual_ = Choice({0.1, 1.0});
  // One rollouter among others is slow: its usual answer takes four seconds.
  if (config.faults && rollouters_.size() > 1) rollouters_.back().slowness = Choice({1.0, 1.0, 4.0 / usual_});
  sigma_ = Choice({0.3, 1.0, 1.5});
  lag_ = Choice({0.0, 0.1, 0.5, 2.0});
  step_time_ = Choice({0.02, 0.25, 1.0});
  log_time_ = Choice({0.001, 0.1, 0.5});
  equal_rewards_ = Choice({0.0, 0.3});
  trouble_ = config.faults ? Choice({0.0, 0.02, 0.1}) : 0;
  crash_ = config.faults ? Choice({0.0, 0.02, 0.08}) : 0;
  checkpoint_every_ = Choice({1, 3, 10});
  options_.gate.on_deadline = config.on_deadline;
  options_.partial_bytes = Choice<int64_t>({0, 60, 1 << 20});
  if (!config.keeps_parts) options_.partial_bytes = 0;
  if (config.fixed_bound >= 0) FixLoad();
  outcome_.bound = bound;
}

// A fixed load: log-normal times with sigma 1.
void LedgerWorld::FixLoad() {
  const FixedLoad& load = config_.load;
  options_.gate.batch_groups = load.batch_groups;
  options_.gate.target_staleness = std::min(load.target_staleness, static_cast<double>(options_.gate.max_staleness));
  options_.refill_zero_variance = false;
  options_.partial_bytes = 0;
  options_.sampling.max_new_tokens = 1000;
  rollouters_.assign(static_cast<size_t>(load.rollouters), {});
  capacity_ = load.slots;
  usual_ = sigma_ = 1.0;
  options_.lease_limits.timeout = absl::Seconds(60);
  lag_ = 0.1;
  step_time_ = load.step_seconds;
  log_time_ = 0.001;
  equal_rewards_ = 0;
}

void LedgerWorld::DropPastDeadline() {
  const bool blocked = !ledger_->in_step() && !ledger_->HasBatch() && ledger_->gate().Blocker().has_value();
  const std::vector<Revocation> revoked = ledger_->DropPastDeadline(Now());
  if (!revoked.empty() && (!blocked || options_.gate.on_deadline != OnDeadline::kDrop)) {
    Wrong("dropped a group though no full batch waits for it");
  }
  for (const Revocation& one : revoked) Revoke(one);
  const std::optional<GroupId> blocker = ledger_->gate().Blocker();
  if (options_.gate.on_deadline == OnDeadline::kDrop && blocker.has_value() && live_.contains(*blocker)) {
    Wrong(absl::StrCat("waits for the deadline of ", blocker->ToString()));
  }
  const bool is_full = !ledger_->in_step() && ledger_->queued_groups() >= options_.gate.batch_groups;
  if (options_.gate.on_deadline == OnDeadline::kMask && is_full && !ledger_->HasBatch()) {
    Wrong("waits though a full batch is there");
  }
}

void LedgerWorld::TrainerAfter(double delay, std::function<void()> act) {
  After(delay, [this, life = trainer_life_, act = std::move(act)] {
    if (life == trainer_life_ && ledger_ != nullptr) act();
  });
}

SimulationOutcome LedgerWorld::Run() {
  for (size_t r = 0; r < rollouters_.size(); ++r) Serve(r, {});
  Start({1, 0}, {.queue = PromptQueue(GroupLedger::QueueOptions(options_, *prompts_))});
  std::function<void()> tick = [&] {
    if (ledger_ != nullptr) {
      for (const Revocation& revoked : ledger_->ExpireLeases(Now())) Revoke(revoked);
      CheckNoneStalls();
    }
    for (size_t r = 0; r < rollouters_.size(); ++r) {
      SendState(r);
      ReportProgress(r);
      if (Chance(trouble_ * 0.1)) rollouters_[r].wedged_until = now_ + static_cast<double>(Int(1, 40));
      if (Chance(trouble_ * 0.1)) rollouters_[r].paused_until = now_ + static_cast<double>(Int(1, 40));
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
  outcome_.now = now_;
  if (ledger_ != nullptr) outcome_.sizing = ledger_->MeasureSizing(Now());
  Crash();  // adds up the counters
  return outcome_;
}

SimulationOutcome Simulate(const SimulationConfig& config, const MakeLedger& make_ledger) {
  return LedgerWorld(config, make_ledger).Run();
}

}  // namespace syncopate::trainer
