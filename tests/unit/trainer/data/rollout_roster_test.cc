#include "trainer/data/rollout_roster.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "absl/strings/str_cat.h"

namespace syncopate::trainer {
namespace {

MemberId Process(const std::string& incarnation) { return {"rollouter", "rollouter-0", 0, 1, incarnation}; }

int64_t TokensOfAll(const RolloutRoster& roster) {
  int64_t tokens = roster.earlier().generated_tokens;
  for (const RolloutRoster::Entry& entry : roster.entries()) tokens += entry.work.generated_tokens;
  return tokens;
}

TEST(RolloutRosterTest, KeepsTheLastWordOfEveryProcess) {
  RolloutRoster roster;
  for (const char* incarnation : {"a", "b"}) roster.AddProcess(Process(incarnation));
  roster.SetWork("a", {.generated_tokens = 10});
  roster.SetWork("a", {.generated_tokens = 30});
  roster.AddProcess(Process("a"));  // the stream of this process broke
  roster.SetServing("a", {1, 7});
  roster.SetWork("b", {.generated_tokens = 5});
  ASSERT_EQ(roster.entries().size(), 2u);
  EXPECT_EQ(roster.entries()[0].work.generated_tokens, 30);
  EXPECT_EQ(roster.entries()[0].serving, (PolicyVersion{1, 7}));
  EXPECT_EQ(TokensOfAll(roster), 35);
}

TEST(RolloutRosterTest, GoesOnWhereItWasWrittenDown) {
  RolloutRoster roster = RolloutRoster::Restore({{.member = Process("a"), .work = {.generated_tokens = 30}},
                                                 {.member = Process("b"), .work = {.generated_tokens = -1}}},
                                                {.generated_tokens = 5});
  EXPECT_EQ(TokensOfAll(roster), 35);
  roster.AddProcess(Process("a"));  // this process has outlived the trainer
  roster.SetWork("a", {.generated_tokens = 40});
  EXPECT_EQ(roster.entries().size(), 2u);
  EXPECT_EQ(TokensOfAll(roster), 45);
}

TEST(RolloutRosterTest, ManyProcessesAreASumAndNothingGrows) {
  RolloutRoster roster;
  for (int i = 0; i < 1000; ++i) {
    roster.AddProcess(Process(absl::StrCat(i)));
    roster.SetWork(absl::StrCat(i), {.generated_tokens = 2, .busy_seconds = 0.5});
  }
  EXPECT_EQ(roster.entries().size(), RolloutRoster::kListed);
  EXPECT_EQ(TokensOfAll(roster), 2000);
  EXPECT_EQ(roster.entries().back().member.incarnation, "999");
}

TEST(RolloutRosterTest, TheJudgesTokensAreThoseOfAllProcessesThatEverWere) {
  RolloutRoster roster;
  for (size_t i = 0; i < RolloutRoster::kListed + 10; ++i) {
    roster.AddProcess(Process(absl::StrCat(i)));
    roster.SetWork(absl::StrCat(i), {.judge_tokens = 1});
    roster.SetWork(absl::StrCat(i), {.judge_tokens = 3});
    roster.SetWork(absl::StrCat(i), {.judge_tokens = -1});
  }
  EXPECT_EQ(roster.Total().judge_tokens, static_cast<int64_t>(3 * (RolloutRoster::kListed + 10)));
}

MemberId Replica(size_t i) { return {"rollouter", absl::StrCat("rollouter-", i), 0, 1, absl::StrCat("process-", i)}; }

TEST(RolloutRosterTest, NoConnectedProcessGoesIntoTheSumHoweverManyThereAre) {
  RolloutRoster roster;
  constexpr size_t kMany = 2 * RolloutRoster::kListed;
  for (size_t i = 0; i < kMany; ++i) {
    roster.AddProcess(Replica(i));
    roster.SetWork(Replica(i).incarnation, {.judge_tokens = 1});
  }
  roster.SetWork(Replica(0).incarnation, {.judge_tokens = 11});
  EXPECT_EQ(roster.entries().size(), kMany);
  EXPECT_EQ(roster.Total().judge_tokens, static_cast<int64_t>(kMany) + 10);
}

TEST(RolloutRosterTest, AProcessThatComesBackIsCountedOnceAlthoughItWasInTheSum) {
  RolloutRoster roster;
  roster.AddProcess(Replica(0));
  roster.SetWork(Replica(0).incarnation, {.generated_tokens = 7, .judge_tokens = 100});
  roster.RemoveProcess(Replica(0).incarnation);
  for (size_t i = 1; i <= RolloutRoster::kListed + 5; ++i) {
    roster.AddProcess(Replica(i));
    roster.SetWork(Replica(i).incarnation, {.judge_tokens = 1});
    roster.RemoveProcess(Replica(i).incarnation);
  }
  const auto others = static_cast<int64_t>(RolloutRoster::kListed) + 5;
  ASSERT_EQ(roster.entries().size(), RolloutRoster::kListed);
  EXPECT_GE(roster.earlier().judge_tokens, 100);
  roster.AddProcess(Replica(0));
  EXPECT_EQ(roster.Total().judge_tokens, others + 100);
  roster.SetWork(Replica(0).incarnation, {.generated_tokens = 8, .judge_tokens = 120});
  EXPECT_EQ(roster.Total().judge_tokens, others + 120);
  EXPECT_EQ(roster.Total().generated_tokens, 8);
}

TEST(RolloutRosterTest, AFleetThatOutlivesTheTrainerIsCountedOnce) {
  RolloutRoster before;
  constexpr size_t kFleet = RolloutRoster::kListed + 100;
  for (size_t i = 0; i < kFleet; ++i) {
    before.AddProcess(Replica(i));
    before.SetWork(Replica(i).incarnation, {.judge_tokens = 3});
  }
  RolloutRoster roster = RolloutRoster::Restore(before.entries(), before.earlier());
  roster.AddProcess(Replica(kFleet));  // a new one is the first to connect
  for (size_t i = 0; i < kFleet; ++i) {
    roster.AddProcess(Replica(i));
    roster.SetWork(Replica(i).incarnation, {.judge_tokens = 4});
  }
  EXPECT_EQ(roster.Total().judge_tokens, static_cast<int64_t>(4 * kFleet));
}

TEST(RolloutRosterTest, FiguresThatNoProcessCanHaveAreIgnored) {
  RolloutRoster roster;
  roster.AddProcess(Process("liar"));
  roster.SetWork("liar", {.generated_tokens = 3});
  roster.SetWork("liar", {.generated_tokens = -1});
  roster.SetWork("liar", {.generated_tokens = std::numeric_limits<int64_t>::max()});
  roster.SetWork("liar", {.generated_tokens = 4, .busy_seconds = std::numeric_limits<double>::quiet_NaN()});
  roster.SetWork("nobody", {.generated_tokens = 100});
  EXPECT_EQ(TokensOfAll(roster), 3);
}

}  // namespace
}  // namespace syncopate::trainer
