#pragma once

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/mutex.h"
#include "services/rpc/server.h"
#include "services/rpc/status.h"
#include "syncopate/v1/rollout.grpc.pb.h"
#include "syncopate/v1/synchronizer.grpc.pb.h"
#include "syncopate/v1/trainer.grpc.pb.h"
#include "tests/support/notification.h"

// Daemons with fixed answers, for tests of their clients. Each daemon records the calls that it got.
namespace syncopate::testing {

// The names of calls in order, and the error with which each call is to be refused. Thread-safe.
class CallBook {
 public:
  // Records a call and returns the error with which the call must end.
  grpc::Status Note(const std::string& call) {
    MutexLock lock(&mutex_);
    calls_.push_back(call);
    auto refusal = refusals_.find(call);
    return rpc::ToGrpc(refusal == refusals_.end() ? absl::OkStatus() : refusal->second);
  }
  void Refuse(const std::string& call, absl::Status error) {
    MutexLock lock(&mutex_);
    refusals_[call] = std::move(error);
  }
  // Returns true as soon as there were `count` calls of that name; false after a long wait.
  bool WaitFor(const std::string& call, int64_t count) {
    MutexLock lock(&mutex_);
    auto enough = [this, &call, count]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return std::count(calls_.begin(), calls_.end(), call) >= count;
    };
    return mutex_.AwaitWithTimeout(Condition(&enough), kTestDeadline);
  }
  std::vector<std::string> calls() const {
    MutexLock lock(&mutex_);
    return calls_;
  }

 private:
  mutable Mutex mutex_;
  std::vector<std::string> calls_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, absl::Status> refusals_ ABSL_GUARDED_BY(mutex_);
};

class FakeSynchronizer final : public v1::SynchronizerService::Service {
 public:
  CallBook book;

  grpc::Status GetStatus(grpc::ServerContext*, const v1::SynchronizerServiceGetStatusRequest*,
                         v1::SynchronizerServiceGetStatusResponse* response) override {
    response->set_run_id("run-1");
    SetVersion(42, response->mutable_newest());
    response->set_trainers_alive(1);
    response->set_rollouters_alive(2);
    response->set_syncs_ok(84);
    response->set_syncs_superseded(3);
    return book.Note("GetStatus");
  }
  grpc::Status ListMembers(grpc::ServerContext*, const v1::ListMembersRequest*,
                           v1::ListMembersResponse* response) override {
    auto* member = response->add_members();
    member->mutable_member()->set_replica_id("rollouter-0");
    member->mutable_member()->set_incarnation("0123456789abcdef");
    member->set_state(v1::MEMBER_STATE_SUSPECT);
    member->set_address("127.0.0.1:9");
    member->set_detail("slow");
    SetVersion(41, member->mutable_serving());
    return book.Note("ListMembers");
  }
  grpc::Status ListVersions(grpc::ServerContext*, const v1::ListVersionsRequest*,
                            v1::ListVersionsResponse* response) override {
    auto* version = response->add_versions();
    SetVersion(42, version->mutable_version());
    version->set_digest(0xabcdef);
    version->set_served_by(2);
    version->set_published_unix_seconds(1.8e9);
    return book.Note("ListVersions");
  }
  int failures_of_rollouter_1 = 0;  // failures, 6 s apart, that WatchSyncs reports, too; set it before the first call
  // With `follow` the first call gets three more records, the last of them a failure; the stream stays open until
  // Release.
  grpc::Status WatchSyncs(grpc::ServerContext*, const v1::WatchSyncsRequest* request,
                          grpc::ServerWriter<v1::WatchSyncsResponse>* writer) override {
    const bool first = request->follow() && !followed_.exchange(true);
    const int records = request->last() + (first ? 3 : 0);
    for (int i = 0; i < records; ++i) {
      v1::WatchSyncsResponse response;
      auto* record = response.mutable_record();
      record->set_attempt(i + 1);
      SetVersion(i + 1, record->mutable_version());
      record->set_replica_id("rollouter-0");
      record->set_transport("grpc");
      record->set_result(i == 2 ? "DEADLINE" : "ok");
      record->set_bytes(412345);
      (*record->mutable_seconds())["total"] = 0.0061;
      (*record->mutable_bytes_by_kind())["full"] = 400000;
      (*record->mutable_bytes_by_kind())["lora"] = 12345;
      record->add_bytes_by_source(200345);
      record->add_bytes_by_source(212000);
      record->set_gigabytes_per_second(0.25);
      record->set_transport_reason("all members offer it");
      record->set_pause_seconds(0.0001);
      writer->Write(response);
    }
    for (int i = 0; first && i < failures_of_rollouter_1; ++i) {
      v1::WatchSyncsResponse response;
      response.mutable_record()->set_replica_id("rollouter-1");
      response.mutable_record()->set_result("DUPLICATE_GPU");
      response.mutable_record()->set_detail("two members sit on one GPU");
      response.mutable_record()->set_ended_unix_seconds(1e9 + 6 * i);
      writer->Write(response);
    }
    grpc::Status status = book.Note("WatchSyncs");
    if (request->follow()) released_.WaitForNotification();
    return status;
  }
  // Ends the streams of callers that follow.
  void Release() {
    if (!released_.HasBeenNotified()) released_.Notify();
  }
  grpc::Status TriggerSync(grpc::ServerContext*, const v1::TriggerSyncRequest* request,
                           v1::TriggerSyncResponse* response) override {
    SetVersion(42, response->mutable_version());
    response->set_receivers(1);
    return book.Note(request->request_id().empty() ? "TriggerSync without id" : "TriggerSync");
  }
  grpc::Status EvictMember(grpc::ServerContext*, const v1::EvictMemberRequest* request,
                           v1::EvictMemberResponse*) override {
    return book.Note("EvictMember " + request->replica_id() + " " + request->reason());
  }

 private:
  static void SetVersion(int64_t step, v1::PolicyVersion* version) {
    version->set_epoch(1);
    version->set_step(step);
  }

  absl::Notification released_;
  std::atomic<bool> followed_ = false;
};

class FakeTrainer final : public v1::TrainerService::Service {
 public:
  CallBook book;

  grpc::Status GetStatus(grpc::ServerContext*, const v1::TrainerServiceGetStatusRequest*,
                         v1::TrainerServiceGetStatusResponse* response) override {
    response->mutable_version()->set_epoch(1);
    response->mutable_version()->set_step(42);
    response->set_steps_total(150);
    response->set_state("running");
    response->set_staleness_bound(4);
    response->set_failed_checkpoints(2);
    response->set_checkpoint_error("e1-s40: no space left");
    response->set_best_checkpoint("e1-s39");
    response->set_best_checkpoint_reward(0.75);
    (*response->mutable_groups())["skipped"] = 3;
    auto* why = response->mutable_explanation();
    why->set_waiting_for("groups");
    why->set_rollouter("rollouter-1");
    why->set_detail("3 of 16 groups are done");
    why->set_unblocked_by("13 more groups");
    auto* rollouter = response->add_rollouters();
    rollouter->set_replica_id("rollouter-1");
    rollouter->set_connected(true);
    *response->mutable_reward_failures() = reward_failures;
    rollouter->set_publish_lag_steps(7);
    if (sizing.has_value()) *response->mutable_sizing() = *sizing;
    rollouter->set_no_rewards(no_rewards);
    return book.Note("GetStatus");
  }
  std::optional<v1::Sizing> sizing;  // set the three fields before the first call
  v1::RewardFailures reward_failures;
  std::string no_rewards;  // the reason that rollouter-1 gives
  grpc::Status Pause(grpc::ServerContext*, const v1::TrainerServicePauseRequest* request,
                     v1::TrainerServicePauseResponse*) override {
    return book.Note(request->request_id().empty() ? "Pause without id" : "Pause");
  }
  grpc::Status Resume(grpc::ServerContext*, const v1::TrainerServiceResumeRequest*,
                      v1::TrainerServiceResumeResponse*) override {
    return book.Note("Resume");
  }
  grpc::Status Stop(grpc::ServerContext*, const v1::StopRequest*, v1::StopResponse*) override {
    return book.Note("Stop");
  }
  grpc::Status SaveCheckpoint(grpc::ServerContext*, const v1::TrainerServiceSaveCheckpointRequest*,
                              v1::TrainerServiceSaveCheckpointResponse* response) override {
    response->set_name("e1-s42");
    return book.Note("SaveCheckpoint");
  }
  grpc::Status ExportModel(grpc::ServerContext*, const v1::TrainerServiceExportModelRequest*,
                           v1::TrainerServiceExportModelResponse* response) override {
    response->set_path("/runs/x/exports/e1-s42");
    return book.Note("ExportModel");
  }
  grpc::Status RolloutMode(grpc::ServerContext*, const v1::TrainerServiceRolloutModeRequest*,
                           v1::TrainerServiceRolloutModeResponse*) override {
    return book.Note("RolloutMode");
  }
  grpc::Status TrainerMode(grpc::ServerContext*, const v1::TrainerServiceTrainerModeRequest*,
                           v1::TrainerServiceTrainerModeResponse*) override {
    return book.Note("TrainerMode");
  }
  grpc::Status WatchSteps(grpc::ServerContext*, const v1::WatchStepsRequest* request,
                          grpc::ServerWriter<v1::WatchStepsResponse>* writer) override {
    for (int i = 0; i < request->last(); ++i) {
      v1::WatchStepsResponse response;
      response.set_step(i + 1);
      response.set_metrics_json("{\"step\":" + std::to_string(i + 1) + ",\"reward_mean\":0.5}");
      writer->Write(response);
    }
    return book.Note("WatchSteps");
  }
};

class FakeRollouter final : public v1::RolloutService::Service {
 public:
  CallBook book;
  std::string name;

  grpc::Status GetStatus(grpc::ServerContext*, const v1::RolloutServiceGetStatusRequest*,
                         v1::RolloutServiceGetStatusResponse* response) override {
    response->mutable_member()->set_replica_id(name);
    response->set_state("running");
    response->mutable_serving()->set_epoch(1);
    response->mutable_serving()->set_step(41);
    response->set_generated_tokens(12345);
    response->set_busy_seconds(9);
    response->set_idle_seconds(1);
    return book.Note("GetStatus");
  }
  grpc::Status Generate(grpc::ServerContext*, const v1::GenerateRequest* request,
                        v1::GenerateResponse* response) override {
    for (int32_t id : request->prompt_ids()) response->add_tokens(id + 100);
    for (int i = 0; i < response->tokens_size(); ++i) response->add_logprobs(-0.5f);
    auto* span = response->add_spans();
    span->mutable_version()->set_epoch(1);
    span->mutable_version()->set_step(7);
    span->set_end(response->tokens_size());
    return book.Note("Generate");
  }
  grpc::Status GenerateStream(grpc::ServerContext*, const v1::GenerateStreamRequest* request,
                              grpc::ServerWriter<v1::GenerateStreamResponse>* writer) override {
    for (int32_t id : request->request().prompt_ids()) {
      v1::GenerateStreamResponse token;
      token.set_token(id + 100);
      writer->Write(token);
    }
    return book.Note("GenerateStream");
  }
  grpc::Status Abort(grpc::ServerContext*, const v1::AbortRequest* request, v1::AbortResponse* response) override {
    response->set_aborted(3);
    return book.Note("Abort " + request->request_id());
  }
  grpc::Status Pause(grpc::ServerContext*, const v1::RolloutServicePauseRequest*,
                     v1::RolloutServicePauseResponse*) override {
    return book.Note("Pause");
  }
  grpc::Status Resume(grpc::ServerContext*, const v1::RolloutServiceResumeRequest*,
                      v1::RolloutServiceResumeResponse*) override {
    return book.Note("Resume");
  }
  grpc::Status Drain(grpc::ServerContext*, const v1::DrainRequest*, v1::DrainResponse*) override {
    return book.Note("Drain");
  }
  grpc::Status Sleep(grpc::ServerContext*, const v1::SleepRequest* request, v1::SleepResponse* response) override {
    response->set_freed_bytes(int64_t{5} << 20);
    return book.Note(absl::StrCat("Sleep ", request->level()));
  }
  grpc::Status WakeUp(grpc::ServerContext*, const v1::WakeUpRequest*, v1::WakeUpResponse*) override {
    return book.Note("WakeUp");
  }
  grpc::Status RolloutMode(grpc::ServerContext*, const v1::RolloutServiceRolloutModeRequest*,
                           v1::RolloutServiceRolloutModeResponse*) override {
    return book.Note("RolloutMode");
  }
  grpc::Status TrainerMode(grpc::ServerContext*, const v1::RolloutServiceTrainerModeRequest*,
                           v1::RolloutServiceTrainerModeResponse*) override {
    return book.Note("TrainerMode");
  }
};

// One synchronizer, one trainer and two rollouters on loopback ports.
class FakeRun {
 public:
  FakeRun() {
    synchronizer_server_ = Serve(&synchronizer);
    trainer_server_ = Serve(&trainer);
    for (int i = 0; i < 2; ++i) {
      rollouters[i].name = absl::StrCat("rollouter-", i);
      rollouter_servers_.push_back(Serve(&rollouters[i]));
    }
  }

  ~FakeRun() { synchronizer.Release(); }

  std::string synchronizer_address() const { return synchronizer_server_->address(); }
  std::string trainer_address() const { return trainer_server_->address(); }
  std::string rollouter_address(int index) const { return rollouter_servers_[index]->address(); }
  void StopRollouter(int index) { rollouter_servers_[index]->Stop(absl::ZeroDuration()); }

  FakeSynchronizer synchronizer;
  FakeTrainer trainer;
  FakeRollouter rollouters[2];

 private:
  static std::unique_ptr<rpc::Server> Serve(grpc::Service* service) {
    auto server = rpc::Server::Start({}, {service});
    SYNCOPATE_CHECK(server.ok());
    return *std::move(server);
  }

  std::unique_ptr<rpc::Server> synchronizer_server_;
  std::unique_ptr<rpc::Server> trainer_server_;
  std::vector<std::unique_ptr<rpc::Server>> rollouter_servers_;
};

}  // namespace syncopate::testing
