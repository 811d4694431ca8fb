#include "services/rollouter/rollout_node.h"

#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include <filesystem>
#include <future>

#include "services/member/grpc_transport.h"
#include "services/member/weight_service.h"
#include "services/rpc/channel.h"
#include "services/synchronizer/synchronizer_service.h"
#include "services/wire/sync_codec.h"
#include "synchronizer/transport/send_arena.h"
#include "tests/component/rollouter/fake_trainer.h"
#include "tests/component/rollouter/tiny_engine.h"
#include "tests/support/test_identity.h"

namespace syncopate::rollouterd {
namespace {

// A real synchronizer in this process.
class TestSynchronizer {
 public:
  TestSynchronizer() {
    std::filesystem::remove_all(state_);
    synchronizerd::SynchronizerServiceImpl::Options options;
    options.loop.plane.run_id = "run-1";
    options.loop.state_dir = state_;
    service_ = synchronizerd::SynchronizerServiceImpl::Start(std::move(options)).value();
    server_ = rpc::Server::Start({}, {service_.get()}).value();
  }
  ~TestSynchronizer() {
    service_->EndStreams();
    server_->Stop(absl::ZeroDuration());
  }
  const std::string& address() const { return server_->address(); }

 private:
  const std::string state_ = ::testing::TempDir() + "/rollout_node_test_state";
  std::unique_ptr<synchronizerd::SynchronizerServiceImpl> service_;
  std::unique_ptr<rpc::Server> server_;
};

// A trainer that makes a step when the test calls Publish.
class TestTrainer {
 public:
  explicit TestTrainer(const std::string& synchronizer)
      : stub_(v1::SynchronizerService::NewStub(rpc::MakeChannel(synchronizer).value())) {
    member::MemberClient::Options options;
    options.synchronizer_address = synchronizer;
    options.hello.member = member_;
    options.secret = secret_;
    options.hello.address = exchange_.address();
    options.hello.manifest = std::make_shared<const Manifest>(arena_->manifest());
    options.hello.transports = {"grpc"};
    client_ = member::MemberClient::Start(std::move(options), &participant_).value();
    epoch_ = client_->WaitForWelcome(kTestDeadline).value().epoch;
  }
  ~TestTrainer() { client_->Stop(absl::Seconds(1)); }

  // Stages weights made from `seed` as version `step` and returns their digest. With `base_digest` the last tensor alone
  // is an adapter.
  uint64_t Publish(int64_t step, uint64_t seed, uint64_t base_digest = 0) {
    auto staged = arena_->Stage({epoch_, step}, [this, seed](char* arena) {
      model::InitialiseWeights(TinyModel(), arena_->manifest(), seed, reinterpret_cast<float*>(arena));
      return absl::OkStatus();
    });
    EXPECT_TRUE(staged.ok()) << staged.status();
    v1::PublishVersionRequest request;
    *request.mutable_member() = wire::ToProto(member_);
    request.set_secret(secret_.Reveal());
    *request.mutable_version() = wire::ToProto(staged->version);
    request.mutable_bucket_digests()->Add(staged->bucket_digests.begin(), staged->bucket_digests.end());
    request.set_manifest_fingerprint(arena_->fingerprint());
    const auto tensors = static_cast<int32_t>(arena_->manifest().tensors().size());
    if (base_digest != 0) {
      *request.mutable_subset() =
          wire::ToProto(synchronizer::Subset{{{.begin = tensors - 1, .end = tensors}}, base_digest});
    }
    auto published =
        rpc::CallUnary(stub_.get(), &v1::SynchronizerService::Stub::PublishVersion, request, kTestDeadline);
    EXPECT_TRUE(published.ok()) << published.status();
    return staged->digest;
  }
  FakeTrainer& exchange() { return exchange_; }
  int64_t epoch() const { return epoch_; }

 private:
  const MemberSecret secret_ = testing::GetSecret("trainer-life");
  const MemberId member_ = {"trainer", "trainer-0", 0, 1, secret_.incarnation()};
  std::unique_ptr<synchronizer::SendArena> arena_ =
      synchronizer::SendArena::Create(model::MakeManifest(TinyModel(), DType::kFloat32).value(), {}).value();
  member::WeightServiceImpl weights_{arena_.get()};
  FakeTrainer exchange_{"127.0.0.1:0", {&weights_}};
  member::GrpcSource transport_{exchange_.address()};
  synchronizer::WeightSource source_{arena_.get(), {&transport_}, {}};
  member::SourceParticipant participant_{&source_};
  std::unique_ptr<v1::SynchronizerService::Stub> stub_;
  std::unique_ptr<member::MemberClient> client_;
  int64_t epoch_ = 0;
};

class Ignored final : public rollouter::GenerationSink {
  void OnFinished(int32_t, Trajectory) override {}
};

class RolloutNodeTest : public ::testing::Test {
 protected:
  ~RolloutNodeTest() override {
    if (server_ != nullptr) server_->Stop(absl::ZeroDuration());
  }
  void StartNode(const std::string& synchronizer, const std::string& run_id = "") {
    RolloutNode::Options options;
    options.engine.model = TinyModel();
    options.engine.max_sequences = 16;
    options.secret = testing::GetSecret("life-1");
    options.member = {"rollouter", "rollouter-0", 0, 1, options.secret.incarnation()};
    options.run_id = run_id;
    options.run_name = "test";
    options.synchronizer_address = synchronizer;
    options.leases = {.max_groups = 3, .samples_per_group = 2};
    options.heartbeat = absl::Milliseconds(20);
    node_ = RolloutNode::Create(options, registry_).value();
    server_ = rpc::Server::Start({}, {node_->service()}).value();
    ASSERT_TRUE(node_->Join(server_->address(), "127.0.0.1:1").ok());
  }
  static bool Eventually(const std::function<bool()>& condition) {
    absl::Time limit = Clock::Real()->Now() + kTestDeadline;
    while (!condition()) {
      if (Clock::Real()->Now() > limit) return false;
    }
    return true;
  }

  prometheus::Registry registry_;
  std::unique_ptr<RolloutNode> node_;
  std::unique_ptr<rpc::Server> server_;
};

TEST_F(RolloutNodeTest, TakesNewWeightsWhileItGeneratesAndStampsEachTokenWithItsVersion) {
  TestSynchronizer synchronizer;
  TestTrainer trainer(synchronizer.address());
  StartNode(synchronizer.address());
  ASSERT_TRUE(trainer.exchange().WaitFor(ExchangeRequest::kHello).has_value());
  EXPECT_EQ(trainer.exchange().heard().All()[0].hello().run_id(), "run-1");
  trainer.exchange().Welcome();
  uint64_t first_digest = trainer.Publish(0, 7);
  ASSERT_TRUE(Eventually([this] { return node_->engine().GetStatus().installs == 1; }));
  EXPECT_EQ(node_->engine().GetStatus().serving_digest, first_digest);

  Lease lease;
  lease.id = {{0, 1}, 1};
  lease.version = {trainer.epoch(), 0};
  lease.samples = 2;
  lease.prompt_ids = {8, 1, 2, 3, 4, 9};
  lease.reward = "dense";
  lease.sampling.max_new_tokens = 2500;
  trainer.exchange().Offer(lease);
  ASSERT_TRUE(Eventually([this] { return node_->engine().GetStatus().generated_tokens > 0; }));
  uint64_t second_digest = trainer.Publish(1, 8);
  auto submitted = trainer.exchange().WaitFor(ExchangeRequest::kGroup);
  ASSERT_TRUE(submitted.has_value());
  for (const v1::Trajectory& sample : submitted->group().samples()) {
    ASSERT_EQ(sample.spans_size(), 2);  // generation went on during the transfer and the install
    EXPECT_EQ(sample.spans(0).version().step(), 0);
    EXPECT_EQ(sample.spans(1).version().step(), 1);
    EXPECT_EQ(sample.spans(0).end(), sample.spans(1).begin());
    EXPECT_EQ(sample.spans(1).end(), sample.tokens_size());
  }
  EXPECT_EQ(submitted->serving().step(), 1);
  EXPECT_EQ(node_->engine().GetStatus().serving_digest, second_digest);
  EXPECT_NE(first_digest, second_digest);
}

TEST_F(RolloutNodeTest, CountsTheBytesOfEachTransferAndTheTimeThatItTook) {
  auto total = [this](const std::string& name) {
    for (const prometheus::MetricFamily& family : registry_.Collect()) {
      if (family.name == name) return family.metric.at(0).counter.value;
    }
    return -1.0;
  };
  TestSynchronizer synchronizer;
  TestTrainer trainer(synchronizer.address());
  StartNode(synchronizer.address());
  EXPECT_EQ(total("syncopate_weight_received_bytes_total"), 0);
  trainer.Publish(0, 7);
  ASSERT_TRUE(Eventually([this] { return node_->engine().GetStatus().installs == 1; }));
  const double once = total("syncopate_weight_received_bytes_total");
  EXPECT_GE(once, static_cast<double>(node_->engine().manifest().weight_bytes()));
  trainer.Publish(1, 8);
  ASSERT_TRUE(Eventually([this] { return node_->engine().GetStatus().installs == 2; }));
  EXPECT_EQ(total("syncopate_weight_received_bytes_total"), 2 * once);
  EXPECT_GT(total("syncopate_weight_receive_seconds_total"), 0);
}

TEST_F(RolloutNodeTest, LearnsThatTheSynchronizerIsOfAnotherRun) {
  TestSynchronizer synchronizer;
  StartNode(synchronizer.address(), "another-run");
  ASSERT_TRUE(Eventually([this] { return !node_->CheckAlive().ok(); }));
  EXPECT_EQ(ErrorReason(node_->CheckAlive()), "WRONG_RUN");
}

TEST_F(RolloutNodeTest, LeavesInTimeWhenNobodyIsThere) {
  auto nobody = Acceptor::Listen({.host = "127.0.0.1", .port = 0}).value();
  StartNode(nobody->endpoint().ToString());
  absl::Time start = Clock::Real()->Now();
  node_->Leave(absl::Seconds(2));
  node_->Leave(absl::Seconds(2));
  EXPECT_LT(Clock::Real()->Now() - start, absl::Seconds(4));
}

TEST_F(RolloutNodeTest, ADrainThatWaitsForAPausedEngineDoesNotKeepItFromEnding) {
  TestSynchronizer synchronizer;
  TestTrainer trainer(synchronizer.address());
  StartNode(synchronizer.address());
  trainer.Publish(0, 7);
  ASSERT_TRUE(Eventually([this] { return node_->engine().GetStatus().installs == 1; }));
  node_->engine().Pause();
  ASSERT_TRUE(
      node_->engine()
          .Submit({.id = "kept", .prompt_ids = {8, 1}, .sampling = {}, .seeds = {1}}, std::make_shared<Ignored>())
          .ok());
  auto stub = v1::RolloutService::NewStub(rpc::MakeChannel(server_->address()).value());
  auto drained = std::async(std::launch::async, [&stub] {
    return rpc::CallUnary(stub.get(), &v1::RolloutService::Stub::Drain, v1::DrainRequest(), absl::Minutes(5)).status();
  });
  ASSERT_TRUE(
      Eventually([this] { return node_->engine().GetStatus().state == rollouter::EngineStatus::State::kDraining; }));
  absl::Time start = Clock::Real()->Now();
  node_->Leave(absl::ZeroDuration());
  server_->Stop(absl::ZeroDuration());
  drained.wait();
  EXPECT_LT(Clock::Real()->Now() - start, kTestDeadline);
}

TEST_F(RolloutNodeTest, TheTrainerHearsOfItAsOftenAsTheConfigurationSays) {
  TestSynchronizer synchronizer;
  TestTrainer trainer(synchronizer.address());
  StartNode(synchronizer.address());
  ASSERT_TRUE(trainer.exchange().WaitFor(ExchangeRequest::kHello).has_value());
  trainer.exchange().Welcome();
  absl::Time start = Clock::Real()->Now();
  ASSERT_TRUE(trainer.exchange().heard().WaitFor(8));
  EXPECT_LT(Clock::Real()->Now() - start, absl::Seconds(3)) << "one a second without the configuration";
}

TEST_F(RolloutNodeTest, LeavesMetricsThatCanBeReadAfterItIsGone) {
  TestSynchronizer synchronizer;
  StartNode(synchronizer.address());
  auto metrics = node_->metrics();
  server_->Stop(absl::ZeroDuration());
  node_.reset();
  std::string text = prometheus::TextSerializer().Serialize(metrics->Collect());
  EXPECT_NE(text.find("vllm:num_requests_running{model_name=\"test\"} 0"), std::string::npos);
}

TEST_F(RolloutNodeTest, AsleepItIsLeftOutOfSyncsAndAwakeItIsBroughtUpToDateByItself) {
  TestSynchronizer synchronizer;
  TestTrainer trainer(synchronizer.address());
  StartNode(synchronizer.address());
  ASSERT_TRUE(trainer.exchange().WaitFor(ExchangeRequest::kHello).has_value());
  trainer.exchange().Welcome();
  trainer.Publish(0, 7);
  ASSERT_TRUE(Eventually([this] { return node_->engine().GetStatus().installs == 1; }));
  auto stub = v1::RolloutService::NewStub(rpc::MakeChannel(server_->address()).value());
  for (int32_t level : {1, 2}) {
    v1::SleepRequest sleep;
    sleep.set_level(level);
    ASSERT_TRUE(rpc::CallUnary(stub.get(), &v1::RolloutService::Stub::Sleep, sleep, kTestDeadline).ok());
    EXPECT_EQ(ErrorReason(node_->CheckReady()), "ASLEEP");
    const int64_t installs = node_->engine().GetStatus().installs;
    const uint64_t digest = trainer.Publish(level, 7 + level);
    ASSERT_TRUE(rpc::CallUnary(stub.get(), &v1::RolloutService::Stub::WakeUp, v1::WakeUpRequest(), kTestDeadline).ok());
    EXPECT_TRUE(Eventually([this, digest] { return node_->engine().GetStatus().serving_digest == digest; }));
    EXPECT_EQ(node_->engine().GetStatus().installs, installs + 1);
    EXPECT_TRUE(Eventually([this] { return node_->CheckReady().ok(); }));
  }
  auto syncs = v1::SynchronizerService::NewStub(rpc::MakeChannel(synchronizer.address()).value());
  const auto status = rpc::CallUnary(syncs.get(), &v1::SynchronizerService::Stub::GetStatus,
                                     v1::SynchronizerServiceGetStatusRequest(), kTestDeadline);
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(status->syncs_failed(), 0);
}

TEST_F(RolloutNodeTest, AskedToCheckItsWeightsItFindsThatTheyHaveChangedInMemoryAndCannotGoOn) {
  TestSynchronizer synchronizer;
  TestTrainer trainer(synchronizer.address());
  StartNode(synchronizer.address());
  trainer.Publish(0, 7, /*base_digest=*/77);
  ASSERT_TRUE(Eventually([this] { return node_->engine().GetStatus().installs == 1; }));
  auto syncs = v1::SynchronizerService::NewStub(rpc::MakeChannel(synchronizer.address()).value());
  auto succeeded = [&syncs] {
    return rpc::CallUnary(syncs.get(), &v1::SynchronizerService::Stub::GetStatus,
                          v1::SynchronizerServiceGetStatusRequest(), kTestDeadline)
        .value()
        .syncs_ok();
  };
  auto check = [&syncs] {
    return rpc::CallUnary(syncs.get(), &v1::SynchronizerService::Stub::TriggerSync, v1::TriggerSyncRequest(),
                          kTestDeadline)
        .value();
  };
  ASSERT_TRUE(Eventually([&] { return succeeded() == 1; }));
  const v1::TriggerSyncResponse asked = check();
  EXPECT_EQ(asked.receivers(), 0) << "it serves the version";
  EXPECT_EQ(asked.checked(), 1);
  ASSERT_TRUE(Eventually([&] { return succeeded() == 2; }));
  EXPECT_EQ(node_->engine().GetStatus().installs, 1);
  EXPECT_TRUE(node_->CheckAlive().ok());

  const_cast<char*>(node_->engine().live())[100] ^= 1;
  check();
  EXPECT_TRUE(Eventually([this] { return !node_->CheckAlive().ok(); }));
  EXPECT_EQ(ErrorReason(node_->CheckAlive()), "WEIGHTS_DAMAGED");
}

TEST_F(RolloutNodeTest, WhileItEvaluatesItIsLeftOutOfSyncsAndAfterwardsBroughtUpToDateAtOnce) {
  TestSynchronizer synchronizer;
  TestTrainer trainer(synchronizer.address());
  StartNode(synchronizer.address());
  ASSERT_TRUE(trainer.exchange().WaitFor(ExchangeRequest::kHello).has_value());
  trainer.exchange().Welcome();
  trainer.Publish(0, 7);
  ASSERT_TRUE(Eventually([this] { return node_->engine().GetStatus().installs == 1; }));
  auto syncs = v1::SynchronizerService::NewStub(rpc::MakeChannel(synchronizer.address()).value());
  auto status = [&syncs] {
    return rpc::CallUnary(syncs.get(), &v1::SynchronizerService::Stub::GetStatus,
                          v1::SynchronizerServiceGetStatusRequest(), kTestDeadline)
        .value();
  };
  node_->engine().Pause();  // generation of the request below begins, and does not end before Resume
  rollouter::GenerationRequest evaluation;
  evaluation.id = "evaluation";
  evaluation.prompt_ids = {8, 1, 2};
  evaluation.seeds = {1};
  evaluation.holds_install = true;
  ASSERT_TRUE(node_->engine().Submit(evaluation, std::make_shared<Ignored>()).ok());
  ASSERT_TRUE(Eventually([this] { return node_->engine().GetStatus().pins_version; }));
  const uint64_t digest = trainer.Publish(1, 8);
  ASSERT_TRUE(Eventually([&] {
    const v1::SynchronizerServiceGetStatusResponse now = status();
    return now.newest().step() == 1 && now.attempts_under_way() == 0;
  }));
  EXPECT_EQ(node_->engine().GetStatus().installs, 1);
  node_->engine().Resume();
  EXPECT_TRUE(Eventually([this, digest] { return node_->engine().GetStatus().serving_digest == digest; }));
  EXPECT_EQ(status().syncs_failed(), 0);
}

}  // namespace
}  // namespace syncopate::rollouterd
