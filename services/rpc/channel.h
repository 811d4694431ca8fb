#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/auth/transport_security.h"
#include "services/rpc/status.h"

namespace syncopate::rpc {

struct ChannelOptions {
  int64_t max_receive_bytes = 4 << 20;  // a larger message from the server ends the call: RESOURCE_EXHAUSTED
  int64_t max_send_bytes = 64 << 20;    // a larger message of ours is refused before it is sent
  absl::Duration keepalive_time = absl::Seconds(3);                // a ping after this much silence, also without calls
  absl::Duration keepalive_timeout = absl::Seconds(2);             // no answer for this long: the connection is dead
  absl::Duration min_reconnect_backoff = absl::Milliseconds(100);  // gRPC doubles it, with jitter
  absl::Duration max_reconnect_backoff = absl::Seconds(2);
  int64_t max_metadata_bytes = 8 << 10;
  // How this process proves its identity and what the server must prove; null: plaintext.
  std::shared_ptr<const auth::TransportSecurity> security = nullptr;
  std::string peer_role = "";  // role that the server must have: "synchronizer", ...; "": any. Checked with TLS only

  absl::Status Validate() const;
};

// A channel with a connection of its own. Connects in the background: if nothing listens at the address, or TLS fails,
// the first call gets UNAVAILABLE with the cause. `unix:PATH` is a socket of this host, plaintext whatever the
// security: its folder's permissions say who may connect. INVALID_ARGUMENT (reason BAD_ADDRESS) if `address` is neither
// that nor host:port.
absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const std::string& address,
                                                           const ChannelOptions& options = {});

// The time `timeout` from now, in the type that grpc::ClientContext takes. Every unary client call has such a deadline.
std::chrono::system_clock::time_point CallDeadline(absl::Duration timeout);

// One blocking unary call with a deadline:
//   SYNCOPATE_ASSIGN_OR_RETURN(auto reply, CallUnary(stub.get(), &Service::Stub::GetStatus, request,
//   absl::Seconds(5)));
// DEADLINE_EXCEEDED after `timeout`, UNAVAILABLE at once if nothing listens, else the server's status. It blocks: never
// call it from a gRPC callback.
template <typename Stub, typename Request, typename Response>
absl::StatusOr<Response> CallUnary(Stub* stub,
                                   grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                                   const Request& request, absl::Duration timeout) {
  grpc::ClientContext context;
  context.set_deadline(CallDeadline(timeout));
  Response response;
  grpc::Status status = (stub->*method)(&context, request, &response);
  if (!status.ok()) return FromGrpc(status);
  return response;
}

}  // namespace syncopate::rpc
