#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "services/rpc/channel.h"
#include "services/rpc/server.h"
#include "services/synchronizer/synchronizer_service.h"
#include "syncopate/v1/synchronizer.grpc.pb.h"
#include "tests/support/notification.h"

namespace syncopate::synchronizerd {

// A synchronizer on loopback that can be killed, and started again on the same state and port.
class SynchronizerHost {
 public:
  explicit SynchronizerHost(const std::string& state_dir, absl::Duration prepare_deadline = absl::Milliseconds(300)) {
    options_.loop.state_dir = state_dir;
    options_.loop.plane.run_id = "run";
    options_.loop.plane.membership.heartbeat = absl::Milliseconds(200);
    options_.loop.plane.membership.suspect_after = absl::Seconds(1);
    options_.loop.plane.membership.dead_after = absl::Seconds(2);
    options_.loop.plane.sync.min_deadline = absl::Seconds(6);
    options_.loop.plane.sync.prepare_deadline = prepare_deadline;
    Start();
  }
  ~SynchronizerHost() { Kill(); }

  void Start() {
    options_.loop.plane.sync.first_attempt += 1000000;
    auto service = SynchronizerServiceImpl::Start(options_);
    ASSERT_TRUE(service.ok()) << service.status();
    service_ = *std::move(service);
    rpc::Server::Options server;
    server.address = address_;
    auto started = rpc::Server::Start(server, {service_.get()});
    ASSERT_TRUE(started.ok()) << started.status();
    server_ = *std::move(started);
    address_ = server_->address();
    stub_ = v1::SynchronizerService::NewStub(*rpc::MakeChannel(address_));
  }

  // Breaks the streams without a message, as when the process is killed.
  void Kill() {
    if (server_ != nullptr) server_->Stop(absl::ZeroDuration());
    server_.reset();
    service_.reset();
  }

  // Ends in order, as the daemon does.
  void Stop() {
    service_->EndStreams();
    server_->Stop(absl::Seconds(5));
    Kill();
  }

  const std::string& address() const { return address_; }
  v1::SynchronizerService::Stub* stub() { return stub_.get(); }

  v1::SynchronizerServiceGetStatusResponse Status() {
    v1::SynchronizerServiceGetStatusRequest request;
    request.set_with_syncs(true);
    auto status = rpc::CallUnary(stub(), &v1::SynchronizerService::Stub::GetStatus, request, kTestDeadline);
    EXPECT_TRUE(status.ok()) << status.status();
    return status.value_or(v1::SynchronizerServiceGetStatusResponse());
  }

  // The records of the syncs that have ended so far, oldest first.
  std::vector<v1::SyncRecord> Records() {
    v1::WatchSyncsRequest request;
    request.set_last(1000);
    grpc::ClientContext context;
    context.set_deadline(rpc::CallDeadline(kTestDeadline));
    auto reader = stub()->WatchSyncs(&context, request);
    std::vector<v1::SyncRecord> records;
    v1::WatchSyncsResponse response;
    while (reader->Read(&response)) records.push_back(response.record());
    EXPECT_TRUE(reader->Finish().ok());
    return records;
  }

  // Reads a stream of records until one satisfies `wanted`. False if none does.
  template <typename Predicate>
  bool WaitForRecord(Predicate wanted, v1::SyncRecord* found = nullptr) {
    v1::WatchSyncsRequest request;
    request.set_last(1000);
    request.set_follow(true);
    grpc::ClientContext context;
    context.set_deadline(rpc::CallDeadline(kTestDeadline));
    auto reader = stub()->WatchSyncs(&context, request);
    v1::WatchSyncsResponse response;
    while (reader->Read(&response)) {
      if (!wanted(response.record())) continue;
      if (found != nullptr) *found = response.record();
      context.TryCancel();
      return true;
    }
    return false;
  }

  std::vector<v1::MemberStatus> Members() {
    auto members =
        rpc::CallUnary(stub(), &v1::SynchronizerService::Stub::ListMembers, v1::ListMembersRequest(), kTestDeadline);
    EXPECT_TRUE(members.ok()) << members.status();
    return {members->members().begin(), members->members().end()};
  }

 private:
  SynchronizerServiceImpl::Options options_;
  std::string address_ = "127.0.0.1:0";
  std::unique_ptr<SynchronizerServiceImpl> service_;
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<v1::SynchronizerService::Stub> stub_;
};

}  // namespace syncopate::synchronizerd
