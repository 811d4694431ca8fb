// A trainer whose versions no rollouter can install saves a checkpoint, ends, and gives the reason.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/rpc/bidi_stream.h"
#include "services/rpc/server.h"
#include "services/rpc/status.h"
#include "syncopate/v1/synchronizer.grpc.pb.h"
#include "tests/support/run_harness.h"
#include "tests/support/status_matchers.h"

namespace syncopate::testing::refused_trainer_test {
namespace {

using ::testing::HasSubstr;

// Welcomes every member in epoch 1 and answers publications with one status. Each status request finds one more failed
// sync.
class ScriptedSynchronizer final
    : public v1::SynchronizerService::WithCallbackMethod_Join<v1::SynchronizerService::Service> {
 public:
  explicit ScriptedSynchronizer(absl::Status publication = absl::OkStatus()) : publication_(std::move(publication)) {}

  grpc::ServerBidiReactor<v1::JoinRequest, v1::JoinResponse>* Join(grpc::CallbackServerContext* context) override {
    auto stream = rpc::ServerBidiStream<v1::JoinRequest, v1::JoinResponse>::Create(context);
    return stream->Start({.on_message = [stream](const v1::JoinRequest& message) {
      if (!message.has_hello()) return;
      v1::JoinResponse welcome;
      welcome.mutable_welcome()->set_run_id("run-1");
      welcome.mutable_welcome()->set_epoch(1);
      welcome.mutable_welcome()->set_heartbeat_ms(100);
      welcome.mutable_welcome()->set_dead_after_ms(5000);
      stream->Write(std::move(welcome));
    }});
  }
  grpc::Status PublishVersion(grpc::ServerContext*, const v1::PublishVersionRequest*,
                              v1::PublishVersionResponse*) override {
    return rpc::ToGrpc(publication_);
  }
  grpc::Status GetStatus(grpc::ServerContext*, const v1::SynchronizerServiceGetStatusRequest*,
                         v1::SynchronizerServiceGetStatusResponse* response) override {
    response->set_rollouters_alive(1);
    response->set_syncs_failed(++failed_);
    return grpc::Status::OK;
  }
  grpc::Status WatchSyncs(grpc::ServerContext*, const v1::WatchSyncsRequest*,
                          grpc::ServerWriter<v1::WatchSyncsResponse>* writer) override {
    v1::WatchSyncsResponse response;
    response.mutable_record()->set_replica_id("rollouter-0");
    response.mutable_record()->set_result("DIGEST_MISMATCH");
    response.mutable_record()->set_detail("bucket 3 differs");
    writer->Write(response);
    return grpc::Status::OK;
  }
  grpc::Status ListMembers(grpc::ServerContext*, const v1::ListMembersRequest*, v1::ListMembersResponse*) override {
    return grpc::Status::OK;
  }

 private:
  const absl::Status publication_;
  std::atomic<int64_t> failed_ = 0;
};

// The trainer's last message and its exit code, in a run that has only `synchronizer` beside it.
void ExpectEnd(ScriptedSynchronizer* synchronizer, std::vector<std::string> overrides, const std::string& reason) {
  auto server = rpc::Server::Start({}, {synchronizer});
  ASSERT_THAT(server, IsOk());
  RunHarness run(std::move(overrides));
  auto trainer = run.LaunchDaemon("trainer", 0, {absl::StrCat("synchronizer.address=", (*server)->address())});
  ASSERT_THAT(trainer, IsOk());
  auto exit = (*trainer)->WaitExit(kPatience);
  ASSERT_THAT(exit, IsOk());
  EXPECT_EQ(*exit, (ExitStatus{4, 0})) << (*trainer)->Log();
  EXPECT_THAT((*trainer)->Log(), HasSubstr(reason));
  EXPECT_TRUE(std::filesystem::exists(run.Path("checkpoints/e1-s0"))) << "the trained steps are saved";
}

TEST(RefusedTrainerTest, APublicationThatIsRefusedForGoodEndsItWithTheReason) {
  ScriptedSynchronizer synchronizer(
      Error(absl::StatusCode::kFailedPrecondition, "VERSION_ORDER", "version e1-s0 is older than the newest"));
  ExpectEnd(&synchronizer, {}, "VERSION_ORDER");
}

TEST(RefusedTrainerTest, SyncsOfWhichNoneSucceedsForSyncGiveUpAfterEndItWithWhyTheLastOneFailed) {
  ScriptedSynchronizer synchronizer;
  ExpectEnd(&synchronizer, {"sync.prepare_deadline=100ms", "sync.deadline=500ms", "sync.give_up_after=500ms"},
            "SYNC_FAILING");
}

}  // namespace
}  // namespace syncopate::testing::refused_trainer_test
