#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>

#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/component/member/member_fixture.h"

namespace syncopate::member {
namespace {

using synchronizer::Directory;
using synchronizer::HasReason;
using ::testing::HasSubstr;

std::string MakeMessage(const absl::Status& status) { return std::string(status.message()); }

TEST(MemberClientTest, SaysWhoItIsAndIsWelcomed) {
  FakeSynchronizer fake;
  MemberClient::Options options = TestMember::MakeOptions(fake.address());
  options.hello.build = "1.2.3";
  options.serving = [] { return MemberClient::Serving{{2, 7}, 99}; };
  TestMember member(options);
  auto welcome = member->WaitForWelcome(kTestDeadline);
  ASSERT_TRUE(welcome.ok()) << welcome.status();
  EXPECT_EQ(welcome->run_id, "run-1");
  EXPECT_EQ(welcome->epoch, 3);
  ASSERT_TRUE(fake.hellos().WaitFor(1));
  synchronizer::Hello hello = fake.hellos().All()[0];
  EXPECT_EQ(hello.member, synchronizer::RollouterId(0, testing::GetIncarnation("life-1")));
  EXPECT_EQ(hello.run_id, "");
  EXPECT_EQ(hello.manifest->fingerprint(), synchronizer::SmallModel().fingerprint());
  EXPECT_EQ(hello.serving, (PolicyVersion{2, 7}));
  EXPECT_EQ(hello.serving_digest, 99u);
  EXPECT_EQ(hello.build, "1.2.3");
}

TEST(MemberClientTest, HeartbeatsSayWhatIsServedAlsoWhileACommandIsCarriedOut) {
  FakeSynchronizer fake;
  std::atomic<int64_t> step = 1;
  MemberClient::Options options = TestMember::MakeOptions(fake.address());
  options.serving = [&step] { return MemberClient::Serving{{1, step}, 5}; };
  TestMember member(options);
  ASSERT_TRUE(member.Joins());
  member.participant().BlockTransfer(1);
  fake.Send(synchronizer::Transfer{1, {}, {}});
  ASSERT_TRUE(member.participant().calls().WaitFor(1));
  ASSERT_TRUE(fake.heartbeats().WaitFor(fake.heartbeats().size() + 3));
  step = 2;
  ASSERT_TRUE(fake.heartbeats().WaitFor(fake.heartbeats().size() + 2));
  EXPECT_EQ(fake.heartbeats().All()[0].serving().step(), 1);
  EXPECT_EQ(fake.heartbeats().All().back().serving().step(), 2);
  EXPECT_EQ(fake.heartbeats().All().back().serving_digest(), 5u);
  EXPECT_EQ(fake.reports().size(), 0u) << "the transfer still waits";
}

TEST(MemberClientTest, WhatIsAnnouncedIsHeardBeforeTheNextHeartbeat) {
  synchronizer::Welcome welcome = SomeWelcome();
  welcome.heartbeat = absl::Hours(1);
  FakeSynchronizer fake(FakeSynchronizer::WelcomeAll(welcome));
  std::atomic<bool> held = false;
  std::function<void()> announce;
  {
    MemberClient::Options options = TestMember::MakeOptions(fake.address());
    options.serving = [&held] { return MemberClient::Serving{{1, 1}, 5, held ? "EVALUATING" : ""}; };
    TestMember member(options);
    announce = member->Announcer();
    ASSERT_TRUE(member.Joins());
    held = true;
    announce();
    ASSERT_TRUE(fake.heartbeats().WaitFor(1));
    held = false;
    announce();
    ASSERT_TRUE(fake.heartbeats().WaitFor(2));
    EXPECT_EQ(fake.heartbeats().All()[0].held(), "EVALUATING");
    EXPECT_EQ(fake.heartbeats().All()[1].held(), "");
  }
  announce();  // announces after the process has ended
  EXPECT_EQ(fake.heartbeats().size(), 2u);
}

TEST(MemberClientTest, RejoinsARestartedSynchronizerWithItsRunAndItsEpoch) {
  FakeSynchronizer fake;
  TestMember trainer(TestMember::MakeOptions(fake.address(), synchronizer::TrainerId("")));
  TestMember rollouter(fake.address());
  ASSERT_TRUE(trainer.Joins());
  ASSERT_TRUE(rollouter.Joins());
  fake.StopServer();
  fake.StartServer();
  absl::Time up = Clock::Real()->Now();
  ASSERT_TRUE(fake.hellos().WaitFor(4));
  EXPECT_LT(Clock::Real()->Now() - up, absl::Seconds(4));
  for (size_t i : {2, 3}) {
    synchronizer::Hello hello = fake.hellos().All()[i];
    EXPECT_EQ(hello.run_id, "run-1");
    EXPECT_EQ(hello.held_epoch, hello.member.role == synchronizer::kTrainerRole ? 3 : 0);
    EXPECT_EQ(hello.member.incarnation, testing::GetIncarnation("life-1"));
  }
  ASSERT_TRUE(fake.heartbeats().WaitFor(fake.heartbeats().size() + 4)) << "both members are heard again";
}

TEST(MemberClientTest, WaitsForASynchronizerThatStartsLater) {
  FakeSynchronizer fake;
  fake.StopServer();
  TestMember member(fake.address());
  absl::Status early = member->WaitForWelcome(absl::Seconds(1)).status();
  EXPECT_THAT(early, HasReason("NOT_JOINED"));
  EXPECT_THAT(MakeMessage(early), HasSubstr("no process listens at " + fake.address()));
  fake.StartServer();
  EXPECT_TRUE(member.Joins());
  EXPECT_EQ(member.refusals().size(), 0u);
}

TEST(MemberClientTest, TriesAgainWhenItIsNotWelcomedInTime) {
  FakeSynchronizer fake([](FakeSynchronizer::Stream& stream, size_t nth) {
    if (nth >= 2) FakeSynchronizer::WelcomeAll()(stream, nth);
  });
  MemberClient::Options options = TestMember::MakeOptions(fake.address());
  options.welcome_timeout = absl::Milliseconds(50);
  TestMember member(options);
  EXPECT_TRUE(member.Joins());
  EXPECT_EQ(fake.hellos().size(), 3u);
}

TEST(MemberClientTest, SaysThatWhatListensDoesNotAnswer) {
  FakeSynchronizer fake(FakeSynchronizer::Silence());
  MemberClient::Options options = TestMember::MakeOptions(fake.address());
  options.welcome_timeout = absl::Milliseconds(10);
  TestMember member(options);
  ASSERT_TRUE(fake.hellos().WaitFor(2));
  EXPECT_THAT(MakeMessage(member->WaitForWelcome(absl::Milliseconds(1)).status()), HasSubstr("has not answered"));
}

TEST(MemberClientTest, ComesBackAfterARefusalThatMayPass) {
  FakeSynchronizer fake([](FakeSynchronizer::Stream& stream, size_t nth) {
    if (nth > 0) return FakeSynchronizer::WelcomeAll()(stream, nth);
    stream.Finish(Error(absl::StatusCode::kUnavailable, "DECLARED_DEAD", "silent for too long"));
  });
  TestMember member(fake.address());
  EXPECT_TRUE(member.Joins());
  EXPECT_EQ(member.refusals().size(), 0u);
}

TEST(MemberClientTest, ARefusalForGoodEndsItAndReachesTheDaemon) {
  for (const char* reason : {"MODEL_MISMATCH", "WRONG_RUN", "FENCED", "REPLACED", "BAD_MEMBER"}) {
    auto code = std::string(reason) == "BAD_MEMBER" ? absl::StatusCode::kInvalidArgument
                                                    : absl::StatusCode::kFailedPrecondition;
    FakeSynchronizer fake(FakeSynchronizer::RefuseAll(Error(code, reason, "tensor head differs", {{"epoch", "4"}})));
    TestMember member(fake.address());
    ASSERT_TRUE(member.refusals().WaitFor(1)) << reason;
    absl::Status refused = member->WaitForWelcome(kTestDeadline).status();
    EXPECT_EQ(refused, member.refusals().All()[0]);
    EXPECT_EQ(refused.code(), code);
    EXPECT_THAT(refused, HasReason(reason));
    EXPECT_EQ(ErrorDetails(refused)["epoch"], "4");
    EXPECT_THAT(MakeMessage(refused), ::testing::AllOf(HasSubstr(fake.address()), HasSubstr("tensor head differs")));
    member->Stop(kTestDeadline);
    EXPECT_EQ(fake.hellos().size(), 1u) << "the member did not ask again";
    EXPECT_EQ(member.refusals().size(), 1u);
  }
}

TEST(MemberClientTest, ASynchronizerThatIsLostForGoodEndsItAndReachesTheDaemon) {
  MemberClient::Options options = TestMember::MakeOptions("127.0.0.1:1");  // no process may listen on this port
  options.lost_after = absl::Milliseconds(100);
  TestMember member(options);
  ASSERT_TRUE(member.refusals().WaitFor(1));
  EXPECT_THAT(member.refusals().All()[0], HasReason("SYNCHRONIZER_LOST"));
  EXPECT_THAT(MakeMessage(member.refusals().All()[0]), HasSubstr("127.0.0.1:1"));
  EXPECT_THAT(member->WaitForWelcome(kTestDeadline).status(), HasReason("SYNCHRONIZER_LOST"));
}

TEST(MemberClientTest, AStuckDeviceReachesTheDaemonWhileTheMembershipGoesOn) {
  FakeSynchronizer fake;
  TestMember member(fake.address());
  ASSERT_TRUE(member.Joins());
  synchronizer::SyncReport stuck;
  stuck.attempt = 1;
  stuck.status = Error(absl::StatusCode::kInternal, "COPY_STUCK", "the GPU does not answer");
  member.participant().Answer(stuck);
  fake.Send(MakePrepare(1));
  ASSERT_TRUE(member.refusals().WaitFor(1));
  EXPECT_THAT(member.refusals().All()[0], HasReason("COPY_STUCK"));
  ASSERT_TRUE(fake.reports().WaitFor(1));
  ASSERT_TRUE(fake.heartbeats().WaitFor(fake.heartbeats().size() + 2));
}

TEST(MemberClientTest, AnEvictionEndsItWithTheReasonOfTheStream) {
  FakeSynchronizer fake;
  TestMember member(fake.address());
  ASSERT_TRUE(member.Joins());
  fake.Send(synchronizer::Evicted{"EVICTED"});
  fake.Newest()->Finish(Error(absl::StatusCode::kFailedPrecondition, "EVICTED", "an operator asked for it"));
  ASSERT_TRUE(member.refusals().WaitFor(1));
  EXPECT_THAT(member.refusals().All()[0], HasReason("EVICTED"));
  EXPECT_THAT(MakeMessage(member.refusals().All()[0]), HasSubstr("an operator asked for it"));
  EXPECT_THAT(member->WaitForWelcome(kTestDeadline).status(), HasReason("EVICTED"));
}

TEST(MemberClientTest, AnEvictionCountsAlsoIfTheStreamBreaksOrNeverEnds) {
  for (bool breaks : {true, false}) {
    FakeSynchronizer fake;
    TestMember member(fake.address());
    ASSERT_TRUE(member.Joins());
    fake.Send(synchronizer::Evicted{"FENCED"});
    if (breaks) fake.Newest()->Finish(absl::UnavailableError("gone"));
    ASSERT_TRUE(member.refusals().WaitFor(1));
    EXPECT_THAT(member.refusals().All()[0], HasReason("FENCED"));
    EXPECT_EQ(member.refusals().All()[0].code(), absl::StatusCode::kFailedPrecondition);
  }
}

TEST(MemberClientTest, TheListenerHearsTheLatestDirectoryAtOnceAndEachChange) {
  synchronizer::Welcome welcome = SomeWelcome();
  welcome.directory = {"trainer:1", 3, {3, 1}};
  FakeSynchronizer fake(FakeSynchronizer::WelcomeAll(welcome));
  TestMember member(fake.address());
  ASSERT_TRUE(member.Joins());
  Mailbox<Directory> heard;
  member->SetDirectoryListener([&heard](const Directory& directory) { heard.Put(directory); });
  ASSERT_TRUE(heard.WaitFor(1));
  EXPECT_EQ(heard.All()[0], welcome.directory);
  fake.Send(welcome.directory);  // the same directory again
  for (size_t step = 2; step <= 5; ++step) {
    fake.Send(Directory{"trainer:1", 3, {3, static_cast<int64_t>(step)}});
    ASSERT_TRUE(heard.WaitFor(step));
    EXPECT_EQ(heard.All().back().newest.step, static_cast<int64_t>(step));
  }
  EXPECT_EQ(heard.size(), 5u);
}

TEST(MemberClientTest, ASlowListenerMissesOnlyWhatWasOvertaken) {
  FakeSynchronizer fake;
  TestMember member(fake.address());
  Mailbox<int64_t> heard;
  Mailbox<bool> go;
  member->SetDirectoryListener([&](const Directory& directory) {
    heard.Put(directory.newest.step);
    go.WaitFor(1);
  });
  ASSERT_TRUE(heard.WaitFor(1));
  for (int64_t step = 1; step <= 100; ++step) fake.Send(Directory{"trainer:1", 3, {3, step}});
  fake.Send(MakePrepare(1));
  ASSERT_TRUE(fake.reports().WaitFor(1)) << "commands do not wait for the listener";
  go.Put(true);
  ASSERT_TRUE(heard.WaitFor(2));
  member->Stop(kTestDeadline);
  std::vector<int64_t> steps = heard.All();
  EXPECT_TRUE(std::is_sorted(steps.begin(), steps.end()));
  EXPECT_EQ(steps.back(), 100);
}

TEST(MemberClientTest, LeavesWithItsReasonAndDoesNotComeBack) {
  FakeSynchronizer fake;
  TestMember member(fake.address());
  ASSERT_TRUE(member.Joins());
  member->Leave("the run is over");
  member->Leave("said too late");
  ASSERT_TRUE(fake.leaves().WaitFor(1));
  ASSERT_TRUE(fake.ended().WaitFor(1));
  EXPECT_EQ(fake.ended().All()[0], absl::OkStatus());
  EXPECT_EQ(member->WaitForWelcome(kTestDeadline).status().code(), absl::StatusCode::kCancelled);
  member->Stop(kTestDeadline);
  member->Stop(kTestDeadline);
  EXPECT_EQ(fake.leaves().All(), std::vector<std::string>{"the run is over"});
  EXPECT_EQ(fake.hellos().size(), 1u);
  EXPECT_EQ(member.refusals().size(), 0u);
}

TEST(MemberClientTest, StopsAtOnceWhileNobodyListensOrNobodyAnswers) {
  FakeSynchronizer mute(FakeSynchronizer::Silence());
  FakeSynchronizer gone;
  gone.StopServer();
  for (const std::string& address : {mute.address(), gone.address()}) {
    TestMember member(address);
    if (address == mute.address()) {
      ASSERT_TRUE(mute.hellos().WaitFor(1));
    }
    absl::Time begun = Clock::Real()->Now();
    member->Stop(absl::Seconds(10));
    EXPECT_LT(Clock::Real()->Now() - begun, absl::Seconds(5));
  }
}

TEST(MemberClientTest, StopWakesAThreadThatWaitsForAWelcome) {
  FakeSynchronizer fake(FakeSynchronizer::Silence());
  TestMember member(fake.address());
  Mailbox<absl::Status> woken;
  std::thread waiting([&] { woken.Put(member->WaitForWelcome(kTestDeadline * 2).status()); });
  ASSERT_TRUE(fake.hellos().WaitFor(1));
  member->Stop(kTestDeadline);
  EXPECT_TRUE(woken.WaitFor(1));
  waiting.join();
  EXPECT_EQ(woken.All()[0].code(), absl::StatusCode::kCancelled);
}

TEST(MemberClientTest, StopBreaksAStreamThatDoesNotEndAndNothingIsCalledAfterIt) {
  FakeSynchronizer fake;
  std::atomic<bool> stopped = false;
  std::atomic<int> late = 0;
  MemberClient::Options options = TestMember::MakeOptions(fake.address());
  options.serving = [&] {
    if (stopped) ++late;
    return MemberClient::Serving{};
  };
  TestMember member(options);
  ASSERT_TRUE(member.Joins());
  member.participant().BlockTransfer(1);
  fake.Send(synchronizer::Transfer{1, {}, {}});
  ASSERT_TRUE(member.participant().calls().WaitFor(1));
  member->Stop(absl::ZeroDuration());
  stopped = true;
  size_t calls = member.participant().calls().size();
  fake.Send(MakePrepare(2));
  ASSERT_TRUE(fake.ended().WaitFor(1));
  EXPECT_EQ(member.participant().calls().size(), calls);
  EXPECT_EQ(late, 0);
}

TEST(MemberClientTest, RefusesOptionsThatCannotBe) {
  ScriptedParticipant participant;
  auto started = [&participant](MemberClient::Options options) {
    return MemberClient::Start(std::move(options), &participant).status();
  };
  EXPECT_THAT(started(TestMember::MakeOptions("nowhere")), HasReason("BAD_ADDRESS"));
  MemberClient::Options options = TestMember::MakeOptions("localhost:1");
  options.hello.manifest = nullptr;  // a rollouter may lack the manifest: it asks the trainer for its model
  options.hello.member.role = "trainer";
  EXPECT_THAT(started(options), HasReason("BAD_OPTIONS"));
  options = TestMember::MakeOptions("localhost:1");
  options.max_backoff = absl::ZeroDuration();
  EXPECT_THAT(started(options), HasReason("BAD_OPTIONS"));
  options = TestMember::MakeOptions("localhost:1");
  options.secret = testing::GetSecret("somebody else");
  EXPECT_THAT(started(options), HasReason("BAD_OPTIONS"));
}

}  // namespace
}  // namespace syncopate::member
