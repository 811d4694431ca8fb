#include "services/rollouter/play_client.h"

#include <gmock/gmock.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/rpc/status.h"
#include "tests/support/notification.h"

namespace syncopate::rollouterd {
namespace {

using rollouter::EnvironmentMessage;
using rollouter::RemoteEpisode;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Said = absl::StatusOr<EnvironmentMessage>;
using Stream = grpc::ServerReaderWriter<v1::PlayResponse, v1::PlayRequest>;

// A worker in this process that does with each request what the test says.
class FakePlayWorker final : public v1::EnvironmentService::Service {
 public:
  using Handle = std::function<void(const v1::PlayRequest&, Stream*)>;

  FakePlayWorker(const std::string& address, Handle handle, int32_t episodes = 8)
      : handle_(std::move(handle)), episodes_(episodes) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakePlayWorker() override { server_->Shutdown(std::chrono::system_clock::now()); }

  Mailbox<v1::PlayRequest> requests;

 private:
  grpc::Status Describe(grpc::ServerContext*, const v1::DescribeRequest*, v1::DescribeResponse* response) override {
    response->set_digest("d1");
    auto* game = response->add_environments();
    game->set_name("game");
    game->set_plays(true);
    game->set_episodes(episodes_);
    game->mutable_call_budget()->set_seconds(3600);
    response->add_environments()->set_name("reward");
    return grpc::Status::OK;
  }
  grpc::Status Play(grpc::ServerContext*, Stream* stream) override {
    for (v1::PlayRequest request; stream->Read(&request);) {
      requests.Put(request);
      handle_(request, stream);
    }
    return grpc::Status::OK;
  }

  const Handle handle_;
  const int32_t episodes_;
  std::unique_ptr<grpc::Server> server_;
};

v1::PlayResponse Observe(const std::string& episode, int32_t turn, const std::string& text = "") {
  v1::PlayResponse response;
  response.mutable_observe()->set_episode(episode);
  response.mutable_observe()->set_turn(turn);
  response.mutable_observe()->set_text(text);
  return response;
}

v1::PlayResponse Closed(const std::string& episode, const absl::Status& error) {
  v1::PlayResponse response;
  response.mutable_closed()->set_episode(episode);
  *response.mutable_closed()->mutable_outcome()->mutable_error() = rpc::ToProto(error);
  return response;
}

// Answers every request as an environment does that repeats what was said; the text "end" ends it.
void Echo(const v1::PlayRequest& request, Stream* stream) {
  if (request.has_open()) stream->Write(Observe(request.open().episode(), 0));
  if (request.has_cancel()) stream->Write(Closed(request.cancel().episode(), absl::CancelledError("as asked")));
  if (!request.has_act()) return;
  v1::PlayResponse response = Observe(request.act().episode(), request.act().turn(), request.act().text());
  response.mutable_observe()->set_reward(0.5f);
  if (request.act().text() == "end") {
    response.mutable_closed()->set_episode(request.act().episode());
    response.mutable_closed()->mutable_outcome()->mutable_reward()->set_value(1.0f);
  }
  stream->Write(response);
}

class PlayClientTest : public ::testing::Test {
 protected:
  ~PlayClientTest() override { client_->Stop(); }
  void Connect(absl::Duration budget = absl::Seconds(60), absl::Duration grace = absl::Seconds(2),
               absl::Duration cancel_timeout = absl::Seconds(60)) {
    client_ = PlayClient::Start({.address = address_,
                                 .call_budget = budget,
                                 .grace = grace,
                                 .cancel_timeout = cancel_timeout,
                                 .min_backoff = absl::Milliseconds(5),
                                 .max_backoff = absl::Milliseconds(50)});
    client_->SetAvailabilityListener([this] { changes_.Put(0); });
  }
  bool Await(const std::function<bool(const absl::Status&)>& wanted) {
    for (size_t seen = 0; !wanted(client_->Availability("game")); seen = changes_.size()) {
      if (!changes_.WaitFor(seen + 1)) return false;
    }
    return true;
  }
  bool AwaitThere() {
    return Await([](const absl::Status& status) { return status.ok(); });
  }
  static RemoteEpisode Episode(const std::string& id) {
    return {.id = id, .environment = "game", .row_json = R"({"a": 5})", .seed = 1ULL << 63, .max_turns = 4};
  }
  void Open(const std::string& id) {
    client_->Open(Episode(id), [this](Said said) { said_.Put(std::move(said)); });
  }
  void Act(const std::string& id, int32_t turn, const std::string& text) {
    client_->Act(id, {.turn = turn, .text = text, .finish = FinishReason::kLength},
                 [this](Said said) { said_.Put(std::move(said)); });
  }
  // The last of `count` answers.
  Said AwaitSaid(size_t count) {
    if (!said_.WaitFor(count)) return absl::DeadlineExceededError("no answer");
    return said_.All()[count - 1];
  }

  const std::string address_ = absl::StrCat("unix:", ::testing::TempDir(), "/play-", ::getpid(), ".sock");
  Mailbox<int> changes_;
  Mailbox<Said> said_;
  std::shared_ptr<PlayClient> client_;
};

TEST_F(PlayClientTest, PlaysAnEpisodeToItsEnd) {
  FakePlayWorker worker(address_, Echo);
  Connect();
  ASSERT_TRUE(AwaitThere());
  Open("e");
  ASSERT_TRUE(AwaitSaid(1).ok());
  Act("e", 1, "one");
  const Said one = AwaitSaid(2);
  EXPECT_EQ(one->text, "one");
  EXPECT_EQ(one->reward, 0.5f);
  EXPECT_FALSE(one->done);
  Act("e", 2, "end");
  const Said end = AwaitSaid(3);
  EXPECT_EQ(end->reward, 1.0f);
  EXPECT_TRUE(end->done);
  client_->Close("e", "it is over already");
  const v1::PlayRequest::Open open = worker.requests.All()[0].open();
  EXPECT_EQ(open.task().environment(), "game");
  EXPECT_EQ(open.task().row_json(), R"({"a": 5})");
  EXPECT_EQ(open.seed(), 1ULL << 63);
  EXPECT_EQ(open.budget().seconds(), 60) << "the caller's budget is less than the worker's";
  EXPECT_EQ(worker.requests.All()[1].act().finish(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(client_->counters().opened, 1);
  EXPECT_EQ(client_->counters().turns, 2);
  EXPECT_EQ(client_->counters().cancels, 0);
}

TEST_F(PlayClientTest, CarriesCallsOfToolsAndTheirResults) {
  FakePlayWorker worker(address_, [](const v1::PlayRequest& request, Stream* stream) {
    if (request.has_open()) stream->Write(Observe(request.open().episode(), 0));
    if (!request.has_act()) return;
    v1::PlayResponse response = Observe(request.act().episode(), request.act().turn());
    for (const auto& call : request.act().tool_calls()) {
      response.mutable_observe()->add_tool_results(call.name() + call.arguments_json());
    }
    stream->Write(response);
  });
  Connect();
  ASSERT_TRUE(AwaitThere());
  client_->Open(Episode("e"), [this](Said said) { said_.Put(std::move(said)); });
  ASSERT_TRUE(AwaitSaid(1).ok());
  client_->Act("e",
               {.turn = 1, .text = "whole", .tool_calls = {{"look", "{}"}, {"dig", "{\"at\":1}"}}, .content = "rest"},
               [this](Said said) { said_.Put(std::move(said)); });
  const Said said = AwaitSaid(2);
  ASSERT_TRUE(said.ok()) << said.status();
  EXPECT_THAT(said->tool_results, ::testing::ElementsAre("look{}", "dig{\"at\":1}"));
  EXPECT_EQ(worker.requests.All()[1].act().text(), "whole");
  EXPECT_EQ(worker.requests.All()[1].act().content(), "rest");
}

TEST_F(PlayClientTest, KnowsWhatTheWorkerPlays) {
  FakePlayWorker worker(address_, Echo);
  Connect();
  ASSERT_TRUE(AwaitThere());
  const absl::Status unknown = client_->Availability("reward");
  EXPECT_EQ(ErrorReason(unknown), "NO_SUCH_ENVIRONMENT");
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("it has game"));
}

TEST_F(PlayClientTest, AClosedEpisodeIsCancelledAndTheAnswerCounted) {
  FakePlayWorker worker(address_, [](const v1::PlayRequest& request, Stream* stream) {
    if (!request.has_act()) Echo(request, stream);  // its tool takes for ever
  });
  Connect();
  ASSERT_TRUE(AwaitThere());
  Open("e");
  ASSERT_TRUE(AwaitSaid(1).ok());
  Act("e", 1, "one");
  client_->Close("e", "aborted");
  client_->Close("e", "aborted again");
  ASSERT_TRUE(worker.requests.WaitFor(3));
  EXPECT_EQ(worker.requests.All()[2].cancel().reason(), "aborted");
  Open("f");  // answered after the cancel
  ASSERT_TRUE(AwaitSaid(2).ok());
  EXPECT_EQ(client_->counters().cancels, 1);
  EXPECT_EQ(client_->counters().cancels_answered, 1);
  EXPECT_EQ(said_.size(), 2u) << "the cancelled call is not called back";
}

TEST_F(PlayClientTest, OpensNoMoreEpisodesThanTheWorkerPlays) {
  FakePlayWorker worker(address_, Echo, /*episodes=*/2);
  Connect();
  ASSERT_TRUE(AwaitThere());
  for (const char* id : {"a", "b", "c", "d"}) Open(id);
  ASSERT_TRUE(AwaitSaid(2).ok());
  client_->Close("c", "it was never opened");
  EXPECT_EQ(client_->counters().opened, 2);
  Act("a", 1, "end");
  ASSERT_TRUE(AwaitSaid(4).ok());
  EXPECT_EQ(client_->counters().opened, 3);
  EXPECT_EQ(worker.requests.All().back().open().episode(), "d");
}

TEST_F(PlayClientTest, ACancelThatIsNotAnsweredInTimeIsCountedAndItsRoomIsFree) {
  FakePlayWorker worker(
      address_,
      [](const v1::PlayRequest& request, Stream* stream) {
        if (!request.has_cancel()) Echo(request, stream);
      },
      /*episodes=*/1);
  Connect(absl::Seconds(60), absl::Seconds(2), /*cancel_timeout=*/absl::Milliseconds(10));
  ASSERT_TRUE(AwaitThere());
  Open("e");
  ASSERT_TRUE(AwaitSaid(1).ok());
  client_->Close("e", "revoked");
  Open("f");
  ASSERT_TRUE(AwaitSaid(2).ok());
  EXPECT_EQ(client_->counters().cancels, 1);
  EXPECT_EQ(client_->counters().cancels_answered, 0);
  EXPECT_EQ(client_->counters().cancels_lost, 1);
}

TEST_F(PlayClientTest, WhatACallTookIsWhatTheWorkerSaysUnlessThatCannotBe) {
  FakePlayWorker worker(address_, [](const v1::PlayRequest& request, Stream* stream) {
    const std::string id = request.has_open() ? request.open().episode() : request.act().episode();
    v1::PlayResponse response = Observe(id, request.act().turn());
    const double said[] = {0, 1e-9, 1e30, std::numeric_limits<double>::quiet_NaN(), -5};
    response.mutable_observe()->set_seconds(said[request.act().turn()]);
    if (request.act().turn() == 4) {
      response.mutable_closed()->set_episode(id);
      response.mutable_closed()->mutable_outcome()->mutable_reward()->set_value(1);
      response.mutable_closed()->set_rejected(true);
    }
    stream->Write(response);
  });
  Connect();
  ASSERT_TRUE(AwaitThere());
  Open("e");
  ASSERT_TRUE(AwaitSaid(1).ok());
  Act("e", 1, "a");
  EXPECT_EQ(AwaitSaid(2)->seconds, 1e-9);
  for (int32_t turn : {2, 3, 4}) {
    Act("e", turn, "a");
    const Said said = AwaitSaid(static_cast<size_t>(turn) + 1);
    ASSERT_TRUE(said.ok()) << said.status();
    EXPECT_GE(said->seconds, 0);
    EXPECT_LT(said->seconds, 60);
    EXPECT_EQ(said->rejected, turn == 4);
  }
}

TEST_F(PlayClientTest, ACallBeyondItsBudgetFailsAndIsCancelled) {
  FakePlayWorker worker(address_, [](const v1::PlayRequest& request, Stream* stream) {
    if (request.has_cancel()) Echo(request, stream);
  });
  Connect(absl::Milliseconds(10), absl::Milliseconds(10));
  Open("e");
  const Said late = AwaitSaid(1);
  EXPECT_EQ(ErrorReason(late.status()), "ENVIRONMENT_TIMEOUT");
  EXPECT_EQ(client_->counters().failed, 1);
}

TEST_F(PlayClientTest, WaitsForAWorkerAndLosesWhatWasOpenWithItsStream) {
  auto worker = std::make_unique<FakePlayWorker>(address_, [](const v1::PlayRequest& request, Stream* stream) {
    if (request.has_open()) Echo(request, stream);
  });
  Connect();
  Open("a");
  Open("b");
  ASSERT_TRUE(AwaitSaid(2).ok());
  Act("a", 1, "one");
  ASSERT_TRUE(worker->requests.WaitFor(3));
  worker.reset();
  EXPECT_EQ(ErrorReason(AwaitSaid(3).status()), "EPISODE_LOST");
  ASSERT_TRUE(Await([](const absl::Status& status) { return absl::IsUnavailable(status); }));
  Act("b", 1, "one");
  EXPECT_EQ(ErrorReason(AwaitSaid(4).status()), "EPISODE_LOST") << "it has no call under way when the stream ends";
  Open("c");
  FakePlayWorker again(address_, Echo);
  EXPECT_TRUE(AwaitSaid(5).ok());
}

TEST_F(PlayClientTest, BelievesNothingOfAWorker) {
  FakePlayWorker worker(address_, [](const v1::PlayRequest& request, Stream* stream) {
    if (request.has_open()) return Echo(request, stream);
    if (!request.has_act()) return;
    const std::string& id = request.act().episode();
    for (int i = 0; i < 1000; ++i) {  // floods with what nobody asked for
      stream->Write(Observe("unheard-of", i, "x"));
      stream->Write(Observe(id, 7 + i, "of a turn that was not played"));
      stream->Write(Closed(absl::StrCat("unheard-of-", i), absl::InternalError("x")));
    }
    if (request.act().text() == "nothing") {
      v1::PlayResponse closed;
      closed.mutable_closed()->set_episode(id);
      stream->Write(closed);
    } else if (request.act().text() == "nan") {
      v1::PlayResponse response = Observe(id, request.act().turn());
      response.mutable_observe()->set_reward(std::numeric_limits<float>::quiet_NaN());
      stream->Write(response);
    } else if (request.act().text() == "long") {
      stream->Write(Observe(id, request.act().turn(), std::string(3 << 20, 'x')));
    } else {
      stream->Write(Observe(id, request.act().turn(), "an answer"));
      stream->Write(Observe(id, request.act().turn(), "the same turn again"));
    }
  });
  Connect();
  ASSERT_TRUE(AwaitThere());
  Open("e");
  ASSERT_TRUE(AwaitSaid(1).ok());
  Act("e", 1, "go");
  EXPECT_EQ(AwaitSaid(2)->text, "an answer");
  Act("e", 2, "long");
  EXPECT_EQ(AwaitSaid(3)->text.size(), size_t{1} << 20);
  Act("e", 3, "nan");
  EXPECT_TRUE(std::isnan(*AwaitSaid(4)->reward)) << "the episode refuses it";
  Act("e", 4, "nothing");
  EXPECT_EQ(ErrorReason(AwaitSaid(5).status()), "BAD_OUTCOME");
  EXPECT_EQ(said_.size(), 5u);
}

TEST_F(PlayClientTest, AMessageOfAHundredMegabytesCostsItsStreamAndNothingElse) {
  FakePlayWorker worker(address_, [](const v1::PlayRequest& request, Stream* stream) {
    if (request.has_act() && request.act().text() == "huge") {
      stream->Write(Observe(request.act().episode(), 1, std::string(100 << 20, 'x')));
    } else {
      Echo(request, stream);
    }
  });
  Connect();
  ASSERT_TRUE(AwaitThere());
  Open("e");
  ASSERT_TRUE(AwaitSaid(1).ok());
  Act("e", 1, "huge");
  EXPECT_EQ(ErrorReason(AwaitSaid(2).status()), "EPISODE_LOST");
  ASSERT_TRUE(AwaitThere());
  Open("f");
  EXPECT_TRUE(AwaitSaid(3).ok());
}

TEST_F(PlayClientTest, OnceItHasStoppedNobodyIsCalled) {
  FakePlayWorker worker(address_, [](const auto&, Stream*) {});
  Connect();
  ASSERT_TRUE(AwaitThere());
  Open("e");
  client_->Stop();
  const size_t called = changes_.size();
  Open("f");
  Act("e", 1, "one");
  client_->Close("e", "late");
  EXPECT_EQ(said_.size(), 0u);
  EXPECT_EQ(changes_.size(), called);
}

}  // namespace
}  // namespace syncopate::rollouterd
