#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "synchronizer/nccl/nccl_receiver.h"
#include "synchronizer/nccl/nccl_source.h"
#include "synchronizer/sync_outcome.h"
#include "synchronizer/transport/host_shadow_check.h"
#include "tests/component/synchronizer/synchronizer_host.h"
#include "tests/component/synchronizer/test_members.h"
#include "tests/support/eventually.h"
#include "tests/support/fake_communicators.h"

// Groups that are formed ahead of need: a real synchronizer, real streams, the transport "nccl" over communicators in
// this process.
namespace syncopate::synchronizerd {
namespace {

using synchronizer::StagedVersion;

// One slot of weights in host memory. Its version changes only while the slot has no reader.
class HostSlot final : public synchronizer::WeightStore, public synchronizer::StagedMemory {
 public:
  explicit HostSlot(const Manifest& model) : model_(model), bytes_(model.arena_bytes(), 0) {}

  std::vector<uint64_t> Stage(PolicyVersion version, uint64_t seed) {
    EXPECT_TRUE(synchronizer::FillWeights(model_, seed, bytes_.data()).ok());
    MutexLock lock(&mutex_);
    version_ = version;
    return DigestBuckets(model_, bytes_.data());
  }

  uint64_t fingerprint() const override { return model_.fingerprint(); }
  absl::StatusOr<std::unique_ptr<synchronizer::WeightReader>> Open(PolicyVersion version) override {
    SYNCOPATE_RETURN_IF_ERROR(Check(version));
    return std::make_unique<Reader>(this);
  }
  absl::StatusOr<std::unique_ptr<StagedVersion>> Pin(PolicyVersion version, std::function<void()>) override {
    SYNCOPATE_RETURN_IF_ERROR(Check(version));
    return std::make_unique<Staged>(this);
  }

 private:
  struct Reader final : synchronizer::WeightReader {
    explicit Reader(HostSlot* owner) : of(owner) {}
    absl::Status Read(ByteRange range, char* to) override {
      std::memcpy(to, of->bytes_.data() + range.begin, static_cast<size_t>(range.size()));
      return absl::OkStatus();
    }
    HostSlot* const of;
  };
  struct Staged final : StagedVersion {
    explicit Staged(HostSlot* owner) : of(owner) {}
    const char* data() const override { return of->bytes_.data(); }
    int64_t bytes() const override { return static_cast<int64_t>(of->bytes_.size()); }
    HostSlot* const of;
  };
  absl::Status Check(PolicyVersion version) {
    MutexLock lock(&mutex_);
    if (version == version_) return absl::OkStatus();
    return Error(absl::StatusCode::kNotFound, "VERSION_NOT_STAGED", "not here");
  }

  const Manifest model_;
  std::vector<char> bytes_;
  Mutex mutex_;
  PolicyVersion version_ ABSL_GUARDED_BY(mutex_);
};

// Announced bytes have arrived only when the device's stream has been waited for, so the test looks at the bytes at the
// end.
class StreamOrderedTarget final : public synchronizer::WeightTarget {
 public:
  explicit StreamOrderedTarget(int64_t bytes) : arenas_(bytes) {}
  char* shadow() override { return arenas_.shadow(); }
  absl::StatusOr<synchronizer::InstallResult> Install(const PolicyVersion& version, uint64_t digest,
                                                      absl::Duration deadline) override {
    return arenas_.Install(version, digest, deadline);
  }
  absl::StatusOr<synchronizer::InstallResult> Relabel(const PolicyVersion& version, absl::Duration deadline) override {
    return arenas_.Relabel(version, deadline);
  }
  absl::StatusOr<std::unique_ptr<synchronizer::ShadowCheck>> BeginCheck(
      synchronizer::ShadowContents contents) override {
    return std::make_unique<LateCheck>(arenas_.shadow(), std::move(contents));
  }

 private:
  class LateCheck final : public synchronizer::ShadowCheck {
   public:
    LateCheck(const char* shadow, synchronizer::ShadowContents contents) : check_(shadow, std::move(contents)) {}
    void Arrived(ByteRange range, void*) override { announced_.Put(range); }
    absl::StatusOr<std::vector<uint64_t>> Finish(absl::Duration deadline) override {
      for (const ByteRange& range : announced_.All()) check_.Arrived(range, nullptr);
      return check_.Finish(deadline);
    }

   private:
    synchronizer::HostShadowCheck check_;
    Mailbox<ByteRange> announced_;
  };

  synchronizer::ArenaPair arenas_;
};

synchronizer::Hello GpuHello(const MemberId& id, const Manifest& model) {
  synchronizer::Hello hello = synchronizer::HelloFor(id, std::make_shared<Manifest>(model));
  hello.transports = {"nccl"};
  hello.facts = {"host", "GPU-" + id.replica_id, {}, false, "2.28.9"};
  return hello;
}

synchronizer::NcclReceiver::Options ReceiverOptions(const MemberId& id) {
  synchronizer::NcclReceiver::Options options;
  options.facts = {22809, "GPU-" + id.replica_id};
  return options;
}

class RehearsalTest : public ::testing::Test {
 protected:
  struct Rollouter {
    explicit Rollouter(RehearsalTest* test, int index)
        : id(synchronizer::RollouterId(index, testing::GetIncarnation("r"))),
          target(test->model_.arena_bytes()),
          transport(*synchronizer::NcclReceiver::Create(ReceiverOptions(id), test->GetDevices(&control))),
          receiver({.manifest = test->model_, .member = id}, &target, {transport.get()}),
          participant(&receiver) {
      member::MemberClient::Options options;
      options.synchronizer_address = test->host_.address();
      options.hello = GpuHello(id, test->model_);
      options.secret = testing::GetSecret("r");
      options.serving = [this] { return member::MemberClient::Serving{receiver.serving(), receiver.serving_digest()}; };
      client = *member::MemberClient::Start(options, &participant);
    }
    ~Rollouter() { client->Stop(kTestDeadline); }

    const MemberId id;
    synchronizer::nccl::FakeDeviceControl control;
    StreamOrderedTarget target;
    std::unique_ptr<synchronizer::NcclReceiver> transport;
    synchronizer::WeightReceiver receiver;
    member::ReceiverParticipant participant;
    std::unique_ptr<member::MemberClient> client;
  };

  RehearsalTest() {
    synchronizer::NcclSource::Options nccl;
    nccl.rank = 0;
    nccl.manifest = std::make_shared<const Manifest>(model_);
    nccl.facts = ReceiverOptions(id_).facts;
    transport_ = *synchronizer::NcclSource::Create(
        nccl, &slot_, GetDevices(&control_),
        [this]() -> absl::StatusOr<synchronizer::nccl::UniqueId> { return network_.NewId(); });
    source_ = std::make_unique<synchronizer::WeightSource>(
        &slot_, std::vector<synchronizer::SourceTransport*>{transport_.get()}, synchronizer::WeightSource::Options{});
    participant_ = std::make_unique<member::SourceParticipant>(source_.get());
    member::MemberClient::Options options;
    options.synchronizer_address = host_.address();
    options.hello = GpuHello(id_, model_);
    options.secret = secret_;
    client_ = *member::MemberClient::Start(options, participant_.get());
  }
  ~RehearsalTest() override {
    rollouters_.clear();
    client_->Stop(kTestDeadline);
  }

  void AddRollouter() {
    rollouters_.push_back(std::make_unique<Rollouter>(this, static_cast<int>(rollouters_.size())));
  }
  void Publish(int64_t step) {
    auto welcome = client_->WaitForWelcome(kTestDeadline);
    ASSERT_TRUE(welcome.ok());
    const PolicyVersion version{welcome->epoch, step};
    v1::PublishVersionRequest request;
    request.set_request_id(RandomUuid());
    *request.mutable_member() = wire::ToProto(id_);
    request.set_secret(secret_.Reveal());
    *request.mutable_version() = wire::ToProto(version);
    for (uint64_t digest : slot_.Stage(version, static_cast<uint64_t>(step))) request.add_bucket_digests(digest);
    request.set_manifest_fingerprint(model_.fingerprint());
    auto published =
        rpc::CallUnary(host_.stub(), &v1::SynchronizerService::Stub::PublishVersion, request, kTestDeadline);
    ASSERT_TRUE(published.ok()) << published.status();
  }
  // Returns true once one attempt has ended with `result` for all rollouters.
  bool AllEndWith(const std::string& result, int64_t step) {
    std::map<int64_t, std::set<std::string>> ended;
    return host_.WaitForRecord([&](const v1::SyncRecord& record) {
      if (record.result() != result || record.version().step() != step) return false;
      ended[record.attempt()].insert(record.replica_id());
      return ended[record.attempt()].size() == rollouters_.size();
    });
  }
  // Returns true once every rollouter serves `step`.
  bool AllServe(int64_t step) {
    std::set<std::string> serving;
    return host_.WaitForRecord([&](const v1::SyncRecord& record) {
      if (record.result() == "ok" && record.version().step() == step) serving.insert(record.replica_id());
      return serving.size() == rollouters_.size();
    });
  }
  synchronizer::nccl::GroupWorker::DeviceFactory GetDevices(synchronizer::nccl::FakeDeviceControl* control) {
    return [this, control] { return std::make_unique<synchronizer::nccl::FakeDevice>(&network_, control); };
  }

  const Manifest model_ = synchronizer::SmallModel();
  const MemberSecret secret_ = testing::GetSecret("t");
  const MemberId id_ = synchronizer::TrainerId(secret_.incarnation());
  SynchronizerHost host_{::testing::TempDir() + "synchronizer-" + RandomUuid(), /*prepare_deadline=*/absl::Seconds(5)};
  synchronizer::nccl::FakeNetwork network_;
  synchronizer::nccl::FakeDeviceControl control_;
  HostSlot slot_{model_};
  std::unique_ptr<synchronizer::NcclSource> transport_;
  std::unique_ptr<synchronizer::WeightSource> source_;
  std::unique_ptr<member::SourceParticipant> participant_;
  std::unique_ptr<member::MemberClient> client_;
  std::vector<std::unique_ptr<Rollouter>> rollouters_;
};

TEST_F(RehearsalTest, FormsTheGroupThatTheNextSyncUses) {
  AddRollouter();
  AddRollouter();
  ASSERT_TRUE(AllEndWith("connected", 0));
  int64_t groups = network_.ids();
  Publish(1);
  ASSERT_TRUE(AllServe(1));
  EXPECT_EQ(network_.ids(), groups) << "all groups were formed before";
  // A rollouter that joins late is served at once, in a group of its own; afterwards one group of all members is
  // formed.
  AddRollouter();
  ASSERT_TRUE(AllServe(1));
  ASSERT_TRUE(AllEndWith("connected", 0));
  groups = network_.ids();
  Publish(2);
  ASSERT_TRUE(AllServe(2));
  EXPECT_EQ(network_.ids(), groups);
  for (const v1::SyncRecord& record : host_.Records()) {
    EXPECT_NE(synchronizer::ClassifySyncResult(record.result()), synchronizer::SyncOutcome::kFailed)
        << record.result() << ": " << record.detail();
  }
  EXPECT_EQ(host_.Status().syncs_ok(), 2 + 1 + 3) << "rehearsals are not among them";
}

TEST_F(RehearsalTest, ASyncThatComesWhileAGroupIsFormedUsesIt) {
  AddRollouter();
  rollouters_[0]->control.Freeze(true);  // the rollouter has joined the group and sends nothing
  ASSERT_TRUE(testing::Eventually(kTestDeadline, [&] { return rollouters_[0]->control.counts().joins > 0; }));
  Publish(1);
  rollouters_[0]->control.Freeze(false);
  ASSERT_TRUE(AllServe(1));
  EXPECT_EQ(network_.ids(), 1);
  EXPECT_EQ(rollouters_[0]->control.counts().joins, 1);
  EXPECT_TRUE(AllEndWith("connected", 0));
}

}  // namespace
}  // namespace syncopate::synchronizerd
