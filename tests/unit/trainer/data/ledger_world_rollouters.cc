// Rollouters that lag, are slow, die, lose their stream, hang, wedge, are paused, answer twice, answer late and send
// invalid answers.

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/reasons.h"
#include "base/status.h"
#include "tests/unit/trainer/data/ledger_world.h"

namespace syncopate::trainer {

void LedgerWorld::Connect(size_t r) {
  if (ledger_ == nullptr || rollouters_[r].session != 0) return;
  MemberId member{.role = "rollouter",
                  .replica_id = absl::StrCat("rollouter-", r),
                  .incarnation = absl::StrCat(rollouters_[r].life)};
  rollouters_[r].session = ledger_->Connect(member).session;
  rollouters_[r].started.clear();
  rollouters_[r].made.clear();
  rollouters_[r].reported.clear();
  SendState(r);
  auto unacknowledged = rollouters_[r].unacknowledged;  // the rollouter does not know whether these arrived
  for (const auto& [id, group] : unacknowledged) Deliver(r, rollouters_[r].session, group);
}

void LedgerWorld::Serve(size_t r, const PolicyVersion& version) {
  Rollouter& rollouter = rollouters_[r];
  if (!rollouter.served.empty() && rollouter.serving == version) return;
  rollouter.serving = version;
  rollouter.served.emplace_back(now_, version);
}

void LedgerWorld::Break(size_t r) {
  Rollouter& rollouter = rollouters_[r];
  if (rollouter.session != 0 && ledger_ != nullptr) {
    const SessionId lost = rollouter.session;
    ledger_->Disconnect(lost);
    for (auto& [group, live] : live_) {
      std::erase_if(live.attempts, [&](const auto& attempt) { return attempt.second == lost; });
    }
    std::erase_if(live_, [](const auto& entry) { return entry.second.attempts.empty(); });
    std::erase_if(out_, [&](const auto& entry) { return entry.second.holder == lost; });
    owes_.erase(lost);
  }
  rollouter.session = 0;
  // A careless rollouter goes on with leases of a broken stream and submits their answers on the next stream.
  if (Chance(0.5)) rollouter.running.clear();
  After(Exponential(0.5), [this, r, life = rollouter.life] {
    if (life == rollouters_[r].life) Connect(r);
  });
}

void LedgerWorld::Kill(size_t r) {
  Rollouter& rollouter = rollouters_[r];
  rollouter.running.clear();
  rollouter.hung.clear();
  rollouter.made.clear();
  rollouter.reported.clear();
  rollouter.wedged_until = rollouter.paused_until = 0;
  rollouter.unacknowledged.clear();
  Serve(r, {});
  ++rollouter.life;
  Break(r);
  After(1 + Exponential(lag_), [this, r, life = rollouter.life] {  // the weights come with the next sync
    if (life != rollouters_[r].life) return;
    Serve(r, std::max(rollouters_[r].serving, published_));
    SendState(r);
  });
}

void LedgerWorld::SendState(size_t r) {
  Rollouter& rollouter = rollouters_[r];
  if (ledger_ == nullptr || rollouter.session == 0) return;
  ledger_->OnServing(rollouter.session, rollouter.serving);
  const int64_t room = now_ < rollouter.paused_until ? 0 : capacity_ - std::ssize(rollouter.running);
  ledger_->OnCredits(rollouter.session, static_cast<int32_t>(std::max<int64_t>(0, room)));
}

void LedgerWorld::ReportProgress(size_t r) {
  Rollouter& rollouter = rollouters_[r];
  if (ledger_ == nullptr || rollouter.session == 0 || FreeAt(r) > now_) return;
  for (const auto& [id, lease] : rollouter.running) {
    if (rollouter.hung.contains(id)) continue;
    ledger_->OnProgress(rollouter.session, id, Now());
    if (options_.partial_bytes > 0 && rollouter.started.contains(id)) ReportParts(r, lease);
    auto out = out_.find(id);
    if (out == out_.end() || out->second.holder != rollouter.session) continue;
    out->second.heard = now_;
    owes_.erase(rollouter.session);
  }
}

void LedgerWorld::ReportParts(size_t r, const Lease& lease) {
  Rollouter& rollouter = rollouters_[r];
  auto& made = rollouter.made[lease.id];
  auto& reported = rollouter.reported[lease.id];
  made.resize(static_cast<size_t>(lease.samples));
  reported.resize(static_cast<size_t>(lease.samples));
  for (size_t i = 0; i < made.size(); ++i) {
    const size_t begun = lease.starts.empty() ? 0 : lease.starts[i].tokens.size();
    // The last token ends the sample.
    if (Chance(0.7) && begun + made[i].size() + 1 < 4) made[i].push_back(rollouter.serving);
    if (reported[i] == made[i].size() || Chance(0.3)) continue;
    AnswerPart part{.sample = static_cast<int32_t>(i), .begin = static_cast<int32_t>(begun + reported[i])};
    part.spans = GoOn({made[i].begin() + static_cast<int64_t>(reported[i]), made[i].end()}, part.begin, {});
    for (int32_t place = part.begin; place < part.spans.back().end; ++place) {
      part.tokens.push_back(1);
      part.logprobs.push_back(-0.5f * static_cast<float>(place + 1));
    }
    reported[i] = made[i].size();
    for (int times = Chance(0.2) ? 2 : 1; times > 0; --times) {  // it may come twice
      const absl::Status status = ledger_->OnPart(rollouter.session, lease.id, part);
      if (!status.ok()) Wrong(absl::StrCat("refused a right part: ", status.ToString()));
    }
  }
}

// The spans of tokens that `made` has by their versions, and of one more by `serving` if that is one.
std::vector<VersionSpan> LedgerWorld::GoOn(const std::vector<PolicyVersion>& made, int32_t begin,
                                           const PolicyVersion& serving) {
  std::vector<PolicyVersion> all = made;
  if (!serving.IsNone()) all.push_back(serving);
  std::vector<VersionSpan> spans;
  for (const PolicyVersion& version : all) {
    if (spans.empty() || spans.back().version != version) spans.push_back({version, begin, begin});
    spans.back().end = ++begin;
  }
  return spans;
}

// The rollouter gives the lease up as soon as it can act, and reports it.
void LedgerWorld::Revoke(const Revocation& revoked) {
  CheckRevoked(revoked);
  Forget(revoked.lease, revoked.session);
  for (size_t r = 0; r < rollouters_.size(); ++r) {
    if (rollouters_[r].session != revoked.session) continue;
    TrainerAfter(FreeAt(r) - now_ + 0.001, [this, r, revoked] {
      Rollouter& rollouter = rollouters_[r];
      if (rollouter.session != revoked.session || rollouter.running.erase(revoked.lease) == 0) return;
      Hears(revoked.session, revoked.lease);
      ledger_->Return(revoked.session, revoked.lease, absl::AbortedError("revoked"));
    });
  }
}

void LedgerWorld::StartLease(size_t r, SessionId session, const Lease& lease) {
  Rollouter& rollouter = rollouters_[r];
  if (rollouter.session != session) return;
  rollouter.running[lease.id] = lease;
  rollouter.started.insert(lease.id);
  if (Chance(trouble_ * 0.1)) {
    rollouter.hung.insert(lease.id);
    return;
  }
  // Attempts at one group draw the same numbers, and so the same length; in a world of faults they may differ.
  std::mt19937_64 of_group(lease.seed);
  std::mt19937_64& random = config_.fixed_bound >= 0 ? of_group : random_;
  const double time =
      usual_ * rollouter.slowness * std::min(std::lognormal_distribution<double>(0, sigma_)(random), 20.0);
  times_[lease.id] = time;
  if (lease.id.attempt == 1) {
    outcome_.sampled_time += time;
    ++outcome_.sampled_groups;
  }
  After(time, [this, r, life = rollouter.life, id = lease.id, first = rollouter.serving] {
    if (life == rollouters_[r].life) FinishLease(r, id, first);
  });
}

// In a world of fixed load there are ten tokens a second, each by the version that served then; otherwise a few, the
// first by the first version.
std::vector<VersionSpan> LedgerWorld::DrawSpans(const Rollouter& rollouter, const PolicyVersion& first,
                                                double seconds) {
  constexpr double kTokensPerSecond = 10;
  if (config_.fixed_bound < 0) {
    const auto length = static_cast<int32_t>(Int(2, 4));
    if (first == rollouter.serving) return {{first, 0, length}};
    return {{first, 0, 1}, {rollouter.serving, 1, length}};
  }
  std::vector<VersionSpan> spans;
  const int32_t length = std::max(1, static_cast<int32_t>(seconds * kTokensPerSecond));
  auto served = rollouter.served.begin();
  for (int32_t token = 0; token < length; ++token) {
    const double made = now_ - seconds + token / kTokensPerSecond;
    while (std::next(served) != rollouter.served.end() && std::next(served)->first <= made) ++served;
    if (spans.empty() || spans.back().version != served->second) spans.push_back({served->second, token, token});
    spans.back().end = token + 1;
  }
  return spans;
}

SharedGroup LedgerWorld::Answer(const Lease& lease, const Rollouter& rollouter, const PolicyVersion& first,
                                double seconds) {
  auto group = std::make_shared<TrajectoryGroup>();
  group->lease = lease.id;
  group->prompt_ids = lease.prompt_ids;
  const bool equal = Uniform() < equal_rewards_;
  for (int32_t i = 0; i < lease.samples; ++i) {
    Trajectory sample;
    const int32_t begun =
        lease.starts.empty() ? 0 : static_cast<int32_t>(lease.starts[static_cast<size_t>(i)].tokens.size());
    const auto made = rollouter.made.find(lease.id);
    sample.spans =
        begun > 0 || made != rollouter.made.end()
            ? GoOn(made == rollouter.made.end() ? std::vector<PolicyVersion>() : made->second[static_cast<size_t>(i)],
                   begun, std::max(rollouter.serving, first))
            : DrawSpans(rollouter, first, seconds);
    for (int32_t place = begun; place < sample.spans.back().end; ++place) {
      sample.tokens.push_back(1);
      sample.logprobs.push_back(-0.5f * static_cast<float>(place + 1));
    }
    sample.reward = equal ? 1.0f : static_cast<float>(i);
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
  if (FreeAt(r) > now_) {
    After(FreeAt(r) - now_, [this, r, life = rollouter.life, id, first] {
      if (life == rollouters_[r].life) FinishLease(r, id, first);
    });
    return;
  }
  SharedGroup group = Answer(found->second, rollouter, first, times_.at(id));
  rollouter.running.erase(found);
  rollouter.started.erase(id);
  rollouter.made.erase(id);
  rollouter.reported.erase(id);
  if (Chance(trouble_ * 0.5)) {
    if (ledger_ != nullptr && rollouter.session != 0) {
      Forget(id, rollouter.session);
      Hears(rollouter.session, id);
      // The reward of some prompts fails: they rest before they are leased again, and later prompts are leased
      // meanwhile.
      const absl::Status fault = config_.on_policy || id.group.ordinal % 2 == 0
                                     ? absl::InternalError("no")
                                     : Error(absl::StatusCode::kInternal, reason::kRewardFailed, "no");
      ledger_->Return(rollouter.session, id, Chance(0.5) ? absl::CancelledError("drained") : fault);
    }
  } else if (Chance(trouble_)) {
    const SharedGroup spoiled = Spoil(group);
    spoiled_.insert(spoiled);
    Deliver(r, rollouter.session, spoiled);
  } else {
    rollouter.unacknowledged[id] = group;
    Deliver(r, rollouter.session, group);
    if (Chance(trouble_)) Deliver(r, rollouter.session, group);  // the answer is sent twice
  }
  if (config_.fixed_bound < 0) {
    SendState(r);  // it may overtake the answer
  } else {
    TrainerAfter(0.001, [this, r] { SendState(r); });
  }
}

void LedgerWorld::Deliver(size_t r, SessionId session, const SharedGroup& group) {
  if (session == 0) return;
  TrainerAfter(0.001, [this, r, session, group] {
    if (rollouters_[r].session != session) return;  // the answer was lost with the stream
    Hears(session, group->lease);
    GroupLedger::Verdict verdict = ledger_->Submit(session, group, Now());
    CheckVerdict(session, group, verdict);
    if (verdict.superseded.has_value()) Revoke(*verdict.superseded);
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
  if (!Chance(trouble_)) rollouters_[r].unacknowledged.erase(lease);  // otherwise the acknowledgement is lost
}

}  // namespace syncopate::trainer
