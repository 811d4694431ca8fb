#include "services/rpc/grpc_process.h"

#include <grpc/support/log.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>

#include <memory>
#include <string>

#include "absl/base/call_once.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace syncopate::rpc {
namespace {

// gRPC logs this for every TLS connection that was dialled by address, where it has no meaning.
bool IsNoise(const std::string& message) { return absl::StartsWith(message, "No match found for server name"); }

Severity GetSeverity(const gpr_log_func_args& line) {
  if (line.severity == GPR_LOG_SEVERITY_DEBUG || IsNoise(line.message)) return Severity::kDebug;
  // gRPC's errors concern one connection or one call, and the owner of that reports them.
  return line.severity == GPR_LOG_SEVERITY_INFO ? Severity::kInfo : Severity::kWarning;
}

void PassOn(gpr_log_func_args* line) {
  const Severity severity = GetSeverity(*line);
  if (LogEnabled(severity)) LogLine(severity, line->file, line->line, absl::StrCat("gRPC: ", line->message));
}

// A callback call makes its channel keep the threads. Calls on this channel fail at once, without a network.
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

void RouteGrpcLog() {
  static absl::once_flag once;
  absl::call_once(once, [] { gpr_set_log_function(&PassOn); });
}

}  // namespace syncopate::rpc
