#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>

#include "base/digest.h"
#include "bench/cuda/probe.h"
#include "synchronizer/cuda/cuda_send_arena.h"
#include "synchronizer/plan/layout_text.h"
#include "synchronizer/plan/pack.h"
#include "tests/gpu/gpu_support.h"
#include "tests/support/qwen_tensors.h"
#include "tests/support/status_matchers.h"

namespace syncopate::synchronizer {
namespace {

using ::syncopate::testing::HasMessage;
using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using ::testing::HasSubstr;

constexpr absl::Duration kDeadline = absl::Seconds(20);
constexpr int64_t kBucketBytes = 64 << 10;

Manifest TwoLayers() {
  std::vector<TensorSpec> tensors = {{"model.embed_tokens.weight", DType::kBFloat16, {1000, 128}}};
  for (int layer = 0; layer < 2; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    tensors.push_back({prefix + "self_attn.q_proj.weight", DType::kBFloat16, {128, 128}});
    tensors.push_back({prefix + "self_attn.q_proj.bias", DType::kBFloat16, {128}});
    tensors.push_back({prefix + "mlp.gate_proj.weight", DType::kBFloat16, {344, 128}});
    tensors.push_back({prefix + "mlp.down_proj.weight", DType::kBFloat16, {128, 344}});
    tensors.push_back({prefix + "input_layernorm.weight", DType::kBFloat16, {128}});
  }
  tensors.push_back({"model.norm.weight", DType::kBFloat16, {128}});
  return *Manifest::Create(testing::AsQwen(std::move(tensors), /*head=*/32), kBucketBytes);
}

// Random finite fp32 or bf16 numbers.
std::vector<char> RandomShard(int64_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<char> shard(static_cast<size_t>(bytes));
  for (size_t i = 0; i + 1 < shard.size(); i += 2) {
    const uint16_t bits = static_cast<uint16_t>((random() & 0x807f) | (119 + random() % 16) << 7);
    std::memcpy(&shard[i], &bits, 2);
  }
  return shard;
}

class CudaSendArenaTest : public ::testing::Test {
 protected:
  void Make(const std::string& source, const std::string& destination, int32_t rank = 0, int slots = 1) {
    rank_ = rank;
    source_ = *BuildLayout(manifest_, source);
    plan_ = *SyncPlan::Create(manifest_, *source_, *BuildLayout(manifest_, destination));
    arena_ = *CudaSendArena::Create(manifest_, *plan_, rank, {.slots = slots});
    stream_ = *cuda::Stream::Create(0);
    SetShard(1);
  }
  void SetShard(uint64_t seed) {
    shard_ = RandomShard(source_->arena_bytes(rank_), seed);
    if (on_device_.data() == nullptr) {
      on_device_ = *cuda::DeviceBuffer::Create(0, static_cast<int64_t>(shard_.size()), "a test's shard");
    }
    ToDevice(0, on_device_.data(), shard_.data(), static_cast<int64_t>(shard_.size()));
  }
  absl::StatusOr<CudaSendArena::Staged> Stage(int64_t step) {
    return arena_->Stage({1, step}, FlatShard(manifest_, on_device_.data()), stream_.get(), kDeadline);
  }
  std::vector<char> Expected() const {
    std::vector<char> packed(static_cast<size_t>(plan_->send_bytes(rank_)), 0);
    PackOnHost(plan_->pack(rank_), shard_.data(), packed.data());
    return packed;
  }
  std::vector<char> ReadAll(WeightReader* reader) const {
    std::vector<char> bytes(static_cast<size_t>(arena_->send_bytes()));
    EXPECT_THAT(reader->Read({0, arena_->send_bytes()}, bytes.data()), IsOk());
    return bytes;
  }

  const Manifest manifest_ = TwoLayers();
  int32_t rank_ = 0;
  std::optional<Layout> source_;
  std::optional<SyncPlan> plan_;
  std::vector<char> shard_;
  cuda::DeviceBuffer on_device_;
  cuda::Stream stream_;
  std::unique_ptr<CudaSendArena> arena_;
};

TEST_F(CudaSendArenaTest, StagesEveryLayoutAsTheHostDoes) {
  SYNCOPATE_NEED_GPUS(1);
  const std::pair<std::string, std::string> layouts[] = {
      {"whole:1", "whole"},      {"replicated:2:fp32", "whole"}, {"flat:3:fp32", "whole"}, {"flat:3:bf16", "tp:2"},
      {"layers:2:fp32", "tp:4"}, {"fsdp2:2:fp32", "tp:2:fused"}, {"fsdp2:4:bf16", "tp:2"}};
  for (const auto& [source, destination] : layouts) {
    absl::StatusOr<Layout> from = BuildLayout(manifest_, source);
    absl::StatusOr<Layout> to = BuildLayout(manifest_, destination);
    ASSERT_THAT(from, IsOk()) << source;
    if (!to.ok()) continue;  // this model has no such split
    for (int32_t rank = 0; rank < from->ranks(); ++rank) {
      SCOPED_TRACE(source + " to " + destination + " rank " + std::to_string(rank));
      on_device_ = cuda::DeviceBuffer();
      Make(source, destination, rank);
      absl::StatusOr<CudaSendArena::Staged> staged = Stage(1);
      ASSERT_THAT(staged, IsOk());
      EXPECT_GT(staged->seconds, 0);
      EXPECT_EQ(staged->digests, DigestRanges(plan_->StagedBuckets(rank), Expected().data()));
      std::unique_ptr<WeightReader> reader = *arena_->Open({1, 1});
      EXPECT_EQ(ReadAll(reader.get()), Expected());
    }
  }
}

TEST_F(CudaSendArenaTest, StagesFromTensorsInAllocationsOfTheirOwn) {
  SYNCOPATE_NEED_GPUS(1);
  Make("fsdp2:2:fp32", "whole", 1);
  std::vector<cuda::DeviceBuffer> buffers;
  std::vector<const void*> tensors(manifest_.tensors().size(), nullptr);
  for (const Piece& piece : source_->pieces()) {
    if (piece.rank != rank_) continue;
    const int64_t bytes = piece.elements() * 4;
    buffers.push_back(*cuda::DeviceBuffer::Create(0, bytes, "a tensor"));
    ToDevice(0, buffers.back().data(), shard_.data() + piece.offset, bytes);
    tensors[static_cast<size_t>(piece.tensor)] = buffers.back().data();
  }
  absl::StatusOr<CudaSendArena::Staged> staged =
      arena_->Stage({1, 1}, SplitShard(*source_, rank_, tensors), stream_.get(), kDeadline);
  ASSERT_THAT(staged, IsOk());
  EXPECT_EQ(staged->digests, DigestRanges(plan_->StagedBuckets(rank_), Expected().data()));
}

TEST_F(CudaSendArenaTest, StagesInTheOrderOfTheStreamSoThatTrainingMayGoOnAtOnce) {
  SYNCOPATE_NEED_GPUS(1);
  Make("whole:1", "whole");
  ASSERT_THAT(arena_->Launch({1, 1}, FlatShard(manifest_, on_device_.data()), stream_.get()), IsOk());
  ASSERT_EQ(cudaMemsetAsync(on_device_.data(), 0, static_cast<size_t>(on_device_.bytes()), stream_.get()), cudaSuccess);
  EXPECT_THAT(arena_->Open({1, 1}), HasReason("VERSION_NOT_STAGED"));
  EXPECT_THAT(arena_->Launch({1, 2}, FlatShard(manifest_, on_device_.data()), stream_.get()), HasReason("STAGING"));
  absl::StatusOr<CudaSendArena::Staged> staged = arena_->Await(kDeadline);
  ASSERT_THAT(staged, IsOk());
  EXPECT_EQ(staged->digests, DigestRanges(plan_->StagedBuckets(0), Expected().data()));
}

TEST_F(CudaSendArenaTest, ANewVersionTakesTheOnlySlotFromItsReaders) {
  SYNCOPATE_NEED_GPUS(1);
  Make("whole:1", "whole");
  ASSERT_THAT(Stage(1), IsOk());
  int told = 0;
  std::unique_ptr<DeviceReader> reader = *arena_->OpenOnDevice({1, 1}, [&told] { ++told; });
  EXPECT_THAT(reader->CheckCurrent(), IsOk());
  EXPECT_EQ(ToHost(0, reader->arena().data(), arena_->send_bytes()), Expected());
  SetShard(2);
  ASSERT_THAT(Stage(2), IsOk());
  EXPECT_EQ(told, 1);
  EXPECT_EQ(arena_->superseded_readers(), 1);
  EXPECT_THAT(reader->CheckCurrent(), HasReason("SUPERSEDED"));
  char byte = 0;
  EXPECT_THAT(reader->Read({0, 1}, &byte), HasReason("SUPERSEDED"));
  EXPECT_THAT(arena_->Open({1, 1}), HasReason("VERSION_NOT_STAGED"));
  std::unique_ptr<WeightReader> newer = *arena_->Open({1, 2});
  EXPECT_EQ(ReadAll(newer.get()), Expected());
}

TEST_F(CudaSendArenaTest, ASecondSlotKeepsTheOlderVersionForItsReaders) {
  SYNCOPATE_NEED_GPUS(1);
  Make("whole:1", "whole", 0, 2);
  ASSERT_THAT(Stage(1), IsOk());
  const std::vector<char> first = Expected();
  std::unique_ptr<WeightReader> reader = *arena_->Open({1, 1});
  for (int64_t step = 2; step <= 4; ++step) {
    SetShard(static_cast<uint64_t>(step));
    ASSERT_THAT(Stage(step), IsOk());
  }
  EXPECT_EQ(ReadAll(reader.get()), first);
  EXPECT_EQ(arena_->superseded_readers(), 0);
}

TEST_F(CudaSendArenaTest, ASlotWithoutReadersLeavesTheDeviceAndIsServedFromTheHost) {
  SYNCOPATE_NEED_GPUS(1);
  Make("whole:1", "whole");
  EXPECT_TRUE(arena_->LeaveDevice().value()) << "before the first version";
  EXPECT_EQ(arena_->device_bytes(), 0);
  ASSERT_THAT(Stage(1), IsOk());
  EXPECT_EQ(arena_->device_bytes(), arena_->send_bytes());
  {
    const std::unique_ptr<DeviceReader> reader = *arena_->OpenOnDevice({1, 1});
    EXPECT_FALSE(arena_->LeaveDevice().value()) << "it has a reader";
    EXPECT_EQ(ToHost(0, reader->arena().data(), arena_->send_bytes()), Expected());
  }
  EXPECT_TRUE(arena_->LeaveDevice().value());
  EXPECT_EQ(arena_->device_bytes(), 0);
  std::unique_ptr<WeightReader> late = *arena_->Open({1, 1});
  EXPECT_EQ(ReadAll(late.get()), Expected());
  // A reader on the device brings it back; one on the host goes on.
  {
    const std::unique_ptr<DeviceReader> reader = *arena_->OpenOnDevice({1, 1});
    EXPECT_EQ(arena_->device_bytes(), arena_->send_bytes());
    EXPECT_EQ(ToHost(0, reader->arena().data(), arena_->send_bytes()), Expected());
  }
  EXPECT_EQ(ReadAll(late.get()), Expected());
  late = nullptr;
  ASSERT_TRUE(arena_->LeaveDevice().value());
  // The next version takes memory of the device again, and the readers of the last one lose it.
  late = *arena_->Open({1, 1});
  SetShard(2);
  ASSERT_THAT(Stage(2), IsOk());
  EXPECT_EQ(arena_->device_bytes(), arena_->send_bytes());
  char byte = 0;
  EXPECT_THAT(late->Read({0, 1}, &byte), HasReason("SUPERSEDED"));
  late = nullptr;
  const std::unique_ptr<DeviceReader> reader = *arena_->OpenOnDevice({1, 2});
  EXPECT_EQ(ToHost(0, reader->arena().data(), arena_->send_bytes()), Expected());
}

TEST_F(CudaSendArenaTest, ASlotThatLeavesAndComesBackHundredTimesTakesNoMemory) {
  SYNCOPATE_NEED_GPUS(1);
  Make("whole:1", "whole");
  int64_t before = 0;
  for (int64_t step = 1; step <= 100; ++step) {
    ASSERT_THAT(Stage(step), IsOk());
    ASSERT_TRUE(arena_->LeaveDevice().value());
    if (step == 2) before = cuda::ReadGpuMemory(0)->free;
  }
  EXPECT_GE(cuda::ReadGpuMemory(0)->free, before);
}

TEST_F(CudaSendArenaTest, RefusesWeightsThatAreNotFiniteAndNamesTheTensor) {
  SYNCOPATE_NEED_GPUS(1);
  Make("replicated:1:fp32", "whole");
  ASSERT_THAT(Stage(1), IsOk());
  for (const Piece& piece : source_->pieces()) {
    if (manifest_.tensors()[static_cast<size_t>(piece.tensor)].name != "model.layers.1.mlp.down_proj.weight") continue;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    ToDevice(0, on_device_.data() + piece.offset + 4 * 777, &nan, 4);
  }
  absl::StatusOr<CudaSendArena::Staged> staged = Stage(2);
  EXPECT_THAT(staged, HasReason("NON_FINITE"));
  EXPECT_THAT(staged, HasMessage(HasSubstr("element 777 of model.layers.1.mlp.down_proj.weight")));
  EXPECT_THAT(arena_->Open({1, 2}), HasReason("VERSION_NOT_STAGED"));
  SetShard(3);
  EXPECT_THAT(Stage(2), IsOk());
}

TEST_F(CudaSendArenaTest, RefusesVersionsOutOfOrderAndRangesOutsideTheArena) {
  SYNCOPATE_NEED_GPUS(1);
  Make("whole:1", "whole");
  ASSERT_THAT(Stage(5), IsOk());
  EXPECT_THAT(Stage(5), HasReason("VERSION_ORDER"));
  EXPECT_THAT(Stage(4), HasReason("VERSION_ORDER"));
  std::unique_ptr<WeightReader> reader = *arena_->Open({1, 5});
  char byte = 0;
  EXPECT_THAT(reader->Read({arena_->send_bytes(), arena_->send_bytes() + 1}, &byte), HasReason("BAD_RANGE"));
}

TEST_F(CudaSendArenaTest, MemoryIsFlatOverManyStages) {
  SYNCOPATE_NEED_GPUS(1);
  Make("whole:1", "whole");
  for (int64_t step = 1; step <= 10; ++step) ASSERT_THAT(Stage(step), IsOk());
  const int64_t free = cuda::ReadGpuMemory(0)->free;
  for (int64_t step = 11; step <= 210; ++step) ASSERT_THAT(Stage(step), IsOk());
  EXPECT_GE(cuda::ReadGpuMemory(0)->free, free);
}

}  // namespace
}  // namespace syncopate::synchronizer
