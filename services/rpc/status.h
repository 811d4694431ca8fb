#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "base/status.h"
#include "google/rpc/status.pb.h"

// Converts errors between the core and the wire; no other code does. Canonical codes have the same numbers on both
// sides. A reason and its metadata (base/status.h) are sent as google.rpc.ErrorInfo{reason, domain "syncopate",
// metadata} in a google.rpc.Status: in the binary error details of a call, or in a message field. Errors of other
// software keep their code and message. Pure functions; thread-safe.
namespace syncopate::rpc {

constexpr char kErrorDomain[] = "syncopate";

// Trailers share the peer's metadata limit (8 KiB by default), so an outgoing message is cut to this many bytes, and
// metadata entries that do not fit in the same number of bytes again are left out.
constexpr size_t kMaxErrorMessageBytes = 1024;

grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

// For message fields such as SyncReport.error. OK becomes an empty message, and an empty message becomes OK.
google::rpc::Status ToProto(const absl::Status& status);
absl::Status FromProto(const google::rpc::Status& status);

}  // namespace syncopate::rpc
