// The judge against our own HTTP server, with the answers of a chat model that the test makes.
#include "rollouter/reward/judge_scorer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "rollouter/reward/scorer.h"
#include "services/http/http_server.h"
#include "tests/component/rollouter/reward_service.h"
#include "tests/support/eventually.h"
#include "tests/support/notification.h"
#include "tests/support/process.h"

namespace syncopate::rollouterd {
namespace {

using nlohmann::json;
using rollouter::JudgeScorer;
using rollouter::RemoteItem;
using rollouter::RemoteScorer;
using syncopate::testing::TempDir;
using ::testing::HasSubstr;
using ::testing::Not;
using Rewards = RemoteScorer::Rewards;

http::Response Completion(const std::string& text, const std::string& finish = "stop", int tokens = 10) {
  json body = {{"choices", json::array({{{"message", {{"content", text}}}, {"finish_reason", finish}}})}};
  if (tokens >= 0) body["usage"] = {{"total_tokens", tokens}};
  return {.body = body.dump()};
}

// Scores an answer by its length.
http::Response ByLength(const http::Request& request) {
  const std::string prompt = json::parse(request.body)["messages"][0]["content"];
  return Completion(absl::StrCat("Fine.\n**Score:** ", prompt.size() - prompt.find("A: ") - 3));
}

class JudgeScorerTest : public ::testing::Test {
 protected:
  using Reply = std::function<http::Response(const http::Request&)>;

  void Serve(Reply reply) {
    server_ = http::HttpServer::Start(
                  {}, [](const http::Request&) { return http::Response(); },
                  [](int, const std::string& message) { return message; },
                  [this, reply = std::move(reply)](const std::shared_ptr<http::Exchange>& exchange) {
                    requests_.Put(exchange->request());
                    exchange->Respond([response = reply(exchange->request())] { return response; });
                  })
                  .value();
  }
  JudgeScorer::Options Options() const {
    return OptionsFor(absl::StrCat("http://", server_->endpoint().ToString(), "/v1/"));
  }
  static JudgeScorer::Options OptionsFor(const std::string& url) {
    return {.url = url,
            .sampling = {.model = "referee", .max_new_tokens = 64},
            .prompt = "Q: {prompt} ({ground_truth}) A: {answer}",
            .pattern = "(?i)score:[ *]*([-+]?[0-9]*[.]?[0-9]+)",
            .probe_every = absl::Milliseconds(20)};
  }
  void Connect(JudgeScorer::Options options) {
    scorer_ = JudgeScorer::Start(std::move(options)).value();
    scorer_->SetAvailabilityListener([this] { changes_.Put(0); });
  }
  bool Await(const std::function<bool(const absl::Status&)>& wanted) {
    const absl::Time limit = Clock::Real()->Now() + kTestDeadline;
    while (!wanted(scorer_->Availability("")) && Clock::Real()->Now() < limit) {
      changes_.WaitFor(changes_.size() + 1, absl::Milliseconds(5));
    }
    return wanted(scorer_->Availability(""));
  }
  bool AwaitTokens(int64_t tokens) {
    const absl::Time limit = Clock::Real()->Now() + kTestDeadline;
    while (scorer_->used_tokens() < tokens && Clock::Real()->Now() < limit) {
      changes_.WaitFor(changes_.size() + 1, absl::Milliseconds(5));
    }
    return scorer_->used_tokens() >= tokens;
  }
  static RemoteItem Item(const std::vector<std::string>& texts,
                         const std::string& row = R"({"prompt": "1+1?", "ground_truth": 2})") {
    static int64_t items = 0;
    return {.id = absl::StrCat("item-", ++items),
            .reward = "",
            .row_json = row,
            .texts = texts,
            .finishes = std::vector<FinishReason>(texts.size(), FinishReason::kStop),
            .budget = absl::Seconds(20)};
  }
  absl::StatusOr<Rewards> Ask(const RemoteItem& item) {
    auto answers = std::make_shared<Mailbox<absl::StatusOr<Rewards>>>();
    scorer_->Score(item, [answers](absl::StatusOr<Rewards> rewards) { answers->Put(std::move(rewards)); });
    if (!answers->WaitFor(1)) return absl::DeadlineExceededError("the judge never answered");
    return answers->All()[0];
  }
  // The error of the one answer that is judged.
  std::string Failure(const std::string& answer) {
    return std::string(Ask(Item({answer})).value().at(0).status().message());
  }

  const TempDir dir_;
  Mailbox<int> changes_;
  Mailbox<http::Request> requests_;
  std::unique_ptr<http::HttpServer> server_;
  std::unique_ptr<JudgeScorer> scorer_;
};

TEST_F(JudgeScorerTest, AsksForEachAnswerInOrderAndFindsTheRewardInWhatTheJudgeSays) {
  Serve(ByLength);
  Connect(Options());
  const Rewards rewards = Ask(Item({"one", "{prompt}", "t\xffo"})).value();
  ASSERT_EQ(rewards.size(), 3u);
  EXPECT_EQ(rewards[0]->value, 3);
  EXPECT_EQ(rewards[1]->value, 8) << "an answer is not read as a prompt";
  EXPECT_TRUE(rewards[2].ok());
  bool asked = false;
  for (const http::Request& request : requests_.All()) {
    const json body = json::parse(request.body);
    EXPECT_EQ(request.path, "/v1/chat/completions");
    EXPECT_EQ(body["model"], "referee");
    EXPECT_EQ(body["max_tokens"], 64);
    EXPECT_EQ(body["temperature"], 0);
    asked = asked || body["messages"][0]["content"] == "Q: 1+1? (2) A: one";
  }
  EXPECT_TRUE(asked);
}

TEST_F(JudgeScorerTest, AGreedyJudgementIsAskedForOnce) {
  Serve(ByLength);
  Connect(Options());
  const Rewards first = Ask(Item({"same", "same", "other"})).value();
  EXPECT_EQ(first[1]->value, 4);
  EXPECT_EQ(requests_.size(), 2u);
  EXPECT_EQ(Ask(Item({"other", "same"})).value()[0]->value, 5);
  EXPECT_EQ(requests_.size(), 2u);
  EXPECT_TRUE(Ask(Item({"same"}, R"({"prompt": "another", "ground_truth": 2})")).ok());
  EXPECT_EQ(requests_.size(), 3u) << "the whole prompt counts";
}

TEST_F(JudgeScorerTest, ASampledJudgementIsAskedForEachTime) {
  Serve(ByLength);
  JudgeScorer::Options options = Options();
  options.sampling.temperature = 0.7;
  Connect(options);
  EXPECT_TRUE(Ask(Item({"same", "same"})).ok());
  EXPECT_TRUE(Ask(Item({"same"})).ok());
  EXPECT_EQ(requests_.size(), 3u);
}

TEST_F(JudgeScorerTest, TheOldestJudgementsGoWhenTheirPromptsFillTheirMemory) {
  Serve(ByLength);
  JudgeScorer::Options options = Options();
  options.max_kept_bytes = 40;  // two of these prompts
  Connect(options);
  for (const char* answer : {"a", "b", "c", "c", "b", "a"}) EXPECT_TRUE(Ask(Item({answer})).ok());
  EXPECT_EQ(requests_.size(), 4u);
}

TEST_F(JudgeScorerTest, WithoutAGroupThePatternItselfDecides) {
  Serve([](const http::Request& request) {
    return Completion(absl::StrContains(request.body, "A: good") ? "Yes, it is." : "No.");
  });
  JudgeScorer::Options options = Options();
  options.pattern = "^Yes";
  Connect(options);
  const Rewards rewards = Ask(Item({"good", "bad"})).value();
  EXPECT_EQ(rewards[0]->value, 1);
  EXPECT_EQ(rewards[1]->value, 0);
}

TEST_F(JudgeScorerTest, WithoutAGroupNoTextAndATextThatWasCutOffAreNoJudgement) {
  Serve([](const http::Request& request) {
    if (absl::StrContains(request.body, "A: silent")) return Completion("");
    return Completion(absl::StrContains(request.body, "A: clear") ? "Yes, and" : "Let me think", "length");
  });
  JudgeScorer::Options options = Options();
  options.pattern = "^Yes";
  Connect(options);
  EXPECT_EQ(Ask(Item({"clear"})).value()[0]->value, 1);
  EXPECT_THAT(Failure("silent"), HasSubstr("no text"));
  EXPECT_THAT(Failure("long"), HasSubstr("cut off"));
}

TEST_F(JudgeScorerTest, FailsAnAnswerByWhatWentWrongAndAsksAgain) {
  std::vector<http::Response> replies = {
      Completion("I cannot say"),
      Completion("Well, let me", "length"),
      http::Response{.body = "<html>"},
      http::Response{.code = 404, .body = R"({"error": {"message": "no referee here"}})"},
      http::Response{.code = 429, .body = R"({"error": "later"})"},
      http::Response{.code = 500},
      Completion("Score: 1")};
  size_t next = 0;
  Serve([&](const http::Request&) { return replies[next++]; });
  Connect(Options());
  EXPECT_THAT(Failure("x"), HasSubstr("no number in the judgement: ...I cannot say"));
  EXPECT_THAT(Failure("x"), HasSubstr("cut off at reward.judge_max_new_tokens"));
  EXPECT_THAT(Failure("x"), HasSubstr("no chat completion"));
  const absl::Status refused = Ask(Item({"x"})).value().at(0).status();
  EXPECT_THAT(refused.message(), HasSubstr("gave 404: no referee here"));
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << "the same request would get the same answer";
  for (const char* says : {"gave 429: later", "gave 500"}) {
    const absl::Status failed = Ask(Item({"x"})).value().at(0).status();
    EXPECT_THAT(failed.message(), HasSubstr(says));
    EXPECT_TRUE(absl::IsUnavailable(failed)) << "it may be asked again";
  }
  EXPECT_EQ(Ask(Item({"x"})).value()[0]->value, 1);
  EXPECT_TRUE(absl::IsInvalidArgument(Ask(Item({"x"}, R"({"prompt": "no truth"})")).status()))
      << "a row without the field will not have it at the next attempt either";
}

TEST_F(JudgeScorerTest, ShowsTheKeyOfTheFileAndNeverRepeatsIt) {
  const std::string file = dir_.path() + "/key";
  std::ofstream(file) << "sk-first\n";
  std::filesystem::permissions(file, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  Serve([](const http::Request& request) {
    return http::Response{.code = 401, .body = json{{"error", {{"message", "not " + request.authorization}}}}.dump()};
  });
  JudgeScorer::Options options = Options();
  options.key_file = file;
  options.probe_every = absl::Minutes(1);  // no request is made again
  Connect(options);
  EXPECT_THAT(Failure("x"), HasSubstr("gave 401: not Bearer [key]"));
  std::ofstream(file) << "sk-second\n";
  EXPECT_THAT(Failure("x"), Not(HasSubstr("sk-")));
  EXPECT_EQ(requests_.All()[0].authorization, "Bearer sk-first");
  EXPECT_EQ(requests_.All()[1].authorization, "Bearer sk-second");
  std::ofstream(file) << "two\nlines\n";
  EXPECT_THAT(Failure("x"), HasSubstr("must hold one key"));
  std::filesystem::remove(file);
  EXPECT_THAT(Failure("x"), HasSubstr("reward.judge_key_file"));
  EXPECT_FALSE(JudgeScorer::Start(options).ok());
  EXPECT_EQ(requests_.size(), 2u);
}

TEST_F(JudgeScorerTest, AJudgeThatRefusesTheKeyIsAwayUntilThereIsAnotherAndNoAnswerFailsByIt) {
  const std::string file = dir_.path() + "/key";
  std::ofstream(file) << "sk-old\n";
  std::filesystem::permissions(file, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  Serve([](const http::Request& request) {
    if (request.authorization == "Bearer sk-new") return ByLength(request);
    return http::Response{.code = 401, .body = R"({"error": {"message": "expired"}})"};
  });
  JudgeScorer::Options options = Options();
  options.key_file = file;
  Connect(options);
  EXPECT_TRUE(Await([](const absl::Status& there) { return there.ok(); }));
  EXPECT_EQ(ErrorReason(Ask(Item({"four"})).value().at(0).status()), rollouter::kScorerRefused);
  const absl::Status away = scorer_->Availability("");
  EXPECT_EQ(ErrorReason(away), rollouter::kScorerRefused);
  for (const std::string& named : {options.url, std::string("reward.judge_url"), "reward.judge_key_file " + file,
                                   std::string("gave 401: expired"), std::string("reward.judge_model referee")}) {
    EXPECT_THAT(away.message(), HasSubstr(named));
  }
  ASSERT_TRUE(requests_.WaitFor(3)) << "it is tried again by itself";
  EXPECT_EQ(ErrorReason(scorer_->Availability("")), rollouter::kScorerRefused) << "meanwhile no work is asked for";
  std::ofstream(file) << "sk-new\n";
  EXPECT_TRUE(Await([](const absl::Status& there) { return there.ok(); }));
  EXPECT_EQ(scorer_->used_tokens(), 10) << "what was tried has its price";
  EXPECT_EQ(Ask(Item({"four"})).value()[0]->value, 4);
  EXPECT_EQ(scorer_->used_tokens(), 10) << "and is of use";
}

// Of an endpoint that moderates: it judges by its length whatever is not bad.
http::Response Moderated(const http::Request& request) {
  if (!absl::StrContains(request.body, "A: bad")) return ByLength(request);
  return http::Response{.code = 403, .body = R"({"error": {"message": "flagged"}})"};
}

TEST_F(JudgeScorerTest, OnceTheKeyWasTakenAPromptThatIsForbiddenFailsAlone) {
  const std::string file = dir_.path() + "/key";
  std::ofstream(file) << "sk-one\n";
  std::filesystem::permissions(file, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  Serve(Moderated);
  JudgeScorer::Options options = Options();
  options.key_file = file;
  options.probe_every = absl::Minutes(1);  // no request is made again
  Connect(options);
  EXPECT_EQ(Ask(Item({"good"})).value()[0]->value, 4);
  const absl::Status forbidden = Ask(Item({"bad"})).value().at(0).status();
  EXPECT_TRUE(absl::IsInvalidArgument(forbidden)) << forbidden;
  EXPECT_THAT(forbidden.message(), HasSubstr("gave 403: flagged"));
  EXPECT_TRUE(scorer_->Availability("").ok()) << "for everybody else it is there";
  std::ofstream(file) << "sk-two\n";
  EXPECT_EQ(ErrorReason(Ask(Item({"bad"})).value().at(0).status()), rollouter::kScorerRefused)
      << "another key may be one that is refused";
}

TEST_F(JudgeScorerTest, APromptThatIsForbiddenBeforeTheKeyWasTakenIsNotTheOnlyOneThatIsTried) {
  Serve(Moderated);
  Connect(Options());
  EXPECT_EQ(ErrorReason(Ask(Item({"bad"})).value().at(0).status()), rollouter::kScorerRefused);
  ASSERT_TRUE(requests_.WaitFor(2)) << "it is tried again";
  ASSERT_TRUE(Await([](const absl::Status& there) { return there.ok(); }));
  EXPECT_EQ(ErrorReason(Ask(Item({"bad"})).value().at(0).status()), rollouter::kScorerRefused);
  ASSERT_TRUE(Await([](const absl::Status& there) { return there.ok(); }));
  EXPECT_EQ(requests_.size(), 3u) << "only what comes is tried now";
  EXPECT_EQ(Ask(Item({"good"})).value()[0]->value, 4);
  EXPECT_TRUE(absl::IsInvalidArgument(Ask(Item({"bad"})).value().at(0).status()));
  EXPECT_TRUE(scorer_->Availability("").ok());
}

TEST_F(JudgeScorerTest, WithoutAKeyTheErrorSaysWhichSettingNamesOne) {
  Serve([](const http::Request&) { return http::Response{.code = 401}; });
  Connect(Options());
  EXPECT_THAT(Failure("x"), HasSubstr("reward.judge_key_file is not set"));
}

TEST_F(JudgeScorerTest, JudgementsThatCameBeforeTheirItemWasCancelledAreCountedAndNotAskedForAgain) {
  RewardService service([](const std::string& body) {
    const bool is_slow = absl::StrContains(body, "A: slow");
    return RewardService::Reply{.body = is_slow ? "" : Completion("Score: 1").body, .hang = is_slow};
  });
  JudgeScorer::Options options = OptionsFor(service.url());
  Connect(options);
  RemoteItem item = Item({"quick", "slow"});
  scorer_->Score(item, [](const auto&) {});
  EXPECT_TRUE(AwaitTokens(10));
  EXPECT_TRUE(testing::Eventually(kTestDeadline, [&] { return service.bodies().size() == 2; }))
      << "both were asked for";
  scorer_->Cancel(item.id);
  EXPECT_EQ(Ask(Item({"quick"})).value()[0]->value, 1);
  EXPECT_EQ(scorer_->used_tokens(), 10);
  EXPECT_EQ(service.bodies().size(), 2u);
}

TEST_F(JudgeScorerTest, WhatAResponseSaysItUsedIsCountedAlthoughItsTimeIsOver) {
  RewardService service(
      [](const std::string&) { return RewardService::Reply{.body = Completion("Score: 1").body, .unended = true}; });
  Connect(OptionsFor(service.url()));
  RemoteItem item = Item({"late"});
  item.budget = absl::Milliseconds(200);
  EXPECT_FALSE(Ask(item).value().at(0).ok());
  EXPECT_EQ(scorer_->used_tokens(), 10);
}

TEST_F(JudgeScorerTest, ARequestThatEndsBeforeItsResponseSaysNothing) {
  RewardService service([](const std::string&) { return RewardService::Reply{.hang_up = true}; });
  Connect(OptionsFor(service.url()));
  EXPECT_FALSE(Ask(Item({"x"})).value().at(0).ok());
  EXPECT_EQ(scorer_->used_tokens(), 0);
}

TEST_F(JudgeScorerTest, CountsTheTokensThatTheEndpointSaysItUsed) {
  Serve([](const http::Request& request) {
    return Completion(absl::StrContains(request.body, "A: no") ? "No number" : "Score: 1");
  });
  Connect(Options());
  EXPECT_EQ(scorer_->used_tokens(), 0);
  EXPECT_TRUE(Ask(Item({"a", "b", "a"})).ok());
  EXPECT_EQ(scorer_->used_tokens(), 20) << "one of three was not asked for";
  EXPECT_THAT(Failure("no"), HasSubstr("no number"));
  EXPECT_EQ(scorer_->used_tokens(), 30) << "a judgement that is of no use has its price, too";
}

TEST_F(JudgeScorerTest, ABudgetNeedsAnEndpointThatCounts) {
  Serve([](const http::Request&) { return Completion("Score: 1", "stop", /*tokens=*/-1); });
  JudgeScorer::Options options = Options();
  Connect(options);
  EXPECT_EQ(Ask(Item({"a"})).value()[0]->value, 1);
  options.needs_usage = true;
  Connect(options);
  EXPECT_THAT(Failure("b"), HasSubstr("usage.total_tokens"));
}

TEST_F(JudgeScorerTest, IsOneTermOfAReward) {
  Serve(ByLength);
  Connect(Options());
  const auto scorer = rollouter::Scorer::Create(
                          {.reward = "dense + 0.5*judge",
                           .decode = [](const std::vector<int32_t>& tokens) { return std::string(tokens.size(), 'x'); },
                           .judge = scorer_.get()})
                          .value();
  Lease lease;
  lease.id = {{0, 1}, 1};
  lease.reward = "dense + 0.5*judge";
  lease.answer_ids = {1, 2};
  lease.task.row_json = R"({"prompt": "1+1?", "ground_truth": 2})";
  TrajectoryGroup group;
  group.samples.resize(2);
  group.samples[0].tokens = {1, 2};
  group.samples[1].tokens = {3, 3, 3, 3};
  Mailbox<absl::StatusOr<TrajectoryGroup>> scored;
  scorer->Score("a", lease, group, [&scored](absl::StatusOr<TrajectoryGroup> one) { scored.Put(std::move(one)); });
  ASSERT_TRUE(scored.WaitFor(1));
  EXPECT_EQ(scored.All()[0].value().samples[0].reward_parts, (std::vector<RewardPart>{{"dense", 1}, {"judge", 2}}));
  EXPECT_EQ(scored.All()[0].value().samples[1].reward, 2);
}

}  // namespace
}  // namespace syncopate::rollouterd
