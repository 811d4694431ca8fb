#include "tools/doctor/rank_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/config/run_config.h"

namespace syncopate::doctor {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Level = Finding::Level;

constexpr int64_t kOneGiB = int64_t{1} << 30;

v1::RunConfig RankConfig(const std::vector<std::string>& overrides) {
  return config::ParseRunConfig("", "f", overrides).config;
}

int64_t Sum(const std::vector<RankMemory>& ranks, int64_t RankMemory::*part) {
  int64_t sum = 0;
  for (const RankMemory& rank : ranks) sum += rank.*part;
  return sum;
}

TEST(RankMemoryTest, RanksShareWhatOneWouldHold) {
  const auto alone = GetRankMemory(RankConfig({"model.num_hidden_layers=4"}));
  ASSERT_TRUE(alone.ok()) << alone.status();
  ASSERT_EQ(alone->size(), 1u);
  EXPECT_GT(alone->front().state, 0);
  // Two slots in float32 are half of weights, gradients and two moments.
  EXPECT_NEAR(static_cast<double>(alone->front().send), 0.5 * static_cast<double>(alone->front().state), 4096);
  for (const int world : {2, 3, 4}) {
    const auto ranks = GetRankMemory(RankConfig({"model.num_hidden_layers=4", absl::StrCat("trainer.world=", world)}));
    ASSERT_TRUE(ranks.ok()) << ranks.status();
    ASSERT_EQ(ranks->size(), static_cast<size_t>(world));
    // Each shard ends at the end of a block.
    const int64_t padding = 16 * 64 * 6 * world;
    EXPECT_GE(Sum(*ranks, &RankMemory::state), alone->front().state) << world;
    EXPECT_LE(Sum(*ranks, &RankMemory::state), alone->front().state + padding) << world;
    for (const RankMemory& rank : *ranks) {
      EXPECT_LT(rank.send, alone->front().send * 2 / world) << world;
    }
  }
}

TEST(RankMemoryTest, SlotsAreThoseOfTheConfigurationAndAGpuHasOneAndACopy) {
  const auto two = GetRankMemory(RankConfig({"trainer.world=2"}));
  const auto five = GetRankMemory(RankConfig({"trainer.world=2", "sync.send_slots=5"}));
  const auto gpu = GetRankMemory(RankConfig({"trainer.world=2", "train.device=cuda", "model.dtype=float32"}));
  ASSERT_TRUE(two.ok() && five.ok() && gpu.ok());
  for (size_t rank : {0, 1}) {
    EXPECT_EQ((*five)[rank].send * 2, (*two)[rank].send * 5);
    EXPECT_EQ((*gpu)[rank].send * 2, (*two)[rank].send);
    EXPECT_EQ((*gpu)[rank].state * 16, (*two)[rank].state * 18);
  }
}

TEST(RankMemoryTest, ABaseHasNoGradientAndNoMoments) {
  // Large enough that the gap before the adapters, of up to 4 MiB of a slot, is a small part.
  const std::vector<std::string> shape = {"model.hidden_size=512", "model.intermediate_size=2048",
                                          "model.num_hidden_layers=4"};
  std::vector<std::string> with = shape;
  with.emplace_back("lora.rank=1");
  const auto all = GetRankMemory(RankConfig(shape));
  const auto adapters = GetRankMemory(RankConfig(with));
  ASSERT_TRUE(all.ok() && adapters.ok());
  // Two slots in float32 are twice the weights, of which the adapters are a small part.
  const auto weights = static_cast<double>(adapters->front().send) / 2;
  EXPECT_GT(adapters->front().send, all->front().send);
  EXPECT_GT(static_cast<double>(adapters->front().state), 0.9 * weights);
  EXPECT_LT(static_cast<double>(adapters->front().state), 1.5 * weights);
}

TEST(RankMemoryTest, OnAGpuABaseIsThereInBFloat16Alone) {
  const std::vector<std::string> shape = {"model.hidden_size=512", "model.intermediate_size=2048",
                                          "model.num_hidden_layers=4", "train.device=cuda", "model.dtype=bfloat16"};
  std::vector<std::string> with = shape;
  with.emplace_back("lora.rank=8");
  const auto all = GetRankMemory(RankConfig(shape));
  const auto adapters = GetRankMemory(RankConfig(with));
  ASSERT_TRUE(all.ok() && adapters.ok());
  // 18 bytes a weight, of which 2 are those of the base. One slot in bfloat16 has the bytes of the base too.
  EXPECT_GT(adapters->front().state, all->front().state * 2 / 18);
  EXPECT_LT(adapters->front().state, all->front().state * 4 / 18);
  EXPECT_GT(adapters->front().state, adapters->front().send);
}

TEST(RankMemoryTest, AFindingForEachRankSaysWhatItHoldsAndRanksThatDoNotFitAreBad) {
  Machine machine;
  machine.available_bytes = kOneGiB;
  for (const Finding& finding : ExamineRankMemory(machine, RankConfig({"trainer.world=3"}))) {
    EXPECT_EQ(finding.level, Level::kGood);
    EXPECT_THAT(finding.found, AllOf(HasSubstr("of weights, gradients and moments"), HasSubstr("in 2 send slots")));
  }
  const std::vector<std::string> large = {"model.hidden_size=4096", "model.intermediate_size=16384",
                                          "model.num_hidden_layers=8"};
  std::vector<std::string> shared = large, on_gpus = large;
  shared.emplace_back("trainer.world=3");
  const std::vector<Finding> findings = ExamineRankMemory(machine, RankConfig(shared));
  ASSERT_EQ(findings.size(), 3u);
  EXPECT_EQ(findings[2].subject, "trainer rank 2");
  for (const Finding& finding : findings) {
    EXPECT_EQ(finding.level, Level::kBad);
    EXPECT_THAT(finding.remedy, HasSubstr("put ranks on other machines"));
  }
  // On GPUs each rank has a card of its own.
  machine.gpu.gpus = {{"a GPU", 16 * kOneGiB}, {"a GPU", 16 * kOneGiB}, {"a GPU", 16 * kOneGiB}};
  on_gpus.insert(on_gpus.end(), {"trainer.world=3", "train.device=cuda"});
  for (const Finding& finding : ExamineRankMemory(machine, RankConfig(on_gpus))) EXPECT_EQ(finding.level, Level::kGood);
  machine.gpu.gpus[1].bytes = kOneGiB;
  for (const Finding& finding : ExamineRankMemory(machine, RankConfig(on_gpus))) {
    EXPECT_EQ(finding.level, Level::kBad);
    EXPECT_THAT(finding.remedy, HasSubstr("raise trainer.world"));
  }
}

TEST(RankMemoryTest, AModelThatCannotBeReadIsLeftToOthers) {
  EXPECT_THAT(ExamineRankMemory(Machine(), RankConfig({"model.path=/no/such/folder"})), IsEmpty());
}

}  // namespace
}  // namespace syncopate::doctor
