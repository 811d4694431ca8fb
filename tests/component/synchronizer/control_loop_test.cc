#include "synchronizer/loop/control_loop.h"

#include "gtest/gtest.h"
#include "services/wire/sync_codec.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/notification.h"
#include "tests/support/synchronizer_fixtures.h"

namespace syncopate::synchronizer {
namespace {

class RecordingSession final : public ControlLoop::Session {
 public:
  void Send(const synchronizer::Command& command) override { sent.Put(command); }
  void Close(const absl::Status& status) override { closed.Put(status); }
  Mailbox<synchronizer::Command> sent;
  Mailbox<absl::Status> closed;
};

class RecordingObserver final : public ControlLoop::Observer {
 public:
  void RecordSync(const synchronizer::SyncRecord&) override {}
  void RecordState(const ControlPlane&) override {}
  void RecordFailure(const absl::Status& status) override { failed.Put(status); }
  Mailbox<absl::Status> failed;
};

class ControlLoopTest : public ::testing::Test {
 protected:
  ControlLoop::Options MakeOptions() {
    ControlLoop::Options options;
    options.plane.run_id = "run";
    options.state_dir = "/state";
    options.codec = wire::ProtoStateCodec();
    options.files = &files_;
    return options;
  }
  std::unique_ptr<ControlLoop> Start() {
    auto loop = ControlLoop::Start(MakeOptions(), &observer_);
    EXPECT_TRUE(loop.ok()) << loop.status();
    return *std::move(loop);
  }

  // Waits until the loop has processed every event that was posted before.
  absl::Status Flush(ControlLoop& loop) {
    Mailbox<absl::Status> done;
    loop.Post([](ControlPlane&, absl::Time) {}, [&done](const absl::Status& status) { done.Put(status); });
    EXPECT_TRUE(done.WaitFor(1));
    return done.All().at(0);
  }

  void SayHello(ControlLoop& loop, synchronizer::SessionId session) {
    auto hello = HelloFor(TrainerId("t"), std::make_shared<Manifest>(synchronizer::SmallModel()));
    loop.Post([session, hello](ControlPlane& plane, absl::Time now) { plane.OnHello(session, hello, now); });
  }

  testing::FaultyFileSystem files_;
  RecordingObserver observer_;
};

TEST_F(ControlLoopTest, SaysThatItMovesAlsoWhileNothingHappensButNotWhileItStandsStill) {
  Mailbox<int> rounds;
  ControlLoop::Options options = MakeOptions();
  options.on_round = [&rounds] { rounds.Put(1); };
  auto loop = ControlLoop::Start(options, &observer_).value();
  ASSERT_TRUE(rounds.WaitFor(rounds.size() + 3)) << "no member has joined";
  Mailbox<int> stuck, go_on;
  loop->Post([&](ControlPlane&, absl::Time) {
    stuck.Put(1);
    EXPECT_TRUE(go_on.WaitFor(1));
  });
  ASSERT_TRUE(stuck.WaitFor(1));
  const size_t before = rounds.size();
  EXPECT_FALSE(rounds.WaitFor(before + 1, 2 * ControlLoop::kLongestWait));
  go_on.Put(1);
  EXPECT_TRUE(rounds.WaitFor(before + 1));
}

TEST_F(ControlLoopTest, MovesWhileASyncHangs) {
  Mailbox<int> rounds;
  ControlLoop::Options options = MakeOptions();
  options.on_round = [&rounds] { rounds.Put(1); };
  options.plane.sync.prepare_deadline = options.plane.sync.min_deadline = absl::Minutes(10);
  auto loop = ControlLoop::Start(options, &observer_).value();
  const auto model = std::make_shared<Manifest>(synchronizer::SmallModel());
  SayHello(*loop, loop->Open(std::make_shared<RecordingSession>()));
  loop->Post([model](ControlPlane& plane, absl::Time now) {
    const std::vector<uint64_t> digests(model->buckets().size(), 7);
    EXPECT_TRUE(plane.OnPublish({TrainerId("t"), {1, 0}, digests, model->fingerprint(), 0, 0}, now).ok());
  });
  const auto receiver = loop->Open(std::make_shared<RecordingSession>());
  loop->Post([receiver, model](ControlPlane& plane, absl::Time now) {
    plane.OnHello(receiver, HelloFor(synchronizer::RollouterId(0, "r"), model), now);
  });
  ASSERT_TRUE(Flush(*loop).ok());
  ASSERT_TRUE(rounds.WaitFor(rounds.size() + 3));
  Mailbox<int> under_way;
  loop->Post([&](ControlPlane& plane, absl::Time) { under_way.Put(plane.coordinator().attempts_under_way()); });
  ASSERT_TRUE(under_way.WaitFor(1));
  EXPECT_EQ(under_way.All()[0], 1) << "no member has answered Prepare";
}

TEST_F(ControlLoopTest, AnEpochIsOnTheDiskBeforeItsTrainerHearsOfIt) {
  auto loop = Start();
  auto session = std::make_shared<RecordingSession>();
  SayHello(*loop, loop->Open(session));
  ASSERT_TRUE(session->sent.WaitFor(1));
  loop.reset();
  files_.CrashAtOperation(files_.operations());
  files_.Restart(testing::FaultyFileSystem::Survives::kSynced);  // power is lost directly after
  auto again = Start();
  Mailbox<int64_t> epoch;
  again->Post([&epoch](ControlPlane& plane, absl::Time) { epoch.Put(plane.ledger().epoch()); });
  ASSERT_TRUE(epoch.WaitFor(1));
  EXPECT_EQ(epoch.All()[0], 1);
}

TEST_F(ControlLoopTest, NobodyHearsOfAnEpochThatCouldNotBeWrittenAndTheDaemonIsTold) {
  auto loop = Start();
  ASSERT_TRUE(Flush(*loop).ok());
  auto session = std::make_shared<RecordingSession>();
  synchronizer::SessionId id = loop->Open(session);
  files_.FailOperations(files_.operations(), 1000, testing::FaultyFileSystem::Fault::kIoError);
  SayHello(*loop, id);
  ASSERT_TRUE(observer_.failed.WaitFor(1));
  EXPECT_THAT(observer_.failed.All()[0], HasReason("IO_ERROR"));
  EXPECT_TRUE(session->sent.All().empty());
  EXPECT_EQ(session->closed.size(), 1u);
  EXPECT_THAT(Flush(*loop), HasReason("SHUTTING_DOWN")) << "a call after the stop is answered at once";
}

TEST_F(ControlLoopTest, AFullDiskHoldsTheLoopUpAndLosesNothing) {
  Mailbox<int> rounds;
  ControlLoop::Options options = MakeOptions();
  options.on_round = [&rounds] { rounds.Put(1); };
  options.disk_retry = absl::Milliseconds(5);
  auto loop = ControlLoop::Start(options, &observer_).value();
  ASSERT_TRUE(Flush(*loop).ok());
  const auto model = std::make_shared<Manifest>(synchronizer::SmallModel());
  auto trainer = std::make_shared<RecordingSession>();
  SayHello(*loop, loop->Open(trainer));
  ASSERT_TRUE(Flush(*loop).ok());
  const size_t sent = trainer->sent.size();
  const int64_t bytes = *files_.FileBytes("/state/log");

  files_.SetCapacity(bytes + 10);  // the appended record is torn
  Mailbox<absl::Status> published;
  loop->Post(
      [model](ControlPlane& plane, absl::Time now) {
        const std::vector<uint64_t> digests(model->buckets().size(), 7);
        EXPECT_TRUE(plane.OnPublish({TrainerId("t"), {1, 0}, digests, model->fingerprint(), 0, 0}, now).ok());
      },
      [&published](const absl::Status& status) { published.Put(status); });
  ASSERT_TRUE(rounds.WaitFor(rounds.size() + 20)) << "the loop is live while it waits for the disk";
  EXPECT_THAT(Flush(*loop), HasReason("NO_SPACE")) << "a call during the wait is answered at once";
  // Messages of members wait, in order.
  auto rollouter = std::make_shared<RecordingSession>();
  const SessionId session = loop->Open(rollouter);
  const Hello hello = HelloFor(synchronizer::RollouterId(0, "r"), model);
  loop->PostFrom(session, ControlLoop::Kind::kHello,
                 [=](ControlPlane& plane, absl::Time now) { plane.OnHello(session, hello, now); });
  ASSERT_TRUE(rounds.WaitFor(rounds.size() + 20));
  EXPECT_EQ(published.size(), 0u);
  EXPECT_EQ(rollouter->sent.size(), 0u);
  EXPECT_EQ(trainer->sent.size(), sent) << "no member gets a version that is not on the disk";
  EXPECT_EQ(observer_.failed.size(), 0u);

  files_.SetCapacity(int64_t{1} << 30);
  ASSERT_TRUE(published.WaitFor(1));
  EXPECT_TRUE(published.All()[0].ok()) << published.All()[0];
  ASSERT_TRUE(rollouter->sent.WaitFor(2)) << "the trainer's welcome, and the version";
  EXPECT_TRUE(std::holds_alternative<synchronizer::Welcome>(rollouter->sent.All()[0]));
  EXPECT_TRUE(Flush(*loop).ok());
  loop.reset();
  files_.CrashAtOperation(files_.operations());
  files_.Restart(testing::FaultyFileSystem::Survives::kSynced);
  auto again = StateLog::Open(&files_, "/state", wire::ProtoStateCodec());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->records.size(), 3u) << "the run's name, the epoch and the version, each once";
}

TEST_F(ControlLoopTest, NobodyIsDeclaredDeadForTheTimeThatTheDiskWasFull) {
  ControlLoop::Options options = MakeOptions();
  options.plane.membership.heartbeat = absl::Milliseconds(100);
  options.plane.membership.suspect_after = absl::Milliseconds(250);
  options.plane.membership.dead_after = absl::Milliseconds(400);
  options.disk_retry = absl::Milliseconds(5);
  auto loop = ControlLoop::Start(options, &observer_).value();
  ASSERT_TRUE(Flush(*loop).ok());
  auto session = std::make_shared<RecordingSession>();
  const SessionId id = loop->Open(session);
  Mailbox<absl::Time> heard, full, room;
  files_.SetCapacity(0);
  loop->Post([&, id](ControlPlane& plane, absl::Time now) {
    plane.OnHello(id, HelloFor(TrainerId("t"), std::make_shared<Manifest>(synchronizer::SmallModel())), now);
    heard.Put(now);
  });
  ASSERT_TRUE(heard.WaitFor(1));
  EXPECT_FALSE(session->sent.WaitFor(1, absl::Milliseconds(500)))
      << "longer than the time after which a silent member is dead";
  const absl::Time freed = Clock::Real()->Now();
  files_.SetCapacity(int64_t{1} << 30);
  // The rollouter sends nothing more: it is declared dead by then, and not before.
  ASSERT_TRUE(session->closed.WaitFor(1));
  EXPECT_THAT(session->closed.All()[0], HasReason("DECLARED_DEAD"));
  EXPECT_GE(Clock::Real()->Now() - freed, absl::Milliseconds(400));
  EXPECT_GE(session->sent.size(), 1u) << "the member was welcomed first";
}

TEST_F(ControlLoopTest, StopsAlsoWhileTheDiskIsFull) {
  auto loop = Start();
  ASSERT_TRUE(Flush(*loop).ok());
  auto session = std::make_shared<RecordingSession>();
  files_.SetCapacity(0);
  Mailbox<absl::Status> answered;
  loop->Post(
      [id = loop->Open(session)](ControlPlane& plane, absl::Time now) {
        plane.OnHello(id, HelloFor(TrainerId("t"), std::make_shared<Manifest>(synchronizer::SmallModel())), now);
      },
      [&answered](const absl::Status& status) { answered.Put(status); });
  while (ErrorReason(Flush(*loop)) != "NO_SPACE") {
  }
  loop->Stop();
  ASSERT_TRUE(answered.WaitFor(1));
  EXPECT_THAT(answered.All()[0], HasReason("SHUTTING_DOWN"));
  EXPECT_EQ(session->sent.size(), 0u);
  EXPECT_EQ(observer_.failed.size(), 0u) << "the loop was asked to stop";
}

TEST_F(ControlLoopTest, ARunOfThousandsOfVersionsKeepsItsLogShortAndSurvivesAPowerLossAtAnyMoment) {
  auto loop = Start();
  SayHello(*loop, loop->Open(std::make_shared<RecordingSession>()));
  const Manifest model = synchronizer::SmallModel();
  auto publish = [&](int64_t step) {
    loop->Post([&model, step](ControlPlane& plane, absl::Time now) {
      ControlPlane::Publication publication{TrainerId("t"), {1, step}, {}, model.fingerprint()};
      publication.bucket_digests.assign(model.buckets().size(), step);
      EXPECT_TRUE(plane.OnPublish(publication, now).ok());
    });
  };
  for (int64_t step = 0; step < 1300; ++step) publish(step);
  ASSERT_TRUE(Flush(*loop).ok());
  EXPECT_LT(*files_.FileBytes("/state/log"), 100 * 1000) << "not 1300 records";
  loop.reset();
  files_.CrashAtOperation(files_.operations());
  files_.Restart(testing::FaultyFileSystem::Survives::kSynced);
  auto again = Start();
  Mailbox<PolicyVersion> newest;
  again->Post([&newest](ControlPlane& plane, absl::Time) { newest.Put(plane.ledger().newest()->version); });
  ASSERT_TRUE(newest.WaitFor(1));
  EXPECT_EQ(newest.All()[0], (PolicyVersion{1, 1299}));
}

TEST_F(ControlLoopTest, WhatIsPostedAfterTheStopIsAnswered) {
  auto loop = Start();
  ASSERT_TRUE(Flush(*loop).ok());
  loop->Stop();
  EXPECT_THAT(Flush(*loop), HasReason("SHUTTING_DOWN"));
}

TEST_F(ControlLoopTest, TicksAtThePlanesDeadlinesWithoutAnyEvent) {
  auto loop = Start();
  auto session = std::make_shared<RecordingSession>();
  SayHello(*loop, loop->Open(session));
  ASSERT_TRUE(session->closed.WaitFor(1));  // the member was silent for 5 s
  EXPECT_THAT(session->closed.All()[0], HasReason("DECLARED_DEAD"));
}

}  // namespace
}  // namespace syncopate::synchronizer
