#include "trainer/actor/arena_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/digest.h"
#include "base/philox.h"
#include "tests/support/status_matchers.h"

namespace syncopate::trainer {
namespace {

using ::syncopate::testing::HasMessage;
using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Two tensors, divided into buckets of `bucket_bytes`.
Manifest CutInto(int64_t bucket_bytes) {
  return Manifest::Create({{"a", DType::kFloat32, {130, 7}}, {"b", DType::kFloat32, {77}}}, bucket_bytes).value();
}

// Random bits that are finite numbers.
at::Tensor GetArena(const Manifest& manifest) {
  at::Tensor arena = at::zeros({manifest.arena_bytes() / 4}, at::kFloat);
  auto* words = static_cast<uint32_t*>(arena.data_ptr());
  for (int64_t i = 0; i < arena.numel(); ++i) words[i] = Philox4x32(5, static_cast<uint64_t>(i))[0] & 0xbfffffffu;
  return arena;
}

float& Element(const Manifest& manifest, at::Tensor& arena, size_t tensor, int64_t element) {
  return arena.data_ptr<float>()[manifest.ranges()[tensor].begin / 4 + element];
}

TEST(ArenaChecksTest, OperatorsDigestEveryBucketAsPlainLoopsDo) {
  // One bucket, several with a shorter last one, and the largest possible number.
  for (int64_t bucket_bytes : {int64_t{1} << 20, int64_t{1024}, int64_t{256}}) {
    const Manifest manifest = CutInto(bucket_bytes);
    const at::Tensor arena = GetArena(manifest);
    const std::vector<uint64_t> expected = DigestBuckets(manifest, arena.data_ptr());
    EXPECT_EQ(BucketDigestsByOperators(manifest, arena), expected) << bucket_bytes;
    EXPECT_EQ(BucketDigests(manifest, arena), expected) << bucket_bytes;
  }
}

// A word has two numbers, and the second tensor has an odd number of them.
TEST(ArenaChecksTest, TensorsInMemoryOfTheirOwnAddToTheDigestsWhatAnArenaOfThemDoes) {
  for (int64_t bucket_bytes : {int64_t{1} << 20, int64_t{1024}, int64_t{256}}) {
    const Manifest manifest = CutInto(bucket_bytes);
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const at::Tensor random = GetArena(manifest);
      at::Tensor arena = at::zeros_like(random);
      std::vector<at::Tensor> tensors;
      for (size_t i = 0; i < manifest.tensors().size(); ++i) {
        const int64_t begin = manifest.ranges()[i].begin / 4, count = manifest.tensors()[i].NumElements();
        tensors.push_back(random.narrow(0, begin, count).to(dtype, /*non_blocking=*/false, /*copy=*/true));
        arena.narrow(0, begin, count).copy_(tensors.back());
      }
      EXPECT_EQ(DigestsOfSums(manifest, SumsOfTensors(manifest, tensors)), DigestBuckets(manifest, arena.data_ptr()))
          << bucket_bytes << " " << at::toString(dtype);
    }
  }
}

TEST(ArenaChecksTest, NameTheFirstTensorThatIsNotFinite) {
  const Manifest manifest = CutInto(1024);
  for (auto check : {CheckFinite, CheckFiniteByOperators}) {
    at::Tensor arena = GetArena(manifest);
    EXPECT_THAT(check(manifest, arena), IsOk());
    Element(manifest, arena, 1, 76) = std::numeric_limits<float>::infinity();
    EXPECT_THAT(check(manifest, arena), AllOf(HasReason("NON_FINITE"), HasMessage(HasSubstr("element 76 of b"))));
    Element(manifest, arena, 0, 3) = std::nanf("");
    EXPECT_THAT(check(manifest, arena), AllOf(HasReason("NON_FINITE"), HasMessage(HasSubstr("element 3 of a"))));
  }
}

}  // namespace
}  // namespace syncopate::trainer
