// Health v1 as a probe sees it.

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <gtest/gtest.h>

#include <atomic>

#include "services/rpc/channel.h"
#include "services/rpc/server.h"
#include "services/rpc/status.h"
#include "tests/component/rpc/echo_service.h"

namespace syncopate::rpc {
namespace {

// grpc.health.v1 encoded by hand: HealthCheckRequest{string service = 1}, HealthCheckResponse{enum status = 1}.
grpc::ByteBuffer RequestFor(const std::string& service) {
  std::string bytes;
  if (!service.empty()) bytes = std::string("\x0a") + static_cast<char>(service.size()) + service;
  grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

absl::StatusOr<bool> IsServing(const std::string& address, const std::string& service,
                               const std::string& method = "/grpc.health.v1.Health/Check") {
  SYNCOPATE_ASSIGN_OR_RETURN(auto channel, MakeChannel(address));
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(CallDeadline(kTestDeadline));
  grpc::CompletionQueue queue;
  auto call = stub.PrepareUnaryCall(&context, method, RequestFor(service), &queue);
  call->StartCall();
  grpc::ByteBuffer answer;
  grpc::Status status;
  call->Finish(&answer, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  if (!status.ok()) return FromGrpc(status);
  std::vector<grpc::Slice> slices;
  if (!answer.Dump(&slices).ok()) return absl::InternalError("no bytes");
  std::string bytes;
  for (const grpc::Slice& slice : slices) bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return bytes == std::string("\x08\x01", 2);
}

// Returns true once the status is the wanted one; the feed polls many times a second.
bool Becomes(const std::string& address, const std::string& service, bool serving) {
  const absl::Time deadline = absl::Now() + kTestDeadline;
  while (absl::Now() < deadline) {
    auto now = IsServing(address, service);
    if (now.ok() && *now == serving) return true;
  }
  return false;
}

class HealthServiceTest : public ::testing::Test {
 protected:
  HealthFeed::Source Source() {
    return {.live = [this] { return live_.load(); },
            .ready = [this] { return ready_.load(); },
            .services = {"syncopate.v1.SynchronizerService"},
            .every = absl::Milliseconds(1)};
  }
  std::atomic<bool> live_ = true;
  std::atomic<bool> ready_ = false;
};

TEST_F(HealthServiceTest, TellsLivenessAndReadinessApartAndFollowsThem) {
  EchoService service;
  auto server = Server::Start({.health = Source()}, {&service}).value();
  EXPECT_EQ(IsServing(server->address(), "liveness").value(), true);
  for (const char* name : {"", "readiness", "syncopate.v1.SynchronizerService"}) {
    EXPECT_EQ(IsServing(server->address(), name).value(), false) << name;
  }
  EXPECT_EQ(IsServing(server->address(), "nonsense").status().code(), absl::StatusCode::kNotFound);
  ready_ = true;
  for (const char* name : {"", "readiness", "syncopate.v1.SynchronizerService"}) {
    EXPECT_TRUE(Becomes(server->address(), name, true)) << name;
  }
  live_ = false;
  EXPECT_TRUE(Becomes(server->address(), "liveness", false));
  EXPECT_EQ(IsServing(server->address(), "readiness").value(), true);
}

TEST_F(HealthServiceTest, AServerForHealthAloneMayBindAnyAddressAndAnswersNothingElse) {
  auto server = Server::Start({.address = "0.0.0.0:0", .health = Source(), .health_only = true}, {}).value();
  const std::string address = absl::StrCat("127.0.0.1:", server->port());
  EXPECT_EQ(IsServing(address, "liveness").value(), true);
  for (const char* method : {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                             "/grpc.channelz.v1.Channelz/GetServers", "/syncopate.v1.SynchronizerService/GetStatus"}) {
    EXPECT_EQ(IsServing(address, "", method).status().code(), absl::StatusCode::kUnimplemented) << method;
  }
}

}  // namespace
}  // namespace syncopate::rpc
