// How much of what is generated is trained where rollouters live shorter than an answer takes.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/trainer/data/group_factory.h"
#include "trainer/data/group_ledger.h"
#include "trainer/data/tasks.h"

namespace syncopate::trainer {
namespace {

constexpr double kTick = 0.1;  // seconds, in which each sample gets a token
constexpr int kTicksPerHeartbeat = 10;
constexpr int32_t kAnswer = 200;  // tokens: 20 seconds
constexpr double kAway = 1;       // seconds from the end of a rollouter to its next life
constexpr int kRollouters = 4, kGroupsEach = 4;
constexpr double kSeconds = 600;

struct Rollouter {
  SessionId session = 0;
  double back_at = 0;
  std::map<LeaseId, Lease> leases = {};
  std::map<LeaseId, int32_t> made = {};      // tokens of each sample in this lease
  std::map<LeaseId, int32_t> reported = {};  // of those
};

int32_t Begun(const Lease& lease) {
  return lease.starts.empty() ? 0 : static_cast<int32_t>(lease.starts.front().tokens.size());
}

AnswerPart MakePart(int32_t sample, int32_t begin, int32_t end, const PolicyVersion& version) {
  AnswerPart part{.sample = sample, .begin = begin, .spans = {{version, begin, end}}};
  part.tokens.assign(static_cast<size_t>(end - begin), 1);
  part.logprobs.assign(part.tokens.size(), -1.0f);
  return part;
}

class World {
 public:
  // `life`: seconds that a rollouter lives on average; 0: for ever.
  World(double life, int64_t partial_bytes, uint64_t seed) : life_(life), random_(seed), rollouters_(kRollouters) {
    options_.gate = {.batch_groups = 4, .target_staleness = 8, .max_staleness = 100};
    options_.samples = 2;
    options_.sampling.max_new_tokens = kAnswer;
    options_.partial_bytes = partial_bytes;
    options_.lease_limits = {.stall = absl::Seconds(30), .timeout = absl::Minutes(30)};
    prompts_ = *MakeTask({});
    const PromptQueue queue(GroupLedger::QueueOptions(options_, *prompts_));
    ledger_ = std::make_unique<GroupLedger>(options_, prompts_.get(), PolicyVersion{1, 0}, RestoredData{.queue = queue},
                                            Now());
    ledger_->OnPublished({1, 0});
  }

  // Tokens of accepted answers.
  int64_t Run() {
    for (int tick = 0; now_ < kSeconds; ++tick, now_ += kTick) {
      for (int r = 0; r < kRollouters; ++r) Live(r, tick);
      for (IssuedLease& issued : ledger_->NextLeases(Now())) {
        for (Rollouter& one : rollouters_) {
          if (one.session == issued.session) one.leases[issued.lease.id] = issued.lease;
        }
      }
      Train();
    }
    return useful_;
  }

 private:
  absl::Time Now() const { return absl::UnixEpoch() + absl::Seconds(now_); }

  void Live(int r, int tick) {
    Rollouter& one = rollouters_[static_cast<size_t>(r)];
    if (one.session == 0) {
      if (now_ < one.back_at) return;
      one.session =
          ledger_->Connect({.role = "rollouter", .replica_id = absl::StrCat("r", r), .incarnation = "a"}).session;
    }
    if (life_ > 0 && std::uniform_real_distribution<double>(0, 1)(random_) < kTick / life_) {
      ledger_->Disconnect(one.session);
      one = {.back_at = now_ + kAway};
      return;
    }
    ledger_->OnServing(one.session, ledger_->version());
    const std::map<LeaseId, Lease> leases = one.leases;
    for (const auto& [id, lease] : leases) Generate(&one, lease, tick % kTicksPerHeartbeat == 0);
    ledger_->OnCredits(one.session, kGroupsEach - static_cast<int32_t>(one.leases.size()));
  }

  void Generate(Rollouter* one, const Lease& lease, bool heartbeat) {
    const int32_t begun = Begun(lease), made = ++one->made[lease.id];
    if (heartbeat) {
      ledger_->OnProgress(one->session, lease.id, Now());
      int32_t& reported = one->reported[lease.id];
      for (int32_t sample = 0; made - 1 > reported && sample < lease.samples; ++sample) {
        const AnswerPart part = MakePart(sample, begun + reported, begun + made - 1, lease.version);
        ASSERT_TRUE(ledger_->OnPart(one->session, lease.id, part).ok());
      }
      reported = std::max(reported, made - 1);
    }
    if (begun + made < kAnswer) return;
    TrajectoryGroup group = AnswerTo(lease);
    for (int32_t sample = 0; sample < lease.samples; ++sample) {
      AnswerPart rest = MakePart(sample, begun, kAnswer, lease.version);
      Trajectory& answer = group.samples[static_cast<size_t>(sample)];
      answer.tokens = rest.tokens;
      answer.logprobs = rest.logprobs;
      answer.spans = rest.spans;
    }
    const GroupLedger::Verdict verdict = ledger_->Submit(one->session, Share(std::move(group)), Now());
    ASSERT_EQ(verdict.result, GroupLedger::Result::kAccepted) << verdict.error;
    for (const Trajectory& sample : std::get<AcceptedRecord>(*verdict.record).group->samples) {
      ASSERT_EQ(sample.tokens.size(), static_cast<size_t>(kAnswer));
      useful_ += kAnswer;
    }
    ledger_->OnLogged(lease.id, ++sequence_);
    one->made.erase(lease.id);
    one->reported.erase(lease.id);
    one->leases.erase(lease.id);
  }

  void Train() {
    if (!ledger_->TakeBatch().has_value()) return;
    ledger_->OnTakeLogged(0);
    ledger_->OnStepDone(Now());
    ledger_->OnPublished(ledger_->version());
  }

  const double life_;
  std::mt19937_64 random_;
  std::vector<Rollouter> rollouters_;
  GroupLedger::Options options_;
  std::unique_ptr<PromptSource> prompts_;
  std::unique_ptr<GroupLedger> ledger_;
  double now_ = 0;
  int64_t useful_ = 0;
  uint64_t sequence_ = 0;
};

// A rollouter lives 10 s on average and is back after 1 s; an answer takes 20 s.
TEST(LostRolloutersTest, WhatWasReportedIsNotMadeAgain) {
  double undisturbed = 0, kept = 0, anew = 0;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    undisturbed += static_cast<double>(World(0, 0, seed).Run());
    kept += static_cast<double>(World(10, 1 << 28, seed).Run());
    anew += static_cast<double>(World(10, 0, seed).Run());
  }
  RecordProperty("kept", absl::StrCat(kept / undisturbed));
  RecordProperty("anew", absl::StrCat(anew / undisturbed));
  EXPECT_GE(kept, 0.8 * undisturbed) << kept / undisturbed;
  EXPECT_LE(anew, 0.3 * undisturbed) << anew / undisturbed;
}

}  // namespace
}  // namespace syncopate::trainer
