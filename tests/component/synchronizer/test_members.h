#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/uuid.h"
#include "services/member/grpc_transport.h"
#include "services/member/member_client.h"
#include "services/member/weight_service.h"
#include "services/rpc/bidi_stream.h"
#include "services/rpc/channel.h"
#include "services/rpc/server.h"
#include "services/wire/codec.h"
#include "services/wire/sync_codec.h"
#include "synchronizer/transport/arena_pair.h"
#include "synchronizer/transport/send_arena.h"
#include "tests/support/notification.h"
#include "tests/support/synchronizer_fixtures.h"
#include "tests/support/test_identity.h"

// Members of a run without engines and optimizers: the streams and the weights are real.
namespace syncopate::synchronizerd {

class TestTrainer {
 public:
  TestTrainer(const std::string& synchronizer, const std::string& incarnation, const Manifest& model,
              int64_t checkpoint_epoch = 0, int slots = 2)
      : secret_(testing::GetSecret(incarnation)),
        id_(synchronizer::TrainerId(secret_.incarnation())),
        model_(model),
        arena_(*synchronizer::SendArena::Create(model, {.slots = slots})),
        weights_(arena_.get()),
        server_(*rpc::Server::Start({}, {&weights_})),
        transport_(server_->address()),
        source_(arena_.get(), {&transport_}, {}),
        participant_(&source_),
        stub_(v1::SynchronizerService::NewStub(*rpc::MakeChannel(synchronizer))) {
    member::MemberClient::Options options;
    options.synchronizer_address = synchronizer;
    options.hello = synchronizer::HelloFor(id_, std::make_shared<Manifest>(model));
    options.secret = secret_;
    options.hello.address = server_->address();
    options.hello.checkpoint_epoch = checkpoint_epoch;
    options.on_refused = [this](const absl::Status& status) { refused_.Put(status); };
    client_ = *member::MemberClient::Start(options, &participant_);
  }
  ~TestTrainer() { client_->Stop(absl::Seconds(1)); }

  int64_t Epoch() {
    auto welcome = client_->WaitForWelcome(kTestDeadline);
    EXPECT_TRUE(welcome.ok()) << welcome.status();
    return welcome.ok() ? welcome->epoch : 0;
  }

  // Stages weights made from `seed` as version {Epoch(), step} and publishes the version once.
  absl::StatusOr<v1::PublishVersionResponse> Publish(int64_t step, uint64_t seed) {
    return Publish(step, {}, [this, seed](char* bytes) { return synchronizer::FillWeights(model_, seed, bytes); });
  }
  // Stages and publishes likewise a version in which only these tensors differ from the other versions.
  absl::StatusOr<v1::PublishVersionResponse> PublishAdapters(int64_t step, const synchronizer::Subset& subset) {
    return Publish(step, subset, [this, &subset, step](char* bytes) {
      return synchronizer::FillAdapters(model_, subset.base_digest, subset.adapters, 1000 + step, bytes);
    });
  }
  absl::StatusOr<v1::PublishVersionResponse> Publish(int64_t step, const synchronizer::Subset& subset,
                                                     const synchronizer::SendArena::Fill& fill) {
    PolicyVersion version{Epoch(), step};
    SYNCOPATE_ASSIGN_OR_RETURN(auto staged, arena_->Stage(version, fill));
    v1::PublishVersionRequest request;
    request.set_request_id(RandomUuid());
    *request.mutable_member() = wire::ToProto(id_);
    request.set_secret(secret_.Reveal());
    *request.mutable_version() = wire::ToProto(version);
    request.mutable_bucket_digests()->Assign(staged.bucket_digests.begin(), staged.bucket_digests.end());
    request.set_manifest_fingerprint(model_.fingerprint());
    request.set_stage_seconds(staged.seconds);
    *request.mutable_subset() = wire::ToProto(subset);
    return rpc::CallUnary(stub_.get(), &v1::SynchronizerService::Stub::PublishVersion, request, absl::Seconds(5));
  }
  absl::StatusOr<v1::PublishVersionResponse> Publish(int64_t step) { return Publish(step, 1000 + step); }

  const MemberId& id() const { return id_; }
  const MemberSecret& secret() const { return secret_; }
  Mailbox<absl::Status>& refused() { return refused_; }
  int pinned() const { return source_.pinned(); }
  member::MemberClient* client() { return client_.get(); }

 private:
  const MemberSecret secret_;
  const MemberId id_;
  const Manifest model_;
  std::unique_ptr<synchronizer::SendArena> arena_;
  member::WeightServiceImpl weights_;
  std::unique_ptr<rpc::Server> server_;
  member::GrpcSource transport_;
  synchronizer::WeightSource source_;
  member::SourceParticipant participant_;
  std::unique_ptr<v1::SynchronizerService::Stub> stub_;
  Mailbox<absl::Status> refused_;
  std::unique_ptr<member::MemberClient> client_;
};

// Reports each install to the test.
class NotifyingTarget final : public synchronizer::WeightTarget {
 public:
  explicit NotifyingTarget(int64_t bytes) : arenas_(bytes) {}
  char* shadow() override { return arenas_.shadow(); }
  absl::StatusOr<synchronizer::InstallResult> Install(const PolicyVersion& version, uint64_t digest,
                                                      absl::Duration deadline) override {
    auto result = arenas_.Install(version, digest, deadline);
    installs_.Put(version);
    return result;
  }
  absl::StatusOr<synchronizer::InstallResult> Relabel(const PolicyVersion& version, absl::Duration deadline) override {
    auto result = arenas_.Relabel(version, deadline);
    installs_.Put(version);
    return result;
  }
  bool can_copy_live() const override { return true; }
  absl::Status CopyLive(const std::vector<ByteRange>& ranges) override { return arenas_.CopyLive(ranges); }
  synchronizer::ArenaPair& arenas() { return arenas_; }
  Mailbox<PolicyVersion>& installs() { return installs_; }

 private:
  synchronizer::ArenaPair arenas_;
  Mailbox<PolicyVersion> installs_;
};

class TestRollouter {
 public:
  TestRollouter(const std::string& synchronizer, int index, const std::string& incarnation, const Manifest& model)
      : model_(model),
        target_(model.arena_bytes()),
        id_(synchronizer::RollouterId(index, testing::GetIncarnation(incarnation))),
        receiver_({.manifest = model, .member = id_}, &target_, {&transport_}),
        participant_(&receiver_) {
    member::MemberClient::Options options;
    options.synchronizer_address = synchronizer;
    options.hello = synchronizer::HelloFor(id_, std::make_shared<Manifest>(model));
    options.secret = testing::GetSecret(incarnation);
    options.serving = [this] {
      return member::MemberClient::Serving{receiver_.serving(), receiver_.serving_digest(), "",
                                           receiver_.base_digest()};
    };
    options.on_refused = [this](const absl::Status& status) { refused_.Put(status); };
    client_ = *member::MemberClient::Start(options, &participant_);
  }
  ~TestRollouter() { client_->Stop(absl::Seconds(1)); }

  // Returns true as soon as this rollouter has installed `count` versions in all.
  bool WaitForInstalls(size_t count, absl::Duration deadline = kTestDeadline) {
    return target_.installs().WaitFor(count, deadline);
  }
  std::vector<PolicyVersion> Installs() { return target_.installs().All(); }
  PolicyVersion serving() { return target_.arenas().serving(); }

  bool Serves(uint64_t seed) {
    return Serves([this, seed](char* bytes) { return synchronizer::FillWeights(model_, seed, bytes); });
  }
  bool ServesAdapters(int64_t step, const synchronizer::Subset& subset) {
    return Serves([this, step, &subset](char* bytes) {
      return synchronizer::FillAdapters(model_, subset.base_digest, subset.adapters, 1000 + step, bytes);
    });
  }
  bool Serves(const synchronizer::SendArena::Fill& fill) {
    std::vector<char> expected(model_.arena_bytes(), 0);
    return fill(expected.data()).ok() && std::memcmp(expected.data(), target_.arenas().live(), expected.size()) == 0;
  }

  Mailbox<absl::Status>& refused() { return refused_; }
  member::MemberClient* client() { return client_.get(); }

 private:
  const Manifest model_;
  member::GrpcReceiver transport_;
  NotifyingTarget target_;
  const MemberId id_;
  synchronizer::WeightReceiver receiver_;
  member::ReceiverParticipant participant_;
  Mailbox<absl::Status> refused_;
  std::unique_ptr<member::MemberClient> client_;
};

// A Join stream whose every message the test decides. It sends nothing by itself, not even heartbeats.
class RawMember {
 public:
  using Stream = rpc::ClientBidiStream<v1::JoinRequest, v1::JoinResponse>;

  // `answer` is called for each message with the stream, on a gRPC thread.
  explicit RawMember(const std::string& synchronizer,
                     std::function<void(const v1::JoinResponse&, Stream&)> answer = nullptr)
      : stream_(Stream::Create()) {
    auto stub = v1::SynchronizerService::NewStub(*rpc::MakeChannel(synchronizer));
    stream_->Start(
        [&stub](grpc::ClientContext* context, Stream::Reactor* reactor) { stub->async()->Join(context, reactor); },
        {.on_message =
             [this, answer](v1::JoinResponse message) {
               if (answer) answer(message, *stream_);
               received_.Put(std::move(message));
             },
         .on_done = [this](const absl::Status& status) { done_.Put(status); }});
  }
  ~RawMember() {
    stream_->Cancel();
    EXPECT_TRUE(done_.WaitFor(1));
  }

  // Joins as rollouter `index`, in the incarnation that the test calls `incarnation`.
  void SayHello(int index, const std::string& incarnation, const Manifest& model) {
    SayHello(synchronizer::RollouterId(index, testing::GetIncarnation(incarnation)), testing::GetSecret(incarnation),
             model);
  }
  void SayHello(const MemberId& id, const MemberSecret& secret, const Manifest& model) {
    v1::JoinRequest request;
    *request.mutable_hello() = wire::ToProto(synchronizer::HelloFor(id, std::make_shared<Manifest>(model)));
    request.mutable_hello()->set_secret(secret.Reveal());
    stream_->Write(std::move(request));
  }

  Stream& stream() { return *stream_; }
  Mailbox<v1::JoinResponse>& received() { return received_; }
  Mailbox<absl::Status>& done() { return done_; }

 private:
  Mailbox<v1::JoinResponse> received_;
  Mailbox<absl::Status> done_;
  const std::shared_ptr<Stream> stream_;
};

}  // namespace syncopate::synchronizerd
