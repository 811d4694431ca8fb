#include "synchronizer/plan/payload.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/synchronizer/plan/plan_fixtures.h"

namespace syncopate::synchronizer {
namespace {

using ::testing::HasSubstr;

// 80 bytes of base weights, 12 of adapters.
Manifest Model() {
  return ManifestOf({{"base.a", DType::kFloat32, {10}},
                     {"lora.a", DType::kBFloat16, {4}},
                     {"base.b", DType::kBFloat16, {20}},
                     {"lora.b", DType::kBFloat16, {2}}});
}

const std::vector<std::string> kAdapters = {"lora.b", "lora.a"};
const PayloadBytes kEverythingFull = {.full = 92};
const PayloadBytes kBaseAndAdapters = {.full = 80, .lora = 12};
const PayloadBytes kAdaptersAlone = {.lora = 12};

TEST(PayloadTest, TheBaseIsSentIffItIsNotThereOrASleepReallyFreedIt) {
  for (bool present : {false, true}) {
    for (int level : {0, 1, 2}) {
      for (bool frees : {false, true}) {
        for (bool slept : {false, true}) {
          SCOPED_TRACE(absl::StrCat("present ", present, ", level ", level, ", frees ", frees, ", slept ", slept));
          ReceiverWeights receiver{present, 1, level, frees, slept};
          const bool expected = !present || (level == 2 && frees && slept);
          EXPECT_EQ(NeedsBase(receiver), expected);
          auto payload = DecidePayload(Model(), {2, kAdapters}, receiver);
          ASSERT_TRUE(payload.ok());
          EXPECT_EQ(payload->base, expected);
          EXPECT_TRUE(payload->adapters);
          EXPECT_EQ(payload->bytes, expected ? kBaseAndAdapters : kAdaptersAlone);
        }
      }
    }
  }
}

TEST(PayloadTest, EveryRowOfTheTable) {
  const ReceiverWeights fresh{};
  const ReceiverWeights serving{true, 7};
  const ReceiverWeights freed{true, 7, 2, true, true};
  struct Row {
    const char* what;
    ReceiverWeights receiver;
    std::vector<std::string> adapters;
    uint64_t digest;
    std::vector<int32_t> tensors;
    PayloadBytes bytes;
  };
  const std::vector<int32_t> all = {0, 1, 2, 3};
  for (const Row& row :
       std::vector<Row>{{"first sync, full weights", fresh, {}, 8, all, kEverythingFull},
                        {"first sync, adapters", fresh, kAdapters, 8, all, kBaseAndAdapters},
                        {"freed, full weights", freed, {}, 8, all, kEverythingFull},
                        {"freed, adapters", freed, kAdapters, 8, all, kBaseAndAdapters},
                        {"freed, these weights served before", freed, kAdapters, 7, all, kBaseAndAdapters},
                        {"freed, these full weights served before", freed, {}, 7, all, kEverythingFull},
                        {"later sync, full weights", serving, {}, 8, all, kEverythingFull},
                        {"later sync, adapters", serving, kAdapters, 8, {1, 3}, kAdaptersAlone},
                        {"served already, full weights", serving, {}, 7, {}, {}},
                        {"served already, adapters", serving, kAdapters, 7, {}, {}}}) {
    SCOPED_TRACE(row.what);
    auto payload = DecidePayload(Model(), {row.digest, row.adapters}, row.receiver);
    ASSERT_TRUE(payload.ok());
    EXPECT_EQ(payload->tensors, row.tensors);
    EXPECT_EQ(payload->bytes, row.bytes);
    EXPECT_EQ(payload->base || payload->adapters, !row.tensors.empty());
    EXPECT_FALSE(payload->reason.empty());
  }
}

TEST(PayloadTest, CountsBytesOverTheFirstSyncsARestartAndALateJoiner) {
  auto bytes = [](uint64_t digest, const ReceiverWeights& receiver) {
    return DecidePayload(Model(), {digest, kAdapters}, receiver)->bytes;
  };
  PayloadBytes first = bytes(1, {});
  PayloadBytes second = bytes(2, {true, 1});
  PayloadBytes third = bytes(3, {true, 2});
  EXPECT_EQ(first, kBaseAndAdapters);
  EXPECT_EQ(second, kAdaptersAlone);
  EXPECT_EQ(third, kAdaptersAlone);
  EXPECT_EQ(bytes(4, {}), kBaseAndAdapters) << "a restarted rollouter, or a late joiner";
  EXPECT_EQ(bytes(4, {true, 3}), kAdaptersAlone) << "its neighbour in the same sync";
  EXPECT_EQ(first.total() + second.total() + third.total(), 92 + 12 + 12);
}

TEST(PayloadTest, RefusesAnAdapterThatIsNotThere) {
  absl::Status status = DecidePayload(Model(), {2, {"lora.a", "lora.c"}}, {}).status();
  EXPECT_THAT(status, HasReason("UNKNOWN_TENSOR"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("lora.c"));
}

}  // namespace
}  // namespace syncopate::synchronizer
