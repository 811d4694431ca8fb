// Rollouters that lag, die, lose their stream, hang, answer twice, answer late and answer nonsense.

#include "tests/unit/trainer_data/ledger_world.h"

namespace syncopate::trainer {

void LedgerWorld::Connect(size_t r) {
  if (ledger_ == nullptr || rollouters_[r].session != 0) return;
  MemberId member{.role = "rollouter",
                  .replica_id = absl::StrCat("rollouter-", r),
                  .incarnation = absl::StrCat(rollouters_[r].life)};
  rollouters_[r].session = ledger_->Connect(member).session;
  SendState(r);
  auto unacknowledged = rollouters_[r].unacknowledged;  // it does not know whether these arrived
  for (const auto& [id, group] : unacknowledged) Deliver(r, rollouters_[r].session, group);
}

void LedgerWorld::Break(size_t r) {
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

void LedgerWorld::Kill(size_t r) {
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

void LedgerWorld::SendState(size_t r) {
  Rollouter& rollouter = rollouters_[r];
  if (ledger_ == nullptr || rollouter.session == 0) return;
  ledger_->OnServing(rollouter.session, rollouter.serving);
  ledger_->OnCredits(rollouter.session,
                     static_cast<int32_t>(std::max<int64_t>(0, capacity_ - std::ssize(rollouter.running))));
}

void LedgerWorld::StartLease(size_t r, SessionId session, const Lease& lease) {
  Rollouter& rollouter = rollouters_[r];
  if (rollouter.session != session) return;
  rollouter.running[lease.id] = lease;
  if (Chance(trouble_ * 0.1)) return;  // hangs: the lease will expire
  double time = std::min(std::lognormal_distribution<double>(0, sigma_)(random_), 20.0);
  After(time, [this, r, life = rollouter.life, id = lease.id, first = rollouter.serving] {
    if (life == rollouters_[r].life) FinishLease(r, id, first);
  });
}

SharedGroup LedgerWorld::Answer(const Lease& lease, const PolicyVersion& first, const PolicyVersion& last) {
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

SharedGroup LedgerWorld::Spoil(const SharedGroup& group) {
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

void LedgerWorld::FinishLease(size_t r, const LeaseId& id, const PolicyVersion& first) {
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

void LedgerWorld::Deliver(size_t r, SessionId session, const SharedGroup& group) {
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

void LedgerWorld::Acknowledge(size_t r, const LeaseId& lease) {
  acknowledged_.insert(lease);
  if (!Chance(trouble_)) rollouters_[r].unacknowledged.erase(lease);  // else the acknowledgement is lost
}

}  // namespace syncopate::trainer
