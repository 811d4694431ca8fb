#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "gtest/gtest.h"
#include "synchronizer/sync_outcome.h"
#include "synchronizer/transport/host_buffer.h"
#include "tests/component/synchronizer/synchronizer_host.h"
#include "tests/component/synchronizer/test_members.h"

namespace syncopate::synchronizerd {
namespace {

constexpr int64_t kVersions = 100;

// A decode loop with one weight set. A step takes so long that there is a newer version when it ends.
class OneWeightSet final : public synchronizer::WeightTarget {
 public:
  explicit OneWeightSet(int64_t bytes) : buffer_(bytes) {}
  void Published(int64_t step) {
    MutexLock lock(&mutex_);
    published_ = step;
  }
  char* shadow() override { return buffer_.data(); }
  bool in_place() const override { return true; }
  absl::Status BeginInPlace(const PolicyVersion&, absl::Duration deadline) override {
    MutexLock lock(&mutex_);
    auto stopped = [this, before = published_]()
                       ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return published_ > before || published_ == kVersions; };
    if (!mutex_.AwaitWithTimeout(Condition(&stopped), deadline)) {
      return Error(absl::StatusCode::kDeadlineExceeded, "INSTALL_DEADLINE", "the step has not ended");
    }
    ++stops;
    return absl::OkStatus();
  }
  absl::StatusOr<synchronizer::InstallResult> Install(const PolicyVersion&, uint64_t, absl::Duration) override {
    ++installs;
    return synchronizer::InstallResult();
  }
  absl::StatusOr<synchronizer::InstallResult> Relabel(const PolicyVersion&, absl::Duration) override {
    return synchronizer::InstallResult();
  }
  void CancelInPlace() override { ++kept; }
  void Invalidate() override { ++torn; }

  std::atomic<int> stops = 0;
  std::atomic<int> installs = 0;
  std::atomic<int> kept = 0;
  std::atomic<int> torn = 0;

 private:
  synchronizer::HostBuffer buffer_;
  Mutex mutex_;
  int64_t published_ ABSL_GUARDED_BY(mutex_) = 0;
};

TEST(InPlaceTest, VersionsThatComeFasterThanGenerationStopsFailNothing) {
  SynchronizerHost host(::testing::TempDir() + "synchronizer-" + RandomUuid());
  const Manifest model = synchronizer::SmallModel();
  TestTrainer trainer(host.address(), "t", model, /*checkpoint_epoch=*/0, /*slots=*/1);
  OneWeightSet target(model.arena_bytes());
  member::GrpcReceiver transport;
  const MemberSecret secret = testing::GetSecret("r");
  const MemberId id = synchronizer::RollouterId(0, secret.incarnation());
  synchronizer::WeightReceiver receiver({.manifest = model, .member = id}, &target, {&transport});
  member::ReceiverParticipant participant(&receiver);
  member::MemberClient::Options options;
  options.synchronizer_address = host.address();
  options.hello = synchronizer::HelloFor(id, std::make_shared<Manifest>(model));
  options.secret = secret;
  options.serving = [&receiver] {
    return member::MemberClient::Serving{receiver.serving(), receiver.serving_digest()};
  };
  auto client = *member::MemberClient::Start(options, &participant);
  ASSERT_TRUE(client->WaitForWelcome(kTestDeadline).ok());
  for (int64_t step = 1; step <= kVersions; ++step) {
    ASSERT_TRUE(trainer.Publish(step).ok());
    target.Published(step);
  }
  EXPECT_TRUE(host.WaitForRecord([](const v1::SyncRecord& record) {
    return record.version().step() == kVersions &&
           synchronizer::ClassifySyncResult(record.result()) == synchronizer::SyncOutcome::kDone;
  }));
  for (const v1::SyncRecord& record : host.Records()) {
    EXPECT_NE(synchronizer::ClassifySyncResult(record.result()), synchronizer::SyncOutcome::kFailed)
        << record.result() << ": " << record.detail();
  }
  EXPECT_EQ(receiver.serving().step, kVersions);
  EXPECT_EQ(target.stops, target.installs + target.kept + target.torn)
      << "generation stops only for a version that arrives";
  EXPECT_GE(host.Status().syncs_superseded(), 1);
  client->Stop(kTestDeadline);
}

}  // namespace
}  // namespace syncopate::synchronizerd
