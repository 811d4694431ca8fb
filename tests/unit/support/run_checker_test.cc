#include "tests/support/run_checker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "services/trainer/data_codec.h"
#include "tests/support/process.h"
#include "tests/support/status_matchers.h"
#include "trainer/data/segmented_log.h"

namespace syncopate::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using trainer::AcceptedRecord;
using trainer::DropReason;
using trainer::DropRecord;
using trainer::TakeRecord;

constexpr RunRules kRules = {.batch_groups = 2, .samples = 2, .max_staleness = 1};

TrajectoryGroup AnswerTo(const LeaseId& lease, const PolicyVersion& version) {
  TrajectoryGroup group;
  group.lease = lease;
  group.prompt_ids = {1, 2};
  for (int i = 0; i < 2; ++i) {
    group.samples.push_back({.tokens = {3, 4},
                             .logprobs = {-0.5f, 0.0f},
                             .spans = {{version, 0, 2}},
                             .reward_parts = {},
                             .extracted = {},
                             .top_logprobs = {}});
  }
  return group;
}

LeaseId Lease(int64_t ordinal, int32_t attempt = 1) { return {{0, ordinal}, attempt}; }

// Two steps of two groups and one group that waits: groups 0 to 4, one epoch, a checkpoint after step 1.
class RunCheckerTest : public ::testing::Test {
 protected:
  RunCheckerTest() {
    for (int64_t ordinal : {0, 1}) Accept(Lease(ordinal), {1, 0});
    Take({1, 1}, {Lease(0), Lease(1)});
    for (int64_t ordinal : {2, 3, 4}) Accept(Lease(ordinal), {1, 1});
    Take({1, 2}, {Lease(2), Lease(3)});
    Report({1, 1}, "aa");
    Report({1, 2}, "bb");
    history_.checkpoints.push_back({{1, 1}, {.next = {0, 5}, .consumed_below = {0, 2}}});
    history_.summary =
        RunHistory::Summary{.status = "completed", .steps = 2, .acked = 5, .trained = 4, .trained_tokens = 16};
  }

  void Accept(const LeaseId& lease, const PolicyVersion& version) { Accept(AnswerTo(lease, version), version); }
  void Accept(TrajectoryGroup group, const PolicyVersion& version) {
    history_.log.push_back(AcceptedRecord{version, std::make_shared<const TrajectoryGroup>(std::move(group))});
  }
  void Take(const PolicyVersion& version, std::vector<LeaseId> groups) {
    history_.log.push_back(TakeRecord{version, std::move(groups)});
  }
  void Drop(const LeaseId& lease, DropReason reason) { history_.log.push_back(DropRecord{lease, reason}); }
  void Report(const PolicyVersion& version, const std::string& digest, bool is_replay = false) {
    history_.steps.push_back({version, is_replay, digest, /*tokens=*/8, /*staleness_max=*/0});
  }

  std::vector<std::string> Violations() const { return CheckRun(history_, kRules).violations; }

  RunHistory history_;
};

TEST_F(RunCheckerTest, FindsNothingWrongWithAGoodRunAndCountsIt) {
  const RunFindings findings = CheckRun(history_, kRules);
  EXPECT_THAT(findings.violations, IsEmpty());
  EXPECT_EQ(findings.accepted, 5);
  EXPECT_EQ(findings.trained, 4);
  EXPECT_EQ(findings.queued, 1);
  EXPECT_EQ(findings.steps, 2);
  EXPECT_EQ(findings.epochs, 1);
}

TEST_F(RunCheckerTest, FindsNothingWrongWithARunThatWasResumed) {
  Drop(Lease(4), DropReason::kRolledBack);
  Accept(Lease(4, 2), {2, 2});
  Accept(Lease(5), {2, 2});
  Take({2, 3}, {Lease(4, 2), Lease(5)});
  Report({2, 2}, "bb", /*is_replay=*/true);
  Report({2, 3}, "cc");
  const RunFindings findings = CheckRun(history_, kRules);
  EXPECT_THAT(findings.violations, IsEmpty());
  EXPECT_EQ(findings.reissued, 1);
  EXPECT_EQ(findings.replayed_lines, 1);
  EXPECT_EQ(findings.dropped.at("rolled_back"), 1);
  EXPECT_EQ(findings.accepted_by_epoch.at(2), 2);
}

TEST_F(RunCheckerTest, CatchesAnAcceptedGroupThatWasReplacedWithoutADrop) {
  Accept(Lease(4, 2), {1, 2});
  history_.summary->acked = 6;
  EXPECT_THAT(Violations(), ElementsAre(AllOf(HasSubstr("I1"), HasSubstr("group 0/4 attempt 1"))));
}

TEST_F(RunCheckerTest, CatchesAnAcceptedGroupThatWaitsBeyondItsDeadline) {
  for (int64_t step : {3, 4}) {
    const LeaseId first = Lease(3 + 2 * step), second = Lease(4 + 2 * step);
    Accept(first, {1, step - 1});
    Accept(second, {1, step - 1});
    Take({1, step}, {first, second});
    Report({1, step}, "cc");
  }
  history_.summary.reset();
  EXPECT_THAT(Violations(), ElementsAre(AllOf(HasSubstr("I1"), HasSubstr("group 0/4"), HasSubstr("any more"))));
}

TEST_F(RunCheckerTest, CatchesAGroupThatTwoStepsTrain) {
  Accept(Lease(5), {1, 2});
  Take({1, 3}, {Lease(3), Lease(5)});
  EXPECT_THAT(Violations(), ::testing::Contains(AllOf(HasSubstr("I2"), HasSubstr("by step 2 and by step 3"))));
}

TEST_F(RunCheckerTest, CatchesAGroupThatIsTrainedUnaccepted) {
  Accept(Lease(5), {1, 2});
  Take({1, 3}, {Lease(5), Lease(6)});
  EXPECT_THAT(Violations(), ::testing::Contains(AllOf(HasSubstr("I1"), HasSubstr("never accepted"))));
}

TEST_F(RunCheckerTest, CatchesAGroupThatIsTrainedThoughItWasDropped) {
  Drop(Lease(4), DropReason::kStale);
  Accept(Lease(5), {1, 2});
  Take({1, 3}, {Lease(4), Lease(5)});
  EXPECT_THAT(Violations(), ::testing::Contains(AllOf(HasSubstr("I2"), HasSubstr("after it was dropped"))));
}

TEST_F(RunCheckerTest, CatchesTheDropOfATrainedGroup) {
  Drop(Lease(3), DropReason::kRolledBack);
  EXPECT_THAT(Violations(), ElementsAre(AllOf(HasSubstr("I1"), HasSubstr("was not waiting"))));
}

TEST_F(RunCheckerTest, CatchesTwoTakesOfOneStepButNotOneThatWasWrittenTwice) {
  Take({1, 2}, {Lease(2), Lease(3)});
  EXPECT_THAT(Violations(), IsEmpty());
  Take({2, 2}, {Lease(2), Lease(4)});
  EXPECT_THAT(Violations(), ElementsAre(AllOf(HasSubstr("I2"), HasSubstr("two takes"))));
}

TEST_F(RunCheckerTest, CatchesALostTake) {
  for (int64_t ordinal : {5, 6}) Accept(Lease(ordinal), {1, 2});
  Take({1, 4}, {Lease(5), Lease(6)});
  EXPECT_THAT(Violations(), ::testing::Contains(HasSubstr("step 3 is due")));
}

TEST_F(RunCheckerTest, CatchesATokenBeyondTheStalenessBoundAndOneFromTheFuture) {
  Drop(Lease(4), DropReason::kStale);
  Accept(Lease(5), {1, 0});
  TrajectoryGroup future = AnswerTo(Lease(6), {1, 2});
  future.samples[1].spans = {{{1, 2}, 0, 1}, {{1, 3}, 1, 2}};
  Accept(std::move(future), {1, 2});
  Take({1, 3}, {Lease(5), Lease(6)});
  history_.summary.reset();
  EXPECT_THAT(Violations(), ElementsAre(AllOf(HasSubstr("I4"), HasSubstr("staleness 2, bound 1")),
                                        AllOf(HasSubstr("I4"), HasSubstr("staleness -1"))));
}

TEST_F(RunCheckerTest, CatchesAViolationThatOnlyTheTrainerSaw) {
  history_.summary->violations = 1;
  EXPECT_THAT(Violations(), ElementsAre(HasSubstr("I4")));
}

TEST_F(RunCheckerTest, CatchesARepeatedStepWithOtherWeights) {
  Report({2, 2}, "b0", /*is_replay=*/true);
  EXPECT_THAT(Violations(), ElementsAre(AllOf(HasSubstr("I8"), HasSubstr("bb"), HasSubstr("b0"))));
}

TEST_F(RunCheckerTest, CatchesAStepThatALaterEpochTrainsAnew) {
  Report({2, 2}, "bb", /*is_replay=*/false);
  EXPECT_THAT(Violations(), ElementsAre(AllOf(HasSubstr("I2"), HasSubstr("e2-s2"))));
}

TEST_F(RunCheckerTest, OnlyCountsTheStepsOfATrainerThatHadLostTheRun) {
  Drop(Lease(4), DropReason::kRolledBack);
  for (int64_t ordinal : {5, 6}) Accept(Lease(ordinal), {2, 2});
  Take({2, 3}, {Lease(5), Lease(6)});
  Report({2, 2}, "bb", /*is_replay=*/true);
  Report({2, 3}, "cc");
  Report({1, 3}, "zz");
  const RunFindings findings = CheckRun(history_, kRules);
  EXPECT_THAT(findings.violations, IsEmpty());
  EXPECT_EQ(findings.foreign_lines, 1);
  EXPECT_EQ(SurvivingDigests(history_).at(3), "cc");
}

TEST_F(RunCheckerTest, DoesNotCompareADigestOfWhatWasPublishedWithTheWeightsOwn) {
  TempDir run;
  const std::string line = R"({"kind":"step","epoch":1,"step":1,"weights_digest":"aa")";
  std::ofstream(JoinPath(run.path(), "metrics.jsonl")) << line << R"(,"stage_seconds":0.1})"
                                                       << "\n"  // a line of a build that had one digest
                                                       << line << R"(,"stage_seconds":0.1,"published_digest":"bb"})"
                                                       << "\n"  // a line of a build that has two digests
                                                       << line
                                                       << R"(,"stage_seconds":0.0})"
                                                       // A step that was not published: both builds write the digest of
                                                       // the weights.
                                                       << "\n";
  auto read = ReadRunHistory(run.path());
  ASSERT_THAT(read, IsOk());
  ASSERT_EQ(read->steps.size(), 3u);
  EXPECT_EQ(read->steps[0].weights_digest, "");
  EXPECT_EQ(read->steps[1].weights_digest, "aa");
  EXPECT_EQ(read->steps[2].weights_digest, "aa");

  Report({2, 2}, "b0", /*is_replay=*/true);
  EXPECT_THAT(Violations(), ElementsAre(HasSubstr("I8")));
  history_.steps[1].weights_digest = "";
  EXPECT_THAT(Violations(), IsEmpty());
}

TEST_F(RunCheckerTest, CatchesStepsThatMetricsAndLogTellDifferently) {
  history_.steps[1].tokens = 9;
  EXPECT_THAT(Violations(), ElementsAre(AllOf(HasSubstr("I15"), HasSubstr("9 tokens"))));
  history_.steps[1].tokens = 8;
  history_.steps.erase(history_.steps.begin());
  EXPECT_THAT(Violations(), ElementsAre(AllOf(HasSubstr("I15"), HasSubstr("step 1 is missing"))));
  history_.steps.clear();
  Report({1, 7}, "ff");
  EXPECT_THAT(Violations(), ElementsAre(AllOf(HasSubstr("I15"), HasSubstr("no take"))));
}

TEST_F(RunCheckerTest, AnIncarnationWithoutAStepMayHaveAcknowledgedMoreThanTheSummaryCounts) {
  Accept(Lease(5), {2, 1});
  EXPECT_THAT(Violations(), IsEmpty());
  history_.summary->acked = 7;
  EXPECT_THAT(Violations(), ElementsAre(HasSubstr("I15")));
}

TEST_F(RunCheckerTest, CatchesAGroupThatASecondAttemptAnsweredWithOlderWeightsThanItWasAdmittedFor) {
  history_.summary.reset();
  history_.log.push_back(
      AcceptedRecord{{1, 2}, std::make_shared<const TrajectoryGroup>(AnswerTo(Lease(5, 2), {1, 2}))});
  EXPECT_THAT(Violations(), IsEmpty());
  history_.log.push_back(
      AcceptedRecord{{1, 2}, std::make_shared<const TrajectoryGroup>(AnswerTo(Lease(6, 2), {1, 1}))});
  EXPECT_THAT(Violations(), ElementsAre(AllOf(HasSubstr("I4"), HasSubstr("was admitted for e1-s2"))));
}

TEST_F(RunCheckerTest, CatchesAGroupThatIsTrainedLaterThanItWasAdmittedForThoughItsTokensAreFresh) {
  history_.summary.reset();
  history_.steps.clear();
  for (int64_t step = 3; step <= 7; ++step) {
    for (const int64_t i : {0, 1}) Accept(Lease(2 * step + i), {1, step - 1});
  }
  // The group was admitted for step 1, answered by a second attempt with the weights of step 6, and taken by step 7.
  history_.log.push_back(
      AcceptedRecord{{1, 1}, std::make_shared<const TrajectoryGroup>(AnswerTo(Lease(20, 2), {1, 6}))});
  for (int64_t step = 3; step <= 6; ++step) Take({1, step}, {Lease(2 * step), Lease(2 * step + 1)});
  Take({1, 7}, {Lease(14), Lease(20, 2)});
  EXPECT_THAT(Violations(), ::testing::Contains(AllOf(HasSubstr("I4"), HasSubstr("trained too late, by step 7"))));
}

TEST_F(RunCheckerTest, CatchesASummaryThatCountsOtherwise) {
  history_.summary->trained = 6;
  EXPECT_THAT(Violations(), ElementsAre(AllOf(HasSubstr("I15"), HasSubstr("summary.json"))));
  history_.summary->trained = 4;
  history_.summary->trained_tokens = 15;
  EXPECT_THAT(Violations(), ElementsAre(AllOf(HasSubstr("I15"), HasSubstr("15 tokens"))));
  history_.summary->trained_tokens = 16;
  history_.summary->acked = 4;
  EXPECT_THAT(Violations(), ElementsAre(AllOf(HasSubstr("I15"), HasSubstr("4 acknowledged groups, the log 5"))));
  history_.summary->acked = 5;
  Drop(Lease(9), DropReason::kFailed);  // the group was given up and never acknowledged
  EXPECT_THAT(Violations(), ElementsAre(AllOf(HasSubstr("I15"), HasSubstr("0 groups that were given up, the log 1"))));
  history_.summary->failed = 1;
  Drop(Lease(10), DropReason::kFiltered);
  history_.summary->acked = 6;
  EXPECT_THAT(Violations(), IsEmpty());
  history_.summary->trained_tokens = 15;
  history_.summary->steps = 1;  // the summary of an incarnation before the killed one that made step 2
  EXPECT_THAT(Violations(), IsEmpty());
}

TEST_F(RunCheckerTest, CountsWrittenTokensAloneAndKnowsGivenOnesBetweenThem) {
  TrajectoryGroup good = AnswerTo(Lease(5), {1, 2}), overlapping = good, at_the_end = good;
  for (Trajectory& sample : good.samples) {
    sample.tokens = {9, 3, 8, 8, 4};
    sample.logprobs = {0.0f, -0.5f, 0.0f, 0.0f, -0.5f};
    sample.given = {{0, 1}, {2, 4}};
    sample.spans = {{{1, 2}, 1, 2}, {{1, 2}, 4, 5}};
  }
  overlapping.lease = Lease(6);
  overlapping.samples[0].given = {{0, 1}};
  at_the_end.lease = Lease(7);
  at_the_end.samples[0].spans[0].end = 1;
  at_the_end.samples[0].given = {{1, 2}};
  for (TrajectoryGroup* group : {&good, &overlapping, &at_the_end}) Accept(std::move(*group), {1, 2});
  history_.summary.reset();
  EXPECT_THAT(Violations(), ElementsAre(HasSubstr("spans with gaps"), HasSubstr("given tokens within a span")));
}

TEST_F(RunCheckerTest, CatchesGroupsThatAreNotWhole) {
  TrajectoryGroup one = AnswerTo(Lease(5), {1, 2});
  one.samples.pop_back();
  Accept(std::move(one), {1, 2});
  TrajectoryGroup aborted = AnswerTo(Lease(6), {1, 2});
  aborted.samples[0].finish = FinishReason::kAborted;
  aborted.samples[1].spans[0].end = 1;
  Accept(std::move(aborted), {1, 2});
  history_.summary.reset();
  EXPECT_THAT(Violations(), ElementsAre(AllOf(HasSubstr("I12"), HasSubstr("1 of 2 samples")), HasSubstr("was aborted"),
                                        HasSubstr("tokens of unknown version")));
}

TEST_F(RunCheckerTest, CatchesABatchOfTheWrongSizeUnlessTheDataEnd) {
  Take({1, 3}, {Lease(4)});
  history_.summary.reset();
  EXPECT_THAT(Violations(), ElementsAre(AllOf(HasSubstr("I12"), HasSubstr("takes 1 groups"))));
  RunRules rules = kRules;
  rules.data_end = true;
  EXPECT_THAT(CheckRun(history_, rules).violations, IsEmpty());
}

TEST_F(RunCheckerTest, CatchesACheckpointThatForgetsAndOneThatInvents) {
  history_.checkpoints.back().data.consumed_below = {0, 1};
  EXPECT_THAT(Violations(), ElementsAre(AllOf(HasSubstr("I2"), HasSubstr("does not know"), HasSubstr("group 0/1"))));
  history_.checkpoints.back().data.consumed_below = {0, 2};
  history_.checkpoints.back().data.consumed_above = {{0, 3}};
  EXPECT_THAT(Violations(), ElementsAre(AllOf(HasSubstr("I1"), HasSubstr("group 0/3"), HasSubstr("done with"))));
}

TEST_F(RunCheckerTest, CatchesADamagedCheckpoint) {
  history_.damaged_checkpoints.push_back("e1-s2 is short");
  EXPECT_THAT(Violations(), ElementsAre(AllOf(HasSubstr("I10"), HasSubstr("e1-s2"))));
}

TEST_F(RunCheckerTest, CatchesARollouterThatGoesBackAndOneThatServesOtherBits) {
  history_.published = {{"trainer-0", {1, 1}, "aa"}, {"trainer-0", {1, 2}, "bb"}};
  history_.installed = {{"rollouter-0", {1, 1}, "aa"}, {"rollouter-1", {1, 2}, "bb"}, {"rollouter-0", {2, 1}, ""}};
  EXPECT_THAT(Violations(), IsEmpty());
  history_.installed.push_back({"rollouter-1", {1, 1}, "aa"});
  history_.installed.push_back({"rollouter-1", {1, 2}, "cc"});
  EXPECT_THAT(Violations(), ElementsAre(AllOf(HasSubstr("I3"), HasSubstr("rollouter-1 went back from e1-s2")),
                                        AllOf(HasSubstr("I5"), HasSubstr("digest cc"))));
}

TEST_F(RunCheckerTest, CatchesAVersionThatIsPublishedWithTwoDigests) {
  history_.published = {{"trainer-0", {1, 1}, "aa"}, {"trainer-0", {1, 1}, "ab"}};
  EXPECT_THAT(Violations(), ElementsAre(AllOf(HasSubstr("I5"), HasSubstr("trainer-0"))));
}

TEST_F(RunCheckerTest, CatchesAStepThatAnOlderEpochDecided) {
  Drop(Lease(4), DropReason::kRolledBack);
  for (int64_t ordinal : {5, 6, 7, 8}) Accept(Lease(ordinal), {2, 2});
  Take({2, 3}, {Lease(5), Lease(6)});
  Take({1, 4}, {Lease(7), Lease(8)});
  EXPECT_THAT(Violations(), ElementsAre(AllOf(HasSubstr("I9"), HasSubstr("step 4"))));
}

TEST_F(RunCheckerTest, ReadsWhatATrainerWroteWithoutChangingIt) {
  TempDir run;
  FileSystem* files = FileSystem::Real();
  const std::string folder = JoinPath(run.path(), "state/trainer/log");
  {
    auto log = trainer::SegmentedLog::Open(files, {.folder = folder},
                                           [](uint64_t, absl::string_view) { return absl::OkStatus(); });
    ASSERT_THAT(log, IsOk());
    for (const trainer::LogRecord& record : history_.log) {
      ASSERT_THAT((*log)->Append(trainerd::EncodeLogRecord(record)), IsOk());
    }
    ASSERT_THAT((*log)->Commit(), IsOk());
  }
  const std::string line =
      R"({"kind":"step","epoch":1,"step":1,"replay":false,"weights_digest":"aa","trained_tokens":8})";
  std::ofstream(JoinPath(run.path(), "metrics.jsonl")) << line << "\n" << line.substr(0, 20) << "\n";
  std::ofstream(JoinPath(run.path(), "summary.json"))
      << R"({"status":"completed","steps":2,"staleness":{"violations":0},"groups":{"acked":5,"trained":4},"tokens":{"trained":16}})";

  auto before = files->List(folder);
  auto read = ReadRunHistory(run.path());
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(*files->List(folder), *before);
  EXPECT_EQ(read->log.size(), history_.log.size());
  EXPECT_EQ(read->torn_lines, 1);
  ASSERT_EQ(read->steps.size(), 1u);
  EXPECT_EQ(read->steps[0].weights_digest, "aa");
  ASSERT_TRUE(read->summary.has_value());
  EXPECT_EQ(read->summary->acked, 5);
  EXPECT_THAT(CheckRun(*read, kRules).violations, IsEmpty());
}

}  // namespace
}  // namespace syncopate::testing
