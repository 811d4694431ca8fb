#include "tools/doctor/card_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "services/config/run_config.h"

namespace syncopate::doctor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Level = Finding::Level;

constexpr int64_t kCardGiB = int64_t{1} << 30;

// The shapes of Qwen2.5-1.5B in turns on one card: 1.54 billion parameters.
v1::RunConfig InTurns(std::vector<std::string> more = {}) {
  std::vector<std::string> words = {"model.vocab_size=151936",
                                    "model.tie_word_embeddings=true",
                                    "model.max_position_embeddings=2048",
                                    "model.num_key_value_heads=2",
                                    "model.learned_positions=false",
                                    "model.qk_norm=false",
                                    "model.hidden_size=1536",
                                    "model.intermediate_size=8960",
                                    "model.num_hidden_layers=28",
                                    "model.num_attention_heads=12",
                                    "model.head_dim=128",
                                    "train.device=cuda:0",
                                    "rollout.device=cuda:0",
                                    "rollout.max_sequences=512",
                                    "rollout.host_kv_memory=8"};
  words.insert(words.end(), more.begin(), more.end());
  return config::ParseRunConfig("", "f", words).config;
}

Machine OneGpu(int64_t gibibytes, int64_t host_gibibytes = 120) {
  Machine machine;
  machine.available_bytes = host_gibibytes * kCardGiB;
  machine.gpu.gpus = {{"a GPU", gibibytes * kCardGiB}};
  return machine;
}

TEST(CardMemoryTest, PartsAreThoseOfTheModel) {
  const auto memory = GetCardMemory(InTurns());
  ASSERT_TRUE(memory.ok()) << memory.status();
  const double parameters = static_cast<double>(memory->weights) / 2;
  EXPECT_NEAR(parameters, 1.543e9, 0.01e9);
  EXPECT_NEAR(static_cast<double>(memory->state), 18 * parameters, 1e7);
  EXPECT_NEAR(static_cast<double>(memory->send), 2 * parameters, 1e7);
  EXPECT_NEAR(static_cast<double>(memory->moved), 12 * parameters, 1e7) << "not the gradients, nor the copy";
  EXPECT_EQ(memory->sequence, int64_t{2048} * 28 * 2 * 256 * 2);
  EXPECT_EQ(memory->sequences, 512 * memory->sequence);
  EXPECT_EQ(memory->host_kv, 8 * kCardGiB);
  EXPECT_EQ(memory->rollouters_turn() + memory->weights, memory->apart_rollouter() + memory->send) << "one weight set";
}

TEST(CardMemoryTest, SaysAllThreeWaysAndJudgesTheConfigurationsOwn) {
  const std::vector<Finding> findings = ExamineCardMemory(OneGpu(80), InTurns({"run.share_gpu=true"}));
  ASSERT_EQ(findings.size(), 3u);
  EXPECT_EQ(findings[0].subject, "a card each");
  EXPECT_EQ(findings[1].subject, "one card, split");
  EXPECT_EQ(findings[2].subject, "one card, in turns");
  for (const Finding& finding : findings) EXPECT_EQ(finding.level, Level::kGood) << finding.found;
  EXPECT_THAT(findings[2].found,
              AllOf(HasSubstr("in the trainer's turn"), HasSubstr("of host memory"), HasSubstr("in 0.82 s")));

  // 25.9 GiB of state, two weight sets and keys and values of 28 GiB do not fit beside each other, in turns they do.
  EXPECT_EQ(ExamineCardMemory(OneGpu(48), InTurns())[1].level, Level::kWarning);
  EXPECT_EQ(ExamineCardMemory(OneGpu(32), InTurns())[1].level, Level::kBad);
  EXPECT_THAT(ExamineCardMemory(OneGpu(32), InTurns())[1].remedy, HasSubstr("run.share_gpu"));
  EXPECT_EQ(ExamineCardMemory(OneGpu(48), InTurns({"run.share_gpu=true"}))[2].level, Level::kGood);
  EXPECT_EQ(ExamineCardMemory(OneGpu(32), InTurns({"run.share_gpu=true"}))[2].level, Level::kWarning);
  EXPECT_EQ(ExamineCardMemory(OneGpu(24), InTurns({"run.share_gpu=true"}))[2].level, Level::kBad);
}

TEST(CardMemoryTest, TurnsNeedMemoryOfTheHost) {
  const std::vector<Finding> findings = ExamineCardMemory(OneGpu(80, 20), InTurns({"run.share_gpu=true"}));
  ASSERT_EQ(findings.size(), 3u);
  EXPECT_EQ(findings[2].level, Level::kBad);
  EXPECT_THAT(findings[2].remedy, HasSubstr("rollout.host_kv_memory"));
  EXPECT_EQ(ExamineCardMemory(OneGpu(80, 20), InTurns())[1].level, Level::kGood);
}

TEST(CardMemoryTest, SaysNothingWithoutGpus) {
  EXPECT_THAT(ExamineCardMemory(OneGpu(80), InTurns({"train.device=cpu", "rollout.device=cpu"})), IsEmpty());
  EXPECT_THAT(ExamineCardMemory(OneGpu(80), InTurns({"model.path=/no/such/folder"})), IsEmpty());
}

}  // namespace
}  // namespace syncopate::doctor
