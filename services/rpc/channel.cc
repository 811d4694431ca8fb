#include "services/rpc/channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/support/channel_arguments.h>

#include <algorithm>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/acceptor.h"
#include "services/rpc/grpc_process.h"

namespace syncopate::rpc {

absl::Status ChannelOptions::Validate() const {
  auto positive = [](bool good, const char* name) {
    return good ? absl::OkStatus()
                : Error(absl::StatusCode::kInvalidArgument, "BAD_OPTIONS",
                        absl::StrFormat("ChannelOptions.%s must be positive and fit in 31 bits", name));
  };
  constexpr int64_t kMaxInt = std::numeric_limits<int>::max();
  SYNCOPATE_RETURN_IF_ERROR(positive(max_receive_bytes > 0 && max_receive_bytes <= kMaxInt, "max_receive_bytes"));
  SYNCOPATE_RETURN_IF_ERROR(positive(max_send_bytes > 0 && max_send_bytes <= kMaxInt, "max_send_bytes"));
  SYNCOPATE_RETURN_IF_ERROR(positive(max_metadata_bytes > 0 && max_metadata_bytes <= kMaxInt, "max_metadata_bytes"));
  SYNCOPATE_RETURN_IF_ERROR(positive(keepalive_time > absl::ZeroDuration(), "keepalive_time"));
  SYNCOPATE_RETURN_IF_ERROR(positive(keepalive_timeout > absl::ZeroDuration(), "keepalive_timeout"));
  SYNCOPATE_RETURN_IF_ERROR(positive(min_reconnect_backoff > absl::ZeroDuration(), "min_reconnect_backoff"));
  return positive(max_reconnect_backoff >= min_reconnect_backoff, "max_reconnect_backoff");
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const std::string& address, const ChannelOptions& options) {
  SYNCOPATE_RETURN_IF_ERROR(options.Validate());
  const bool is_socket = absl::StartsWith(address, "unix:");
  if (!is_socket) SYNCOPATE_RETURN_IF_ERROR(CheckTarget(address));
  RouteGrpcLog();
  KeepGrpcThreads();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, static_cast<int>(options.max_receive_bytes));
  arguments.SetInt(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, static_cast<int>(options.max_send_bytes));
  arguments.SetInt(GRPC_ARG_MAX_METADATA_SIZE, static_cast<int>(options.max_metadata_bytes));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, static_cast<int>(absl::ToInt64Milliseconds(options.keepalive_time)));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                   static_cast<int>(absl::ToInt64Milliseconds(options.keepalive_timeout)));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kMaxFrameBytes);
  int min_backoff_ms = static_cast<int>(absl::ToInt64Milliseconds(options.min_reconnect_backoff));
  int max_backoff_ms = static_cast<int>(absl::ToInt64Milliseconds(options.max_reconnect_backoff));
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, min_backoff_ms);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, max_backoff_ms);  // gRPC uses it as the limit of a connect
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, max_backoff_ms);
  // Servers switch it off too: gRPC's probe of the link's bandwidth is useless where messages are small.
  if (options.max_receive_bytes <= ChannelOptions().max_receive_bytes) arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  // A connection of its own: the failure of one client must not affect another in the same process. No proxy from the
  // environment.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  if (options.security == nullptr || is_socket) {
    return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  }
  return grpc::experimental::CreateCustomChannelWithInterceptors(
      address, options.security->ChannelCredentials(options.peer_role), arguments,
      options.security->ClientInterceptors());
}

std::chrono::system_clock::time_point CallDeadline(absl::Duration timeout) {
  return absl::ToChronoTime(absl::Now() + timeout);
}

}  // namespace syncopate::rpc
