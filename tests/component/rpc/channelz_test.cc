// channelz on a live server: what an operator sees of the server's connections with grpcdebug or grpcurl.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/util/json_util.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/proto_buffer_writer.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "services/rpc/channel.h"
#include "services/rpc/server.h"
#include "tests/component/rpc/echo_service.h"
#include "tests/support/notification.h"

namespace syncopate::rpc {
namespace {

using Json = nlohmann::json;
using google::protobuf::Message;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// Makes one call of channelz v1. Its messages have no headers here: they are in the library that serves them.
Json Channelz(const std::shared_ptr<grpc::Channel>& channel, const std::string& call, const std::string& request_json) {
  const auto* method =
      google::protobuf::DescriptorPool::generated_pool()->FindMethodByName("grpc.channelz.v1.Channelz." + call);
  if (method == nullptr) return Json();
  auto* factory = google::protobuf::MessageFactory::generated_factory();
  std::unique_ptr<Message> request(factory->GetPrototype(method->input_type())->New());
  std::unique_ptr<Message> response(factory->GetPrototype(method->output_type())->New());
  EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(request_json, request.get()).ok());

  grpc::ClientContext context;
  context.set_deadline(CallDeadline(kTestDeadline));
  grpc::TemplatedGenericStub<Message, Message> stub(channel);
  Mailbox<grpc::Status> done;
  stub.UnaryCall(&context, "/grpc.channelz.v1.Channelz/" + call, {}, request.get(), response.get(),
                 [&done](grpc::Status status) { done.Put(std::move(status)); });
  EXPECT_TRUE(done.WaitFor(1) && done.All()[0].ok());
  std::string json;
  EXPECT_TRUE(google::protobuf::util::MessageToJsonString(*response, &json).ok());
  return Json::parse(json);
}

// In protobuf's JSON, 64-bit numbers are text, and zero is left out.
int64_t Number(const Json& object, const char* key) {
  return object.contains(key) ? std::stoll(object[key].get<std::string>()) : 0;
}

TEST(ChannelzTest, ShowsTheServerItsCallsAndItsConnections) {
  EchoService service;
  auto server = Server::Start({}, {&service}).value();
  auto channel = MakeChannel(server->address()).value();
  auto stub = v1::SynchronizerService::NewStub(channel);
  for (int i = 0; i < 3; ++i) {
    (void)CallUnary(stub.get(), &v1::SynchronizerService::Stub::EvictMember, v1::EvictMemberRequest(), kTestDeadline);
  }
  const Json servers = Channelz(channel, "GetServers", "{}")["server"];
  ASSERT_THAT(servers, SizeIs(1));
  EXPECT_EQ(Number(servers[0]["data"], "callsFailed"), 3) << "no member has the evicted name";
  EXPECT_GE(Number(servers[0]["data"], "callsStarted"), 3);

  const std::string id = servers[0]["ref"]["serverId"];
  const Json sockets =
      Channelz(channel, "GetServerSockets", absl::StrCat(R"({"serverId": ")", id, R"("})"))["socketRef"];
  ASSERT_THAT(sockets, SizeIs(1));
  const std::string socket_id = sockets[0]["socketId"];
  const Json socket = Channelz(channel, "GetSocket", absl::StrCat(R"({"socketId": ")", socket_id, R"("})"))["socket"];
  EXPECT_GE(Number(socket["data"], "streamsStarted"), 3);
  EXPECT_THAT(socket["remote"], Not(IsEmpty())) << "the address of the peer";
}

}  // namespace
}  // namespace syncopate::rpc
