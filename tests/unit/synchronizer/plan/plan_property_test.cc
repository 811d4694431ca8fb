#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/synchronizer/plan/plan_fixtures.h"

namespace syncopate::synchronizer {
namespace {

constexpr uint64_t kSeeds = 250 / SYNCOPATE_ONE_RUN_IN;
constexpr char kGarbage = '\x5a';  // the padding of a shard, which must never be sent

// Checks that pack operations stay inside their buffers and that no two write the same byte.
void CheckPackOps(const SyncPlan& plan, const Layout& source) {
  for (int32_t rank = 0; rank < plan.sources(); ++rank) {
    std::vector<bool> written(plan.send_bytes(rank), false);
    for (const PackOp& op : plan.pack(rank)) {
      ASSERT_GE(op.source_offset, 0);
      ASSERT_TRUE(op.rows == 1 || (op.source_stride > 0 && op.send_stride > 0));
      int64_t last = op.source_offset + (op.rows - 1) * op.source_stride + op.row_elements * DTypeBytes(op.from);
      ASSERT_LE(last, source.arena_bytes(rank));
      for (int64_t row = 0; row < op.rows; ++row) {
        int64_t begin = op.send_offset + row * op.send_stride;
        for (int64_t at = begin; at < begin + op.row_elements * DTypeBytes(op.to); ++at) {
          ASSERT_FALSE(written.at(at)) << "byte " << at << " of source " << rank;
          written[at] = true;
        }
      }
    }
  }
}

// Checks that messages to one rank do not overlap, and that each begins at the same offset modulo the alignment on both
// sides.
void CheckCopies(const SyncPlan& plan) {
  for (int32_t rank = 0; rank < plan.destinations(); ++rank) {
    int64_t end = 0;
    for (const Copy& copy : plan.CopiesTo(rank)) {
      ASSERT_GE(copy.destination_offset, end);
      ASSERT_GT(copy.bytes, 0);
      ASSERT_EQ((copy.destination_offset - copy.source_offset) % Manifest::kAlignment, 0);
      end = copy.destination_offset + copy.bytes;
    }
  }
}

// Checks that buckets tile the copies, and that a bucket's digest is the same in the send arena and at the receiver.
void CheckBuckets(const Manifest& manifest, const SyncPlan& plan, const std::vector<Arena>& sends,
                  const std::vector<Arena>& arrived) {
  std::vector<uint64_t> digests;
  for (int32_t source = 0; source < plan.sources(); ++source) {
    ASSERT_EQ(plan.ComputeDigests(source).begin, static_cast<int64_t>(digests.size()));
    std::vector<uint64_t> own = DigestRanges(plan.StagedBuckets(source), sends[source].data());
    digests.insert(digests.end(), own.begin(), own.end());
    ASSERT_EQ(plan.ComputeDigests(source).end, static_cast<int64_t>(digests.size()));
  }
  ASSERT_EQ(plan.digests(), static_cast<int64_t>(digests.size()));
  for (int32_t rank = 0; rank < plan.destinations(); ++rank) {
    std::vector<WireBucket> buckets = plan.BucketsTo(rank);
    auto bucket = buckets.begin();
    for (const Copy& copy : plan.CopiesTo(rank)) {
      for (int64_t done = 0; done < copy.bytes; done += bucket->bytes, ++bucket) {
        ASSERT_NE(bucket, buckets.end());
        ASSERT_EQ(bucket->source, copy.source);
        ASSERT_EQ(bucket->source_offset, copy.source_offset + done);
        ASSERT_EQ(bucket->destination_offset, copy.destination_offset + done);
        ASSERT_LE(bucket->bytes, std::min(copy.bytes - done, manifest.bucket_bytes()));
        ASSERT_TRUE(done == 0 || bucket->destination_offset % manifest.bucket_bytes() == 0);
        uint64_t digest = DigestBytes(arrived[rank].data() + bucket->destination_offset, bucket->bytes);
        ASSERT_EQ(digest, digests[bucket->digest_index]);
      }
    }
    ASSERT_EQ(bucket, buckets.end());
  }
}

void CheckPlan(const Manifest& manifest, const Layout& source, const Layout& destination) {
  auto plan = SyncPlan::Create(manifest, source, destination);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_NO_FATAL_FAILURE(CheckPackOps(*plan, source));
  ASSERT_NO_FATAL_FAILURE(CheckCopies(*plan));
  std::vector<Arena> sends = Packed(*plan, Filled(manifest, source, kGarbage));
  std::vector<Arena> arrived = Carried(*plan, sends, destination);
  ASSERT_EQ(arrived, Filled(manifest, destination, 0));
  ASSERT_NO_FATAL_FAILURE(CheckBuckets(manifest, *plan, sends, arrived));
  auto again = SyncPlan::Create(manifest, source, destination);
  ASSERT_EQ(again->hash(), plan->hash());
  ASSERT_EQ(again->buckets(), plan->buckets());
}

TEST(PlanPropertyTest, MovesEveryByteOfAQwenFromAnyShardsToAnyTensorParallelReplica) {
  for (uint64_t seed = 0; seed < 8 * kSeeds; ++seed) {
    RandomCases random(seed);
    const int64_t head_dim = random.Between(1, 3);
    Manifest manifest = random.QwenModel(head_dim);
    std::string from = random.AnyShards(manifest);
    std::string to = random.AnyServing();
    SCOPED_TRACE(absl::StrCat("seed ", seed, ": ", from, " -> ", to));
    ASSERT_NO_FATAL_FAILURE(CheckPlan(manifest, MakeLayout(manifest, from), MakeLayout(manifest, to)));
  }
}

TEST(PlanPropertyTest, MovesEveryByteOfAnyModelToWholeReplicas) {
  for (uint64_t seed = 0; seed < 4 * kSeeds; ++seed) {
    RandomCases random(seed);
    Manifest manifest = random.AnyModel();
    std::string from = random.AnyShards(manifest);
    SCOPED_TRACE(absl::StrCat("seed ", seed, ": ", from));
    Layout whole = Layout::Whole(manifest, static_cast<int32_t>(random.Between(1, 3)));
    ASSERT_NO_FATAL_FAILURE(CheckPlan(manifest, MakeLayout(manifest, from), whole));
  }
}

TEST(PlanPropertyTest, MovesEveryByteBetweenScatteredLayouts) {
  for (uint64_t seed = 0; seed < 8 * kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    RandomCases random(seed);
    Manifest manifest = random.AnyModel();
    Layout source = random.Scattered(manifest);
    ASSERT_NO_FATAL_FAILURE(CheckPlan(manifest, source, random.Scattered(manifest)));
  }
}

TEST(PlanPropertyTest, ASubsetMovesItsBytesAndLeavesItsNeighboursAlone) {
  for (uint64_t seed = 0; seed < 4 * kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    RandomCases random(seed);
    const int64_t head_dim = random.Between(1, 3);
    Manifest manifest = random.QwenModel(head_dim);
    std::vector<int32_t> named;
    for (size_t i = 0; i < manifest.tensors().size(); ++i) {
      if (random.Between(0, 2) == 0) named.push_back(static_cast<int32_t>(i));
    }
    Layout source = MakeLayout(manifest, random.AnyShards(manifest));
    Layout subset = MakeLayout(manifest, random.AnyServing()).Only(named);
    ASSERT_NO_FATAL_FAILURE(CheckPlan(manifest, source, subset));
    auto plan = SyncPlan::Create(manifest, source, subset);
    for (const Piece& piece : subset.pieces()) {
      if (subset.Moves(piece.tensor)) continue;
      int64_t end = piece.offset + piece.elements() * DTypeBytes(manifest.tensors()[piece.tensor].dtype);
      for (const Copy& copy : plan->CopiesTo(piece.rank)) {
        bool apart = copy.destination_offset >= end || copy.destination_offset + copy.bytes <= piece.offset;
        ASSERT_TRUE(apart) << manifest.tensors()[piece.tensor].name;
      }
    }
  }
}

// Shows that the comparison of bytes above works: it must detect each of these bugs.
TEST(PlanPropertyTest, TheComparisonSeesSlipsInPackOperations) {
  RandomCases random(7);
  Manifest manifest = random.QwenModel(2);
  Layout source = MakeLayout(manifest, "flat:3:fp32");
  Layout destination = MakeLayout(manifest, "tp:2:fused");
  auto plan = SyncPlan::Create(manifest, source, destination);
  ASSERT_TRUE(plan.ok());
  std::vector<Arena> shards = Filled(manifest, source, kGarbage);
  const std::vector<Arena> truth = Filled(manifest, destination, 0);
  using Slip = void (*)(PackOp&);
  const std::map<std::string, Slip> slips = {
      {"a row split off by one", [](PackOp& op) { op.source_offset += DTypeBytes(op.from); }},
      {"swapped strides", [](PackOp& op) { std::swap(op.source_stride, op.send_stride); }},
      {"a row too few", [](PackOp& op) { --op.rows; }},
      {"a column too few", [](PackOp& op) { --op.row_elements; }},
      {"a slip in the send arena", [](PackOp& op) { op.send_offset -= DTypeBytes(op.to); }}};
  for (const auto& [what, slip] : slips) {
    std::vector<PackOp> ops = plan->pack(1);
    auto strided = std::find_if(ops.begin(), ops.end(), [](const PackOp& op) { return op.rows > 2; });
    ASSERT_NE(strided, ops.end());
    slip(*strided);
    std::vector<Arena> sends = Packed(*plan, shards);
    sends[1].assign(sends[1].size(), 0);
    PackOnHost(ops, shards[1].data(), sends[1].data());
    EXPECT_NE(Carried(*plan, sends, destination), truth) << what;
  }
}

}  // namespace
}  // namespace syncopate::synchronizer
