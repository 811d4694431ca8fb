#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "services/rpc/status.h"
#include "tests/component/rollouter/rollout_service_fixture.h"

// Pausing, draining and sleeping.
namespace syncopate::rollouterd {
namespace {

using ::testing::ElementsAreArray;

TEST_F(RolloutServiceTest, PausesAndResumesWithoutLosingATokenAndOncePerRequestId) {
  InstallTinyWeights(*engine_, {1, 0});
  v1::RolloutServicePauseRequest pause;
  pause.set_request_id("pause-1");
  ASSERT_TRUE(Call(&Stub::Pause, pause).ok());
  EXPECT_TRUE(paused_) << "the rollouter asks the trainer for no work";
  EXPECT_EQ(Status().state(), "paused");
  auto blocked = Call(&Stub::Generate, Request("x"), absl::Milliseconds(100));
  EXPECT_EQ(blocked.status().code(), absl::StatusCode::kDeadlineExceeded);
  ASSERT_TRUE(Call(&Stub::Resume, v1::RolloutServiceResumeRequest()).ok());
  EXPECT_FALSE(paused_);
  EXPECT_TRUE(Call(&Stub::Pause, pause).ok());  // a repeated request is answered and not carried out again
  EXPECT_EQ(Status().state(), "running");
  EXPECT_TRUE(Call(&Stub::Generate, Request("y")).ok());
}

TEST_F(RolloutServiceTest, DrainsWhatRunsAndTakesNothingNewUntilResumed) {
  InstallTinyWeights(*engine_, {1, 0});
  auto running = StartLong("last");
  std::thread reader([&running] {
    while (running->reader->Read(&running->last)) {
    }
  });
  EXPECT_TRUE(Call(&Stub::Drain, v1::DrainRequest(), absl::Seconds(60)).ok());
  reader.join();
  const absl::Status end = rpc::FromGrpc(running->reader->Finish());
  EXPECT_TRUE(end.ok()) << end;
  EXPECT_EQ(running->last.finish(), v1::FINISH_REASON_LENGTH);
  EXPECT_TRUE(draining_);
  EXPECT_EQ(Status().state(), "drained");
  EXPECT_EQ(ErrorReason(Call(&Stub::Generate, Request("x")).status()), "DRAINING");
  ASSERT_TRUE(Call(&Stub::Resume, v1::RolloutServiceResumeRequest()).ok());
  EXPECT_FALSE(draining_);
  EXPECT_TRUE(Call(&Stub::Generate, Request("x")).ok());
}

TEST_F(RolloutServiceTest, TellsADrainThatItWasResumed) {
  InstallTinyWeights(*engine_, {1, 0});
  ASSERT_TRUE(Call(&Stub::Pause, v1::RolloutServicePauseRequest()).ok());
  absl::Status answered, drained;
  std::thread request([this, &answered] { answered = Call(&Stub::Generate, Request("held")).status(); });
  EXPECT_TRUE(Await([](const auto& status) { return status.waiting_sequences() > 0; }));
  std::thread drain([this, &drained] { drained = Call(&Stub::Drain, v1::DrainRequest()).status(); });
  EXPECT_TRUE(Await([](const auto& status) { return status.state() == "draining"; }));
  EXPECT_TRUE(Call(&Stub::Resume, v1::RolloutServiceResumeRequest()).ok());
  drain.join();
  request.join();
  EXPECT_EQ(ErrorReason(drained), "RESUMED") << drained;
  EXPECT_TRUE(answered.ok()) << answered;
}

v1::SleepRequest ReadSleep(const std::string& id, int level) {
  v1::SleepRequest request;
  request.set_request_id(id);
  request.set_level(level);
  return request;
}

TEST_F(RolloutServiceTest, SleepsWithItsWeightsAndWakesWithTheSameTokens) {
  InstallTinyWeights(*engine_, {1, 3});
  const auto before = Call(&Stub::Generate, Request("a"));
  ASSERT_TRUE(before.ok()) << before.status();
  const auto slept = Call(&Stub::Sleep, ReadSleep("s1", 0));  // level 0 means level 1
  ASSERT_TRUE(slept.ok()) << slept.status();
  EXPECT_GT(slept->freed_bytes(), 0);
  EXPECT_TRUE(asleep_);
  EXPECT_EQ(Status().state(), "asleep");
  EXPECT_EQ(Status().serving().step(), 3);
  const auto refused = Call(&Stub::Generate, Request("b"));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ErrorReason(refused.status()), "ASLEEP");
  EXPECT_FALSE(Call(&Stub::RolloutMode, v1::RolloutServiceRolloutModeRequest())->acted());
  EXPECT_FALSE(Call(&Stub::TrainerMode, v1::RolloutServiceTrainerModeRequest())->acted());
  ASSERT_TRUE(Call(&Stub::WakeUp, v1::WakeUpRequest()).ok());
  ASSERT_TRUE(Call(&Stub::WakeUp, v1::WakeUpRequest()).ok());
  EXPECT_FALSE(asleep_);
  const auto after = Call(&Stub::Generate, Request("b"));
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_THAT(after->tokens(), ElementsAreArray(before->tokens()));
}

TEST_F(RolloutServiceTest, AfterASleepThatDroppedTheWeightsItWaitsForThem) {
  InstallTinyWeights(*engine_, {1, 3});
  ASSERT_TRUE(Call(&Stub::Sleep, ReadSleep("s1", 2)).ok());
  ASSERT_TRUE(Call(&Stub::WakeUp, v1::WakeUpRequest()).ok());
  EXPECT_TRUE(asleep_) << "no work before it has weights";
  EXPECT_EQ(Status().state(), "waiting_for_weights");
  EXPECT_EQ(ErrorReason(Call(&Stub::Generate, Request("a")).status()), "NO_WEIGHTS");
}

TEST_F(RolloutServiceTest, ASleepIsRefusedWhileSomethingRunsAndDoneOncePerRequestId) {
  InstallTinyWeights(*engine_, {1, 0});
  auto running = StartLong("long");
  const auto busy = Call(&Stub::Sleep, ReadSleep("s1", 1));
  EXPECT_EQ(busy.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ErrorReason(busy.status()), "BUSY");
  EXPECT_FALSE(asleep_);
  EXPECT_TRUE(running->reader->Read(&running->last)) << "the request runs on";
  running->context.TryCancel();
  while (running->reader->Read(&running->last)) {
  }
  ASSERT_TRUE(Await([](const auto& status) { return status.running_sequences() == 0; }));
  const auto slept = Call(&Stub::Sleep, ReadSleep("s2", 1));
  ASSERT_TRUE(slept.ok()) << slept.status();
  EXPECT_EQ(Call(&Stub::Sleep, ReadSleep("s2", 1))->freed_bytes(), slept->freed_bytes()) << "the same call again";
  EXPECT_EQ(Call(&Stub::Sleep, ReadSleep("s3", 1))->freed_bytes(), 0) << "another call has nothing to free";
  EXPECT_EQ(ErrorReason(Call(&Stub::Sleep, ReadSleep("s4", 7)).status()), "BAD_REQUEST");
}

}  // namespace
}  // namespace syncopate::rollouterd
