#include "services/rollouter/environment_client.h"

#include <gmock/gmock.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "services/config/rules.h"
#include "services/config/run_config.h"
#include "services/rollouter/remote_scorers.h"
#include "services/rpc/status.h"
#include "tests/support/eventually.h"
#include "tests/support/notification.h"
#include "tests/support/test_authority.h"

namespace syncopate::rollouterd {
namespace {

using rollouter::RemoteItem;
using rollouter::RemoteScorer;
using ::testing::HasSubstr;
using Rewards = RemoteScorer::Rewards;

// A worker in this process whose answers the test makes.
class FakeWorker final : public v1::EnvironmentService::Service {
 public:
  // Returns the answer; none means that the worker does not answer.
  using Judge = std::function<std::optional<v1::ScoreResponse::Item>(const v1::ScoreRequest::Item&)>;

  FakeWorker(std::string address, std::string digest, Judge judge,
             const std::shared_ptr<grpc::ServerCredentials>& credentials = grpc::InsecureServerCredentials())
      : digest_(std::move(digest)), judge_(std::move(judge)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, credentials, &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeWorker() override { server_->Shutdown(std::chrono::system_clock::now()); }

  int port() const { return port_; }

  Mailbox<v1::ScoreRequest> requests;
  Mailbox<std::vector<std::string>> shown;  // the names of the metadata of each Describe

 private:
  grpc::Status Describe(grpc::ServerContext* context, const v1::DescribeRequest*,
                        v1::DescribeResponse* response) override {
    std::vector<std::string> names;
    for (const auto& [name, value] : context->client_metadata()) names.emplace_back(name.data(), name.size());
    shown.Put(names);
    response->set_digest(digest_);
    auto* judge = response->add_environments();
    judge->set_name("judge");
    judge->set_scores(true);
    judge->set_concurrency(4);
    auto* group = response->add_environments();
    group->set_name("group");
    group->set_scores(true);
    group->set_concurrency(4);
    group->set_scores_groups(true);
    group->set_reads_tokens(true);
    auto* list = response->add_environments();
    list->set_name("list");
    list->set_lists(true);
    return grpc::Status::OK;
  }
  grpc::Status Score(grpc::ServerContext*,
                     grpc::ServerReaderWriter<v1::ScoreResponse, v1::ScoreRequest>* stream) override {
    for (v1::ScoreRequest request; stream->Read(&request);) {
      requests.Put(request);
      v1::ScoreResponse response;
      for (const auto& item : request.items()) {
        if (auto judged = judge_(item)) *response.add_items() = *judged;
      }
      if (response.items_size() > 0) stream->Write(response);
    }
    return grpc::Status::OK;
  }

  const std::string digest_;
  const Judge judge_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// Judges each answer by its length; an empty answer gives an error.
std::optional<v1::ScoreResponse::Item> Lengths(const v1::ScoreRequest::Item& asked) {
  v1::ScoreResponse::Item item;
  item.set_id(asked.id());
  for (const v1::Answer& answer : asked.answers()) {
    v1::Outcome* outcome = item.add_outcomes();
    if (answer.text().empty()) {
      *outcome->mutable_error() = rpc::ToProto(absl::InvalidArgumentError("ValueError: nothing to judge"));
      continue;
    }
    outcome->mutable_reward()->set_value(static_cast<float>(answer.text().size()));
    (*outcome->mutable_reward()->mutable_components())["style"] = 0.5f;
  }
  return item;
}

RemoteItem Item(const std::string& id, const std::vector<std::string>& texts) {
  return {.id = id,
          .reward = "judge",
          .row_json = R"({"answer": "5"})",
          .texts = texts,
          .finishes = std::vector<FinishReason>(texts.size(), FinishReason::kStop),
          .budget = absl::Milliseconds(2500)};
}

class EnvironmentClientTest : public ::testing::Test {
 protected:
  ~EnvironmentClientTest() override { client_->Stop(); }
  void Connect(const std::string& digest = "") {
    client_ = EnvironmentClient::Start({.address = address_,
                                        .digest = digest,
                                        .min_backoff = absl::Milliseconds(5),
                                        .max_backoff = absl::Milliseconds(50)});
    client_->SetAvailabilityListener([this] { changes_.Put(0); });
  }
  bool Await(const std::function<bool(const absl::Status&)>& wanted) {
    for (size_t seen = 0; !wanted(client_->Availability("judge")); seen = changes_.size()) {
      if (!changes_.WaitFor(seen + 1)) return false;
    }
    return true;
  }
  bool AwaitThere() {
    return Await([](const absl::Status& status) { return status.ok(); });
  }
  absl::StatusOr<Rewards> Ask(const RemoteItem& item) {
    auto answers = std::make_shared<Mailbox<absl::StatusOr<Rewards>>>();
    client_->Score(item, [answers](absl::StatusOr<Rewards> rewards) { answers->Put(std::move(rewards)); });
    if (!answers->WaitFor(1)) return absl::DeadlineExceededError("the client never answered");
    return answers->All()[0];
  }

  const std::string address_ = absl::StrCat("unix:", ::testing::TempDir(), "/worker-", ::getpid(), ".sock");
  Mailbox<int> changes_;
  std::shared_ptr<EnvironmentClient> client_;
};

TEST_F(EnvironmentClientTest, AsksForRewardsAndReadsThemInOrder) {
  FakeWorker worker(address_, "d1", Lengths);
  Connect();
  ASSERT_TRUE(AwaitThere());
  const Rewards rewards = Ask(Item("a", {"five!", "", "xx"})).value();
  ASSERT_EQ(rewards.size(), 3u);
  EXPECT_EQ(rewards[0]->value, 5);
  EXPECT_EQ(rewards[0]->components[0].first, "style");
  EXPECT_TRUE(absl::IsInvalidArgument(rewards[1].status()));
  EXPECT_THAT(rewards[1].status().message(), HasSubstr("nothing to judge"));
  EXPECT_EQ(rewards[2]->value, 2);
  const v1::ScoreRequest::Item asked = worker.requests.All()[0].items(0);
  EXPECT_EQ(asked.task().environment(), "judge");
  EXPECT_EQ(asked.task().row_json(), R"({"answer": "5"})");
  EXPECT_EQ(asked.budget().seconds(), 2);
  EXPECT_EQ(asked.budget().nanos(), 500'000'000);
  EXPECT_EQ(asked.answers(0).finish(), v1::FINISH_REASON_STOP);
}

TEST_F(EnvironmentClientTest, SendsTokensOnlyToARewardThatReadsThemAndFailsTheAnswersOfAGroupTogether) {
  FakeWorker worker(address_, "d1", Lengths);
  Connect();
  ASSERT_TRUE(AwaitThere());
  RemoteItem item = Item("a", {"five!", "xx"});
  item.tokens = {{7, 300}, {9}};
  item.logprobs = {{-0.5f, 0.0f}, {-1.0f}};
  ASSERT_TRUE(Ask(item).ok());
  EXPECT_EQ(worker.requests.All()[0].items(0).answers(0).tokens_size(), 0);
  item.id = "b";
  item.reward = "group";
  EXPECT_EQ(Ask(item).value()[0]->value, 5);
  const v1::Answer sent = worker.requests.All()[1].items(0).answers(0);
  EXPECT_EQ(sent.tokens(1), 300);
  EXPECT_EQ(sent.logprobs(0), -0.5f);
  item.id = "c";
  item.texts[1].clear();
  EXPECT_THAT(Ask(item).status().message(), HasSubstr("nothing to judge"));
}

TEST_F(EnvironmentClientTest, AGroupThatNoWorkerCanTakeFailsAlone) {
  FakeWorker worker(address_, "d1", Lengths);
  Connect();
  ASSERT_TRUE(AwaitThere());
  const auto refused = Ask(Item("a", {std::string(64 << 20, 'x')}));
  EXPECT_EQ(ErrorReason(refused.status()), "ITEM_TOO_LARGE");
  EXPECT_TRUE(Ask(Item("b", {"x"})).ok());
}

TEST_F(EnvironmentClientTest, NobodyIsCalledBackFromWithinScore) {
  FakeWorker worker(address_, "d1", Lengths);
  Connect();
  ASSERT_TRUE(AwaitThere());
  const std::thread::id caller = std::this_thread::get_id();
  auto called = std::make_shared<Mailbox<std::thread::id>>();
  auto done = [called](const absl::StatusOr<Rewards>&) { called->Put(std::this_thread::get_id()); };
  client_->Score(Item("large", {std::string(64 << 20, 'x')}), done);
  ASSERT_TRUE(called->WaitFor(1));
  client_->Stop();
  Connect("other");  // no stream is opened to a worker of this digest
  client_->Score(Item("away", {"x"}), done);
  client_->Score(Item("away too", {"x"}), done);
  ASSERT_TRUE(called->WaitFor(3));
  for (const std::thread::id& thread : called->All()) EXPECT_NE(thread, caller);
}

TEST_F(EnvironmentClientTest, KnowsWhatTheWorkerHas) {
  FakeWorker worker(address_, "d1", Lengths);
  Connect();
  ASSERT_TRUE(AwaitThere());
  const absl::Status unknown = client_->Availability("joke");
  EXPECT_EQ(ErrorReason(unknown), "NO_SUCH_REWARD");
  EXPECT_THAT(unknown.message(), HasSubstr("it has group, judge"));
  EXPECT_EQ(ErrorReason(client_->Availability("list")), "NO_SUCH_REWARD") << "the worker scores nothing";
}

TEST_F(EnvironmentClientTest, SaysWhenTheWorkerHasItsHandsFull) {
  FakeWorker worker(address_, "d1", [](const auto&) { return std::nullopt; });
  Connect();
  ASSERT_TRUE(AwaitThere());
  client_->Score(Item("a", {"1", "2", "3", "4"}), [](const auto&) { ADD_FAILURE() << "it was cancelled"; });
  EXPECT_EQ(ErrorReason(client_->Availability("judge")), "WORKER_BUSY");
  client_->Cancel("a");
  EXPECT_TRUE(AwaitThere());
  ASSERT_TRUE(worker.requests.WaitFor(2));
  EXPECT_EQ(worker.requests.All()[1].cancel(0), "a");
}

TEST_F(EnvironmentClientTest, WhatWasUnderWayOnAWorkerThatDiesHasFailedAndTheNextWorkerIsFound) {
  auto worker = std::make_unique<FakeWorker>(address_, "d1", [](const auto&) { return std::nullopt; });
  Connect();
  ASSERT_TRUE(AwaitThere());
  Mailbox<absl::StatusOr<Rewards>> answers;
  client_->Score(Item("a", {"1"}), [&answers](absl::StatusOr<Rewards> rewards) { answers.Put(std::move(rewards)); });
  ASSERT_TRUE(worker->requests.WaitFor(1));
  worker.reset();
  ASSERT_TRUE(answers.WaitFor(1));
  EXPECT_EQ(ErrorReason(answers.All()[0].status()), "WORKER_DIED");
  EXPECT_TRUE(Await([](const absl::Status& status) { return absl::IsUnavailable(status); }));
  FakeWorker again(address_, "d1", Lengths);
  ASSERT_TRUE(AwaitThere());
  EXPECT_TRUE(Ask(Item("b", {"1"})).ok());
}

TEST_F(EnvironmentClientTest, AWorkerOfOtherCodeIsNotUsed) {
  auto worker = std::make_unique<FakeWorker>(address_, "d1", Lengths);
  Connect();
  ASSERT_TRUE(AwaitThere());  // from here on the digest of this worker is the digest of the run
  worker.reset();
  worker = std::make_unique<FakeWorker>(address_, "d2", Lengths);
  EXPECT_TRUE(Await([](const absl::Status& status) { return ErrorReason(status) == "WRONG_DIGEST"; }));
  EXPECT_FALSE(Ask(Item("a", {"1"})).ok());
  client_->Stop();
  Connect("d1");  // the digest of the run
  EXPECT_TRUE(Await([](const absl::Status& status) { return ErrorReason(status) == "WRONG_DIGEST"; }));
  worker.reset();
  FakeWorker again(address_, "d1", Lengths);
  EXPECT_TRUE(AwaitThere());
}

TEST_F(EnvironmentClientTest, WithoutAWorkerItIsAway) {
  Connect();
  EXPECT_TRUE(absl::IsUnavailable(client_->Availability("judge")));
  EXPECT_TRUE(absl::IsUnavailable(Ask(Item("a", {"1"})).status()));
}

std::shared_ptr<grpc::ServerCredentials> TlsCredentials(const testing::TestAuthority::Files& files) {
  const auto text = [](const std::string& path) { return ReadFile(FileSystem::Real(), path, 1 << 20).value(); };
  grpc::SslServerCredentialsOptions options(GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
  options.pem_key_cert_pairs.push_back({text(files.key), text(files.certificate)});
  return grpc::SslServerCredentials(options);
}

TEST(WorkerSecurityTest, NoTokenGoesToAWorkerOverTlsAndNoCallToOneWhoseCertificateIsNotTheRuns) {
  const testing::TestAuthority ours, theirs;
  const testing::TestAuthority::Files rollouter = ours.IssueFor("rollouter");
  for (const bool is_ours : {false, true}) {
    FakeWorker worker("127.0.0.1:0", "d1", Lengths, TlsCredentials((is_ours ? ours : theirs).IssueFor("environment")));
    v1::RunConfig config = config::ParseRunConfig("", "defaults").config;
    config.mutable_environment()->set_address(absl::StrCat("0.0.0.0:", worker.port()));  // no loopback address
    config.mutable_security()->set_tls_cert(rollouter.certificate);
    config.mutable_security()->set_tls_key(rollouter.key);
    config.mutable_security()->set_tls_ca(ours.ca());
    config.mutable_security()->set_token_file(
        ours.WriteSecret("tokens", absl::StrCat("rollouter ", std::string(48, 'r'), "\n")));
    ASSERT_TRUE(config::WorkerUsesTls(config));
    const auto scorers = RemoteScorers::Start(config).value();
    RemoteScorer* const python = scorers->ScorerOptions(config, nullptr).python;
    if (!is_ours) {
      EXPECT_TRUE(testing::Eventually(kTestDeadline, [&] {
        return absl::StrContains(python->Availability("judge").message(), "UNKNOWN_AUTHORITY");
      })) << python->Availability("judge");
      EXPECT_EQ(worker.shown.size(), 0u);
      continue;
    }
    ASSERT_TRUE(worker.shown.WaitFor(1)) << python->Availability("judge");
    EXPECT_THAT(worker.shown.All()[0], ::testing::Not(::testing::Contains("authorization")));
  }
}

// The listener may be destroyed at that time. Each round ends as soon as the client can see that no worker is there,
// which is before the client has called the listener.
TEST_F(EnvironmentClientTest, OnceItHasStoppedNobodyIsCalled) {
  auto called_late = std::make_shared<std::atomic<bool>>(false);
  for (int round = 0; round < 100; ++round) {
    auto listens = std::make_shared<std::atomic<bool>>(true);
    auto client = EnvironmentClient::Start({.address = address_});
    client->SetAvailabilityListener([listens, called_late] {
      std::this_thread::yield();
      if (!*listens) *called_late = true;
    });
    // The loop does not pause: the test is about the window between the change and the call of the listener.
    const absl::Time until = absl::Now() + absl::Seconds(30);
    while (absl::StrContains(client->Availability("judge").message(), "not reached yet") && absl::Now() < until) {
      std::this_thread::yield();
    }
    client->Stop();
    *listens = false;
  }
  EXPECT_FALSE(*called_late);
  Connect();
}

}  // namespace
}  // namespace syncopate::rollouterd
