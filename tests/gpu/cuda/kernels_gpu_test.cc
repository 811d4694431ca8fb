#include "synchronizer/cuda/kernels.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>

#include "base/digest.h"
#include "bench/cuda/probe.h"
#include "cuda/cuda_arena.h"
#include "synchronizer/cuda/cuda_shadow_check.h"
#include "synchronizer/cuda/findings.h"
#include "synchronizer/cuda/stage_program.h"
#include "synchronizer/plan/pack.h"
#include "tests/gpu/gpu_support.h"
#include "tests/support/pack_cases.h"
#include "tests/support/status_matchers.h"

namespace syncopate::synchronizer {
namespace {

using ::syncopate::testing::HasMessage;
using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using ::testing::HasSubstr;

template <typename T>
cuda::DeviceBuffer Upload(const std::vector<T>& values) {
  const int64_t bytes = static_cast<int64_t>(values.size() * sizeof(T));
  cuda::DeviceBuffer buffer = *cuda::DeviceBuffer::Create(0, bytes, "a test's table");
  if (bytes > 0) ToDevice(0, buffer.data(), values.data(), bytes);
  return buffer;
}

struct Staged {
  std::vector<char> arena;
  std::vector<uint64_t> digests;
  int64_t first_non_finite = kAllFinite;
};

// Packs a case on the GPU, into an arena that is poisoned wherever an operation must write.
Staged StageOnGpu(const PackCase& made, const PackedCase& expected) {
  const StageProgram program = MakeStageProgram(made.ops, made.buckets);
  cuda::Stream stream = *cuda::Stream::Create(0);
  cuda::Event done = *cuda::Event::Create(0);
  cuda::DeviceBuffer shard = Upload(made.shard);
  cuda::DeviceBuffer arena = Upload(PoisonedArena(expected));
  cuda::DeviceBuffer bases = Upload(std::vector<uint64_t>(made.ops.size(), reinterpret_cast<uint64_t>(shard.data())));
  cuda::DeviceBuffer vectors = Upload(program.vectors);
  cuda::DeviceBuffer elements = Upload(program.elements);
  cuda::DeviceBuffer words = Upload(program.words);
  cuda::DeviceBuffer sums = Upload(std::vector<uint64_t>(made.buckets.size() + 1));
  const Findings findings{sums.as<uint64_t>(), sums.as<uint64_t>() + made.buckets.size()};
  const int blocks = BlocksThatFill(0);
  EXPECT_THAT(ClearFindings(findings, static_cast<int64_t>(made.buckets.size()), stream.get()), IsOk());
  EXPECT_EQ(LaunchPackElements(elements.as<ElementItem>(), static_cast<int64_t>(program.elements.size()),
                               bases.as<uint64_t>(), arena.data(), findings, blocks, stream.get()),
            cudaSuccess);
  EXPECT_EQ(LaunchPack(vectors.as<PackItem>(), static_cast<int64_t>(program.vectors.size()), bases.as<uint64_t>(),
                       arena.data(), findings, blocks, stream.get()),
            cudaSuccess);
  EXPECT_EQ(LaunchCheck(words.as<CheckItem>(), static_cast<int64_t>(program.words.size()), arena.data(), findings,
                        blocks, stream.get()),
            cudaSuccess);
  EXPECT_THAT(done.Record(stream.get()), IsOk());
  EXPECT_THAT(done.Wait(absl::Seconds(20), "staging"), IsOk());

  Staged staged;
  staged.arena = ToHost(0, arena.data(), made.send_bytes);
  const std::vector<char> raw = ToHost(0, sums.data(), sums.bytes());
  std::vector<uint64_t> found(made.buckets.size() + 1);
  std::memcpy(found.data(), raw.data(), raw.size());
  staged.first_non_finite = static_cast<int64_t>(found.back());
  staged.digests = FinishDigests(found.data(), made.buckets);
  return staged;
}

void ExpectStagedAsOnHost(const PackCase& made) {
  const PackedCase expected = PackExpected(made);
  const Staged staged = StageOnGpu(made, expected);
  EXPECT_EQ(staged.arena, expected.arena);
  EXPECT_EQ(staged.digests, DigestRanges(made.buckets, expected.arena.data()));
  EXPECT_EQ(staged.first_non_finite, kAllFinite);
}

TEST(StageKernelTest, PacksAndDigestsAsTheHostDoesWhateverTheAlignment) {
  SYNCOPATE_NEED_GPUS(1);
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    ExpectStagedAsOnHost(RandomPackCase(seed, {.bf16_only = seed % 3 == 0}));
  }
}

TEST(StageKernelTest, PacksAndDigestsOperationsOfManyItems) {
  SYNCOPATE_NEED_GPUS(1);
  for (uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(seed);
    ExpectStagedAsOnHost(RandomPackCase(seed, {.bf16_only = seed % 3 == 0, .max_elements = 400'000, .ops = 4}));
  }
}

TEST(StageKernelTest, RoundsEveryKindOfNumberAsTheHostDoes) {
  SYNCOPATE_NEED_GPUS(1);
  std::mt19937_64 random(7);
  PackCase made;
  constexpr int64_t kNumbers = 1 << 20;
  made.ops = {{0, DType::kFloat32, DType::kBFloat16, 0, 0, 0, 0, 1, kNumbers}};
  made.send_bytes = 2 * kNumbers;
  made.buckets = {{0, made.send_bytes}};
  made.shard.resize(4 * kNumbers);
  for (int64_t i = 0; i < kNumbers; ++i) {
    // All bit patterns except NaN, infinity and those that round to infinity; subnormals, ties and zeros are included.
    uint32_t bits = static_cast<uint32_t>(random());
    if ((bits & 0x7f800000u) == 0x7f800000u || (bits & 0x7fff8000u) == 0x7f7f8000u) bits &= 0x80ffffffu;
    std::memcpy(&made.shard[static_cast<size_t>(4 * i)], &bits, 4);
  }
  ExpectStagedAsOnHost(made);
}

TEST(StageKernelTest, FindsNumbersThatAreNotFiniteAndThoseThatOverflow) {
  SYNCOPATE_NEED_GPUS(1);
  const uint32_t bad[] = {0x7fc00000u, 0x7f800000u, 0xff800000u, 0x7f7fffffu};  // the last one rounds to infinity
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    PackCase made = RandomPackCase(seed, {});
    const PackOp& op = made.ops[seed % made.ops.size()];
    const int64_t element = static_cast<int64_t>(seed * 31) % op.row_elements;
    const int64_t row = static_cast<int64_t>(seed) % op.rows;
    const int64_t width = DTypeBytes(op.from);
    char* at = &made.shard[static_cast<size_t>(op.source_offset + row * op.source_stride + element * width)];
    const bool overflow = seed % 4 == 3;
    uint32_t bits = bad[seed % 4];
    if (overflow && (op.from != DType::kFloat32 || op.to != DType::kBFloat16)) continue;
    if (width == 2) bits >>= 16;
    std::memcpy(at, &bits, static_cast<size_t>(width));
    const Staged staged = StageOnGpu(made, PackExpected(made));
    ASSERT_NE(staged.first_non_finite, kAllFinite);
    EXPECT_LE(staged.first_non_finite, op.send_offset + row * op.send_stride + element * DTypeBytes(op.to));
  }
}

// A shadow arena on the GPU, and the result that checking it must give.
class ShadowCheckTest : public ::testing::Test {
 protected:
  void Make(int64_t bytes, uint64_t seed) {
    arena_ = *cuda::CudaArena::Create(bytes, {});
    cuda::Stream stream = *cuda::Stream::Create(0);
    ASSERT_THAT(bench::FillWithRandomWeights(arena_->data(), bytes, seed, stream.get()), IsOk());
    ASSERT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
    host_ = ToHost(0, arena_->data(), bytes);
    checker_ = *CudaShadowChecker::Create({});
    contents_.numbers = {{{0, bytes / 2}, DType::kBFloat16, "first"}, {{bytes / 2, bytes}, DType::kFloat32, "second"}};
    contents_.buckets.clear();
    for (int64_t begin = 0; begin < bytes; begin += kBucketBytes) {
      contents_.buckets.push_back({begin, std::min(begin + kBucketBytes, bytes)});
    }
  }
  std::vector<uint64_t> Expected() const { return DigestRanges(contents_.buckets, host_.data()); }

  static constexpr int64_t kBucketBytes = 1 << 20;
  std::unique_ptr<cuda::CudaArena> arena_;
  std::vector<char> host_;
  std::unique_ptr<CudaShadowChecker> checker_;
  ShadowContents contents_;
};

TEST_F(ShadowCheckTest, DigestsWhatArrivesInAnyOrderAndAnyPieces) {
  SYNCOPATE_NEED_GPUS(1);
  Make(40 << 20, 1);
  std::mt19937_64 random(3);
  for (int64_t piece : {int64_t{64} << 20, int64_t{1} << 20, int64_t{300'000}, int64_t{4 << 20}}) {
    SCOPED_TRACE(piece);
    std::vector<ByteRange> pieces;
    for (int64_t begin = 0; begin < arena_->bytes(); begin += piece) {
      pieces.push_back({begin, std::min(begin + piece, arena_->bytes())});
    }
    std::shuffle(pieces.begin(), pieces.end(), random);
    std::unique_ptr<ShadowCheck> check = *checker_->Begin(arena_->data(), contents_);
    for (const ByteRange& range : pieces) check->Arrived(range, nullptr);
    absl::StatusOr<std::vector<uint64_t>> digests = check->Finish(absl::Seconds(20));
    ASSERT_THAT(digests, IsOk());
    EXPECT_EQ(*digests, Expected());
  }
}

TEST_F(ShadowCheckTest, DigestsBucketsOfAnyAlignment) {
  SYNCOPATE_NEED_GPUS(1);
  Make(8 << 20, 2);
  contents_.buckets = {{2, 4'000'006}, {4'000'006, 4'100'002}, {4'100'008, 4'100'010}, {4'100'016, (8 << 20) - 6}};
  std::unique_ptr<ShadowCheck> check = *checker_->Begin(arena_->data(), contents_);
  for (const ByteRange& bucket : contents_.buckets) check->Arrived(bucket, nullptr);
  absl::StatusOr<std::vector<uint64_t>> digests = check->Finish(absl::Seconds(20));
  ASSERT_THAT(digests, IsOk());
  EXPECT_EQ(*digests, Expected());
}

TEST_F(ShadowCheckTest, WaitsForTheStreamThatBringsTheBytes) {
  SYNCOPATE_NEED_GPUS(1);
  Make(64 << 20, 3);
  cuda::Stream bringing = *cuda::Stream::Create(0);
  std::unique_ptr<cuda::CudaArena> source = *cuda::CudaArena::Create(arena_->bytes(), {});
  ASSERT_THAT(bench::FillWithRandomWeights(source->data(), source->bytes(), 4, bringing.get()), IsOk());
  ASSERT_EQ(cudaStreamSynchronize(bringing.get()), cudaSuccess);
  host_ = ToHost(0, source->data(), source->bytes());
  for (int sync = 0; sync < 20; ++sync) {
    ASSERT_EQ(cudaMemset(arena_->data(), 0x11, static_cast<size_t>(arena_->bytes())), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);  // the default stream does not wait for `bringing`
    std::unique_ptr<ShadowCheck> check = *checker_->Begin(arena_->data(), contents_);
    constexpr int64_t kChunk = 16 << 20;
    for (int64_t begin = 0; begin < arena_->bytes(); begin += kChunk) {
      ASSERT_EQ(cudaMemcpyAsync(arena_->data() + begin, source->data() + begin, kChunk, cudaMemcpyDeviceToDevice,
                                bringing.get()),
                cudaSuccess);
      check->Arrived({begin, begin + kChunk}, bringing.get());
    }
    absl::StatusOr<std::vector<uint64_t>> digests = check->Finish(absl::Seconds(20));
    ASSERT_THAT(digests, IsOk());
    EXPECT_EQ(*digests, Expected());
  }
}

TEST_F(ShadowCheckTest, NamesTheNumberThatIsNotFinite) {
  SYNCOPATE_NEED_GPUS(1);
  Make(8 << 20, 5);
  const uint32_t nan = 0x7fc00001u;
  ToDevice(0, arena_->data() + (4 << 20) + 4 * 1234, &nan, 4);
  std::unique_ptr<ShadowCheck> check = *checker_->Begin(arena_->data(), contents_);
  check->Arrived({0, arena_->bytes()}, nullptr);
  absl::StatusOr<std::vector<uint64_t>> digests = check->Finish(absl::Seconds(20));
  EXPECT_THAT(digests, HasReason("NON_FINITE"));
  EXPECT_THAT(digests, HasMessage(HasSubstr("element 1234 of second")));
}

TEST_F(ShadowCheckTest, RefusesToFinishBeforeAllBytesWereAnnounced) {
  SYNCOPATE_NEED_GPUS(1);
  Make(4 << 20, 6);
  std::unique_ptr<ShadowCheck> check = *checker_->Begin(arena_->data(), contents_);
  check->Arrived({0, (4 << 20) - 8}, nullptr);
  EXPECT_THAT(check->Finish(absl::Seconds(20)), HasReason("INCOMPLETE"));
}

TEST_F(ShadowCheckTest, OneFlippedBitChangesItsBucketsDigestAlone) {
  SYNCOPATE_NEED_GPUS(1);
  Make(4 << 20, 7);
  const char flipped = static_cast<char>(host_[3'000'001] ^ 0x04);
  ToDevice(0, arena_->data() + 3'000'001, &flipped, 1);
  std::unique_ptr<ShadowCheck> check = *checker_->Begin(arena_->data(), contents_);
  check->Arrived({0, arena_->bytes()}, nullptr);
  absl::StatusOr<std::vector<uint64_t>> digests = check->Finish(absl::Seconds(20));
  ASSERT_THAT(digests, IsOk());
  const std::vector<uint64_t> expected = Expected();
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ((*digests)[i] == expected[i], i != 3'000'001 / kBucketBytes) << i;
  }
}

TEST(ContextCheckTest, AHealthyContextMultiplies) {
  SYNCOPATE_NEED_GPUS(1);
  EXPECT_THAT(bench::CheckContext(0), IsOk());
}

}  // namespace
}  // namespace syncopate::synchronizer
