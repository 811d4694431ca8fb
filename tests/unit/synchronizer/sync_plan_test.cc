#include "synchronizer/plan/sync_plan.h"

#include <cstring>
#include <numeric>
#include <random>

#include "gtest/gtest.h"
#include "synchronizer/plan/layout.h"
#include "tests/support/synchronizer_fixtures.h"

namespace syncopate::synchronizer {
namespace {

using Arena = std::vector<unsigned char>;

// A byte that depends on the tensor and the position in it, and is never zero.
unsigned char Truth(int32_t tensor, int64_t byte) { return 1 + Mix64(tensor * 1000003 + byte) % 255; }

// What each rank's arena holds when every piece of the layout has its true bytes.
std::vector<Arena> Filled(const Manifest& manifest, const Layout& layout) {
  std::vector<Arena> arenas;
  for (int32_t rank = 0; rank < layout.ranks(); ++rank) arenas.emplace_back(layout.arena_bytes(rank), 0);
  for (const Piece& piece : layout.pieces()) {
    int64_t width = DTypeBytes(manifest.tensors()[piece.tensor].dtype);
    for (int64_t byte = piece.begin * width; byte < piece.end * width; ++byte) {
      arenas[piece.rank][piece.offset + byte - piece.begin * width] = Truth(piece.tensor, byte);
    }
  }
  return arenas;
}

std::vector<Arena> Replay(const SyncPlan& plan, const std::vector<Arena>& sources, const Layout& destination) {
  std::vector<Arena> arenas;
  for (int32_t rank = 0; rank < destination.ranks(); ++rank) arenas.emplace_back(destination.arena_bytes(rank), 0);
  for (const Copy& copy : plan.copies()) {
    const Arena& from = sources.at(copy.source);
    Arena& to = arenas.at(copy.destination);
    EXPECT_LE(copy.source_offset + copy.bytes, static_cast<int64_t>(from.size()));
    EXPECT_LE(copy.destination_offset + copy.bytes, static_cast<int64_t>(to.size()));
    std::memcpy(to.data() + copy.destination_offset, from.data() + copy.source_offset, copy.bytes);
  }
  return arenas;
}

class RandomModels {
 public:
  explicit RandomModels(uint64_t seed) : random_(seed) {}

  int64_t Between(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }

  Manifest Model() {
    std::vector<TensorSpec> tensors;
    for (int64_t i = Between(1, 6); i > 0; --i) {
      TensorSpec spec{absl::StrCat("t", i), Between(0, 1) == 0 ? DType::kFloat32 : DType::kBFloat16, {}};
      for (int64_t d = Between(0, 3); d > 0; --d) spec.shape.push_back(Between(0, 9) == 0 ? 0 : Between(1, 5) * 12);
      while (spec.NumElements() > 40000) spec.shape.pop_back();
      tensors.push_back(spec);
    }
    auto manifest = Manifest::Create(std::move(tensors), 256 * Between(1, 16));
    SYNCOPATE_CHECK(manifest.ok());
    return *std::move(manifest);
  }

  Layout Any(const Manifest& manifest) {
    switch (Between(0, 3)) {
      case 0:
        return Layout::Whole(manifest, Between(1, 4));
      case 1:
        return Layout::FlatShards(manifest, Between(1, 5));
      case 2:
        return TensorParallel(manifest);
      default:
        return Scattered(manifest);
    }
  }

 private:
  Layout TensorParallel(const Manifest& manifest) {
    int32_t ranks = std::vector<int32_t>{1, 2, 3, 4}[Between(0, 3)];
    std::vector<int> dims;
    for (const TensorSpec& spec : manifest.tensors()) {
      int dim = static_cast<int>(Between(-1, static_cast<int64_t>(spec.shape.size()) - 1));
      dims.push_back(spec.NumElements() == 0 ? -1 : dim);
    }
    auto layout = Layout::TensorParallel(manifest, ranks, dims);
    SYNCOPATE_CHECK(layout.ok());
    return *std::move(layout);
  }

  // Each tensor cut at random places, its pieces on random ranks in random order, some of them twice.
  Layout Scattered(const Manifest& manifest) {
    int32_t ranks = static_cast<int32_t>(Between(1, 4));
    std::vector<Piece> pieces;
    for (size_t i = 0; i < manifest.tensors().size(); ++i) {
      int64_t elements = manifest.tensors()[i].NumElements();
      for (int64_t at = 0; at < elements;) {
        int64_t end = std::min(elements, at + Between(1, std::max<int64_t>(1, elements / 2)));
        for (int64_t copies = Between(0, 4) == 0 ? 2 : 1; copies > 0; --copies) {
          pieces.push_back({static_cast<int32_t>(Between(0, ranks - 1)), static_cast<int32_t>(i), at, end, 0});
        }
        at = end;
      }
    }
    std::shuffle(pieces.begin(), pieces.end(), random_);
    std::vector<int64_t> used(ranks, 0);
    for (Piece& piece : pieces) {
      piece.offset = used[piece.rank];
      int64_t bytes = (piece.end - piece.begin) * DTypeBytes(manifest.tensors()[piece.tensor].dtype);
      used[piece.rank] = (piece.offset + bytes + 3) / 4 * 4 + 4 * Between(0, 3);
    }
    auto layout = Layout::Create(manifest, ranks, std::move(pieces));
    SYNCOPATE_CHECK(layout.ok());
    return *std::move(layout);
  }

  std::mt19937_64 random_;
};

TEST(SyncPlanTest, MovesEveryByteToItsPlaceForRandomModelsAndLayouts) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    RandomModels random(seed);
    Manifest manifest = random.Model();
    Layout source = random.Any(manifest);
    Layout destination = random.Any(manifest);
    auto plan = SyncPlan::Create(manifest, source, destination);
    ASSERT_TRUE(plan.ok()) << plan.status();
    ASSERT_EQ(Replay(*plan, Filled(manifest, source), destination), Filled(manifest, destination));
    auto again = SyncPlan::Create(manifest, source, destination);
    EXPECT_EQ(again->hash(), plan->hash());
    EXPECT_EQ(again->copies(), plan->copies());
  }
}

TEST(SyncPlanTest, UnshardedWeightsAreOneMessage) {
  Manifest manifest = SmallModel();
  auto plan = SyncPlan::Create(manifest, Layout::FlatShards(manifest, 1), Layout::Whole(manifest, 1));
  ASSERT_TRUE(plan.ok());
  ASSERT_EQ(plan->copies().size(), 1u);
  EXPECT_GE(plan->copies()[0].bytes, manifest.weight_bytes());
  EXPECT_LE(plan->copies()[0].bytes, manifest.arena_bytes());
}

TEST(SyncPlanTest, FlatShardsAreOneMessageEachAndCutAtBuckets) {
  Manifest manifest = SmallModel(256);
  Layout shards = Layout::FlatShards(manifest, 3);
  auto plan = SyncPlan::Create(manifest, shards, Layout::Whole(manifest, 1));
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->copies().size(), 3u);
  int64_t sum = 0;
  for (int32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(shards.arena_bytes(rank) % 256, 0);
    sum += shards.arena_bytes(rank);
  }
  EXPECT_EQ(sum, manifest.arena_bytes());
}

TEST(SyncPlanTest, MoreShardsThanBucketsLeaveSomeRanksWithNothing) {
  Manifest manifest = SmallModel(1 << 20);
  Layout shards = Layout::FlatShards(manifest, 3);
  EXPECT_EQ(shards.arena_bytes(0) + shards.arena_bytes(1), 0);
  auto plan = SyncPlan::Create(manifest, shards, Layout::Whole(manifest, 2));
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->CopiesTo(0).size(), 1u);
  EXPECT_EQ(plan->CopiesTo(1).size(), 1u);
}

TEST(SyncPlanTest, DestinationsTakeTurnsBetweenSourcesThatHoldTheSame) {
  Manifest manifest = SmallModel();
  auto plan = SyncPlan::Create(manifest, Layout::Whole(manifest, 2), Layout::Whole(manifest, 4));
  ASSERT_TRUE(plan.ok());
  for (const Copy& copy : plan->copies()) EXPECT_EQ(copy.source, copy.destination % 2);
}

TEST(SyncPlanTest, TheHashTellsModelsAndLayoutsApart) {
  Manifest manifest = SmallModel();
  auto hash = [&manifest](const Layout& from, const Layout& to) {
    return SyncPlan::Create(manifest, from, to)->hash();
  };
  uint64_t plain = hash(Layout::Whole(manifest, 1), Layout::Whole(manifest, 1));
  EXPECT_NE(plain, hash(Layout::Whole(manifest, 1), Layout::Whole(manifest, 2)));
  EXPECT_NE(plain, hash(Layout::Whole(manifest, 2), Layout::Whole(manifest, 1)));
  EXPECT_EQ(plain, hash(Layout::FlatShards(manifest, 1), Layout::Whole(manifest, 1)));
}

TEST(SyncPlanTest, NamesTheTensorThatNoSourceHas) {
  Manifest manifest = SmallModel();
  auto partial = Layout::Create(manifest, 1, {{0, 0, 0, 128, 0}, {0, 1, 0, 50, 512}});
  ASSERT_TRUE(partial.ok());
  absl::Status status = SyncPlan::Create(manifest, *partial, Layout::Whole(manifest, 1)).status();
  EXPECT_THAT(status, HasReason("PLAN_INCOMPLETE"));
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("element 50 of layer.weight"));
}

TEST(SyncPlanTest, PrintsItself) {
  Manifest manifest = SmallModel();
  auto plan = SyncPlan::Create(manifest, Layout::Whole(manifest, 1), Layout::Whole(manifest, 1));
  EXPECT_THAT(plan->ToString(), ::testing::HasSubstr("source 0 [0, "));
}

TEST(LayoutTest, RefusesPiecesThatCannotBe) {
  Manifest manifest = SmallModel();
  auto refuses = [&manifest](std::vector<Piece> pieces) {
    EXPECT_THAT(Layout::Create(manifest, 2, std::move(pieces)).status(), HasReason("BAD_LAYOUT"));
  };
  refuses({{2, 0, 0, 1, 0}});                       // no such rank
  refuses({{0, 9, 0, 1, 0}});                       // no such tensor
  refuses({{0, 0, 5, 5, 0}});                       // empty
  refuses({{0, 0, 100, 129, 0}});                   // beyond the tensor
  refuses({{0, 0, 0, 1, 2}});                       // misaligned
  refuses({{0, 0, 0, 1, -4}});                      // before the arena
  refuses({{0, 0, 0, 128, 0}, {0, 1, 0, 1, 508}});  // overlapping
  EXPECT_THAT(Layout::TensorParallel(manifest, 3, {0, -1, -1, -1}).status(), HasReason("BAD_LAYOUT"));
  EXPECT_THAT(Layout::TensorParallel(manifest, 2, {0}).status(), HasReason("BAD_LAYOUT"));
}

}  // namespace
}  // namespace syncopate::synchronizer
