#include "trainer/staging/host_stager.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "base/half.h"

namespace syncopate::trainer {
namespace {

Manifest ManifestFor(DType dtype) {
  return Manifest::Create({{"a", dtype, {3, 5}}, {"b", dtype, {130}}}, /*bucket_bytes=*/256).value();
}

// A policy whose weights do not change.
class StillPolicy final : public Policy {
 public:
  StillPolicy() : weights_(static_cast<size_t>(manifest_.arena_bytes()) / sizeof(float)) {
    for (size_t tensor = 0; tensor < manifest_.tensors().size(); ++tensor) {
      for (int64_t i = 0; i < manifest_.tensors()[tensor].NumElements(); ++i) {
        At(tensor, i) = 0.001f + static_cast<float>(tensor) + 0.01f * static_cast<float>(i);
      }
    }
  }
  float& At(size_t tensor, int64_t i) { return weights_[manifest_.ranges()[tensor].begin / sizeof(float) + i]; }

  const Manifest& manifest() const override { return manifest_; }
  absl::StatusOr<StepFigures> Step(const std::vector<const TrajectoryGroup*>&, int64_t) override {
    return StepFigures();
  }
  absl::StatusOr<StepFigures> SupervisedStep(const std::vector<const TrajectoryGroup*>&) override {
    return StepFigures();
  }
  absl::StatusOr<HeldOutLoss> MeasureSupervised(const std::vector<const TrajectoryGroup*>&) override {
    return HeldOutLoss();
  }
  // Reads the tensor in two pieces, as from a device.
  absl::Status WriteTensor(PolicyPart, size_t index, const model::ByteSink& sink) const override {
    if (!error_.ok()) return error_;
    const ByteRange& range = manifest_.ranges()[index];
    const auto* bytes = reinterpret_cast<const char*>(weights_.data()) + range.begin;
    constexpr int64_t kFirst = 2 * sizeof(float);
    SYNCOPATE_RETURN_IF_ERROR(sink({bytes, kFirst}));
    return sink({bytes + kFirst, static_cast<size_t>(range.size() - kFirst)});
  }
  absl::StatusOr<std::shared_ptr<const PolicySnapshot>> TakeSnapshot(const std::string&) const override {
    return std::make_shared<const PolicySnapshot>();  // no checkpoint saves the snapshot
  }
  absl::StatusOr<std::shared_ptr<const PolicySnapshot>> TakeWeights(const std::string&) const override {
    return std::make_shared<const PolicySnapshot>();  // no export saves the snapshot
  }
  absl::Status SetReader(std::function<absl::Status()> finish) override {
    reader_ = std::move(finish);
    return absl::OkStatus();
  }
  // Called as before each update.
  absl::Status FinishRead() {
    const std::function<absl::Status()> finish = std::exchange(reader_, nullptr);
    return finish == nullptr ? absl::OkStatus() : finish();
  }
  // Reads the shard in two pieces, as from a device.
  absl::Status ReadShard(DType dtype, const ShardSink& sink) const override {
    if (!error_.ok()) return error_;
    EXPECT_EQ(dtype, shard_dtype_);
    std::vector<uint16_t> rounded;
    for (const float weight : weights_) rounded.push_back(RoundToBFloat16(weight));
    const bool rounds = dtype == DType::kBFloat16;
    const char* bytes = rounds ? reinterpret_cast<const char*>(rounded.data()) : static_cast<const char*>(arena());
    const int64_t size = static_cast<int64_t>(weights_.size()) * DTypeBytes(dtype), first = 2 * DTypeBytes(dtype);
    SYNCOPATE_RETURN_IF_ERROR(sink(0, {bytes, static_cast<size_t>(first)}));
    return sink(first, {bytes + first, static_cast<size_t>(size - first)});
  }
  DType GetShardDType(const Manifest&) const override { return shard_dtype_; }
  absl::StatusOr<uint64_t> Digest() const override { return CombineDigests(digests()); }
  absl::Status CheckFinite() const override { return absl::OkStatus(); }
  int64_t updates() const override { return 0; }
  absl::Status BeginUse() override { return absl::OkStatus(); }
  absl::Status EndUse() override { return absl::OkStatus(); }
  absl::StatusOr<StateMoves> EnterRolloutMode() override { return StateMoves(); }
  absl::StatusOr<StateMoves> EnterTrainerMode() override { return StateMoves(); }
  PolicyMemory memory() const override { return {}; }
  PolicyMoves TakeMoves() override { return {}; }

  const void* arena() const { return weights_.data(); }
  std::vector<uint64_t> digests() const { return DigestBuckets(manifest_, arena()); }

  absl::Status error_;
  DType shard_dtype_ = DType::kFloat32;

 private:
  std::function<absl::Status()> reader_;
  const Manifest manifest_ = ManifestFor(DType::kFloat32);
  std::vector<float> weights_;
};

std::vector<char> Staged(HostStager& stager, const PolicyVersion& version) {
  std::vector<char> bytes(static_cast<size_t>(stager.manifest().arena_bytes()));
  auto reader = stager.store()->Open(version).value();
  EXPECT_TRUE(reader->Read({0, stager.manifest().arena_bytes()}, bytes.data()).ok());
  return bytes;
}

TEST(HostStagerTest, StagesTheWeightsAsTheyAre) {
  StillPolicy policy;
  auto stager = HostStager::Create(&policy, ManifestFor(DType::kFloat32), /*slots=*/2).value();
  const auto staged = stager->Stage({1, 0});
  ASSERT_TRUE(staged.ok()) << staged.status();
  EXPECT_EQ(staged->bucket_digests, policy.digests());
  EXPECT_EQ(staged->digest, CombineDigests(staged->bucket_digests));
  EXPECT_EQ(std::memcmp(Staged(*stager, {1, 0}).data(), policy.arena(), policy.manifest().arena_bytes()), 0);
  EXPECT_EQ(stager->bytes(), 2 * policy.manifest().arena_bytes());
}

TEST(HostStagerTest, TheyAreRoundedToWhatTheyTravelInHereOrWhereTheyAreRead) {
  for (const DType shard_dtype : {DType::kFloat32, DType::kBFloat16}) {
    StillPolicy policy;
    policy.shard_dtype_ = shard_dtype;
    const Manifest wire = ManifestFor(DType::kBFloat16);
    auto stager = HostStager::Create(&policy, wire, /*slots=*/1).value();
    EXPECT_EQ(stager->layout(), shard_dtype == DType::kFloat32 ? "units:1:fp32" : "units:1:bf16");
    ASSERT_TRUE(stager->Stage({1, 0}).ok());
    std::vector<char> expected(static_cast<size_t>(wire.arena_bytes()));
    for (size_t tensor = 0; tensor < wire.tensors().size(); ++tensor) {
      for (int64_t i = 0; i < wire.tensors()[tensor].NumElements(); ++i) {
        const uint16_t rounded = RoundToBFloat16(policy.At(tensor, i));
        std::memcpy(expected.data() + wire.ranges()[tensor].begin + 2 * i, &rounded, sizeof(rounded));
      }
    }
    EXPECT_EQ(Staged(*stager, {1, 0}), expected);
  }
}

TEST(HostStagerTest, RefusesNumbersThatAreNotFiniteOrBecomeSo) {
  StillPolicy policy;
  auto stager = HostStager::Create(&policy, ManifestFor(DType::kBFloat16), /*slots=*/1).value();
  policy.At(1, 7) = std::nanf("");
  EXPECT_EQ(ErrorReason(stager->Stage({1, 0}).status()), "NON_FINITE");
  policy.At(1, 7) = 3.4e38f;  // above the largest bfloat16
  EXPECT_EQ(ErrorReason(stager->Stage({1, 0}).status()), "NON_FINITE");
  policy.At(1, 7) = 0;
  EXPECT_TRUE(stager->Stage({1, 0}).ok());
}

TEST(HostStagerTest, StagesTheWeightsOfItsLaunchThoughTheNextUpdateComesBeforeItsDigests) {
  StillPolicy policy;
  const std::vector<uint64_t> before = policy.digests();
  auto stager = HostStager::Create(&policy, ManifestFor(DType::kFloat32), /*slots=*/1).value();
  ASSERT_TRUE(stager->Launch({1, 0}).ok());
  EXPECT_EQ(stager->TakeWaitSeconds(), 0.0);
  EXPECT_EQ(ErrorReason(stager->Launch({1, 1})), "STAGING");
  ASSERT_TRUE(policy.FinishRead().ok());  // the policy's thread makes the copy, as no other thread has begun it
  EXPECT_GT(stager->TakeWaitSeconds(), 0.0);
  EXPECT_EQ(stager->TakeWaitSeconds(), 0.0);
  policy.At(0, 0) += 1;
  const auto staged = stager->Await();
  ASSERT_TRUE(staged.ok()) << staged.status();
  EXPECT_EQ(staged->bucket_digests, before);
  EXPECT_EQ(ErrorReason(stager->Await().status()), "STAGING");
}

TEST(HostStagerTest, AnUpdateWaitsForTheThreadThatReadsTheWeights) {
  StillPolicy policy;
  const std::vector<uint64_t> before = policy.digests();
  auto stager = HostStager::Create(&policy, ManifestFor(DType::kFloat32), /*slots=*/1).value();
  for (int64_t step = 0; step < 50; ++step) {
    ASSERT_TRUE(stager->Launch({1, step}).ok());
    absl::StatusOr<HostStager::Staged> staged;
    std::thread other([&] { staged = stager->Await(); });
    ASSERT_TRUE(policy.FinishRead().ok());
    const float number = std::exchange(policy.At(0, 0), 5.0f);
    other.join();
    policy.At(0, 0) = number;
    ASSERT_TRUE(staged.ok()) << staged.status();
    EXPECT_EQ(staged->bucket_digests, before);
  }
}

TEST(HostStagerTest, PassesOnThatTheWeightsCannotBeRead) {
  StillPolicy policy;
  auto stager = HostStager::Create(&policy, ManifestFor(DType::kFloat32), /*slots=*/1).value();
  policy.error_ = Error(absl::StatusCode::kInternal, "TORCH", "the device is gone");
  EXPECT_EQ(ErrorReason(stager->Stage({1, 0}).status()), "TORCH");
}

}  // namespace
}  // namespace syncopate::trainer
