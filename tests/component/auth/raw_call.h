#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>

#include <map>
#include <memory>
#include <string>

#include "services/rpc/channel.h"
#include "services/rpc/status.h"
#include "tests/support/notification.h"

namespace syncopate::auth {

// A call that changes state.
inline constexpr char kEvict[] = "/syncopate.v1.SynchronizerService/EvictMember";

struct RawCall {
  std::string path;  // for example "/package.Service/Method"
  absl::Duration timeout = absl::Seconds(60);
  std::map<std::string, std::string> metadata = {};
};

// Calls any method by its path with an empty message, whether or not there is such a service. Blocks.
inline absl::Status CallRaw(const std::shared_ptr<grpc::Channel>& channel, const RawCall& call) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(rpc::CallDeadline(call.timeout));
  for (const auto& [key, value] : call.metadata) context.AddMetadata(key, value);
  grpc::Slice nothing("", 0);
  grpc::ByteBuffer request(&nothing, 1);
  grpc::ByteBuffer response;
  Mailbox<absl::Status> ended;
  stub.UnaryCall(&context, call.path, {}, &request, &response,
                 [&ended](const grpc::Status& status) { ended.Put(rpc::FromGrpc(status)); });
  if (!ended.WaitFor(1, call.timeout + kTestDeadline)) return absl::InternalError("the call did not end");
  return ended.All().front();
}

}  // namespace syncopate::auth
