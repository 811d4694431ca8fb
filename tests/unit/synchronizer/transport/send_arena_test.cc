#include "synchronizer/transport/send_arena.h"

#include <unistd.h>

#include <atomic>
#include <cstring>
#include <limits>
#include <thread>

#include "synchronizer/transport/finite_check.h"
#include "synchronizer/transport/shared_base_memory.h"
#include "tests/support/transport_conformance.h"

namespace syncopate::synchronizer {
namespace {

class SendArenaTest : public ::testing::Test {
 protected:
  absl::StatusOr<SendArena::Staged> Stage(int64_t step) {
    return arena_->Stage({1, step}, [this, step](char* bytes) { return FillWeights(manifest_, step, bytes); });
  }

  absl::Status ReadAll(WeightReader* reader) {
    std::vector<char> bytes(manifest_.arena_bytes());
    return reader->Read({0, manifest_.arena_bytes()}, bytes.data());
  }

  Manifest manifest_ = SmallModel();
  std::unique_ptr<SendArena> arena_ = *SendArena::Create(manifest_, {.slots = 2});
};

TEST_F(SendArenaTest, DigestsAreThoseOfTheBytesThatAreRead) {
  auto staged = Stage(1);
  ASSERT_TRUE(staged.ok());
  auto reader = arena_->Open({1, 1});
  ASSERT_TRUE(reader.ok());
  std::vector<char> bytes(manifest_.arena_bytes());
  ASSERT_TRUE((*reader)->Read({0, manifest_.arena_bytes()}, bytes.data()).ok());
  EXPECT_EQ(DigestBuckets(manifest_, bytes.data()), staged->bucket_digests);
  EXPECT_EQ(CombineDigests(staged->bucket_digests), staged->digest);
}

TEST_F(SendArenaTest, TakesAFreeSlotAndSparesPinnedOnes) {
  ASSERT_TRUE(Stage(1).ok());
  auto pinned = *arena_->Open({1, 1});
  for (int64_t step = 2; step < 6; ++step) {
    ASSERT_TRUE(Stage(step).ok());
    EXPECT_TRUE(arena_->Open({1, step}).ok());
    EXPECT_TRUE(ReadAll(pinned.get()).ok());
  }
  EXPECT_EQ(arena_->superseded_readers(), 0);
}

TEST_F(SendArenaTest, TakesTheOldestVersionFromItsReadersWhenAllAreTaken) {
  ASSERT_TRUE(Stage(1).ok());
  auto older = *arena_->Open({1, 1});
  ASSERT_TRUE(Stage(2).ok());
  auto newer = *arena_->Open({1, 2});
  ASSERT_TRUE(Stage(3).ok());
  EXPECT_THAT(ReadAll(older.get()), HasReason("SUPERSEDED"));
  EXPECT_EQ(ReadAll(older.get()).code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(ReadAll(newer.get()).ok());
  EXPECT_THAT(arena_->Open({1, 1}).status(), HasReason("VERSION_NOT_STAGED"));
  EXPECT_EQ(arena_->superseded_readers(), 1);
}

TEST_F(SendArenaTest, AReaderThatLostItsSlotDoesNotUnpinTheNextOne) {
  ASSERT_TRUE(Stage(1).ok());
  auto first = *arena_->Open({1, 1});
  auto keep = Stage(2);
  auto second = *arena_->Open({1, 2});
  ASSERT_TRUE(Stage(3).ok());  // uses the slot of version 1
  auto third = *arena_->Open({1, 3});
  first.reset();
  ASSERT_TRUE(Stage(4).ok());  // uses the slot of version 2, not that of the pinned newer version
  EXPECT_TRUE(ReadAll(third.get()).ok());
  EXPECT_THAT(ReadAll(second.get()), HasReason("SUPERSEDED"));
}

TEST_F(SendArenaTest, RefusesWeightsThatAreNotFiniteNamingTheTensor) {
  ASSERT_TRUE(Stage(1).ok());
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    auto staged = arena_->Stage({1, 2}, [this, bad](char* bytes) {
      SYNCOPATE_RETURN_IF_ERROR(FillWeights(manifest_, 2, bytes));
      std::memcpy(bytes + manifest_.ranges()[2].begin + 8, &bad, 4);
      return absl::OkStatus();
    });
    EXPECT_THAT(staged.status(), HasReason("NON_FINITE"));
    EXPECT_THAT(std::string(staged.status().message()), ::testing::HasSubstr("element 2 of layer.bias"));
    EXPECT_THAT(arena_->Open({1, 2}).status(), HasReason("VERSION_NOT_STAGED"));
  }
  EXPECT_TRUE(arena_->Open({1, 1}).ok()) << "the version before is still there";
  EXPECT_TRUE(Stage(2).ok());
}

TEST_F(SendArenaTest, VersionsOnlyGoForward) {
  ASSERT_TRUE(Stage(3).ok());
  EXPECT_THAT(Stage(3).status(), HasReason("VERSION_ORDER"));
  EXPECT_THAT(Stage(2).status(), HasReason("VERSION_ORDER"));
}

TEST_F(SendArenaTest, RefusesRangesOutsideTheArena) {
  ASSERT_TRUE(Stage(1).ok());
  auto reader = *arena_->Open({1, 1});
  char byte;
  for (ByteRange bad : {ByteRange{-1, 0}, ByteRange{5, 4}, ByteRange{0, manifest_.arena_bytes() + 1}}) {
    EXPECT_THAT(reader->Read(bad, &byte), HasReason("BAD_RANGE"));
  }
}

TEST_F(SendArenaTest, AReaderSeesOneVersionOrIsToldWhileTheTrainerStagesOnAndOn) {
  std::atomic<int64_t> newest = 1;
  std::atomic<bool> enough = false;
  ASSERT_TRUE(Stage(1).ok());
  std::thread trainer([&] {
    for (int64_t step = 2; !enough; ++step) {
      SYNCOPATE_CHECK(Stage(step).ok());
      newest = step;
    }
  });
  std::vector<char> expected(manifest_.arena_bytes(), 0);
  std::vector<char> bytes(manifest_.arena_bytes(), 0);
  bool right = true;
  for (int whole = 0; whole < 200 && right;) {
    int64_t step = newest;
    auto reader = arena_->Open({1, step});
    bool all = reader.ok();
    for (int64_t at = 0; at < manifest_.arena_bytes() && all; at += 256) {
      all = (*reader)->Read({at, at + 256}, bytes.data() + at).ok();
    }
    if (!all) continue;
    ++whole;
    right = FillWeights(manifest_, step, expected.data()).ok() && bytes == expected;
  }
  enough = true;
  trainer.join();
  EXPECT_TRUE(right);
}

TEST(FiniteCheckTest, KnowsBothTypes) {
  Manifest manifest = SmallModel();
  std::vector<char> arena(manifest.arena_bytes(), 0);
  EXPECT_TRUE(CheckFinite(manifest, arena.data()).ok());
  uint16_t infinity = 0xff80;
  std::memcpy(arena.data() + manifest.ranges()[1].begin, &infinity, 2);
  EXPECT_THAT(std::string(CheckFinite(manifest, arena.data()).message()),
              ::testing::HasSubstr("element 0 of layer.weight"));
}

TEST(SendArenaForPlanTest, StagesAShardInWireOrderAndNamesWhatIsNotFinite) {
  auto manifest = std::make_shared<const Manifest>(TinyTransformer(DType::kBFloat16));
  auto planned = *PlanCache(manifest).Get({"flat:2:fp32", 2, "tp:2", 2});
  for (int32_t rank : {0, 1}) {
    auto arena = *SendArena::CreateForPlan(*manifest, planned->plan, rank, {});
    EXPECT_EQ(arena->plan_hash(), planned->plan.hash());
    EXPECT_EQ(arena->arena_bytes(), planned->plan.send_bytes(rank));
    std::vector<char> shard = LayoutContents(*manifest, planned->source, rank, 3);
    auto pack = [&](char* bytes) {
      PackOnHost(planned->plan.pack(rank), shard.data(), bytes);
      return absl::OkStatus();
    };
    auto staged = arena->Stage({1, 1}, pack);
    ASSERT_TRUE(staged.ok()) << staged.status();
    EXPECT_EQ(static_cast<int64_t>(staged->bucket_digests.size()), planned->plan.ComputeDigests(rank).size());
    const float bad = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(shard.data() + planned->plan.pack(rank).front().source_offset, &bad, 4);
    EXPECT_THAT(arena->Stage({1, 2}, pack).status(), HasReason("NON_FINITE"));
  }
}

// All bytes of the version {1, step}; empty if they cannot be read.
std::vector<char> ReadVersion(SendArena& arena, int64_t step) {
  std::vector<char> bytes(static_cast<size_t>(arena.arena_bytes()));
  const absl::Status read = (*arena.Open({1, step}))->Read({0, arena.arena_bytes()}, bytes.data());
  EXPECT_TRUE(read.ok()) << read;
  return read.ok() ? bytes : std::vector<char>();
}

// Over one rank and over two, to whole receivers and to ranks that share the model.
TEST(SendArenaForPlanTest, TheBaseIsCopiedOnceToEachSlotAndDigestedOnce) {
  std::vector<TensorSpec> tensors = {
      {.name = "base", .shape = {64, 24}, .split = Split::kRows},
      {.name = "norm", .shape = {24}},
      {.name = "a", .shape = {8, 24}, .unit = 1, .adapter = true},
      {.name = "b", .shape = {64, 8}, .unit = 1, .split = Split::kRows, .adapter = true}};
  auto manifest = std::make_shared<const Manifest>(Manifest::Create(tensors, 1024).value());
  for (const PlanKey& key : {PlanKey{"units:1:fp32", 1, "whole:1", 1}, PlanKey{"units:2:fp32", 2, "tp:2", 2}}) {
    const auto planned = *PlanCache(manifest).Get(key);
    for (int32_t rank = 0; rank < key.sources; ++rank) {
      const std::vector<PackOp>& all = planned->plan.pack(rank);
      std::vector<PackOp> adapters;
      for (const PackOp& op : all) {
        if (tensors[static_cast<size_t>(op.tensor)].adapter) adapters.push_back(op);
      }
      auto arena = *SendArena::CreateForPlan(*manifest, planned->plan, rank, {.slots = 2});
      int whole = 0, parts = 0;
      std::vector<char> shard;
      const auto stage = [&](int64_t step) {
        shard = LayoutContents(*manifest, planned->source, rank, step);
        if (step > 1) {  // the base is that of the first version
          const std::vector<char> first = LayoutContents(*manifest, planned->source, rank, 1);
          for (const PackOp& op : all) {
            if (tensors[static_cast<size_t>(op.tensor)].adapter) continue;
            for (int64_t row = 0; row < op.rows; ++row) {
              const int64_t at = op.source_offset + row * op.source_stride;
              std::copy_n(first.begin() + at, op.row_elements * 4, shard.begin() + at);
            }
          }
        }
        EXPECT_TRUE(arena
                        ->Launch(
                            {1, step},
                            [&](char* bytes) {
                              ++whole;
                              PackOnHost(all, shard.data(), bytes);
                              return absl::OkStatus();
                            },
                            [&](char* bytes) {
                              ++parts;
                              PackOnHost(adapters, shard.data(), bytes);
                              return absl::OkStatus();
                            })
                        .ok());
        return arena->Await();
      };
      for (int64_t step = 1; step < 6; ++step) {
        const auto staged = stage(step);
        ASSERT_TRUE(staged.ok()) << staged.status();
        auto fresh = *SendArena::CreateForPlan(*manifest, planned->plan, rank, {.slots = 1});
        const auto expected = fresh->Stage({1, step}, [&](char* bytes) {
          PackOnHost(all, shard.data(), bytes);
          return absl::OkStatus();
        });
        EXPECT_EQ(staged->bucket_digests, expected->bucket_digests) << "step " << step;
        EXPECT_EQ(ReadVersion(*arena, step), ReadVersion(*fresh, step)) << "step " << step;
      }
      EXPECT_EQ(whole, 2) << "once for each slot";
      EXPECT_EQ(parts, 3);
    }
  }
}

// The slots' base is one memory, whose bytes lie where receivers have them.
TEST(SendArenaForPlanTest, ABaseThatIsLentIsThereOnceAndIsNeverWrittenAgain) {
  std::vector<TensorSpec> tensors = {{.name = "base", .shape = {64, 24}},
                                     {.name = "norm", .shape = {25}},
                                     {.name = "a", .shape = {8, 24}, .unit = 1, .adapter = true},
                                     {.name = "b", .shape = {64, 8}, .unit = 1, .adapter = true}};
  auto manifest = std::make_shared<const Manifest>(Manifest::Create(tensors, 1024).value());
  const auto planned = *PlanCache(manifest).Get({"units:1:fp32", 1, "whole:1", 1});
  const std::vector<PackOp>& all = planned->plan.pack(0);
  std::vector<PackOp> adapters;
  for (const PackOp& op : all) {
    if (tensors[static_cast<size_t>(op.tensor)].adapter) adapters.push_back(op);
  }
  auto arena = *SendArena::CreateForPlan(*manifest, planned->plan, 0, {.slots = 3, .lends_base = true});
  EXPECT_EQ(arena->arena_bytes(), manifest->arena_bytes()) << "a slot is the receiver's arena";
  EXPECT_THAT(arena->LendBase().status(), HasReason("NOT_LENT"));
  const std::vector<char> first = LayoutContents(*manifest, planned->source, 0, 1);
  std::vector<std::unique_ptr<WeightReader>> readers;
  for (int64_t step = 1; step < 6; ++step) {
    const std::vector<char> shard = LayoutContents(*manifest, planned->source, 0, step);
    const auto whole = [&](char* bytes) {
      PackOnHost(all, first.data(), bytes);
      return absl::OkStatus();
    };
    const auto parts = [&](char* bytes) {
      PackOnHost(adapters, shard.data(), bytes);
      return absl::OkStatus();
    };
    ASSERT_TRUE(arena->Launch({1, step}, whole, parts).ok());
    const auto staged = arena->Await();
    ASSERT_TRUE(staged.ok()) << staged.status();
    ASSERT_TRUE(arena->LendBase().ok()) << arena->LendBase().status();
    auto fresh = *SendArena::CreateForPlan(*manifest, planned->plan, 0, {.slots = 1});
    const auto expected = fresh->Stage({1, step}, [&](char* bytes) {
      PackOnHost(all, first.data(), bytes);
      PackOnHost(adapters, shard.data(), bytes);
      return absl::OkStatus();
    });
    EXPECT_EQ(staged->bucket_digests, expected->bucket_digests) << "step " << step;
    const std::vector<char> wanted = ReadVersion(*fresh, step);
    EXPECT_EQ(ReadVersion(*arena, step), wanted) << "step " << step;
    SharedBaseMemory receiver(1, {.base = manifest->adapters_begin(), .range = manifest->arena_bytes()},
                              SharedBaseMemory::Base::kOnDemand);
    const SharedMemory lent = *arena->LendBase();
    LentMemory received{lent->info, {}};
    received.handles.emplace_back(dup(lent->handles.front().get()));
    ASSERT_TRUE(receiver.Map(std::move(received)).ok());
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].adapter) continue;
      const ByteRange range = manifest->ranges()[i];
      EXPECT_EQ(
          std::memcmp(receiver.range(0) + range.begin, wanted.data() + range.begin, static_cast<size_t>(range.size())),
          0)
          << tensors[i].name;
    }
  }
  EXPECT_THAT(arena->Launch({1, 9}, [](char*) { return absl::OkStatus(); }), HasReason("BASE_LENT"));
}

int64_t CountLendable(int64_t columns, const std::string& source = "units:1:bf16", const std::string& to = "whole:1") {
  const std::vector<TensorSpec> tensors = {
      {.name = "base", .dtype = DType::kBFloat16, .shape = {3, columns}, .spare_rows = 6},
      {.name = "norm", .dtype = DType::kBFloat16, .shape = {25}},
      {.name = "a", .dtype = DType::kBFloat16, .shape = {2, columns}, .unit = 1, .adapter = true}};
  auto manifest = std::make_shared<const Manifest>(Manifest::Create(tensors, 1024).value());
  const auto planned = *PlanCache(manifest).Get({source, 1, to, 1});
  const int64_t lendable = SendArena::LendableBytes(*manifest, planned->plan);
  EXPECT_TRUE(lendable == 0 || lendable == manifest->adapters_begin()) << lendable;
  return lendable;
}

// What another rollouter writes to rows that the base leaves free does not reach one that is sent the base.
TEST(SendArenaForPlanTest, WhatIsWrittenToFreeRowsIsNeitherDigestedNorSent) {
  const std::vector<TensorSpec> tensors = {
      {.name = "q", .dtype = DType::kBFloat16, .shape = {6, 128}, .spare_rows = 12},
      {.name = "norm", .dtype = DType::kBFloat16, .shape = {100}},
      {.name = "down", .dtype = DType::kBFloat16, .shape = {5, 256}, .spare_rows = 3},
      {.name = "a", .dtype = DType::kBFloat16, .shape = {4, 128}, .unit = 1, .adapter = true}};
  auto manifest = std::make_shared<const Manifest>(Manifest::Create(tensors, 1024).value());
  const auto planned = *PlanCache(manifest).Get({"units:1:bf16", 1, "whole:1", 1});
  const SyncPlan& plan = planned->plan;
  ASSERT_EQ(SendArena::LendableBytes(*manifest, plan), manifest->adapters_begin());
  std::vector<char> arena(static_cast<size_t>(plan.send_bytes(0)), 0);
  PackOnHost(plan.pack(0), LayoutContents(*manifest, planned->source, 0, 1).data(), arena.data());
  const std::vector<uint64_t> digests = DigestRanges(plan.StagedBuckets(0), arena.data());
  const auto receive = [&] {
    std::vector<char> received(static_cast<size_t>(manifest->arena_bytes()), 0);
    for (const Copy& copy : plan.CopiesTo(0)) {
      std::memcpy(received.data() + copy.destination_offset, arena.data() + copy.source_offset,
                  static_cast<size_t>(copy.bytes));
    }
    return received;
  };
  const std::vector<char> before = receive();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto rows = static_cast<size_t>(tensors[i].SpareBytes());
    std::memset(arena.data() + manifest->ranges()[i].end, 0x7f, rows);  // NaN
  }
  EXPECT_EQ(DigestRanges(plan.StagedBuckets(0), arena.data()), digests);
  EXPECT_EQ(receive(), before);
}

// Three rows of 100 columns end inside a block of 256 bytes, which is sent and digested as a whole.
TEST(SendArenaForPlanTest, ABaseIsLentOnlyIfNoByteOfRowsThatAReceiverWritesIsSent) {
  EXPECT_GT(CountLendable(128), 0);
  EXPECT_EQ(CountLendable(100), 0);
  EXPECT_EQ(CountLendable(16), 0) << "the free rows end in the block in which they begin";
}

}  // namespace
}  // namespace syncopate::synchronizer
