#include "services/rpc/status.h"

#include <string>

#include "absl/strings/match.h"
#include "google/rpc/error_details.pb.h"

namespace syncopate::rpc {
namespace {

std::string Shortened(absl::string_view message) {
  if (message.size() <= kMaxErrorMessageBytes) return std::string(message);
  constexpr absl::string_view kMark = " [cut]";
  size_t keep = kMaxErrorMessageBytes - kMark.size();
  // Do not cut inside a UTF-8 sequence: protobuf strings must stay valid.
  while (keep > 0 && (static_cast<unsigned char>(message[keep]) & 0xC0) == 0x80) --keep;
  return std::string(message.substr(0, keep)) + std::string(kMark);
}

// gRPC reports only "Socket closed" when a server accepts the connection and closes it before the first call. A server
// does that when it refuses a certificate, or plaintext.
std::string WithHint(const std::string& message) {
  const bool hung_up = absl::StrContains(message, "failed to connect") && absl::StrContains(message, "Socket closed");
  if (!hung_up) return message;
  return message + " in the handshake: the server's log says whether it refused this client's certificate or plaintext";
}

}  // namespace

google::rpc::Status ToProto(const absl::Status& status) {
  google::rpc::Status proto;
  if (status.ok()) return proto;
  proto.set_code(static_cast<int>(status.code()));
  proto.set_message(Shortened(status.message()));
  google::rpc::ErrorInfo info;
  info.set_reason(ErrorReason(status));
  if (info.reason().empty()) return proto;
  info.set_domain(kErrorDomain);
  size_t bytes = 0;
  for (const auto& [key, value] : ErrorDetails(status)) {
    bytes += key.size() + value.size();
    if (bytes > kMaxErrorMessageBytes) break;
    (*info.mutable_metadata())[key] = value;
  }
  proto.add_details()->PackFrom(info);
  return proto;
}

absl::Status FromProto(const google::rpc::Status& proto) {
  auto code = static_cast<absl::StatusCode>(proto.code());
  if (code == absl::StatusCode::kOk) return absl::OkStatus();
  for (const google::protobuf::Any& detail : proto.details()) {
    google::rpc::ErrorInfo info;
    if (!detail.UnpackTo(&info) || info.domain() != kErrorDomain) continue;
    return Error(code, info.reason(), proto.message(), ErrorMetadata(info.metadata().begin(), info.metadata().end()));
  }
  return absl::Status(code, proto.message());
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  google::rpc::Status proto = ToProto(status);
  std::string details = proto.details().empty() ? std::string() : proto.SerializeAsString();
  return grpc::Status(static_cast<grpc::StatusCode>(proto.code()), proto.message(), details);
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  google::rpc::Status proto;
  // The peer wrote the details: used only if they are about this error.
  if (!status.error_details().empty() && proto.ParseFromString(status.error_details()) &&
      proto.code() == static_cast<int>(status.error_code())) {
    return FromProto(proto);
  }
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), WithHint(status.error_message()));
}

}  // namespace syncopate::rpc
