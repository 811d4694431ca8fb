#include "rollouter/reward/http_scorer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "rollouter/reward/http_messages.h"
#include "tests/component/rollouter/reward_service.h"
#include "tests/support/notification.h"

namespace syncopate::rollouterd {
namespace {

using rollouter::HttpScorer;
using rollouter::RemoteItem;
using rollouter::RemoteScorer;
using ::testing::HasSubstr;
using Rewards = RemoteScorer::Rewards;
using Reply = RewardService::Reply;

RemoteItem HttpItem(const std::string& id, const std::vector<std::string>& texts,
                    absl::Duration budget = absl::Seconds(20)) {
  return {.id = id,
          .reward = "",
          .row_json = R"({"answer": 12345678901234567890})",
          .texts = texts,
          .finishes = std::vector<FinishReason>(texts.size(), FinishReason::kLength),
          .budget = budget};
}

// Judges each answer by the length of its text.
Reply TextLengths(const std::string& body) {
  const nlohmann::json asked = nlohmann::json::parse(body);
  nlohmann::json rewards = nlohmann::json::array();
  for (const auto& answer : asked["answers"]) rewards.push_back(answer["text"].get<std::string>().size());
  return {.body = nlohmann::json{{"rewards", rewards}}.dump()};
}

class HttpScorerTest : public ::testing::Test {
 protected:
  void Connect(const std::string& url, int64_t batch = 64, int64_t connections = 8) {
    scorer_ = HttpScorer::Start({.url = url,
                                 .batch = batch,
                                 .connections = connections,
                                 .probe_every = absl::Milliseconds(20),
                                 .max_response_bytes = 1 << 16})
                  .value();
    scorer_->SetAvailabilityListener([this] { changes_.Put(scorer_->Availability("")); });
  }
  bool AwaitAvailable() {
    const absl::Time limit = Clock::Real()->Now() + kTestDeadline;
    while (!scorer_->Availability("").ok() && Clock::Real()->Now() < limit) changes_.WaitFor(1, absl::Milliseconds(5));
    return scorer_->Availability("").ok();
  }
  absl::StatusOr<Rewards> Ask(const RemoteItem& item) {
    Mailbox<absl::StatusOr<Rewards>> answers;
    scorer_->Score(item, [&answers](absl::StatusOr<Rewards> rewards) { answers.Put(std::move(rewards)); });
    if (!answers.WaitFor(1)) return absl::DeadlineExceededError("the scorer never answered");
    return answers.All()[0];
  }

  Mailbox<absl::Status> changes_;
  std::unique_ptr<HttpScorer> scorer_;
};

TEST_F(HttpScorerTest, SendsAnswersWithTheirRowAsItCameAndReadsRewards) {
  RewardService service([](const std::string&) {
    return Reply{.body = R"({"rewards": [1, {"value": 0.5, "components": {"style": 0.25}}, {"error": "no idea"}]})"};
  });
  Connect(service.url());
  EXPECT_TRUE(AwaitAvailable());
  const Rewards rewards = Ask(HttpItem("a", {"one", "t\xffwo\n", "\"three\""})).value();
  ASSERT_EQ(rewards.size(), 3u);
  EXPECT_EQ(rewards[0]->value, 1);
  EXPECT_EQ(rewards[1]->value, 0.5f);
  EXPECT_EQ(rewards[1]->components[0].first, "style");
  EXPECT_THAT(rewards[2].status().message(), HasSubstr("no idea"));
  const std::string body = service.bodies().back();
  EXPECT_THAT(body, HasSubstr(R"("row":{"answer": 12345678901234567890})"));
  EXPECT_THAT(body, HasSubstr(R"("finish":"length")"));
  EXPECT_THAT(nlohmann::json::parse(body)["answers"][2]["text"], "\"three\"");
}

TEST_F(HttpScorerTest, PutsAnswersOfSeveralGroupsInOneRequestAndSplitsLargeGroups) {
  RewardService service(TextLengths);
  Connect(service.url(), /*batch=*/4, /*connections=*/1);
  Mailbox<absl::StatusOr<Rewards>> answers;
  for (int i = 0; i < 6; ++i) {
    scorer_->Score(HttpItem(absl::StrCat(i), std::vector<std::string>(3, std::string(static_cast<size_t>(i), 'x'))),
                   [&answers](absl::StatusOr<Rewards> rewards) { answers.Put(std::move(rewards)); });
  }
  ASSERT_TRUE(answers.WaitFor(6));
  float sum = 0;
  for (const auto& rewards : answers.All()) sum += (*rewards)[0]->value + (*rewards)[2]->value;
  EXPECT_EQ(sum, 2 * (0 + 1 + 2 + 3 + 4 + 5));
  EXPECT_LT(service.bodies().size(), 10u) << "18 answers, 4 a request, but for the first";
}

TEST_F(HttpScorerTest, FailsItsAnswersByWhatWentWrong) {
  std::vector<Reply> replies = {{.status = 503},
                                {.body = "<html>"},
                                {.body = R"({"rewards": []})"},
                                {.body = R"({"rewards": ["1"]})"},
                                {.body = R"({"rewards": [NaN]})"},
                                {.body = std::string(1 << 17, ' ')},
                                {.hang_up = true}};
  size_t next = 0;
  RewardService service([&](const std::string&) { return replies[next++]; });
  Connect(service.url());
  for (const char* says : {"gave 503", "no JSON object", "0 rewards for 1", "neither a number", "no JSON object"}) {
    const auto rewards = Ask(HttpItem(says, {"x"})).value();
    EXPECT_THAT(rewards[0].status().message(), HasSubstr(says));
  }
  EXPECT_FALSE(Ask(HttpItem("too large", {"x"}))->at(0).ok());
  EXPECT_FALSE(Ask(HttpItem("cut", {"x"}))->at(0).ok());
}

TEST_F(HttpScorerTest, EndsARequestInItsBudget) {
  RewardService service([](const std::string&) { return Reply{.hang = true}; });
  Connect(service.url());
  EXPECT_TRUE(AwaitAvailable());
  const absl::Time begin = Clock::Real()->Now();
  const auto rewards = Ask(HttpItem("slow", {"x"}, absl::Milliseconds(100))).value();
  EXPECT_TRUE(absl::IsDeadlineExceeded(rewards[0].status()));
  EXPECT_LT(Clock::Real()->Now() - begin, absl::Seconds(5));
  EXPECT_TRUE(scorer_->Availability("").ok()) << "a slow service is not away";
}

TEST_F(HttpScorerTest, IsAwayWhileNobodyListensAndComesBack) {
  auto service = std::make_unique<RewardService>(TextLengths);
  const int port = service->port();
  const std::string url = service->url();
  Connect(url);
  EXPECT_TRUE(AwaitAvailable());
  service.reset();
  EXPECT_FALSE(Ask(HttpItem("a", {"x"}))->at(0).ok());
  EXPECT_FALSE(Ask(HttpItem("b", {"x"}))->at(0).ok());
  EXPECT_TRUE(absl::IsUnavailable(scorer_->Availability("")));
  RewardService again(TextLengths, port);
  EXPECT_TRUE(AwaitAvailable());
  EXPECT_TRUE(Ask(HttpItem("c", {"x"}))->at(0).ok());
}

TEST_F(HttpScorerTest, ACancelledGroupIsNotHeardOfAndMakesRoom) {
  RewardService service([](const std::string& body) {
    return body.find("hang") != std::string::npos ? Reply{.hang = true} : TextLengths(body);
  });
  Connect(service.url(), /*batch=*/1, /*connections=*/1);
  EXPECT_TRUE(AwaitAvailable());
  scorer_->Score(HttpItem("a", {"hang"}), [](const absl::StatusOr<Rewards>&) { ADD_FAILURE() << "it was cancelled"; });
  scorer_->Cancel("a");
  scorer_->Cancel("nobody");
  EXPECT_EQ(Ask(HttpItem("b", {"xyz"}))->at(0)->value, 3);
}

TEST(HttpScorerOptionsTest, MustBeGiven) {
  EXPECT_EQ(ErrorReason(HttpScorer::Start({}).status()), "BAD_OPTIONS");
  EXPECT_EQ(ErrorReason(HttpScorer::Start({.url = "http://x", .batch = 0}).status()), "BAD_OPTIONS");
}

}  // namespace
}  // namespace syncopate::rollouterd
