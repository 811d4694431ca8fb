#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/wire/codec.h"
#include "synchronizer/member/command_runner.h"
#include "synchronizer/transport/arena_pair.h"
#include "synchronizer/transport/send_arena.h"
#include "tests/component/member/member_fixture.h"
#include "tests/support/process.h"
#include "tools/records/event_reader.h"

namespace syncopate::member {
namespace {

using synchronizer::Finish;
using synchronizer::HasReason;
using synchronizer::Install;
using synchronizer::Prepare;
using synchronizer::SyncReport;
using synchronizer::SyncStage;
using synchronizer::Transfer;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

std::vector<std::string> GetNames(const std::vector<SyncReport>& reports) {
  const char* names[] = {"", "prepare", "transfer", "install"};
  std::vector<std::string> lines;
  for (const SyncReport& report : reports) {
    lines.push_back(absl::StrCat(names[static_cast<int>(report.stage)], " ", report.attempt));
  }
  return lines;
}

class MemberCommandsTest : public ::testing::Test {
 protected:
  MemberCommandsTest() { EXPECT_TRUE(member_.Joins()); }

  FakeSynchronizer fake_;
  TestMember member_{fake_.address()};
};

TEST_F(MemberCommandsTest, AreCarriedOutInOrderWithOneReportEach) {
  std::vector<std::string> expected;
  for (int64_t attempt = 1; attempt <= 50; ++attempt) {
    fake_.Send(MakePrepare(attempt));
    fake_.Send(Transfer{attempt, {}, {}});
    fake_.Send(Install{attempt});
    for (const char* stage : {"prepare ", "transfer ", "install "}) expected.push_back(absl::StrCat(stage, attempt));
  }
  ASSERT_TRUE(fake_.reports().WaitFor(expected.size()));
  EXPECT_EQ(GetNames(fake_.reports().All()), expected);
  EXPECT_EQ(member_.participant().calls().All(), expected);
}

TEST_F(MemberCommandsTest, ReportsCarryWhatTheParticipantSaid) {
  SyncReport answer;
  answer.already_serves = true;
  answer.verify_seconds = 0.25;
  answer.bytes = 12345;
  answer.pause_seconds = 0.5;
  answer.rendezvous = "10.0.0.1:7";
  member_.participant().Answer(answer);
  fake_.Send(Transfer{4, {}, {}});
  ASSERT_TRUE(fake_.reports().WaitFor(1));
  SyncReport report = fake_.reports().All()[0];
  EXPECT_TRUE(report.status.ok());
  EXPECT_TRUE(report.already_serves);
  EXPECT_EQ(report.verify_seconds, 0.25);
  EXPECT_EQ(report.bytes, 12345);
  EXPECT_EQ(report.pause_seconds, 0.5);
  EXPECT_EQ(report.rendezvous, "10.0.0.1:7");
}

TEST_F(MemberCommandsTest, ErrorsTravelWithCodeReasonAndFacts) {
  SyncReport answer;
  answer.status = Error(absl::StatusCode::kDataLoss, "DIGEST_MISMATCH", "bucket 3 arrived damaged", {{"bucket", "3"}});
  member_.participant().Answer(answer);
  fake_.Send(Transfer{4, {}, {}});
  ASSERT_TRUE(fake_.reports().WaitFor(1));
  EXPECT_EQ(fake_.reports().All()[0].status, answer.status);
}

TEST_F(MemberCommandsTest, FinishEndsATransferUnderWay) {
  member_.participant().BlockTransfer(1);
  fake_.Send(MakePrepare(1));
  fake_.Send(Transfer{1, {}, {}});
  ASSERT_TRUE(member_.participant().calls().WaitFor(2));
  fake_.Send(Finish{1, "DEADLINE"});
  ASSERT_TRUE(fake_.reports().WaitFor(2));
  EXPECT_THAT(GetNames(fake_.reports().All()), ElementsAre("prepare 1", "transfer 1"));
  EXPECT_THAT(fake_.reports().All()[1].status, HasReason("CANCELLED"));
}

TEST_F(MemberCommandsTest, AnAttemptThatIsFinishedBeforeItsTurnIsReportedAndNotBegun) {
  member_.participant().BlockTransfer(1);
  fake_.Send(Transfer{1, {}, {}});
  ASSERT_TRUE(member_.participant().calls().WaitFor(1));
  fake_.Send(MakePrepare(2));
  fake_.Send(Finish{2, "SUPERSEDED"});
  fake_.Send(MakePrepare(3));
  fake_.Send(Finish{1, ""});
  ASSERT_TRUE(fake_.reports().WaitFor(3));
  EXPECT_THAT(GetNames(fake_.reports().All()), ElementsAre("transfer 1", "prepare 2", "prepare 3"));
  EXPECT_THAT(fake_.reports().All()[1].status, HasReason("CANCELLED"));
  EXPECT_TRUE(fake_.reports().All()[2].status.ok());
  EXPECT_THAT(member_.participant().calls().All(), Not(Contains("prepare 2")));
}

TEST_F(MemberCommandsTest, ABrokenStreamEndsAllAttemptsAndDropsTheirReports) {
  member_.participant().BlockTransfer(1);
  fake_.Send(Transfer{1, {}, {}});
  fake_.Send(MakePrepare(2));
  ASSERT_TRUE(member_.participant().calls().WaitFor(1));
  fake_.Newest()->Cancel();
  ASSERT_TRUE(fake_.hellos().WaitFor(2));
  fake_.Send(MakePrepare(3));
  ASSERT_TRUE(fake_.reports().WaitFor(1));
  EXPECT_THAT(GetNames(fake_.reports().All()), ElementsAre("prepare 3"));
  EXPECT_THAT(member_.participant().calls().All(), Contains("finish all"));
  EXPECT_THAT(member_.participant().calls().All(), Not(Contains("prepare 2")));
}

TEST_F(MemberCommandsTest, APushDoesNotHoldUpLaterCommandsAndIsReportedWhenItEnds) {
  member_.participant().Push();
  fake_.Send(Transfer{1, {}, {}});
  fake_.Send(MakePrepare(2));
  ASSERT_TRUE(fake_.reports().WaitFor(1));
  EXPECT_THAT(GetNames(fake_.reports().All()), ElementsAre("prepare 2"));
  SyncReport failed;
  failed.status = Error(absl::StatusCode::kUnavailable, "PEER_LOST", "a receiver is gone");
  member_.participant().pushes().All().at(0)(failed);
  ASSERT_TRUE(fake_.reports().WaitFor(2));
  EXPECT_THAT(GetNames(fake_.reports().All()), ElementsAre("prepare 2", "transfer 1"));
  EXPECT_THAT(fake_.reports().All()[1].status, HasReason("PEER_LOST"));
}

TEST_F(MemberCommandsTest, APushThatEndsAfterItsStreamIsReportedToNobody) {
  member_.participant().Push();
  fake_.Send(Transfer{1, {}, {}});
  ASSERT_TRUE(member_.participant().pushes().WaitFor(1));
  fake_.Newest()->Cancel();
  ASSERT_TRUE(fake_.hellos().WaitFor(2));
  member_.participant().pushes().All().at(0)({});
  fake_.Send(MakePrepare(2));
  ASSERT_TRUE(fake_.reports().WaitFor(1));
  EXPECT_THAT(GetNames(fake_.reports().All()), ElementsAre("prepare 2"));
}

TEST(CommandRunnerTest, APrepareThatWasOvertakenByItsFinishIsFinishedAfterwards) {
  // Finishes the attempt while Prepare is in progress, before there is anything to finish.
  class Overtaken final : public SyncParticipant {
   public:
    SyncReport Prepare(const synchronizer::Prepare& command) override {
      during(command.attempt);
      held = true;
      return {};
    }
    void Transfer(const synchronizer::Transfer&, Done done) override { done({}); }
    SyncReport Install(const synchronizer::Install&) override { return {}; }
    void Finish(int64_t) override { held = false; }
    void FinishAll() override { held = false; }

    std::function<void(int64_t)> during;
    bool held = false;
  };
  for (bool broken : {false, true}) {
    Overtaken participant;
    Mailbox<SyncReport> reports;
    CommandRunner runner(&participant);
    participant.during = [&](int64_t attempt) { broken ? runner.End() : runner.Finish(attempt); };
    runner.Begin([&reports](const SyncReport& report) { reports.Put(report); });
    runner.Run(MakePrepare(1));
    ASSERT_TRUE(reports.WaitFor(1));
    runner.Stop();
    EXPECT_FALSE(participant.held);
  }
}

TEST(CommandRunnerTest, DoesWhatNeedsNoAnswerWhenAnInstallHasBeenReported) {
  class Works final : public SyncParticipant {
   public:
    explicit Works(Mailbox<std::string>* notes) : notes_(notes) {}
    SyncReport Prepare(const synchronizer::Prepare&) override { return {}; }
    void Transfer(const synchronizer::Transfer&, Done done) override { done({}); }
    SyncReport Install(const synchronizer::Install&) override { return {}; }
    void WorkAfterReport() override { notes_->Put("worked"); }
    void Finish(int64_t) override {}
    void FinishAll() override {}

   private:
    Mailbox<std::string>* const notes_;
  };
  Mailbox<std::string> notes;
  Works participant(&notes);
  CommandRunner runner(&participant);
  runner.Begin([&notes](const SyncReport& report) { notes.Put(GetNames({report}).front()); });
  runner.Run(MakePrepare(1));
  runner.Run(Transfer{1});
  runner.Run(Install{1});
  ASSERT_TRUE(notes.WaitFor(4));
  runner.Stop();
  EXPECT_THAT(notes.All(), ElementsAre("prepare 1", "transfer 1", "install 1", "worked"));
}

TEST(CommandRunnerTest, TheTimeInTheQueueCountsAgainstTheDeadline) {
  class Timed final : public Clock {
   public:
    absl::Time Now() const override {
      MutexLock lock(&mutex_);
      return now_;
    }
    double UnixSeconds() const override { return 0; }
    void Advance(absl::Duration by) {
      MutexLock lock(&mutex_);
      now_ += by;
    }

   private:
    mutable Mutex mutex_;
    absl::Time now_ ABSL_GUARDED_BY(mutex_) = absl::UnixEpoch();
  };
  class Keeps final : public SyncParticipant {
   public:
    SyncReport Prepare(const synchronizer::Prepare& command) override {
      deadlines.Put(command.deadline);
      return {};
    }
    void Transfer(const synchronizer::Transfer&, Done done) override {
      go.WaitFor(1);
      done({});
    }
    SyncReport Install(const synchronizer::Install&) override { return {}; }
    void Finish(int64_t) override {}
    void FinishAll() override {}

    Mailbox<absl::Duration> deadlines;
    Mailbox<bool> go;
  };
  Keeps participant;
  Timed clock;
  CommandRunner runner(&participant, &clock);
  runner.Begin([](const SyncReport&) {});
  runner.Run(Transfer{1, {}, {}});
  runner.Run(MakePrepare(2));
  clock.Advance(absl::Seconds(15));
  participant.go.Put(true);
  ASSERT_TRUE(participant.deadlines.WaitFor(1));
  EXPECT_EQ(participant.deadlines.All()[0], absl::Seconds(5));
  runner.Stop();
}

TEST(CommandRunnerTest, LeavesAnEventForEachPhaseThatRan) {
  testing::TempDir dir;
  auto events = EventRecorder::Open(FileSystem::Real(), dir.path(), "rollouter-0", wire::EncodeEvent).value();
  ScriptedParticipant participant;
  CommandRunner runner(&participant, Clock::Real(), events.get());
  Mailbox<SyncReport> reports;
  runner.Begin([&reports](const SyncReport& report) { reports.Put(report); });
  size_t answered = 0;
  auto run = [&](CommandRunner::Command command) {
    runner.Run(std::move(command));
    ASSERT_TRUE(reports.WaitFor(++answered));
  };
  Prepare prepare = MakePrepare(7);
  prepare.version = {1, 3};
  run(prepare);
  run(Transfer{7, {}, {}});  // receivers pull from this source, so nothing ran
  SyncReport moved;
  moved.bytes = 1000;
  moved.verify_seconds = 0.25;
  participant.Answer(moved);
  run(Transfer{7, {}, {}});
  EXPECT_EQ(reports.All().back().bytes, 1000);
  SyncReport failed;
  failed.status = Error(absl::StatusCode::kDeadlineExceeded, "INSTALL_DEADLINE", "too late");
  participant.Answer(failed);
  run(Install{7});
  runner.Finish(7);
  runner.Stop();
  ASSERT_TRUE(events->Stop().ok());
  std::vector<std::string> lines;
  const records::RunEvents left = records::ReadRunEvents(FileSystem::Real(), dir.path()).value();
  for (const v1::Event& event : left.events) {
    EXPECT_EQ(event.attempt(), 7);
    EXPECT_EQ(event.version().step(), 3);
    auto field = [&event](const char* name) {
      auto found = event.fields().find(name);
      return found == event.fields().end() ? std::string("-") : found->second;
    };
    lines.push_back(
        absl::StrCat(field("phase"), " ", field("bytes"), " ", field("verify_seconds"), " ", field("reason")));
  }
  EXPECT_THAT(lines, ElementsAre("prepare - - -", "transfer 1000 0.25 -", "install - - INSTALL_DEADLINE"));
}

TEST(SyncParticipantTest, ARollouterSendsNothingAndATrainerReceivesNothing) {
  Manifest manifest = synchronizer::SmallModel();
  synchronizer::ArenaPair target(manifest.arena_bytes());
  synchronizer::WeightReceiver receiver({manifest}, &target, {});
  Prepare prepare = MakePrepare(1);
  prepare.source = true;
  EXPECT_THAT(ReceiverParticipant(&receiver).Prepare(prepare).status, HasReason("NOT_A_SOURCE"));

  auto arena = synchronizer::SendArena::Create(manifest, {}).value();
  synchronizer::WeightSource source(arena.get(), {}, {});
  SourceParticipant sender(&source);
  prepare.source = false;
  EXPECT_THAT(sender.Prepare(prepare).status, HasReason("NOT_A_RECEIVER"));
  EXPECT_THAT(sender.Install({}).status, HasReason("NOT_A_RECEIVER"));
  sender.Transfer({}, [](const SyncReport& report) { EXPECT_THAT(report.status, HasReason("NOT_PREPARED")); });
}

}  // namespace
}  // namespace syncopate::member
