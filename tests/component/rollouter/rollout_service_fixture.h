#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "services/rollouter/rollout_service.h"
#include "services/rpc/channel.h"
#include "services/rpc/server.h"
#include "tests/component/rollouter/tiny_engine.h"

namespace syncopate::rollouterd {

// The service over a tiny engine, as a client of the service sees both.
class RolloutServiceTest : public ::testing::Test {
 protected:
  using Stub = v1::RolloutService::Stub;

  RolloutServiceTest() {
    RolloutService::Options options;
    options.member = {"rollouter", "rollouter-0", 0, 1, "incarnation"};
    options.max_requests = 12;
    options.set_draining = [this](bool draining) { draining_ = draining; };
    options.set_paused = [this](bool paused) { paused_ = paused; };
    options.set_asleep = [this](bool asleep) { asleep_ = asleep; };
    options.groups_submitted = [] { return int64_t{42}; };
    service_ = std::make_unique<RolloutService>(options, engine_.get());
    server_ = rpc::Server::Start({}, {service_.get()}).value();
    stub_ = v1::RolloutService::NewStub(rpc::MakeChannel(server_->address()).value());
  }
  ~RolloutServiceTest() override {
    server_->Stop(absl::ZeroDuration());
    engine_->Stop();
  }

  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                                const Request& request = {}, absl::Duration timeout = kTestDeadline) {
    return rpc::CallUnary(stub_.get(), method, request, timeout);
  }
  v1::RolloutServiceGetStatusResponse Status() {
    return Call(&Stub::GetStatus, v1::RolloutServiceGetStatusRequest()).value();
  }
  // Polls until the status is the wanted one; false if the deadline passes first.
  bool Await(const std::function<bool(const v1::RolloutServiceGetStatusResponse&)>& wanted) {
    const absl::Time limit = Clock::Real()->Now() + kTestDeadline;
    while (!wanted(Status())) {
      if (Clock::Real()->Now() > limit) return false;
    }
    return true;
  }
  static v1::GenerateRequest Request(const std::string& id, int max_new_tokens = 6) {
    v1::GenerateRequest request;
    request.set_request_id(id);
    for (int token : {8, 1, 2, 3, 4, 9}) request.add_prompt_ids(token);
    request.mutable_sampling()->set_max_new_tokens(max_new_tokens);
    request.mutable_sampling()->set_temperature(1);
    request.set_seed(5);
    return request;
  }
  // Starts a stream that runs for thousands of tokens, and waits for its first token.
  struct Running {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::GenerateStreamResponse>> reader;
    v1::GenerateStreamResponse last;
  };
  std::unique_ptr<Running> StartLong(const std::string& id) {
    auto running = std::make_unique<Running>();
    running->context.set_deadline(rpc::CallDeadline(absl::Seconds(60)));
    v1::GenerateStreamRequest request;
    *request.mutable_request() = Request(id, 3900);
    running->reader = stub_->GenerateStream(&running->context, request);
    EXPECT_TRUE(running->reader->Read(&running->last));
    return running;
  }

  std::atomic<bool> draining_ = false;
  std::atomic<bool> paused_ = false;
  std::atomic<bool> asleep_ = false;
  std::unique_ptr<rollouter::EngineLoop> engine_ = StartTinyEngine();
  std::unique_ptr<RolloutService> service_;
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<Stub> stub_;
};

}  // namespace syncopate::rollouterd
