#include "rollouter/trajectory/play_assembly.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>

#include "base/guess_tokens.h"

namespace syncopate::rollouter {
namespace {

using namespace guess_tokens;  // NOLINT: the test is about these
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Episode::Options kEpisode = {.max_turns = 3, .max_total_tokens = 20, .max_given_tokens = 4, .max_retries = 0};

class PlayAssemblyTest : public ::testing::Test {
 protected:
  // A game whose number is 20.
  absl::Status Start(int32_t samples = 2, const std::string& row = R"({"ground_truth": 20})") {
    Lease lease;
    lease.id = {{0, 3}, 1};
    lease.samples = samples;
    lease.prompt_ids = {kBegin, kAsk};
    lease.task.row_json = row;
    answers_.resize(static_cast<size_t>(samples));
    assembly_ = std::make_unique<PlayAssembly>(
        lease, MemberId(),
        [this](absl::StatusOr<TrajectoryGroup> group) {
          EXPECT_FALSE(group_.has_value()) << "reported twice";
          group_ = std::move(group);
        },
        std::make_shared<TokenCount>(0), &stops_, &rules_,
        [this](int32_t sample, std::vector<int32_t> given) {
          given_[sample] = std::move(given);
          return extended_;
        });
    return assembly_->Start();
  }
  // The policy writes a number, as the engine would report it. Returns whether the sample is parked.
  bool Guess(int32_t sample, int32_t number) {
    Trajectory& answer = answers_[static_cast<size_t>(sample)];
    const int32_t begin = static_cast<int32_t>(answer.tokens.size());
    answer.tokens.insert(answer.tokens.end(), {number - 1, kEnd});
    answer.logprobs.resize(answer.tokens.size(), -0.5f);
    answer.spans.push_back({{1, 1}, begin, begin + 2});
    const bool parked = assembly_->OnTurnEnded(sample, FinishReason::kStop, answer);
    if (!parked) {
      assembly_->OnFinished(sample, answer);
      return false;
    }
    const int32_t end = static_cast<int32_t>(answer.tokens.size());
    answer.tokens.insert(answer.tokens.end(), given_[sample].begin(), given_[sample].end());
    answer.logprobs.resize(answer.tokens.size(), 0.0f);
    answer.given.push_back({end, static_cast<int32_t>(answer.tokens.size())});
    return true;
  }

  StopRules stops_;
  PlayRules rules_ = MakePlayRules("guess", kEpisode).value();
  absl::Status extended_;  // the engine's result for given tokens
  std::unique_ptr<PlayAssembly> assembly_;
  std::vector<Trajectory> answers_;
  std::map<int32_t, std::vector<int32_t>> given_;
  std::optional<absl::StatusOr<TrajectoryGroup>> group_;
};

TEST_F(PlayAssemblyTest, EachSamplePlaysAGameOfItsOwn) {
  ASSERT_TRUE(Start().ok());
  EXPECT_TRUE(Guess(0, 10));
  EXPECT_THAT(given_[0], ElementsAre(kHigher, kAsk));
  EXPECT_FALSE(Guess(1, 20)) << "right at once";
  EXPECT_FALSE(group_.has_value());
  EXPECT_TRUE(Guess(0, 30));
  EXPECT_THAT(given_[0], ElementsAre(kLower, kAsk));
  EXPECT_FALSE(Guess(0, 20));
  ASSERT_TRUE(group_.has_value() && group_->ok()) << group_->status();
  EXPECT_FLOAT_EQ((*group_)->samples[0].reward, 1 - 0.2f);
  EXPECT_EQ((*group_)->samples[1].reward, 1);
  EXPECT_THAT((*group_)->samples[0].given, ElementsAre(TokenRange{2, 4}, TokenRange{6, 8}));
  EXPECT_THAT((*group_)->samples[1].given, IsEmpty());
  EXPECT_THAT((*group_)->samples[0].turns, ElementsAre(Turn{2, -0.1f}, Turn{6, -0.1f}, Turn{10, 1}));
  EXPECT_THAT((*group_)->samples[1].turns, ElementsAre(Turn{2, 1}));
}

TEST_F(PlayAssemblyTest, ASampleEndsWithItsLastTurn) {
  ASSERT_TRUE(Start(1).ok());
  EXPECT_TRUE(Guess(0, 1));
  EXPECT_TRUE(Guess(0, 2));
  EXPECT_FALSE(Guess(0, 3));
  EXPECT_FLOAT_EQ((*group_)->samples[0].reward, -0.3f);
}

TEST_F(PlayAssemblyTest, ARowThatCannotBePlayedFailsTheLease) {
  const absl::Status refused = Start(1, R"({"ground_truth": "none"})");
  EXPECT_EQ(ErrorReason(refused), "ENVIRONMENT_FAILED");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("group 0/3"));
}

TEST_F(PlayAssemblyTest, AGameThatFailsFailsTheGroupWhenAllItsSamplesHaveEnded) {
  struct Broken final : EnvironmentGame {
    absl::Status Reset(uint64_t) override { return absl::OkStatus(); }
    absl::StatusOr<EnvironmentMessage> Step(const std::string&) override { return absl::InternalError("broken"); }
  };
  rules_.games["guess"] = [](const std::string&) { return std::make_unique<Broken>(); };
  ASSERT_TRUE(Start().ok());
  EXPECT_FALSE(Guess(0, 1));
  EXPECT_FALSE(group_.has_value());
  EXPECT_FALSE(Guess(1, 1));
  EXPECT_EQ(ErrorReason(group_->status()), "ENVIRONMENT_FAILED");
  EXPECT_THAT(std::string(group_->status().message()), HasSubstr("broken"));
}

TEST_F(PlayAssemblyTest, AnEngineThatTakesNoGivenTokensFailsTheGroup) {
  ASSERT_TRUE(Start(1).ok());
  extended_ = absl::InvalidArgumentError("outside the vocabulary");
  EXPECT_FALSE(Guess(0, 1));
  EXPECT_EQ(group_->status(), extended_);
}

TEST_F(PlayAssemblyTest, AnAbortedSampleAbortsTheGroup) {
  ASSERT_TRUE(Start(1).ok());
  EXPECT_TRUE(Guess(0, 1));
  answers_[0].finish = FinishReason::kAborted;
  assembly_->OnFinished(0, answers_[0]);
  EXPECT_EQ(ErrorReason(group_->status()), "GROUP_ABORTED");
}

TEST(PlayRulesTest, OnlyEnvironmentsWithTokensOfTheirOwnCanBePlayed) {
  EXPECT_EQ(ErrorReason(MakePlayRules("chess", kEpisode).status()), "UNKNOWN_ENVIRONMENT");
  EXPECT_EQ(ErrorReason(MakePlayRules("calculator", kEpisode).status()), "UNKNOWN_ENVIRONMENT");
  EXPECT_EQ(ErrorReason(MakePlayRules("guess", {}).status()), "BAD_OPTIONS");
}

}  // namespace
}  // namespace syncopate::rollouter
