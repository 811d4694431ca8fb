#include "model/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace syncopate::model {
namespace {

using ::testing::HasSubstr;

constexpr Hardware kNoCuda{}, kNoGpu{.built_with_cuda = true}, kTwo{.built_with_cuda = true, .gpus = 2};

absl::StatusOr<std::string> Choose(const std::string& wanted, const Hardware& hardware, int reserved = 0,
                                   int64_t member = 0) {
  return ChooseDevice({.key = "train.device", .wanted = wanted, .reserved = reserved, .member = member}, hardware);
}

TEST(ChooseDeviceTest, TheCpuIsAlwaysThere) {
  for (const Hardware& hardware : {kNoCuda, kNoGpu, kTwo}) EXPECT_EQ(*Choose("cpu", hardware), "cpu");
}

TEST(ChooseDeviceTest, AutoIsAGpuIfThereIsOne) {
  EXPECT_EQ(*Choose("auto", kNoCuda), "cpu");
  EXPECT_EQ(*Choose("auto", kNoGpu), "cpu");
  EXPECT_EQ(*Choose("auto", kTwo), "cuda:0");
}

TEST(ChooseDeviceTest, MembersTakeInTurnWhatIsNotReserved) {
  EXPECT_EQ(*Choose("cuda", kTwo), "cuda:0");
  EXPECT_EQ(*Choose("cuda", kTwo, /*reserved=*/1, /*member=*/0), "cuda:1");
  EXPECT_EQ(*Choose("cuda", kTwo, /*reserved=*/1, /*member=*/1), "cuda:1");
  EXPECT_EQ(*Choose("cuda", {.built_with_cuda = true, .gpus = 4}, /*reserved=*/1, /*member=*/4), "cuda:2");
  EXPECT_EQ(*Choose("cuda", {.built_with_cuda = true, .gpus = 1}, /*reserved=*/1, /*member=*/4), "cuda:0");
}

TEST(ChooseDeviceTest, MembersThatAreThereTogetherLeaveGpusToOthersIfThereAreEnough) {
  auto choose = [](int64_t gpus, int64_t member) {
    return ChooseDevice({.key = "rollout.device", .wanted = "cuda", .reserved = 1, .together = 4, .member = member},
                        {.built_with_cuda = true, .gpus = static_cast<int>(gpus)})
        .value();
  };
  for (int64_t member = 0; member < 4; ++member) {
    EXPECT_EQ(choose(4, member), "cuda:" + std::to_string(member));
    EXPECT_EQ(choose(5, member), "cuda:" + std::to_string(member + 1));
    EXPECT_EQ(choose(8, member), "cuda:" + std::to_string(member + 1));
  }
}

TEST(ChooseDeviceTest, SaysWhatIsMissingAndWhatToDo) {
  const absl::Status no_cuda = Choose("cuda:1", kNoCuda).status();
  EXPECT_EQ(no_cuda.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ErrorReason(no_cuda), "NO_CUDA");
  EXPECT_THAT(std::string(no_cuda.message()), HasSubstr("train.device is cuda:1, but this build has no CUDA"));
  EXPECT_THAT(std::string(no_cuda.message()), HasSubstr("or set train.device=cpu"));
  EXPECT_EQ(ErrorReason(Choose("cuda", kNoGpu).status()), "NO_GPU");
  const absl::Status too_high = Choose("cuda:2", kTwo).status();
  EXPECT_EQ(ErrorReason(too_high), "NO_GPU");
  EXPECT_THAT(std::string(too_high.message()), HasSubstr("cuda:0 to cuda:1"));
}

TEST(ChooseDeviceTest, RefusesOtherWords) {
  for (const char* wanted : {"", "gpu", "cuda:", "cuda:-1", "cuda:x"}) {
    EXPECT_EQ(ErrorReason(Choose(wanted, kTwo).status()), "BAD_DEVICE") << wanted;
  }
}

}  // namespace
}  // namespace syncopate::model
