#include "services/trainer/train_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "model/model_config.h"
#include "model/presets.h"
#include "services/config/run_config.h"
#include "synchronizer/transport/send_arena.h"
#include "tests/support/small_model.h"
#include "tests/support/status_matchers.h"
#include "trainer/actor/base_memory.h"
#include "trainer/staging/weight_stager.h"

namespace syncopate::trainerd {
namespace {

using ::syncopate::testing::HasMessage;
using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using ::testing::HasSubstr;

constexpr int64_t kPlenty = int64_t{1} << 40;

// A device on which a policy finds so much free at each look; the last number stays.
TrainDevice DeviceWith(const v1::RunConfig& config, std::vector<int64_t> free, int* looks) {
  TrainDevice device;
  device.model = config::FindRunModel(config).value();
  device.device.place.name = "cpu";
  device.device.state_bytes = free.front();
  device.device.total_bytes = kPlenty;
  device.device.read_free_bytes = [free = std::move(free), looks]() -> absl::StatusOr<int64_t> {
    const auto at = std::min(free.size() - 1, static_cast<size_t>(++*looks));
    return free[at];
  };
  return device;
}

v1::RunConfig Config(bool shares) {
  return config::ParseRunConfig("", "f", {shares ? "run.share_gpu=true" : "run.share_gpu=false"}).config;
}

TEST(TrainDeviceTest, ATrainerThatStartsAgainWaitsUntilRolloutersHaveLeftTheDevice) {
  const v1::RunConfig config = Config(true);
  int looks = 0;
  TrainDevice device = DeviceWith(config, {1, 1, 1, kPlenty}, &looks);
  ASSERT_THAT(MakePolicy(config, /*send_bytes=*/0, &device), IsOk());
  EXPECT_EQ(looks, 3);
  EXPECT_NE(device.policy, nullptr);
}

TEST(TrainDeviceTest, IfTheyDoNotLeaveItIsStuckAndSaysWhatItNeeds) {
  const v1::RunConfig config = Config(true);
  int looks = 0;
  TrainDevice device = DeviceWith(config, {1}, &looks);
  device.device.leave_within = absl::Milliseconds(300);
  const absl::Status stuck = MakePolicy(config, /*send_bytes=*/0, &device);
  EXPECT_THAT(stuck, HasReason("TURN_STUCK"));
  EXPECT_THAT(stuck, HasMessage(HasSubstr("the model does not fit")));
  EXPECT_GT(looks, 0);
}

TEST(TrainDeviceTest, NobodyIsWaitedForOnADeviceThatIsTooSmallOrIsNotShared) {
  int looks = 0;
  TrainDevice small = DeviceWith(Config(true), {1}, &looks);
  small.device.total_bytes = 2;
  EXPECT_THAT(MakePolicy(Config(true), /*send_bytes=*/0, &small), HasReason("STATE_TOO_LARGE"));
  TrainDevice alone = DeviceWith(Config(false), {1}, &looks);
  EXPECT_THAT(MakePolicy(Config(false), /*send_bytes=*/0, &alone), HasReason("STATE_TOO_LARGE"));
  EXPECT_EQ(looks, 0);
}

TEST(TrainDeviceTest, OwnPartsAddUpToWhatThePolicyHasReservedAndTheSendSlots) {
  const trainer::PolicyMemory memory{.allocated_bytes = 900,
                                     .reserved_bytes = 1000,
                                     .parameter_bytes = 100,
                                     .optimizer_bytes = 200,
                                     .gradient_bytes = 50,
                                     .reference_bytes = 30};
  const daemon::CardOwners parts = ListOwnParts(memory, /*send_bytes=*/70);
  EXPECT_EQ(daemon::SumOwners(parts), 1070);
  const daemon::CardOwners expected = {{"weights", 100},         {"moments", 200},   {"gradients", 50},
                                       {"reference policy", 30}, {"allocator", 620}, {"send slots", 70}};
  EXPECT_EQ(parts, expected);
}

// So on a card in turns there is one base: no row that a rollouter writes to is sent, and joint linears stay joint.
TEST(TrainDeviceTest, TheBaseOfEveryPublishedShapeCanBeLentWhereThePolicyComputesWithIt) {
  for (const std::string& name : model::PresetNames()) {
    if (name == "tiny") continue;  // no published one: its biases are shorter than a boundary of the wire's arena
    for (const int64_t rank : {8, 64}) {
      const model::ModelConfig config = testing::WithAdapters(model::FindPreset(name).value(), rank);
      const Manifest wire = model::MakeWireManifest(config, DType::kBFloat16).value();
      EXPECT_TRUE(trainer::CanHoldBase(model::MakeManifest(config, DType::kFloat32).value(), wire)) << name;
      const auto plan = trainer::PlanStaging(wire, {}, DType::kBFloat16);
      ASSERT_THAT(plan, IsOk()) << name;
      EXPECT_EQ(synchronizer::SendArena::LendableBytes(wire, *plan), wire.adapters_begin()) << name << " rank " << rank;
    }
  }
}

}  // namespace
}  // namespace syncopate::trainerd
