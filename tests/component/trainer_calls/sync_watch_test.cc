#include "trainer/loop/sync_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>

#include "base/identity.h"
#include "services/rpc/server.h"
#include "services/trainer/synchronizer_client.h"
#include "syncopate/v1/synchronizer.grpc.pb.h"
#include "tests/support/notification.h"
#include "tests/support/status_matchers.h"

namespace syncopate::trainerd {
namespace {

using syncopate::testing::HasReason;

// A synchronizer of one rollouter; each request for its status ends its next attempt.
class CountingService final : public v1::SynchronizerService::Service {
 public:
  std::atomic<bool> succeeds = false;
  std::atomic<int> receivers = 1;
  Mailbox<int64_t> looked;

  grpc::Status GetStatus(grpc::ServerContext*, const v1::SynchronizerServiceGetStatusRequest*,
                         v1::SynchronizerServiceGetStatusResponse* response) override {
    const bool any = receivers > 0;
    response->set_rollouters_alive(receivers);
    response->set_syncs_ok(ok_ += any && succeeds ? 1 : 0);
    response->set_syncs_failed(failed_ += any && !succeeds ? 1 : 0);
    looked.Put(failed_);
    return grpc::Status::OK;
  }
  grpc::Status WatchSyncs(grpc::ServerContext*, const v1::WatchSyncsRequest*,
                          grpc::ServerWriter<v1::WatchSyncsResponse>* writer) override {
    for (const char* result : {"DIGEST_MISMATCH", "SUPERSEDED", "connected", "ok"}) {
      v1::WatchSyncsResponse response;
      response.mutable_record()->set_replica_id("rollouter-0");
      response.mutable_record()->set_result(result);
      response.mutable_record()->set_detail("bucket 3 differs");
      writer->Write(response);
    }
    return grpc::Status::OK;
  }

 private:
  std::atomic<int64_t> ok_ = 0, failed_ = 0;
};

class SyncWatchTest : public ::testing::Test {
 protected:
  void Watch(absl::Duration give_up_after) {
    watch_ = std::make_unique<trainer::SyncWatch>(
        trainer::SyncWatch::Options{.count = [this] { return client_->CountSyncs(); },
                                    .why_failed = [this] { return client_->LastSyncFailure(); },
                                    .give_up_after = give_up_after,
                                    .poll = absl::Milliseconds(2),
                                    .on_failing = [this](const absl::Status& why) { failing_.Put(why); }});
  }

  Mailbox<absl::Status> failing_;
  CountingService service_;
  std::unique_ptr<rpc::Server> server_ = rpc::Server::Start({}, {&service_}).value();
  std::unique_ptr<SynchronizerClient> client_ =
      SynchronizerClient::Create({.address = server_->address(), .secret = MemberSecret::Draw()}).value();
  std::unique_ptr<trainer::SyncWatch> watch_;
};

TEST_F(SyncWatchTest, TellsOnceThatNoSyncSucceedsAndWhyTheLastOneFailed) {
  Watch(absl::Milliseconds(50));
  ASSERT_TRUE(failing_.WaitFor(1));
  EXPECT_THAT(failing_.All()[0], HasReason("SYNC_FAILING"));
  EXPECT_THAT(std::string(failing_.All()[0].message()),
              ::testing::HasSubstr("rollouter-0: DIGEST_MISMATCH bucket 3 differs"));
  EXPECT_TRUE(watch_->failing());
  watch_->Stop();
  EXPECT_EQ(failing_.size(), 1u);
}

TEST_F(SyncWatchTest, SaysNothingWhileSyncsSucceedOrThereIsNobodyToSendTo) {
  service_.succeeds = true;
  Watch(absl::Milliseconds(1));
  ASSERT_TRUE(service_.looked.WaitFor(20));
  EXPECT_FALSE(watch_->failing());
  service_.receivers = 0;
  service_.succeeds = false;
  ASSERT_TRUE(service_.looked.WaitFor(service_.looked.size() + 20));
  EXPECT_FALSE(watch_->failing());
  watch_->Stop();
  EXPECT_EQ(failing_.size(), 0u);
}

}  // namespace
}  // namespace syncopate::trainerd
