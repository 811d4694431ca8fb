#include "synchronizer/plan/sync_plan.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/presets.h"
#include "tests/support/synchronizer_fixtures.h"
#include "tests/unit/synchronizer/plan/plan_fixtures.h"

namespace syncopate::synchronizer {
namespace {

using ::testing::HasSubstr;

SyncPlan MakePlan(const Manifest& manifest, const std::string& source, const std::string& destination) {
  auto plan = SyncPlan::Create(manifest, MakeLayout(manifest, source), MakeLayout(manifest, destination));
  if (!plan.ok()) CheckFailed(__FILE__, __LINE__, source.c_str(), plan.status().ToString());
  return *std::move(plan);
}

Manifest ManifestOfModel(const std::string& name) {
  return *model::MakeManifest(*model::FindPreset(name), DType::kBFloat16);
}

TEST(SyncPlanTest, UnshardedWeightsAreOneMessageInTheManifestsOwnOrder) {
  Manifest manifest = SmallModel();
  SyncPlan plan = MakePlan(manifest, "buckets:1", "whole");
  EXPECT_EQ(plan.copies(), (std::vector<Copy>{{0, 0, 0, 0, manifest.arena_bytes()}}));
  EXPECT_EQ(plan.send_bytes(0), manifest.arena_bytes());
  EXPECT_EQ(plan.StagedBuckets(0), manifest.buckets());
  ASSERT_EQ(plan.pack(0).size(), manifest.tensors().size());
  for (const PackOp& op : plan.pack(0)) {
    EXPECT_EQ(op.source_offset, manifest.ranges()[op.tensor].begin);
    EXPECT_EQ(op.send_offset, manifest.ranges()[op.tensor].begin);
  }
}

// So what a source sends can be mapped in place of the receiver's memory.
TEST(SyncPlanTest, FromOneSourceToOneRankTheSendArenaIsTheReceiversWithItsGaps) {
  const Manifest manifest =
      ManifestFor({{.name = "q", .dtype = DType::kBFloat16, .shape = {6, 128}, .spare_rows = 12},
                   {.name = "norm", .dtype = DType::kBFloat16, .shape = {128}},
                   {.name = "a", .dtype = DType::kBFloat16, .shape = {4, 128}, .unit = 1, .adapter = true}});
  const SyncPlan plan = MakePlan(manifest, "units:1:bf16", "whole:1");
  int64_t sent = 0;
  for (const Copy& copy : plan.copies()) {
    EXPECT_EQ(copy.source_offset, copy.destination_offset);
    sent += copy.bytes;
  }
  for (const PackOp& op : plan.pack(0)) EXPECT_EQ(op.send_offset, manifest.ranges()[op.tensor].begin);
  EXPECT_EQ(sent, manifest.weight_bytes()) << "no free row, and not the gap before the adapters";
  EXPECT_EQ(plan.send_bytes(0), manifest.arena_bytes());
}

TEST(SyncPlanTest, ShardsCutAtBucketsAreOneMessageEachAndTheirBucketsAreTheManifests) {
  Manifest manifest = SmallModel(256);
  Layout shards = MakeLayout(manifest, "buckets:3");
  SyncPlan plan = MakePlan(manifest, "buckets:3", "whole");
  EXPECT_EQ(plan.copies().size(), 3u);
  int64_t sum = 0;
  for (int32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(plan.send_bytes(rank), shards.arena_bytes(rank));
    sum += plan.send_bytes(rank);
  }
  EXPECT_EQ(sum, manifest.arena_bytes());
  std::vector<ByteRange> buckets;
  for (const WireBucket& bucket : plan.BucketsTo(0)) {
    buckets.push_back({bucket.destination_offset, bucket.destination_offset + bucket.bytes});
  }
  EXPECT_EQ(buckets, manifest.buckets());
}

TEST(SyncPlanTest, MoreShardsThanElementsLeaveSomeRanksWithNothing) {
  Manifest manifest = ManifestFor({{"a", DType::kBFloat16, {2}}, {"b", DType::kBFloat16, {1}}});
  for (const char* shards : {"units:5", "flat:5", "layers:5", "fsdp2:5", "buckets:5"}) {
    SCOPED_TRACE(shards);
    SyncPlan plan = MakePlan(manifest, shards, "whole");
    EXPECT_EQ(plan.send_bytes(3), 0);
    EXPECT_TRUE(plan.pack(3).empty());
    EXPECT_EQ(plan.ComputeDigests(3).size(), 0);
  }
}

TEST(SyncPlanTest, ReplicatedSourcesShareTheWorkEvenlyInOneMessageEach) {
  Manifest manifest = ManifestOfModel("qwen2.5-0.5b");
  SyncPlan plan = MakePlan(manifest, "replicated:3:fp32", "whole");
  ASSERT_EQ(plan.copies().size(), 3u);
  for (const Copy& copy : plan.copies()) {
    EXPECT_NEAR(static_cast<double>(copy.bytes), static_cast<double>(manifest.arena_bytes()) / 3, 1024);
    EXPECT_EQ(copy.destination_offset % Manifest::kAlignment, 0);
  }
}

TEST(SyncPlanTest, RanksThatNeedTheSameShareBytesAndDigests) {
  Manifest manifest = SmallModel();
  SyncPlan one = MakePlan(manifest, "buckets:2", "whole");
  SyncPlan four = MakePlan(manifest, "buckets:2", "whole:4");
  EXPECT_EQ(four.copies().size(), 4 * one.copies().size());
  EXPECT_EQ(four.digests(), one.digests());
  for (int32_t source = 0; source < 2; ++source) {
    EXPECT_EQ(four.send_bytes(source), one.send_bytes(source));
    EXPECT_EQ(four.pack(source), one.pack(source));
    EXPECT_EQ(four.StagedBuckets(source), one.StagedBuckets(source));
  }
}

TEST(SyncPlanTest, TheHashTellsModelsAndLayoutsApart) {
  Manifest manifest = SmallModel();
  auto hash = [](const Manifest& model, const std::string& from, const std::string& to) {
    return MakePlan(model, from, to).hash();
  };
  uint64_t plain = hash(manifest, "whole", "whole");
  EXPECT_EQ(plain, hash(manifest, "buckets:1", "whole"));
  EXPECT_NE(plain, hash(SmallModel(512), "whole", "whole"));
  EXPECT_NE(plain, hash(manifest, "whole", "whole:2"));
  EXPECT_NE(plain, hash(manifest, "whole:2", "whole"));
  EXPECT_NE(plain, hash(manifest, "flat:1:fp32", "whole"));
}

// Each plan differs from the others in one property.
TEST(SyncPlanTest, TheHashSeesPackOperationsDTypesAndCopies) {
  Manifest manifest = ManifestFor({{"a", DType::kBFloat16, {128}}, {"b", DType::kBFloat16, {128}}});
  const std::vector<Piece> in_order = {{0, 0, 0, 128, 0}, {0, 1, 0, 128, 512}};
  auto plan = [&manifest](std::vector<Piece> held, DType dtype, std::vector<Piece> wanted) {
    return *SyncPlan::Create(manifest, *Layout::Create(manifest, 1, std::move(held), dtype, 1024),
                             *Layout::Create(manifest, 1, std::move(wanted), std::nullopt, 1024));
  };
  SyncPlan one = plan(in_order, DType::kFloat32, in_order);
  SyncPlan swapped = plan({{0, 1, 0, 128, 0}, {0, 0, 0, 128, 512}}, DType::kFloat32, in_order);
  EXPECT_EQ(one.copies(), swapped.copies());
  EXPECT_NE(one.hash(), swapped.hash());
  SyncPlan narrow = plan(in_order, DType::kBFloat16, in_order);
  EXPECT_EQ(one.copies(), narrow.copies());
  EXPECT_NE(one.hash(), narrow.hash());
  // To the second of two ranks, so that the send arena is not the receiver's.
  auto second = [&manifest, &in_order](int64_t a, int64_t b) {
    return *SyncPlan::Create(manifest, *Layout::Create(manifest, 1, in_order, DType::kFloat32, 1024),
                             *Layout::Create(manifest, 2, {{1, 0, 0, 128, a}, {1, 1, 0, 128, b}}, std::nullopt, 1024));
  };
  SyncPlan there = second(0, 512), moved = second(256, 768);
  EXPECT_EQ(there.pack(0), moved.pack(0));
  EXPECT_NE(there.hash(), moved.hash());
}

TEST(SyncPlanTest, ASourceThatHoldsSomethingTwiceGivesNoMoreThanItsShare) {
  Manifest manifest = ManifestFor({{"a", DType::kBFloat16, {1024}}});
  auto source = Layout::Create(manifest, 2, {{0, 0, 0, 1024, 0}, {0, 0, 0, 1024, 2048}, {1, 0, 0, 1024, 0}});
  auto plan = SyncPlan::Create(manifest, *source, Layout::Whole(manifest, 1));
  EXPECT_EQ(plan->copies(), (std::vector<Copy>{{0, 0, 0, 0, 1024}, {1, 0, 0, 1024, 1024}}));
}

TEST(SyncPlanTest, NamesTheTensorThatNoSourceHas) {
  Manifest manifest = SmallModel();
  auto refusal = [&manifest](std::vector<Piece> held) {
    auto partial = Layout::Create(manifest, 1, std::move(held));
    absl::Status status = SyncPlan::Create(manifest, *partial, Layout::Whole(manifest, 1)).status();
    EXPECT_THAT(status, HasReason("PLAN_INCOMPLETE"));
    return std::string(status.message());
  };
  EXPECT_THAT(refusal({{0, 0, 0, 128, 0}, {0, 1, 0, 50, 512}}), HasSubstr("element 50 of layer.weight"));
  EXPECT_THAT(refusal({{0, 0, 0, 128, 0}, {0, 1, 7, 96, 512}}), HasSubstr("element 0 of layer.weight"));
  EXPECT_THAT(refusal({{0, 0, 0, 20, 0}, {0, 0, 30, 128, 512}}), HasSubstr("element 20 of embed"));
}

TEST(SyncPlanTest, RefusesShardsThatHaveLostPrecision) {
  Manifest manifest = ManifestFor({{"w", DType::kFloat32, {8}}});
  Layout narrow = MakeLayout(manifest, "flat:2:bf16");
  EXPECT_THAT(SyncPlan::Create(manifest, narrow, Layout::Whole(manifest, 1)).status(), HasReason("DTYPE_MISMATCH"));
  EXPECT_THAT(SyncPlan::Create(manifest, Layout::Whole(manifest, 1), narrow).status(), HasReason("BAD_LAYOUT"));
}

TEST(SyncPlanTest, ALargePlanHasFewOperationsAndOneMessageAPairOfRanks) {
  Manifest manifest = ManifestOfModel("qwen3-8b");
  SyncPlan plan = MakePlan(manifest, "flat:8:fp32", "tp:8");
  size_t ops = 0;
  for (int32_t source = 0; source < 8; ++source) {
    ops += plan.pack(source).size();
    EXPECT_LE(plan.send_bytes(source), manifest.arena_bytes() / 8 * 11 / 10);
  }
  // There is one operation for each tensor and destination rank, and a few more where a boundary lies inside a row.
  EXPECT_LE(ops, 8 * (manifest.tensors().size() + 8 * 3));
  EXPECT_LE(plan.copies().size(), 8u * 8u);
}

TEST(SyncPlanTest, PrintsASummaryThatStaysShort) {
  std::string text = MakePlan(ManifestOfModel("qwen2.5-7b"), "fsdp2:2:fp32", "tp:4").ToString();
  EXPECT_THAT(text, HasSubstr("2 sources, 4 destinations, 15.2"));
  EXPECT_THAT(text, HasSubstr("source 1 -> destination 3: "));
  EXPECT_THAT(text, HasSubstr("source 0 [0, "));
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 24);
}

}  // namespace
}  // namespace syncopate::synchronizer
