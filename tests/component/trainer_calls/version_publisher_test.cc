#include "trainer/loop/version_publisher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "base/identity.h"
#include "services/rpc/server.h"
#include "services/rpc/status.h"
#include "services/trainer/synchronizer_client.h"
#include "services/wire/codec.h"
#include "syncopate/v1/synchronizer.grpc.pb.h"
#include "tests/support/notification.h"
#include "tests/support/status_matchers.h"

namespace syncopate::trainerd {
namespace {

using syncopate::testing::HasReason;
using syncopate::testing::IsOk;

// Answers publications with the entries of `answers`, in order, and repeats the last one.
class PublishingService final : public v1::SynchronizerService::Service {
 public:
  explicit PublishingService(std::vector<absl::Status> answers) : answers_(std::move(answers)) {}
  Mailbox<PolicyVersion> published;
  Mailbox<v1::PublishVersionRequest> requests;

  grpc::Status PublishVersion(grpc::ServerContext*, const v1::PublishVersionRequest* request,
                              v1::PublishVersionResponse*) override {
    const size_t call = std::min(published.size(), answers_.size() - 1);
    requests.Put(*request);
    published.Put(wire::FromProto(request->version()));
    return rpc::ToGrpc(answers_[call]);
  }

 private:
  const std::vector<absl::Status> answers_;
};

class VersionPublisherTest : public ::testing::Test {
 protected:
  void Serve(std::vector<absl::Status> answers) {
    service_ = std::make_unique<PublishingService>(std::move(answers));
    auto server = rpc::Server::Start({}, {service_.get()});
    ASSERT_THAT(server, IsOk());
    server_ = *std::move(server);
    auto client = SynchronizerClient::Create({.address = server_->address(),
                                              .member = {"trainer", "trainer-0", 0, 1, secret_.incarnation()},
                                              .secret = secret_});
    ASSERT_THAT(client, IsOk());
    publisher_.reset();
    client_ = *std::move(client);
    publisher_ = std::make_unique<trainer::VersionPublisher>(trainer::VersionPublisher::Options{
        .tell = [this](const trainer::Publication& version) { return client_->Publish(version); },
        .on_refused = [this](const absl::Status& why) { refused_.Put(why); }});
  }
  void Publish(int64_t step) { publisher_->Publish({.version = {1, step}}); }

  const MemberSecret secret_ = MemberSecret::Draw();
  Mailbox<absl::Status> refused_;
  std::unique_ptr<PublishingService> service_;
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<SynchronizerClient> client_;
  std::unique_ptr<trainer::VersionPublisher> publisher_;
};

TEST_F(VersionPublisherTest, AVersionThatIsRefusedForGoodIsToldOnceAndNothingMoreIsPublished) {
  for (const char* reason : {"FENCED", "VERSION_ORDER", "BAD_DIGESTS"}) {
    const bool bad = std::string(reason) == "BAD_DIGESTS";
    const auto code = bad ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kFailedPrecondition;
    const size_t before = refused_.size();
    Serve({Error(code, reason, "epoch 2 works here")});
    Publish(1);
    ASSERT_TRUE(refused_.WaitFor(before + 1)) << reason;
    EXPECT_THAT(refused_.All()[before], HasReason(reason));
    EXPECT_THAT(std::string(refused_.All()[before].message()), ::testing::HasSubstr("e1-s1"));
    Publish(2);
    publisher_->Stop();
    EXPECT_EQ(refused_.size(), before + 1);
    EXPECT_EQ(service_->published.size(), 1u);
    publisher_.reset();
    server_.reset();
  }
}

TEST_F(VersionPublisherTest, TriesAgainWhatMayPass) {
  Serve({Error(absl::StatusCode::kUnavailable, "STARTING", "a moment"),
         Error(absl::StatusCode::kUnauthenticated, "NO_CREDENTIALS", "a certificate that is being renewed"),
         Error(absl::StatusCode::kResourceExhausted, "TOO_FAST", "later"), absl::OkStatus()});
  Publish(1);
  ASSERT_TRUE(service_->published.WaitFor(4));
  Publish(2);
  ASSERT_TRUE(service_->published.WaitFor(5));
  publisher_->Stop();
  EXPECT_EQ(service_->published.All()[3], (PolicyVersion{1, 1}));
  EXPECT_EQ(service_->published.All()[4], (PolicyVersion{1, 2}));
  EXPECT_EQ(refused_.size(), 0u);
}

TEST_F(VersionPublisherTest, ShowsTheSecretOfTheMemberItSpeaksFor) {
  Serve({absl::OkStatus()});
  Publish(1);
  ASSERT_TRUE(service_->requests.WaitFor(1));
  const v1::PublishVersionRequest request = service_->requests.All()[0];
  EXPECT_THAT(CheckSpeaksFor(wire::FromProto(request.member()).value(), request.secret()), IsOk());
}

}  // namespace
}  // namespace syncopate::trainerd
