#include "base/host_port.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace syncopate {

bool HostPort::IsLoopback() const { return absl::StartsWith(host, "127.") || host == "::1" || host == "localhost"; }

bool HostPort::IsWildcard() const { return host == "0.0.0.0" || host == "::"; }

std::string HostPort::ToString() const {
  bool ipv6 = host.find(':') != std::string::npos;
  return ipv6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

absl::StatusOr<HostPort> ParseHostPort(const std::string& text) {
  absl::Status bad =
      Error(absl::StatusCode::kInvalidArgument, "BAD_ADDRESS",
            absl::StrCat("\"", text, "\" is not host:port, such as 127.0.0.1:7070 or [::1]:7070"), {{"address", text}});
  size_t colon = text.rfind(':');
  if (colon == std::string::npos) return bad;
  HostPort parsed;
  parsed.host = text.substr(0, colon);
  bool bracketed = parsed.host.size() > 2 && parsed.host.front() == '[' && parsed.host.back() == ']';
  if (bracketed) parsed.host = parsed.host.substr(1, parsed.host.size() - 2);
  auto allowed = [bracketed](char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_' || (bracketed && c == ':');
  };
  if (parsed.host.empty() || !std::all_of(parsed.host.begin(), parsed.host.end(), allowed)) return bad;
  std::string port = text.substr(colon + 1);
  uint32_t number = 0;
  bool digits = !port.empty() && std::all_of(port.begin(), port.end(), [](char c) { return absl::ascii_isdigit(c); });
  if (!digits || !absl::SimpleAtoi(port, &number) || number > 65535) return bad;
  parsed.port = static_cast<uint16_t>(number);
  return parsed;
}

}  // namespace syncopate
