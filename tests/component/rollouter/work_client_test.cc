// The client of the trainer: one rig of a trainer and an engine, and what leases, plays and turns do to it.
// Over 700 lines: one client against one fake trainer; plain leases, episodes and turns share the fixture.

#include "services/rollouter/work_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "services/wire/codec.h"
#include "tests/component/rollouter/fake_trainer.h"
#include "tests/component/rollouter/tiny_engine.h"
#include "tests/support/eventually.h"
#include "tests/support/fake_remote_environment.h"
#include "tests/support/fake_remote_scorer.h"
#include "tests/support/test_identity.h"

namespace syncopate::rollouterd {
namespace {

class WorkClientTest : public ::testing::Test {
 protected:
  explicit WorkClientTest(const rollouter::Scorer::Options& scoring = {},
                          const std::optional<rollouter::PlayRules>& play = std::nullopt,
                          const std::set<std::string>& cards = {})
      : scorer_(rollouter::Scorer::Create(scoring).value()) {
    WorkClient::Options options;
    options.secret = testing::GetSecret("life-1");
    options.member = {"rollouter", "rollouter-0", 0, 1, options.secret.incarnation()};
    options.leases = {.max_groups = 3, .samples_per_group = 4};
    options.min_backoff = absl::Milliseconds(5);
    options.max_backoff = absl::Milliseconds(50);
    options.heartbeat = absl::Milliseconds(100);
    options.play = play;
    options.cards = cards;
    options.yields_after = absl::Milliseconds(100);
    options.yields_within = absl::Seconds(1);
    client_ = WorkClient::Create(options, engine_.get(), scorer_.get()).value();
    engine_->SetInstallListener([this](const PolicyVersion& version) { client_->SetServing(version); });
    InstallTinyWeights(*engine_, {1, 5});
  }
  ~WorkClientTest() override {
    client_->Stop();
    engine_->Stop();
  }
  void Connect(FakeTrainer& trainer) {
    client_->SetTrainer(trainer.address(), "run-1");
    ASSERT_TRUE(trainer.WaitFor(ExchangeRequest::kHello).has_value());
    trainer.Welcome();
    ASSERT_TRUE(trainer.WaitForCredits(3));
  }
  static Lease MakeLease(int64_t ordinal, int32_t max_new_tokens = 6) {
    Lease lease;
    lease.id = {{0, ordinal}, 1};
    lease.version = {1, 5};
    lease.samples = 4;
    lease.prompt_ids = {8, 1, 2, 3, 4, 9};
    lease.answer_ids = {4, 3, 2, 1, 10};
    lease.reward = "dense";
    lease.sampling.max_new_tokens = max_new_tokens;
    lease.seed = static_cast<uint64_t>(100 + ordinal);
    return lease;
  }
  bool WaitUntilEngineIsIdle() {
    absl::Time limit = Clock::Real()->Now() + kTestDeadline;
    while (engine_->GetStatus().running_sequences > 0) {
      if (Clock::Real()->Now() > limit) return false;
    }
    return true;
  }

  const std::unique_ptr<rollouter::Scorer> scorer_;
  std::unique_ptr<rollouter::EngineLoop> engine_ = StartTinyEngine();
  std::shared_ptr<WorkClient> client_;
};

TEST_F(WorkClientTest, SaysWhoItIsFirstAndWhatItServesAlways) {
  FakeTrainer trainer;
  Connect(trainer);
  ExchangeRequest hello = trainer.heard().All()[0];
  ASSERT_TRUE(hello.has_hello());
  EXPECT_EQ(hello.hello().run_id(), "run-1");
  EXPECT_EQ(hello.hello().member().replica_id(), "rollouter-0");
  for (const ExchangeRequest& request : trainer.heard().All()) EXPECT_EQ(request.serving().step(), 5);
}

// On the trainer's device.
class SharedDeviceTest : public WorkClientTest {
 protected:
  using Turn = ExchangeRequest::CardTurn;
  SharedDeviceTest() : WorkClientTest({}, std::nullopt, {"card-1", "card-2"}) {}

  static void Tell(FakeTrainer& trainer, int64_t number, bool yield) {
    ExchangeResponse response;
    response.mutable_turn()->set_number(number);
    response.mutable_turn()->set_yield(yield);
    trainer.Say(response);
  }
  void Join(FakeTrainer& trainer) {
    client_->SetTrainer(trainer.address(), "run-1");
    ASSERT_TRUE(trainer.WaitFor(ExchangeRequest::kHello).has_value());
    ExchangeResponse response;
    response.mutable_welcome()->set_epoch(1);
    response.mutable_welcome()->set_takes_turns(true);
    trainer.Say(response);
    Tell(trainer, 0, false);
    ASSERT_TRUE(WaitForTurn(trainer, 0, Turn::STATE_BACK).has_value());
  }
  static std::optional<ExchangeRequest> WaitForTurn(FakeTrainer& trainer, int64_t number, Turn::State state,
                                                    int64_t moved_bytes = 0) {
    for (size_t count = 1; trainer.heard().WaitFor(count); ++count) {
      ExchangeRequest request = trainer.heard().All()[count - 1];
      const Turn& turn = request.turn();
      const bool answers = request.has_turn() && turn.number() == number && turn.state() == state;
      if (answers && turn.moved_bytes() >= moved_bytes) return request;
    }
    return std::nullopt;
  }
  bool AwaitEngine(rollouter::EngineStatus::State state) {
    return testing::Eventually(kTestDeadline, [&] { return engine_->GetStatus().state == state; });
  }
};

TEST_F(SharedDeviceTest, GivesTheDeviceUpWhenItIsToldToAndIsBackWithTheNextWeightsAndTheSameAnswers) {
  FakeTrainer trainer;
  Join(trainer);
  EXPECT_THAT(trainer.heard().All()[0].hello().cards(), ::testing::ElementsAre("card-1", "card-2"));
  EXPECT_FALSE(trainer.heard().All()[0].hello().yielded());
  trainer.Offer(MakeLease(1, /*max_new_tokens=*/1000));
  ASSERT_TRUE(testing::Eventually(kTestDeadline, [&] { return engine_->GetStatus().generated_tokens > 0; }));
  Tell(trainer, 1, true);
  const std::optional<ExchangeRequest> yielded = WaitForTurn(trainer, 1, Turn::STATE_YIELDED);
  ASSERT_TRUE(yielded.has_value());
  EXPECT_EQ(yielded->credits().groups(), 0);
  EXPECT_EQ(engine_->GetStatus().weight_bytes, 0);
  client_->CountReceived(1000);
  Tell(trainer, 1, false);
  ASSERT_TRUE(AwaitEngine(rollouter::EngineStatus::State::kWaitingForWeights));
  InstallTinyWeights(*engine_, {1, 6});
  const std::optional<ExchangeRequest> back = WaitForTurn(trainer, 1, Turn::STATE_BACK, /*moved_bytes=*/1000);
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->credits().groups(), 2);
  const std::optional<ExchangeRequest> submitted = trainer.WaitFor(ExchangeRequest::kGroup);
  ASSERT_TRUE(submitted.has_value());
  for (const v1::Trajectory& sample : submitted->group().samples()) EXPECT_EQ(sample.tokens_size(), 1000);
}

TEST_F(SharedDeviceTest, GivesTheDeviceUpByItselfWithoutATrainerAndTellsTheNextOne) {
  {
    FakeTrainer trainer;
    Join(trainer);
  }
  ASSERT_TRUE(AwaitEngine(rollouter::EngineStatus::State::kAsleep));
  // The client learns of it a moment later than the engine.
  std::unique_ptr<FakeTrainer> next;
  EXPECT_TRUE(testing::Eventually(kTestDeadline, [&] {
    next = std::make_unique<FakeTrainer>();
    client_->SetTrainer(next->address(), "run-1");
    const std::optional<ExchangeRequest> hello = next->WaitFor(ExchangeRequest::kHello);
    return hello.has_value() && hello->hello().yielded();
  }));
  // One with a device of its own.
  next->Welcome();
  EXPECT_TRUE(AwaitEngine(rollouter::EngineStatus::State::kWaitingForWeights));
}

// Each heartbeat asks for another try, and a stop waits for no more than the one under way.
TEST_F(SharedDeviceTest, AStopDoesNotWaitForTriesToGiveTheDeviceUp) {
  FakeTrainer trainer;
  Join(trainer);
  ASSERT_TRUE(engine_->BeginAttempt().ok());  // a weight sync that does not end
  Tell(trainer, 1, true);
  ASSERT_TRUE(trainer.heard().WaitFor(trainer.heard().size() + 15));
  EXPECT_FALSE(engine_->GetStatus().yielded);
  const absl::Time begin = Clock::Real()->Now();
  client_->Stop();
  EXPECT_LT(Clock::Real()->Now() - begin, absl::Seconds(5));
  EXPECT_FALSE(engine_->GetStatus().yielded);
  engine_->EndAttempt();
}

TEST_F(WorkClientTest, IsHeardFromWhileItHasNothingToDo) {
  FakeTrainer trainer;
  Connect(trainer);
  ASSERT_TRUE(trainer.heard().WaitFor(trainer.heard().size() + 3));
  EXPECT_EQ(trainer.heard().All().back().credits().groups(), 3);
}

TEST_F(WorkClientTest, GeneratesALeaseScoresItAndSubmitsTheWholeGroup) {
  FakeTrainer trainer;
  Connect(trainer);
  trainer.Offer(MakeLease(7));
  auto submitted = trainer.WaitFor(ExchangeRequest::kGroup);
  ASSERT_TRUE(submitted.has_value());
  TrajectoryGroup group = wire::FromProto(submitted->group()).value();
  EXPECT_EQ(group.lease, MakeLease(7).id);
  EXPECT_EQ(group.rollouter, "rollouter-0");
  EXPECT_EQ(group.incarnation, testing::GetIncarnation("life-1"));
  ASSERT_EQ(group.samples.size(), 4u);
  const auto rewards = rollouter::RewardRegistry::BuiltIn();
  const rollouter::RewardFunction& dense = (*rewards.Find("dense"))->function;
  Lease lease = MakeLease(7);
  for (const Trajectory& sample : group.samples) {
    EXPECT_EQ(sample.tokens.size(), sample.logprobs.size());
    EXPECT_EQ(sample.spans, (std::vector<VersionSpan>{{{1, 5}, 0, static_cast<int32_t>(sample.tokens.size())}}));
    EXPECT_FLOAT_EQ(sample.reward, dense({lease.prompt_ids, lease.answer_ids, sample.tokens})->value);
  }
  EXPECT_FALSE(client_->WaitIdle(absl::ZeroDuration()));  // the group is not acknowledged yet
  trainer.Acknowledge(MakeLease(7).id);
  EXPECT_TRUE(client_->WaitIdle(kTestDeadline));
  EXPECT_EQ(client_->counters().submitted, 1);
  EXPECT_EQ(client_->counters().accepted, 1);
}

TEST_F(WorkClientTest, AnswersTheSameLeaseWithTheSameTokensInAnyBatch) {
  FakeTrainer trainer;
  Connect(trainer);
  for (int i : {1, 2, 3}) trainer.Offer(MakeLease(i));
  std::map<int64_t, std::string> together;
  size_t position = 0;
  while (together.size() < 3) {
    ASSERT_TRUE(trainer.heard().WaitFor(position + 1));
    ExchangeRequest request = trainer.heard().All()[position++];
    if (!request.has_group()) continue;
    std::string tokens;
    for (const v1::Trajectory& sample : request.group().samples()) {
      for (int32_t token : sample.tokens()) absl::StrAppend(&tokens, token, " ");
    }
    together[request.group().lease().group().ordinal()] = tokens;
  }
  Lease again = MakeLease(2);
  again.id.attempt = 2;
  trainer.Offer(again);
  auto alone = trainer.WaitFor(ExchangeRequest::kGroup, position);
  ASSERT_TRUE(alone.has_value());
  std::string tokens;
  for (const v1::Trajectory& sample : alone->group().samples()) {
    for (int32_t token : sample.tokens()) absl::StrAppend(&tokens, token, " ");
  }
  EXPECT_EQ(tokens, together[2]);
}

TEST_F(WorkClientTest, TellsTheTrainerOfANewVersionAtOnceAndNeverOfAnOlderOneAfterIt) {
  FakeTrainer trainer;
  Connect(trainer);
  for (int i = 0; i < 3; ++i) trainer.Offer(MakeLease(i, 500));
  for (int64_t step = 6; step < 26; ++step) InstallTinyWeights(*engine_, {1, step}, 7);
  size_t position = 0;
  int64_t serving = 0;
  int groups = 0;
  while (serving < 25 || groups < 3) {
    ASSERT_TRUE(trainer.heard().WaitFor(position + 1)) << "serving " << serving << " groups " << groups;
    ExchangeRequest request = trainer.heard().All()[position++];
    EXPECT_GE(request.serving().step(), serving);
    serving = request.serving().step();
    groups += request.has_group() ? 1 : 0;
  }
}

TEST_F(WorkClientTest, HandsBackWhatItCannotDoAndSaysWhy) {
  FakeTrainer trainer;
  Connect(trainer);
  auto returned = [&trainer](const Lease& lease) {
    size_t from = trainer.heard().size();
    trainer.Offer(lease);
    auto request = trainer.WaitFor(ExchangeRequest::kReturnLease, from);
    EXPECT_TRUE(request.has_value());
    EXPECT_EQ(wire::FromProto(request->return_lease().lease()), lease.id);
    return ErrorReason(rpc::FromProto(request->return_lease().error()));
  };
  Lease lease = MakeLease(1);
  lease.reward = "charm";
  EXPECT_EQ(returned(lease), "BAD_REWARD_FORMULA");
  lease.reward = "math";
  EXPECT_EQ(returned(lease), "NO_TEXT");
  lease = MakeLease(2);
  lease.prompt_ids = {-4};
  EXPECT_EQ(returned(lease), "BAD_REQUEST");
  lease = MakeLease(3);
  lease.kind = LeaseKind::kEvaluation;
  lease.version = {1, 4};
  EXPECT_EQ(returned(lease), "WRONG_VERSION");
  lease = MakeLease(4);
  lease.samples = 0;
  EXPECT_NE(returned(lease), "");
  EXPECT_TRUE(client_->WaitIdle(kTestDeadline));
  EXPECT_EQ(client_->counters().returned, 5);
}

TEST_F(WorkClientTest, StopsWorkOnARevokedLease) {
  FakeTrainer trainer;
  Connect(trainer);
  trainer.Offer(MakeLease(1, 3900));
  ExchangeResponse revoke;
  *revoke.mutable_revoke()->mutable_lease() = wire::ToProto(MakeLease(1).id);
  revoke.mutable_revoke()->set_reason("EXPIRED");
  trainer.Say(revoke);
  EXPECT_TRUE(client_->WaitIdle(kTestDeadline));
  EXPECT_TRUE(WaitUntilEngineIsIdle());
  trainer.Offer(MakeLease(2));
  auto next = trainer.WaitFor(ExchangeRequest::kGroup);
  ASSERT_TRUE(next.has_value());
  EXPECT_EQ(next->group().lease().group().ordinal(), 2);  // nothing was submitted for the revoked lease
}

TEST_F(WorkClientTest, SaysWithItsHeartbeatsWhichLeasesComeFurtherAndOfAPausedEngineNone) {
  FakeTrainer trainer;
  Connect(trainer);
  trainer.Offer(MakeLease(1, 3900));
  auto progressed = [&trainer](size_t from) {
    for (size_t count = from + 1; trainer.heard().WaitFor(count); ++count) {
      const ExchangeRequest request = trainer.heard().All()[count - 1];
      if (request.progress().leases_size() == 0) continue;
      return std::optional<LeaseId>(wire::FromProto(request.progress().leases(0)));
    }
    return std::optional<LeaseId>();
  };
  EXPECT_EQ(progressed(0), MakeLease(1).id);
  engine_->Pause();
  client_->SetPaused(true);
  ASSERT_TRUE(trainer.WaitForCredits(0));
  const size_t paused_at = trainer.heard().size();
  ASSERT_TRUE(trainer.heard().WaitFor(paused_at + 4));
  const std::vector<ExchangeRequest> heard = trainer.heard().All();
  // The first message may report what was generated before the pause.
  for (size_t i = paused_at + 1; i < heard.size(); ++i) {
    EXPECT_EQ(heard[i].progress().leases_size(), 0) << i;
    EXPECT_EQ(heard[i].credits().groups(), 0);
  }
  const size_t resumed_at = trainer.heard().size();
  engine_->Resume();
  client_->SetPaused(false);
  EXPECT_EQ(progressed(resumed_at), MakeLease(1).id);
}

TEST_F(WorkClientTest, HandsARevokedLeaseBackWhenItsGenerationHasEnded) {
  FakeTrainer trainer;
  Connect(trainer);
  trainer.Offer(MakeLease(1, 3900));
  ExchangeResponse revoke;
  *revoke.mutable_revoke()->mutable_lease() = wire::ToProto(MakeLease(1).id);
  revoke.mutable_revoke()->set_reason("LEASE_STALLED");
  trainer.Say(revoke);
  auto returned = trainer.WaitFor(ExchangeRequest::kReturnLease);
  ASSERT_TRUE(returned.has_value());
  EXPECT_EQ(wire::FromProto(returned->return_lease().lease()), MakeLease(1).id);
  EXPECT_EQ(ErrorReason(rpc::FromProto(returned->return_lease().error())), "REVOKED");
  EXPECT_TRUE(WaitUntilEngineIsIdle());
  EXPECT_EQ(client_->counters().returned, 0) << "the lease was not handed back but revoked";
}

TEST_F(WorkClientTest, GivesUpItsLeasesWhenTheStreamBreaksAndConnectsAgain) {
  FakeTrainer trainer;
  Connect(trainer);
  trainer.Offer(MakeLease(1, 3900));
  trainer.streams().All()[0]->Cancel();
  ASSERT_TRUE(trainer.streams().WaitFor(2));
  EXPECT_TRUE(client_->WaitIdle(kTestDeadline));
  size_t from = trainer.heard().size();
  trainer.Welcome();
  trainer.Offer(MakeLease(1));  // the same attempt, as a restored trainer would issue it
  auto submitted = trainer.WaitFor(ExchangeRequest::kGroup, from > 0 ? from - 1 : 0);
  ASSERT_TRUE(submitted.has_value());
  EXPECT_LE(submitted->group().samples(0).tokens_size(), 6);
}

TEST_F(WorkClientTest, FollowsTheDirectoryToANewTrainer) {
  FakeTrainer old_trainer;
  Connect(old_trainer);
  old_trainer.Offer(MakeLease(1, 3900));
  FakeTrainer new_trainer;
  client_->SetTrainer(new_trainer.address(), "run-1");
  ASSERT_TRUE(new_trainer.WaitFor(ExchangeRequest::kHello).has_value());
  ASSERT_TRUE(old_trainer.ended().WaitFor(1));
  new_trainer.Welcome();
  EXPECT_TRUE(new_trainer.WaitForCredits(3));
  client_->SetTrainer("", "run-1");
  ASSERT_TRUE(new_trainer.ended().WaitFor(1));
}

TEST_F(WorkClientTest, KeepsTryingUntilTheTrainerListens) {
  std::string address;
  {
    FakeTrainer gone;
    address = gone.address();
  }
  client_->SetTrainer(address, "run-1");
  absl::Time limit = Clock::Real()->Now() + kTestDeadline;
  while (client_->counters().streams < 3 && Clock::Real()->Now() < limit) {
  }
  FakeTrainer back(address);
  EXPECT_TRUE(back.WaitFor(ExchangeRequest::kHello).has_value());
}

TEST_F(WorkClientTest, FinishesAndSubmitsWhatItHasWhileDraining) {
  FakeTrainer trainer;
  Connect(trainer);
  trainer.Offer(MakeLease(1, 300));
  absl::Time limit = Clock::Real()->Now() + kTestDeadline;
  while (engine_->GetStatus().running_sequences == 0 && Clock::Real()->Now() < limit) {
  }
  client_->SetDraining(true);
  EXPECT_TRUE(trainer.WaitForCredits(0));
  trainer.Offer(MakeLease(2));
  auto returned = trainer.WaitFor(ExchangeRequest::kReturnLease);
  ASSERT_TRUE(returned.has_value());
  EXPECT_EQ(ErrorReason(rpc::FromProto(returned->return_lease().error())), "DRAINING");
  EXPECT_TRUE(trainer.WaitFor(ExchangeRequest::kGroup).has_value());
  trainer.Acknowledge(MakeLease(1).id);
  EXPECT_TRUE(client_->WaitIdle(kTestDeadline));
}

TEST_F(WorkClientTest, HandsTrainingGroupsBackWhenTheyAreAborted) {
  FakeTrainer trainer;
  Connect(trainer);
  trainer.Offer(MakeLease(1, 3900));
  absl::Time limit = Clock::Real()->Now() + kTestDeadline;
  while (engine_->GetStatus().running_sequences == 0 && Clock::Real()->Now() < limit) {
  }
  EXPECT_EQ(engine_->Abort(""), 4);
  auto returned = trainer.WaitFor(ExchangeRequest::kReturnLease);
  ASSERT_TRUE(returned.has_value());
  EXPECT_EQ(ErrorReason(rpc::FromProto(returned->return_lease().error())), "GROUP_ABORTED");
}

TEST_F(WorkClientTest, HandsUnfinishedLeasesBackAndDeliversThatBeforeItStops) {
  FakeTrainer trainer;
  Connect(trainer);
  engine_->Pause();  // so that no group is finished
  trainer.Offer(MakeLease(1));
  trainer.Offer(MakeLease(2));
  ASSERT_TRUE(trainer.WaitForCredits(1));
  client_->SetDraining(true);
  client_->HandBack(Error(absl::StatusCode::kUnavailable, "STOPPING", "this rollouter stops"));
  EXPECT_TRUE(client_->WaitIdle(kTestDeadline));
  client_->Stop(kTestDeadline);
  ASSERT_TRUE(trainer.ended().WaitFor(1));
  std::vector<LeaseId> returned;
  for (const ExchangeRequest& request : trainer.heard().All()) {
    if (!request.has_return_lease()) continue;
    returned.push_back(wire::FromProto(request.return_lease().lease()));
    EXPECT_EQ(ErrorReason(rpc::FromProto(request.return_lease().error())), "STOPPING");
  }
  EXPECT_EQ(returned, (std::vector<LeaseId>{MakeLease(1).id, MakeLease(2).id}));
  EXPECT_EQ(client_->counters().returned, 2);
}

TEST_F(WorkClientTest, StopsTwiceInTheMiddleOfWork) {
  FakeTrainer trainer;
  Connect(trainer);
  for (int i = 0; i < 3; ++i) trainer.Offer(MakeLease(i, 3900));
  client_->Stop();
  client_->Stop();
  EXPECT_TRUE(trainer.ended().WaitFor(1));
}

// Gives half a reward for each of three turns.
class ThreeTurns final : public rollouter::EnvironmentGame {
 public:
  absl::Status Reset(uint64_t) override { return absl::OkStatus(); }
  absl::StatusOr<rollouter::EnvironmentMessage> Step(const std::string&) override {
    return rollouter::EnvironmentMessage{.text = "go on", .reward = 0.5f, .done = ++turns_ == 3};
  }

 private:
  int turns_ = 0;
};

// Samples have several turns; a row that is not empty makes the game fail.
class WorkClientPlayTest : public WorkClientTest {
 protected:
  WorkClientPlayTest() : WorkClientTest({.reward = "environment"}, MakeRules()) {}
  static rollouter::PlayRules MakeRules() {
    const rollouter::MakeGame make =
        [](const std::string& row) -> absl::StatusOr<std::unique_ptr<rollouter::EnvironmentGame>> {
      if (!row.empty()) return absl::InvalidArgumentError("no game");
      return std::make_unique<ThreeTurns>();
    };
    return {.environment = "three",
            .games = {{"three", make}},
            .episode = {.max_turns = 5, .max_total_tokens = 3000, .max_given_tokens = 10, .max_retries = 0},
            .decode = [](const std::vector<int32_t>&) { return std::string(); },
            .encode =
                [](const rollouter::EnvironmentMessage&, const std::vector<int32_t>&) {
                  return rollouter::EnvironmentAnswer{.content = {1, 2}, .closing = {9}};
                }};
  }
  static Lease LeaseToPlay(int64_t ordinal, int32_t turn_tokens = 4) {
    Lease lease = MakeLease(ordinal, turn_tokens);
    lease.reward = "environment";
    return lease;
  }
};

TEST_F(WorkClientPlayTest, SubmitsSamplesOfSeveralTurnsWithWhatWasGivenBetweenThem) {
  FakeTrainer trainer;
  Connect(trainer);
  trainer.Offer(LeaseToPlay(7));
  auto submitted = trainer.WaitFor(ExchangeRequest::kGroup);
  ASSERT_TRUE(submitted.has_value());
  const TrajectoryGroup group = wire::FromProto(submitted->group()).value();
  ASSERT_EQ(group.samples.size(), 4u);
  for (const Trajectory& sample : group.samples) {
    EXPECT_EQ(sample.reward, 1.5f);
    EXPECT_EQ(sample.reward_parts, (std::vector<RewardPart>{{"environment", 1.5f}}));
    EXPECT_EQ(sample.given, (std::vector<TokenRange>{{4, 7}, {11, 14}}));
    EXPECT_EQ(sample.tokens.size(), 18u);
    EXPECT_EQ(sample.spans, (std::vector<VersionSpan>{{{1, 5}, 0, 4}, {{1, 5}, 7, 11}, {{1, 5}, 14, 18}}));
    for (int32_t place : {4, 5, 6, 11, 12, 13}) EXPECT_EQ(sample.logprobs[static_cast<size_t>(place)], 0);
  }
}

TEST_F(WorkClientPlayTest, HandsBackWhatCannotBePlayed) {
  FakeTrainer trainer;
  Connect(trainer);
  Lease lease = LeaseToPlay(1);
  lease.task.row_json = "{}";
  trainer.Offer(lease);
  auto returned = trainer.WaitFor(ExchangeRequest::kReturnLease);
  ASSERT_TRUE(returned.has_value());
  EXPECT_EQ(ErrorReason(rpc::FromProto(returned->return_lease().error())), "ENVIRONMENT_FAILED");
  EXPECT_TRUE(client_->WaitIdle(kTestDeadline));
}

TEST_F(WorkClientPlayTest, ARevocationEndsTheGames) {
  FakeTrainer trainer;
  Connect(trainer);
  trainer.Offer(LeaseToPlay(1, 900));
  ExchangeResponse revoke;
  *revoke.mutable_revoke()->mutable_lease() = wire::ToProto(LeaseToPlay(1).id);
  revoke.mutable_revoke()->set_reason("EXPIRED");
  trainer.Say(revoke);
  EXPECT_TRUE(client_->WaitIdle(kTestDeadline));
  EXPECT_TRUE(WaitUntilEngineIsIdle());
  trainer.Offer(LeaseToPlay(2));
  auto next = trainer.WaitFor(ExchangeRequest::kGroup);
  ASSERT_TRUE(next.has_value());
  EXPECT_EQ(next->group().lease().group().ordinal(), 2);
}

struct HasEnvironment {
  testing::FakeRemoteEnvironment environment;
};

// Samples play with an environment of a worker.
class WorkClientRemotePlayTest : public HasEnvironment, public WorkClientTest {
 protected:
  WorkClientRemotePlayTest() : WorkClientTest({.reward = "environment"}, MakeRules(&environment)) {}
  static rollouter::PlayRules MakeRules(rollouter::RemoteEnvironment* remote) {
    return {.environment = "game",
            .remote = remote,
            .episode = {.max_turns = 5, .max_total_tokens = 3000, .max_given_tokens = 10, .max_retries = 1},
            .decode = [](const std::vector<int32_t>& turn) { return absl::StrCat(turn.size()); },
            .encode =
                [](const rollouter::EnvironmentMessage&, const std::vector<int32_t>&) {
                  return rollouter::EnvironmentAnswer{.content = {1, 2}, .closing = {9}};
                }};
  }
  static Lease LeaseToPlay(int64_t ordinal) {
    Lease lease = MakeLease(ordinal, 4);
    lease.reward = "environment";
    return lease;
  }
  // Plays until four turns wait for the environment.
  void BeginTurns(FakeTrainer& trainer) {
    trainer.Offer(LeaseToPlay(1));
    Say(4, rollouter::EnvironmentMessage{});
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(environment.AwaitCall().has_value());
  }
  // Answers `count` calls.
  void Say(int count, const absl::StatusOr<rollouter::EnvironmentMessage>& said) {
    std::vector<testing::FakeRemoteEnvironment::Call> calls;  // an answer may bring another call
    for (int i = 0; i < count; ++i) {
      auto call = environment.AwaitCall();
      ASSERT_TRUE(call.has_value());
      calls.push_back(*std::move(call));
    }
    for (auto& call : calls) call.done(said);
  }
};

TEST_F(WorkClientRemotePlayTest, SubmitsSamplesWhoseEnvironmentAnswersLater) {
  FakeTrainer trainer;
  Connect(trainer);
  trainer.Offer(LeaseToPlay(7));
  Say(4, rollouter::EnvironmentMessage{});                                                  // resets
  Say(4, rollouter::EnvironmentMessage{.text = "go on", .reward = 0.5f, .seconds = 0.25});  // first turns
  const size_t waiting_at = trainer.heard().size();
  for (int beats = 0; beats < 2;) {  // a call of an environment is progress of its lease
    const size_t seen = trainer.heard().size();
    ASSERT_TRUE(trainer.heard().WaitFor(seen + 1));
    const ExchangeRequest heard = trainer.heard().All()[seen];
    if (seen > waiting_at && heard.progress().leases_size() == 1) ++beats;
  }
  Say(4, rollouter::EnvironmentMessage{.reward = 1.0f, .done = true});
  auto submitted = trainer.WaitFor(ExchangeRequest::kGroup);
  ASSERT_TRUE(submitted.has_value());
  const absl::StatusOr<TrajectoryGroup> group = wire::FromProto(submitted->group());
  ASSERT_TRUE(group.ok()) << group.status();
  for (const Trajectory& sample : group->samples) {
    EXPECT_EQ(sample.turns, (std::vector<Turn>{{4, 0.5f, 0.25}, {11, 1.0f}}));
    EXPECT_EQ(sample.reward, 1.5f);
    EXPECT_EQ(sample.given, (std::vector<TokenRange>{{4, 7}}));
    EXPECT_EQ(sample.tokens.size(), 11u);
  }
}

TEST_F(WorkClientRemotePlayTest, ASampleThatIsPlayedAnewDrawsTheSameTokens) {
  FakeTrainer trainer;
  Connect(trainer);
  trainer.Offer(LeaseToPlay(7));
  Say(4, rollouter::EnvironmentMessage{});
  Say(4, absl::InternalError("the tool is broken"));
  Say(4, rollouter::EnvironmentMessage{});
  Say(4, rollouter::EnvironmentMessage{.reward = 1.0f, .done = true});
  auto again = trainer.WaitFor(ExchangeRequest::kGroup);
  ASSERT_TRUE(again.has_value());
  trainer.Acknowledge(LeaseToPlay(7).id);
  const size_t seen = trainer.heard().size();
  trainer.Offer(LeaseToPlay(7));
  Say(4, rollouter::EnvironmentMessage{});
  Say(4, rollouter::EnvironmentMessage{.reward = 1.0f, .done = true});
  auto once = trainer.WaitFor(ExchangeRequest::kGroup, seen);
  ASSERT_TRUE(once.has_value());
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(wire::FromProto(again->group())->samples[static_cast<size_t>(i)].tokens,
              wire::FromProto(once->group())->samples[static_cast<size_t>(i)].tokens);
  }
}

TEST_F(WorkClientRemotePlayTest, HandsBackWhatFailsInEveryPlay) {
  FakeTrainer trainer;
  Connect(trainer);
  trainer.Offer(LeaseToPlay(7));
  // Calls of one sample follow each other: the first that fails twice ends all.
  const auto first = environment.AwaitCall();
  ASSERT_TRUE(first.has_value());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(environment.AwaitCall().has_value());  // the resets of the others
  first->done(absl::InternalError("broken"));
  const auto second = environment.AwaitCall();
  ASSERT_TRUE(second.has_value());
  second->done(absl::InternalError("broken"));
  auto returned = trainer.WaitFor(ExchangeRequest::kReturnLease);
  ASSERT_TRUE(returned.has_value());
  const absl::Status why = rpc::FromProto(returned->return_lease().error());
  EXPECT_EQ(ErrorReason(why), "ENVIRONMENT_FAILED");
  EXPECT_THAT(std::string(why.message()), ::testing::HasSubstr("broken"));
}

TEST_F(WorkClientRemotePlayTest, ADrainThatIsOverCancelsWhatTheEnvironmentIsDoing) {
  FakeTrainer trainer;
  Connect(trainer);
  BeginTurns(trainer);
  client_->HandBack(Error(absl::StatusCode::kUnavailable, "STOPPING", "this rollouter stops"));
  EXPECT_TRUE(environment.AwaitClosed(4));
  EXPECT_TRUE(client_->WaitIdle(kTestDeadline));
}

TEST_F(WorkClientRemotePlayTest, ALostTrainerCancelsWhatTheEnvironmentIsDoing) {
  FakeTrainer trainer;
  Connect(trainer);
  BeginTurns(trainer);
  trainer.streams().All()[0]->Cancel();
  EXPECT_TRUE(environment.AwaitClosed(4));
  EXPECT_TRUE(client_->WaitIdle(kTestDeadline));
}

TEST_F(WorkClientRemotePlayTest, ARevocationCancelsWhatTheEnvironmentIsDoing) {
  FakeTrainer trainer;
  Connect(trainer);
  BeginTurns(trainer);
  ExchangeResponse revoke;
  *revoke.mutable_revoke()->mutable_lease() = wire::ToProto(LeaseToPlay(1).id);
  revoke.mutable_revoke()->set_reason("EXPIRED");
  trainer.Say(revoke);
  EXPECT_TRUE(environment.AwaitClosed(4));
  EXPECT_TRUE(client_->WaitIdle(kTestDeadline));
}

TEST_F(WorkClientRemotePlayTest, AsksForNoWorkWhileTheWorkerIsAwayAndNeverIfItHasNoSuchEnvironment) {
  FakeTrainer trainer;
  Connect(trainer);
  environment.SetThere(absl::UnavailableError("away"));
  EXPECT_TRUE(trainer.WaitForCredits(0));
  EXPECT_TRUE(client_->refusal().ok());
  environment.SetThere(absl::NotFoundError("it has none"));
  EXPECT_TRUE(absl::IsNotFound(client_->refusal()));
}

struct HasRemote {
  testing::FakeRemoteScorer remote;
};

// A remote scorer gives the run's reward.
class WorkClientScoringTest : public HasRemote, public WorkClientTest {
 protected:
  WorkClientScoringTest()
      : WorkClientTest({.rules = {.timeout = absl::Seconds(10), .attempts = 1},
                        .reward = "python:judge",
                        .decode = [](const std::vector<int32_t>& tokens) { return absl::StrCat(tokens.size()); },
                        .python = &remote}) {}
  static Lease LeaseToJudge() {
    Lease lease = MakeLease(1);
    lease.reward = "python:judge";
    return lease;
  }
};

TEST_F(WorkClientScoringTest, CreditsCountUntilScoringHasEndedAndScoringIsProgress) {
  FakeTrainer trainer;
  Connect(trainer);
  trainer.Offer(LeaseToJudge());
  auto asked = remote.AwaitAsked();
  ASSERT_TRUE(asked.has_value());
  EXPECT_EQ(asked->first.texts.size(), 4u);
  ASSERT_TRUE(WaitUntilEngineIsIdle());
  const size_t idle_at = trainer.heard().size();
  for (int beats = 0; beats < 3;) {  // meanwhile only the judge works
    const size_t seen = trainer.heard().size();
    ASSERT_TRUE(trainer.heard().WaitFor(seen + 1));
    beats = 0;
    for (size_t i = idle_at; i < trainer.heard().size(); ++i) {
      const ExchangeRequest request = trainer.heard().All()[i];
      beats += request.progress().leases_size();
      if (request.has_credits()) {
        EXPECT_EQ(request.credits().groups(), 2);
      }
    }
  }
  asked->second(rollouter::RemoteScorer::Rewards(4, rollouter::RemoteReward{.value = 0.5f}));
  auto submitted = trainer.WaitFor(ExchangeRequest::kGroup);
  ASSERT_TRUE(submitted.has_value());
  EXPECT_EQ(submitted->group().samples(3).reward(), 0.5f);
  EXPECT_EQ(submitted->group().samples(3).reward_parts(0).name(), "python:judge");
}

TEST_F(WorkClientScoringTest, AGroupWhoseRewardFailsIsHandedBackSayingSo) {
  FakeTrainer trainer;
  Connect(trainer);
  trainer.Offer(LeaseToJudge());
  auto asked = remote.AwaitAsked();
  ASSERT_TRUE(asked.has_value());
  asked->second(absl::InternalError("ZeroDivisionError"));
  auto returned = trainer.WaitFor(ExchangeRequest::kReturnLease);
  ASSERT_TRUE(returned.has_value());
  EXPECT_EQ(ErrorReason(rpc::FromProto(returned->return_lease().error())), "REWARD_FAILED");
  EXPECT_TRUE(client_->WaitIdle(kTestDeadline));
}

TEST_F(WorkClientScoringTest, TellsTheTrainerWhyItAsksForNoWorkAndGivesUpOnARewardThatThereIsNot) {
  FakeTrainer trainer;
  Connect(trainer);
  EXPECT_TRUE(client_->refusal().ok());
  const size_t before = trainer.heard().size();
  remote.SetThere(Error(absl::StatusCode::kFailedPrecondition, "WRONG_DIGEST", "the worker has other code"));
  EXPECT_TRUE(client_->refusal().ok()) << "a worker with the right code may start";
  std::string told;
  for (size_t i = before; told.empty() && trainer.heard().WaitFor(i + 1); ++i) {
    told = trainer.heard().All()[i].credits().no_rewards();
  }
  EXPECT_EQ(told, "the worker has other code");
  remote.SetThere(Error(absl::StatusCode::kNotFound, "NO_SUCH_REWARD", "it has long, short"));
  EXPECT_EQ(ErrorReason(client_->refusal()), "NO_SUCH_REWARD");
}

TEST_F(WorkClientScoringTest, ARevocationEndsScoring) {
  FakeTrainer trainer;
  Connect(trainer);
  trainer.Offer(LeaseToJudge());
  auto asked = remote.AwaitAsked();
  ASSERT_TRUE(asked.has_value());
  ExchangeResponse response;
  *response.mutable_revoke()->mutable_lease() = wire::ToProto(LeaseToJudge().id);
  response.mutable_revoke()->set_reason("LEASE_TIMEOUT");
  trainer.Say(response);
  EXPECT_TRUE(remote.AwaitCancelled(asked->first.id));
  auto returned = trainer.WaitFor(ExchangeRequest::kReturnLease);
  ASSERT_TRUE(returned.has_value());
  EXPECT_EQ(ErrorReason(rpc::FromProto(returned->return_lease().error())), "REVOKED");
  EXPECT_TRUE(client_->WaitScored(kTestDeadline));
}

TEST_F(WorkClientScoringTest, AsksForNoWorkWhileTheJudgeIsAway) {
  FakeTrainer trainer;
  Connect(trainer);
  remote.SetThere(absl::UnavailableError("no worker"));
  EXPECT_TRUE(trainer.WaitForCredits(0));
  remote.SetThere(absl::ResourceExhaustedError("busy"));
  const size_t from = trainer.heard().size();
  EXPECT_TRUE(trainer.heard().WaitFor(from + 1));
  EXPECT_EQ(trainer.heard().All().back().credits().groups(), 3) << "a busy scorer counts as available";
}

}  // namespace
}  // namespace syncopate::rollouterd
