#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace syncopate {

// An address as configurations and endpoint files write it.
struct HostPort {
  std::string host;  // without brackets; a name, an IPv4 or an IPv6 address
  uint16_t port = 0;

  bool IsLoopback() const;       // 127.0.0.0/8, ::1 or localhost
  bool IsWildcard() const;       // 0.0.0.0 or ::
  std::string ToString() const;  // brackets round IPv6
};

// Parses "127.0.0.1:7070", "[::1]:0", "trainer.rl:7071". INVALID_ARGUMENT (reason BAD_ADDRESS) for any other form.
absl::StatusOr<HostPort> ParseHostPort(const std::string& text);

}  // namespace syncopate
