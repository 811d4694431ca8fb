#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <vector>

#include "tests/support/status_matchers.h"
#include "trainer/data/data_restore.h"
#include "trainer/data/group_ledger.h"
#include "trainer/data/tasks.h"

// The supervised steps at the beginning of a run, as GroupLedger and DataRestore keep them.
namespace syncopate::trainer {
namespace {

using syncopate::testing::HasReason;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Readiness = PromptSource::Readiness;

constexpr int64_t kBatch = 2;

// A task of which some prompts are still being read and some are bad rows. It records which prompts it has given.
class Prompts final : public PromptSource {
 public:
  Readiness CheckReadiness(const GroupId& group) const override {
    auto found = states.find(group.ordinal);
    return found == states.end() ? Readiness::kReady : found->second;
  }
  Prompt At(const GroupId& group) const override { return task_->At(group); }
  std::string Render(const std::vector<int32_t>& ids) const override { return task_->Render(ids); }
  int64_t prompts_per_pass() const override { return 0; }
  int32_t vocab_size() const override { return task_->vocab_size(); }
  std::vector<int32_t> stop_token_ids() const override { return task_->stop_token_ids(); }
  int64_t max_prompt_tokens() const override { return task_->max_prompt_tokens(); }
  int64_t max_answer_tokens() const override { return task_->max_answer_tokens(); }

  std::map<int64_t, Readiness> states;

 private:
  const std::unique_ptr<PromptSource> task_ = *MakeTask({});
};

class SupervisedLedgerTest : public ::testing::Test {
 protected:
  // Starts at the beginning of a run, or as `restored` says.
  void Start(int64_t supervised_steps, const PolicyVersion& version = {1, 0}, const DataState& state = {},
             const std::vector<LogRecord>& log = {}) {
    GroupLedger::Options options;
    options.gate = {.batch_groups = kBatch, .target_staleness = 2, .max_staleness = 2};
    options.samples = 2;
    options.max_groups = max_groups_;
    options.supervised_steps = supervised_steps;
    DataRestore restore(GroupLedger::QueueOptions(options, prompts_), state, version.step);
    uint64_t sequence = 0;
    for (const LogRecord& record : log) ASSERT_TRUE(restore.Add(record, ++sequence).ok());
    ledger_ = std::make_unique<GroupLedger>(options, &prompts_, version, restore.Finish(), now_);
  }
  SessionId Join() {
    const SessionId session = ledger_->Connect({"rollouter", "r0", 0, 1, "a"}).session;
    ledger_->OnServing(session, ledger_->version());
    ledger_->OnCredits(session, 8);
    return session;
  }
  // Takes and trains the next batch; returns its ordinals.
  std::vector<int64_t> Step() {
    ledger_->NextLeases(now_);
    auto take = ledger_->TakeBatch();
    if (!take.has_value()) return {};
    EXPECT_TRUE(take->record.supervised);
    log_.push_back(take->record);
    std::vector<int64_t> ordinals;
    for (const LeaseId& lease : take->record.groups) ordinals.push_back(lease.group.ordinal);
    for (const SharedGroup& group : take->groups) {
      EXPECT_EQ(group->samples.front().tokens, prompts_.At(group->lease.group).answer_ids);
    }
    ledger_->OnTakeLogged(take->is_replay ? 0 : ++sequence_);
    ledger_->OnStepDone(now_);
    return ordinals;
  }

  Prompts prompts_;
  int64_t max_groups_ = 0;
  std::unique_ptr<GroupLedger> ledger_;
  std::vector<LogRecord> log_;
  uint64_t sequence_ = 0;
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(SupervisedLedgerTest, TrainsThePromptsInOrderWithTheirAnswersAndLeasesNoneBeforeItIsDone) {
  Start(2);
  ledger_->OnPublished({1, 0});
  Join();
  EXPECT_THAT(ledger_->NextLeases(now_), IsEmpty());
  EXPECT_THAT(Step(), ElementsAre(0, 1));
  EXPECT_THAT(ledger_->NextLeases(now_), IsEmpty());
  EXPECT_THAT(Step(), ElementsAre(2, 3));
  ledger_->OnPublished({1, 2});
  Join();
  const std::vector<IssuedLease> issued = ledger_->NextLeases(now_);
  ASSERT_FALSE(issued.empty());
  EXPECT_EQ(issued.front().lease.id.group.ordinal, 4) << "the first prompt that no supervised step has trained";
  EXPECT_FALSE(ledger_->HasBatch());
}

TEST_F(SupervisedLedgerTest, WaitsForARowThatIsBeingReadSaysSoAndLeavesOutOnesThatAreNone) {
  prompts_.states = {{0, Readiness::kUnusable}, {2, Readiness::kComing}};
  Start(5);
  EXPECT_THAT(Step(), IsEmpty());
  EXPECT_EQ(ledger_->Explain(now_).waiting_for, "prompts");
  prompts_.states.erase(2);
  EXPECT_THAT(Step(), ElementsAre(1, 2));
  const std::vector<DropRecord> drops = ledger_->UnloggedDrops();
  ASSERT_THAT(drops, SizeIs(1));
  EXPECT_EQ(drops[0].reason, DropReason::kSkipped);
}

TEST_F(SupervisedLedgerTest, TheLastBatchMayBeSmallerAndThenTheDataHaveEnded) {
  max_groups_ = 3;
  Start(1000);
  EXPECT_THAT(Step(), ElementsAre(0, 1));
  EXPECT_THAT(Step(), ElementsAre(2));
  EXPECT_TRUE(ledger_->DataEnded());
}

TEST_F(SupervisedLedgerTest, ARestoredRunRepeatsTheLoggedTakesAndGoesOnWhereTheyEnd) {
  Start(1000);
  Step();
  const DataState checkpoint = ledger_->Snapshot();
  const std::vector<int64_t> second = Step(), third = Step();
  ledger_->NextLeases(now_);  // the fourth group is assembled, and no record has it when the trainer dies
  Start(1000, {2, 1}, checkpoint, log_);
  EXPECT_EQ(ledger_->replays_left(), 2);
  EXPECT_EQ(Step(), second);
  EXPECT_EQ(Step(), third);
  EXPECT_EQ(ledger_->replays_left(), 0);
  EXPECT_THAT(Step(), ElementsAre(6, 7));
}

TEST_F(SupervisedLedgerTest, ACheckpointBetweenTwoStepsForgetsNoPromptThatIsAssembled) {
  Start(1000);
  Step();
  ledger_->NextLeases(now_);
  const DataState checkpoint = ledger_->Snapshot();
  Start(1000, {2, 1}, checkpoint);
  EXPECT_THAT(Step(), ElementsAre(2, 3));
}

TEST_F(SupervisedLedgerTest, ACheckpointHoldsTheTakesBeforeItSoTheLogCanBePruned) {
  Start(1000);
  Step();
  Step();
  EXPECT_EQ(ledger_->OldestNeededSequence(), sequence_ + 1);
}

TEST_F(SupervisedLedgerTest, ALoggedStepWhoseRowIsNoPromptAnyMoreEndsTheRunWithTheReason) {
  Start(1000);
  Step();
  prompts_.states[1] = Readiness::kUnusable;
  Start(1000, {2, 0}, {}, log_);
  EXPECT_THAT(Step(), IsEmpty());
  EXPECT_THAT(ledger_->failure(), HasReason("ROW_CHANGED"));
}

TEST_F(SupervisedLedgerTest, CountsWhatItTrainedApartFromWhatHasAStaleness) {
  Start(1000);
  Step();
  const auto tokens = static_cast<int64_t>(prompts_.At({0, 0}).answer_ids.size());
  EXPECT_EQ(ledger_->counters().supervised_tokens, kBatch * tokens);
  EXPECT_EQ(ledger_->counters().trained, kBatch);
  EXPECT_EQ(ledger_->staleness().total_tokens(), 0);
  EXPECT_EQ(ledger_->counters().leased, 0);
}

}  // namespace
}  // namespace syncopate::trainer
