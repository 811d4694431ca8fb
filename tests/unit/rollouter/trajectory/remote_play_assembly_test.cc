#include "rollouter/trajectory/remote_play_assembly.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>

#include "base/guess_tokens.h"
#include "tests/support/fake_remote_environment.h"

namespace syncopate::rollouter {
namespace {

using namespace guess_tokens;  // NOLINT: the test is about these
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Episode::Options kRemoteEpisode = {
    .max_turns = 3, .max_total_tokens = 20, .max_given_tokens = 4, .max_retries = 2};

class RemotePlayAssemblyTest : public ::testing::Test {
 protected:
  void Start(int32_t samples = 1) {
    rules_.remote = &environment_;
    Lease lease;
    lease.id = {{0, 3}, 1};
    lease.samples = samples;
    lease.prompt_ids = {kBegin, kAsk};
    lease.seed = 11;
    lease.task.row_json = row_json_;
    answers_.resize(static_cast<size_t>(samples));
    assembly_ = std::make_shared<RemotePlayAssembly>(
        lease, MemberId(),
        [this](absl::StatusOr<TrajectoryGroup> group) {
          EXPECT_FALSE(group_.has_value()) << "reported twice";
          group_ = std::move(group);
        },
        std::make_shared<TokenCount>(0), &stops_,
        RemotePlayAssembly::Options{
            .id = "r", .environment = "guess", .rules = &rules_, .remote = &environment_, .open_calls = open_calls_},
        RemotePlayAssembly::Engine{.begin =
                                       [this](int32_t sample, std::vector<int32_t> given) {
                                         began_.push_back(sample);
                                         Give(sample, given);
                                         return engine_says_;
                                       },
                                   .extend =
                                       [this](int32_t sample, std::vector<int32_t> given) {
                                         Give(sample, given);
                                         return engine_says_;
                                       },
                                   .rewind = [this](int32_t sample) { answers_[static_cast<size_t>(sample)] = {}; },
                                   .end = [this](int32_t sample) { ended_.push_back(sample); },
                                   .abort = [this] { ++aborts_; }});
    assembly_->Start();
  }
  void Give(int32_t sample, const std::vector<int32_t>& given) {
    Trajectory& answer = answers_[static_cast<size_t>(sample)];
    if (given.empty()) return;
    const auto begin = static_cast<int32_t>(answer.tokens.size());
    answer.tokens.insert(answer.tokens.end(), given.begin(), given.end());
    answer.logprobs.resize(answer.tokens.size(), 0.0f);
    answer.given.push_back({begin, static_cast<int32_t>(answer.tokens.size())});
  }
  // The policy writes a number, as the engine would report it. Returns whether the sample is parked.
  bool Guess(int32_t sample, int32_t number) {
    Trajectory& answer = answers_[static_cast<size_t>(sample)];
    const auto begin = static_cast<int32_t>(answer.tokens.size());
    answer.tokens.insert(answer.tokens.end(), {number - 1, kEnd});
    answer.logprobs.resize(answer.tokens.size(), -0.5f);
    answer.spans.push_back({{1, 1}, begin, begin + 2});
    return assembly_->OnTurnEnded(sample, FinishReason::kStop, answer);
  }
  // Answers the oldest call, and returns it.
  testing::FakeRemoteEnvironment::Call Say(absl::StatusOr<EnvironmentMessage> said) {
    testing::FakeRemoteEnvironment::Call call = environment_.AwaitCall().value();
    call.done(std::move(said));
    return call;
  }
  void Finish(int32_t sample, FinishReason finish = FinishReason::kStop) {
    answers_[static_cast<size_t>(sample)].finish = finish;
    assembly_->OnFinished(sample, answers_[static_cast<size_t>(sample)]);
  }

  std::string row_json_;
  StopRules stops_;
  PlayRules rules_ = MakePlayRules("guess", kRemoteEpisode).value();
  testing::FakeRemoteEnvironment environment_;
  std::shared_ptr<std::atomic<int64_t>> open_calls_ = std::make_shared<std::atomic<int64_t>>(0);
  absl::Status engine_says_;
  std::shared_ptr<RemotePlayAssembly> assembly_;
  std::vector<Trajectory> answers_;
  std::vector<int32_t> began_, ended_;
  int aborts_ = 0;
  std::optional<absl::StatusOr<TrajectoryGroup>> group_;
};

TEST_F(RemotePlayAssemblyTest, PlaysTurnsWhoseAnswersComeLater) {
  Start();
  EXPECT_THAT(began_, IsEmpty()) << "the sample waits for the reset";
  const auto reset = Say(EnvironmentMessage{});
  EXPECT_EQ(reset.episode, "r/0/1");
  EXPECT_EQ(reset.seed, SampleSeed(11, 0));
  EXPECT_THAT(began_, ElementsAre(0));
  EXPECT_TRUE(Guess(0, 10));
  EXPECT_EQ(*open_calls_, 1) << "the lease waits";
  const auto step = Say(EnvironmentMessage{.text = "higher", .reward = -0.1f, .seconds = 0.5});
  EXPECT_EQ(step.turn, 1);
  EXPECT_EQ(step.text, "10");
  EXPECT_EQ(*open_calls_, 0);
  EXPECT_THAT(answers_[0].tokens, ElementsAre(9, kEnd, kHigher, kAsk));
  EXPECT_TRUE(Guess(0, 20));
  Say(EnvironmentMessage{.reward = 1.0f, .done = true, .seconds = 0.25});
  EXPECT_THAT(ended_, ElementsAre(0));
  Finish(0);
  ASSERT_TRUE(group_.has_value() && group_->ok()) << group_->status();
  EXPECT_FLOAT_EQ((*group_)->samples[0].reward, 0.9f);
  EXPECT_THAT((*group_)->samples[0].given, ElementsAre(TokenRange{2, 4}));
  EXPECT_THAT((*group_)->samples[0].turns, ElementsAre(Turn{2, -0.1f, 0.5}, Turn{6, 1.0f, 0.25}));
  EXPECT_FALSE((*group_)->samples[0].rejected);
}

TEST_F(RemotePlayAssemblyTest, CallsOfTheRowsToolsAreReadAndTheirResultsAreGiven) {
  row_json_ = R"({"tools": [{"type": "function", "function": {"name": "look", "parameters": {}}}]})";
  rules_.tool_format = text::chat::ToolFormat::kHermes;
  rules_.decode = [](const std::vector<int32_t>&) {
    return std::string(
        "I look.<tool_call>{\"name\": \"look\", \"arguments\": {\"at\": 3}}</tool_call>"
        "<tool_call>{broken</tool_call>");
  };
  std::vector<EnvironmentMessage> encoded;
  rules_.encode = [&](const EnvironmentMessage& said, const std::vector<int32_t>&) {
    encoded.push_back(said);
    return EnvironmentAnswer{.content = {kHigher}};
  };
  Start();
  Say(EnvironmentMessage{});
  EXPECT_TRUE(Guess(0, 10));
  const auto step = Say(EnvironmentMessage{.tool_results = {"17", "18"}});
  EXPECT_EQ(step.text, rules_.decode({}));
  ASSERT_EQ(step.tool_calls.size(), 1u);
  EXPECT_EQ(step.tool_calls[0].name, "look");
  EXPECT_EQ(step.tool_calls[0].arguments, R"({"at":3})");
  EXPECT_EQ(step.content, "I look.<tool_call>{broken</tool_call>") << "what is no call stays text";
  ASSERT_EQ(encoded.size(), 1u);
  EXPECT_THAT(encoded[0].tool_results, ElementsAre("17", "18"));
  EXPECT_THAT(answers_[0].given, ElementsAre(TokenRange{2, 3}));
}

TEST_F(RemotePlayAssemblyTest, WithoutToolsInTheRowWhatLooksLikeACallIsText) {
  rules_.tool_format = text::chat::ToolFormat::kHermes;
  rules_.decode = [](const std::vector<int32_t>&) {
    return std::string("<tool_call>{\"name\": \"look\", \"arguments\": {}}</tool_call>");
  };
  Start();
  Say(EnvironmentMessage{});
  EXPECT_TRUE(Guess(0, 10));
  const auto step = Say(EnvironmentMessage{.text = "higher"});
  EXPECT_THAT(step.tool_calls, IsEmpty());
  EXPECT_EQ(step.text, rules_.decode({}));
}

TEST_F(RemotePlayAssemblyTest, ASampleThatItsEnvironmentRejectsEndsAndStaysInItsGroup) {
  Start();
  Say(EnvironmentMessage{});
  EXPECT_TRUE(Guess(0, 10));
  Say(EnvironmentMessage{.reward = 2.0f, .done = true, .rejected = true});
  EXPECT_THAT(ended_, ElementsAre(0));
  Finish(0);
  ASSERT_TRUE(group_.has_value() && group_->ok()) << group_->status();
  EXPECT_TRUE((*group_)->samples[0].rejected);
  EXPECT_EQ((*group_)->samples[0].reward, 2.0f);
}

TEST_F(RemotePlayAssemblyTest, ATurnThatTheEngineEndedHasNoRewardAndNoTime) {
  Start();
  Say(EnvironmentMessage{});
  Guess(0, 10);
  Say(EnvironmentMessage{.text = "higher", .reward = -0.1f});
  Trajectory& answer = answers_[0];
  answer.tokens.push_back(5);
  answer.logprobs.push_back(-1);
  Finish(0, FinishReason::kLength);
  ASSERT_TRUE(group_.has_value() && group_->ok()) << group_->status();
  EXPECT_THAT((*group_)->samples[0].turns, ElementsAre(Turn{2, -0.1f}, Turn{5}));
}

TEST_F(RemotePlayAssemblyTest, WhatAResetSaysIsGivenBeforeTheFirstTurn) {
  Start();
  Say(EnvironmentMessage{.text = "lower"});
  EXPECT_THAT(answers_[0].tokens, ElementsAre(kLower, kAsk));
  EXPECT_TRUE(Guess(0, 1));
  EXPECT_EQ(environment_.AwaitCall()->text, "1");
}

TEST_F(RemotePlayAssemblyTest, AFailedCallPlaysTheSampleAnewWithTheSameSeed) {
  Start();
  Say(EnvironmentMessage{});
  Guess(0, 10);
  Say(absl::InternalError("the worker died"));
  EXPECT_THAT(answers_[0].tokens, IsEmpty()) << "rewound";
  EXPECT_THAT(environment_.closed(), ElementsAre("r/0/1"));
  const auto reset = Say(EnvironmentMessage{});
  EXPECT_EQ(reset.episode, "r/0/2");
  EXPECT_EQ(reset.seed, SampleSeed(11, 0));
  Guess(0, 20);
  EXPECT_EQ(Say(EnvironmentMessage{.reward = 1.0f, .done = true}).turn, 1);
  Finish(0);
  EXPECT_EQ((*group_)->samples[0].reward, 1.0f);
}

TEST_F(RemotePlayAssemblyTest, WhatFailsInEveryPlayHandsTheLeaseBackAndEndsTheOtherSamples) {
  Start(2);
  Say(EnvironmentMessage{});                                       // of sample 0
  for (int i = 0; i < 3; ++i) Say(absl::InternalError("broken"));  // of sample 1
  EXPECT_EQ(aborts_, 1);
  EXPECT_THAT(ended_, ElementsAre(0, 1)) << "parked samples end without the abort";
  EXPECT_FALSE(Guess(0, 1)) << "a sample that runs ends with its turn";
  Finish(0);
  Finish(1, FinishReason::kAborted);
  ASSERT_TRUE(group_.has_value());
  EXPECT_EQ(ErrorReason(group_->status()), "ENVIRONMENT_FAILED");
  EXPECT_THAT(std::string(group_->status().message()), HasSubstr("failed 3 times, at last: broken"));
}

TEST_F(RemotePlayAssemblyTest, AnAbortCancelsWhatTheEnvironmentIsDoing) {
  Start();
  Say(EnvironmentMessage{});
  Guess(0, 10);
  Finish(0, FinishReason::kAborted);
  EXPECT_THAT(environment_.closed(), ElementsAre("r/0/1"));
  EXPECT_EQ(ErrorReason(group_->status()), "GROUP_ABORTED");
  Say(EnvironmentMessage{.text = "higher"});  // it was answering already
  EXPECT_THAT(answers_[0].tokens, ElementsAre(9, kEnd));
}

TEST_F(RemotePlayAssemblyTest, ALimitEndsTheSampleAndItsEpisode) {
  Start();
  Say(EnvironmentMessage{});
  for (int32_t number : {1, 2, 3}) {
    EXPECT_TRUE(Guess(0, number));
    Say(EnvironmentMessage{.text = "higher", .reward = -0.1f});
  }
  EXPECT_THAT(ended_, ElementsAre(0));
  Finish(0);
  EXPECT_THAT(environment_.closed(), ElementsAre("r/0/1"));
  EXPECT_FLOAT_EQ((*group_)->samples[0].reward, -0.3f);
}

TEST_F(RemotePlayAssemblyTest, AnImpossibleRewardIsAFailure) {
  Start();
  Say(EnvironmentMessage{});
  Guess(0, 1);
  Say(EnvironmentMessage{.text = "higher", .reward = std::numeric_limits<float>::quiet_NaN()});
  EXPECT_EQ(environment_.AwaitCall()->episode, "r/0/2");
  EXPECT_THAT(environment_.closed(), ElementsAre("r/0/1"));
}

TEST(PlayPlaceTest, TheWorkersEnvironmentGoesBeforeWhatIsBuiltInAndARowMayNameItsOwn) {
  PlayRules rules = MakePlayRules("guess", kRemoteEpisode).value();
  const Task chess = {.environment = "", .row_json = R"({"environment": "chess"})"};
  EXPECT_FALSE(FindPlace(rules, {})->remote);
  EXPECT_EQ(ErrorReason(FindPlace(rules, chess).status()), "NO_SUCH_ENVIRONMENT");
  testing::FakeRemoteEnvironment environment;
  rules.remote = &environment;
  EXPECT_TRUE(FindPlace(rules, {})->remote);
  EXPECT_EQ(FindPlace(rules, chess)->environment, "chess");
  environment.SetThere(absl::NotFoundError("it has none"));
  EXPECT_FALSE(FindPlace(rules, {})->remote);
  EXPECT_TRUE(absl::IsNotFound(FindPlace(rules, chess).status()));
  environment.SetThere(absl::UnavailableError("away"));
  EXPECT_TRUE(absl::IsUnavailable(FindPlace(rules, {}).status()));
}

TEST(PlayPlaceTest, ARowMayNameAnyTextEnvironmentThatIsBuiltIn) {
  const PlayRules rules = MakeTextPlayRules("guess", kRemoteEpisode, nullptr, nullptr).value();
  const Task row = {.environment = "", .row_json = R"({"environment": "calculator"})"};
  EXPECT_EQ(FindPlace(rules, row)->environment, "calculator");
  EXPECT_EQ(FindPlace(rules, {})->environment, "guess");
  const Task unknown = {.environment = "", .row_json = R"({"environment": "chess"})"};
  EXPECT_EQ(ErrorReason(FindPlace(rules, unknown).status()), "NO_SUCH_ENVIRONMENT");
  const Task number = {.environment = "", .row_json = R"({"environment": 5})"};
  EXPECT_EQ(FindPlace(rules, number)->environment, "guess");
}

}  // namespace
}  // namespace syncopate::rollouter
