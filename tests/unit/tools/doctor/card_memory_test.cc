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

TEST(CardMemoryTest, RanksInTurnsHaveAShardOfTheStateEachAndTheHostHasAllOfThem) {
  const auto one = GetCardMemory(InTurns({"run.share_gpu=true"}));
  const auto two = GetCardMemory(InTurns({"run.share_gpu=true", "trainer.world=2", "train.device=cuda"}));
  ASSERT_TRUE(one.ok() && two.ok()) << one.status() << two.status();
  const auto half = [](int64_t bytes) { return static_cast<double>(bytes) / 2; };
  EXPECT_NEAR(static_cast<double>(two->moved), half(one->moved), 1e7);
  EXPECT_NEAR(static_cast<double>(two->send), half(one->send), 1e7);
  EXPECT_NEAR(static_cast<double>(two->host_state), static_cast<double>(one->host_state), 2e7);
  EXPECT_NEAR(static_cast<double>(two->host_send), static_cast<double>(one->host_send), 2e7);
  EXPECT_EQ(two->weights, one->weights) << "a rollouter has the whole model";
}

TEST(CardMemoryTest, AReplicaInTurnsHasItsSliceOnEachCardAndTheHostHasTheSwappedBlocksOfAllItsRanks) {
  const std::vector<std::string> turns = {"run.share_gpu=true", "trainer.world=2", "train.device=cuda",
                                          "rollout.device=cuda"};
  const auto one = GetCardMemory(InTurns(turns));
  std::vector<std::string> words = turns;
  words.push_back("rollout.tensor_parallel=2");
  const auto two = GetCardMemory(InTurns(words));
  ASSERT_TRUE(one.ok() && two.ok()) << one.status() << two.status();
  const double embeddings = 151936.0 * 1536 * 2;
  EXPECT_NEAR(static_cast<double>(two->weights), (static_cast<double>(one->weights) + embeddings) / 2, 1e7)
      << "each rank has all embeddings";
  EXPECT_EQ(2 * two->sequences, one->sequences);
  EXPECT_NEAR(static_cast<double>(two->send), static_cast<double>(two->weights), 1e7)
      << "what both ranks have is packed for each";
  EXPECT_EQ(two->state, one->state);
  EXPECT_EQ(two->host_kv, 2 * one->host_kv);
  EXPECT_EQ(two->rollouters_turn(), two->weights + two->send + two->sequences);
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

// The rollouter maps the base of the trainer's send slots, which stays on the card.
TEST(CardMemoryTest, InTurnsTheBaseOfAdaptersCountsOnce) {
  const auto alone = GetCardMemory(InTurns({"lora.rank=16"}));
  const auto turns = GetCardMemory(InTurns({"lora.rank=16", "run.share_gpu=true"}));
  ASSERT_TRUE(alone.ok() && turns.ok());
  EXPECT_EQ(alone->lent, 0);
  EXPECT_NEAR(static_cast<double>(turns->lent), 2 * 1.543e9, 1e8) << "with free rows for adapters";
  EXPECT_EQ(turns->send, alone->send) << "one slot has the base in any case";
  EXPECT_NEAR(static_cast<double>(alone->state - turns->state), 2 * 1.543e9, 1e8)
      << "the policy computes with that one";
  EXPECT_NEAR(static_cast<double>(alone->moved - turns->moved), 2 * 1.543e9, 1e8) << "which stays in a turn";
  EXPECT_EQ(turns->rollouters_turn(), alone->rollouters_turn() - turns->lent);
  EXPECT_EQ(turns->trainers_turn(), turns->state + turns->send);
  EXPECT_EQ(turns->host_send, turns->send - turns->lent) << "adapters alone leave the card";
  const auto two = GetCardMemory(InTurns({"lora.rank=16", "run.share_gpu=true", "sync.send_slots=2"}));
  ASSERT_TRUE(two.ok());
  EXPECT_EQ(two->send - turns->send, turns->send - turns->lent);
  const auto sent = GetCardMemory(InTurns({"lora.rank=16", "run.share_gpu=true", "sync.transport=grpc"}));
  ASSERT_TRUE(sent.ok());
  EXPECT_EQ(sent->lent, 0) << "what is staged in host memory is not mapped on a card";
  const std::vector<Finding> findings = ExamineCardMemory(OneGpu(80), InTurns({"lora.rank=16", "run.share_gpu=true"}));
  ASSERT_EQ(findings.size(), 3u);
  EXPECT_THAT(findings[2].found, HasSubstr("of it the trainer's send slots' base"));
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
