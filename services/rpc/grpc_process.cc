#include "services/rpc/grpc_threads.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>

#include <memory>

#include "absl/base/call_once.h"

namespace syncopate::rpc {
namespace {

// A callback call is what makes a channel hold the threads. This channel fails every call at once, without a network.
struct ThreadHolder {
  std::shared_ptr<grpc::Channel> channel = grpc::CreateCustomChannel("", nullptr, grpc::ChannelArguments());
  grpc::GenericStub stub{channel};
  grpc::ClientContext context;
  grpc::Slice nothing{"", 0};
  grpc::ByteBuffer request{&nothing, 1};
  grpc::ByteBuffer response;
};

}  // namespace

void KeepGrpcThreads() {
  static absl::once_flag once;
  absl::call_once(once, [] {
    static ThreadHolder* holder = new ThreadHolder();  // never freed: see the header
    holder->stub.UnaryCall(&holder->context, "/syncopate/KeepGrpcThreads", {}, &holder->request, &holder->response,
                           [](grpc::Status) {});
  });
}

}  // namespace syncopate::rpc
