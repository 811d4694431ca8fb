#include "services/trainer/version_publisher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "services/codec/codec.h"
#include "services/rpc/server.h"
#include "services/rpc/status.h"
#include "syncopate/v1/synchronizer.grpc.pb.h"
#include "tests/support/notification.h"
#include "tests/support/status_matchers.h"

namespace syncopate::services {
namespace {

using syncopate::testing::HasReason;
using syncopate::testing::IsOk;

// Answers publications with what `answers` holds, in order, and the last one for ever.
class PublishingService final : public v1::SynchronizerService::Service {
 public:
  explicit PublishingService(std::vector<absl::Status> answers) : answers_(std::move(answers)) {}
  Mailbox<PolicyVersion> published;

  grpc::Status PublishVersion(grpc::ServerContext*, const v1::PublishVersionRequest* request,
                              v1::PublishVersionResponse*) override {
    const size_t call = std::min(published.size(), answers_.size() - 1);
    published.Put(FromProto(request->version()));
    return ToGrpc(answers_[call]);
  }

 private:
  const std::vector<absl::Status> answers_;
};

class VersionPublisherTest : public ::testing::Test {
 protected:
  void Serve(std::vector<absl::Status> answers) {
    service_ = std::make_unique<PublishingService>(std::move(answers));
    auto server = Server::Start({}, {service_.get()});
    ASSERT_THAT(server, IsOk());
    server_ = *std::move(server);
    auto publisher = VersionPublisher::Start({.synchronizer_address = server_->address(),
                                              .member = {"trainer", "trainer-0", 0, 1, "t"},
                                              .on_fenced = [this](const absl::Status& why) { fenced_.Put(why); }});
    ASSERT_THAT(publisher, IsOk());
    publisher_ = *std::move(publisher);
  }
  void Publish(int64_t step) { publisher_->Publish({.version = {1, step}}); }

  Mailbox<absl::Status> fenced_;
  std::unique_ptr<PublishingService> service_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<VersionPublisher> publisher_;
};

TEST_F(VersionPublisherTest, ATrainerThatWasReplacedHearsOfItOnceAndPublishesNothingMore) {
  Serve({Error(absl::StatusCode::kFailedPrecondition, "FENCED", "epoch 2 works here")});
  Publish(1);
  ASSERT_TRUE(fenced_.WaitFor(1));
  EXPECT_THAT(fenced_.All()[0], HasReason("FENCED"));
  Publish(2);
  publisher_->Stop();
  EXPECT_EQ(fenced_.size(), 1u);
  EXPECT_EQ(service_->published.size(), 1u);
}

TEST_F(VersionPublisherTest, TriesAgainWhileTheSynchronizerIsAwayAndGivesUpWhatItRefuses) {
  Serve({Error(absl::StatusCode::kUnavailable, "STARTING", "a moment"),
         Error(absl::StatusCode::kInvalidArgument, "BAD_DIGESTS", "no"), absl::OkStatus()});
  Publish(1);
  ASSERT_TRUE(service_->published.WaitFor(2));
  Publish(2);
  ASSERT_TRUE(service_->published.WaitFor(3));
  publisher_->Stop();
  EXPECT_THAT(service_->published.All(),
              ::testing::ElementsAre(PolicyVersion{1, 1}, PolicyVersion{1, 1}, PolicyVersion{1, 2}));
  EXPECT_EQ(fenced_.size(), 0u);
}

}  // namespace
}  // namespace syncopate::services
