#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/trainer/data/group_factory.h"
#include "trainer/data/group_ledger.h"
#include "trainer/data/tasks.h"

namespace syncopate::trainer {

inline GroupLedger::Options SmallLedger(int64_t batch, int64_t max_staleness, double target) {
  GroupLedger::Options options;
  options.gate = {.batch_groups = batch, .target_staleness = target, .max_staleness = max_staleness};
  options.samples = 2;
  options.sampling.max_new_tokens = 5;
  options.max_failures = 2;
  return options;
}

inline std::vector<int64_t> Ordinals(const std::vector<Lease>& leases) {
  std::vector<int64_t> ordinals;
  for (const Lease& lease : leases) ordinals.push_back(lease.id.group.ordinal);
  return ordinals;
}

// A ledger over a built-in task, whose owner is the test.
class GroupLedgerTest : public ::testing::Test {
 protected:
  void Start(const GroupLedger::Options& options, PolicyVersion version = {1, 0}) {
    prompts_ = *MakeTask({});
    auto queue = PromptQueue(GroupLedger::QueueOptions(options, *prompts_));
    ledger_ = std::make_unique<GroupLedger>(options, prompts_.get(), version, RestoredData{.queue = queue}, now_);
    ledger_->OnPublished(version);
  }

  SessionId Join(const std::string& replica, int32_t credits, PolicyVersion serving = {1, 0}) {
    SessionId session = ledger_->Connect({.role = "rollouter", .replica_id = replica, .incarnation = "a"}).session;
    ledger_->OnServing(session, serving);
    ledger_->OnCredits(session, credits);
    return session;
  }

  std::vector<Lease> Leases() {
    std::vector<Lease> leases;
    for (IssuedLease& issued : ledger_->NextLeases(now_)) leases.push_back(std::move(issued.lease));
    return leases;
  }

  // Submits a right answer and makes it durable.
  void Finish(SessionId session, const Lease& lease) {
    ASSERT_EQ(ledger_->Submit(session, Share(AnswerTo(lease)), now_).result, GroupLedger::Result::kAccepted);
    ledger_->OnLogged(lease.id, ++sequence_);
  }

  void Step() {
    ASSERT_TRUE(ledger_->TakeBatch().has_value());
    ledger_->OnTakeLogged(0);
    ledger_->OnStepDone(now_);
    ledger_->OnPublished(ledger_->version());
  }

  absl::Time now_ = absl::UnixEpoch();
  uint64_t sequence_ = 0;
  std::unique_ptr<PromptSource> prompts_;
  std::unique_ptr<GroupLedger> ledger_;
};

}  // namespace syncopate::trainer
