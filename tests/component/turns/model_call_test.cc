// The call by which a rollouter arrives on a shared device, from the rollouter's client to the trainer's desk.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "services/config/run_config.h"
#include "services/config/run_model.h"
#include "services/rollouter/model_client.h"
#include "services/rpc/server.h"
#include "services/trainer/model_offer.h"
#include "services/trainer/run_control.h"
#include "services/trainer/trainer_service.h"
#include "services/wire/codec.h"
#include "tests/support/eventually.h"
#include "tests/support/hand_clock.h"
#include "tests/support/notification.h"
#include "tests/support/status_matchers.h"
#include "trainer/turns/turn_desk.h"

namespace syncopate::trainerd {
namespace {

using ::syncopate::testing::Eventually;
using ::syncopate::testing::HandClock;
using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using ::testing::ElementsAre;

constexpr char kCard[] = "GPU-1";

class ModelCallTest : public ::testing::Test {
 protected:
  ModelCallTest() {
    const v1::RunConfig config = config::ParseRunConfig("", "f", {"run.share_gpu=true"}).config;
    const config::RunModel model = config::FindRunModel(config).value();
    const Manifest wire = model::MakeManifest(model.shape, DType::kFloat32).value();
    control_.SetModel(ModelOffer::Make("run-1", model, wire).value(), &desk_, {kCard});
    server_ = rpc::Server::Start({}, {&service_}).value();
  }
  ~ModelCallTest() override { server_->Stop(absl::ZeroDuration()); }

  absl::StatusOr<rollouterd::LearnedModel> Ask(const std::vector<std::string>& cards) {
    v1::GetModelRequest request;
    *request.mutable_member() = wire::ToProto(MemberId{"rollouter", "rollouter-0", 0, 1, "incarnation-1"});
    for (const std::string& card : cards) request.add_cards(card);
    return rollouterd::GetModel(server_->address(), nullptr, Clock::Real()->Now() + kTestDeadline, request);
  }
  // Whether a turn begins at once.
  bool BeginsATurn() {
    desk_.Look();
    const absl::Status taken = desk_.Take([] { return true; });
    if (taken.ok()) desk_.GiveBack();
    return taken.ok();
  }

  HandClock clock_;
  trainer::TurnDesk desk_{{}, {.clock = &clock_}};
  RunControl control_{{}};
  TrainerServiceImpl service_{&control_, /*reporter=*/nullptr};
  std::unique_ptr<rpc::Server> server_;
};

TEST_F(ModelCallTest, ARollouterThatDiesWhileItMakesItsEngineDelaysATurnNoLongerThanABrokenStream) {
  auto model = Ask({kCard});
  ASSERT_THAT(model, IsOk());
  EXPECT_THAT(desk_.GetStatus().holders, ElementsAre("rollouter-0"));
  clock_.Advance(absl::Seconds(30));
  EXPECT_FALSE(BeginsATurn()) << "it makes its engine";
  model->presence = nullptr;  // as the end of its process does
  // The trainer hears of the end a moment later, and counts from then.
  EXPECT_TRUE(Eventually(kTestDeadline, [&] {
    clock_.Advance(absl::Seconds(2));
    return BeginsATurn();
  }));
  EXPECT_LT(clock_.Now() - absl::UnixEpoch(), absl::Seconds(58)) << "before it would have been given up anyway";
}

TEST_F(ModelCallTest, OneThatHasConnectedIsNotLostWithItsCall) {
  auto model = Ask({kCard});
  ASSERT_THAT(model, IsOk());
  Mailbox<bool> told;
  desk_.Connect("rollouter-0", "incarnation-1", /*stream=*/1, /*yielded=*/false,
                [&](bool yield, int64_t) { told.Put(yield); });
  model->presence = nullptr;
  EXPECT_THAT(Ask({kCard}), IsOk()) << "once more";
  clock_.Advance(absl::Seconds(120));
  EXPECT_FALSE(BeginsATurn()) << "it is told to leave, and has not";
  EXPECT_THAT(told.All(), ElementsAre(false, true, false));
}

// Rank 0 names the devices of all ranks, of which one may be the trainer's.
TEST_F(ModelCallTest, AReplicaIsWaitedForIfOneOfItsRanksIsOnTheTrainersDevice) {
  auto model = Ask({"GPU-0", kCard});
  ASSERT_THAT(model, IsOk());
  EXPECT_THAT(desk_.GetStatus().holders, ElementsAre("rollouter-0"));
  EXPECT_FALSE(BeginsATurn());
}

// A rank other than rank 0 needs the model to come to rank 0, and takes no memory before rank 0 has had its answer.
TEST_F(ModelCallTest, OneThatNamesNoDeviceOrOtherOnesIsAnsweredInTheTrainersTurn) {
  ASSERT_THAT(desk_.Take([] { return false; }), IsOk());
  EXPECT_THAT(Ask({}), IsOk());
  EXPECT_THAT(Ask({"GPU-2"}), IsOk());
  desk_.GiveBack();
}

TEST_F(ModelCallTest, OneOnAnotherDeviceIsNotWaitedFor) {
  EXPECT_THAT(Ask({"GPU-2"}), IsOk());
  EXPECT_TRUE(BeginsATurn());
}

}  // namespace
}  // namespace syncopate::trainerd
