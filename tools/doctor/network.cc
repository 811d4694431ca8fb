#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/host_port.h"
#include "base/status.h"
#include "tools/doctor/looks.h"

namespace syncopate::doctor {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

absl::Status Unusable(const std::string& what) {
  return Error(absl::StatusCode::kUnavailable, "ADDRESS_UNUSABLE", what);
}

absl::StatusOr<Addresses> Resolve(const HostPort& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (error != 0) return Unusable(absl::StrCat(address.host, ": ", ::gai_strerror(error)));
  return Addresses(found, &::freeaddrinfo);
}

absl::Status TryToListen(const addrinfo& address) {
  const int listener = ::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener < 0) return Unusable(std::strerror(errno));
  const int on = 1;  // as the daemons do: a recently closed port counts as free
  ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const bool good = ::bind(listener, address.ai_addr, address.ai_addrlen) == 0 && ::listen(listener, 1) == 0;
  absl::Status status = good ? absl::OkStatus() : Unusable(std::strerror(errno));
  ::close(listener);
  return status;
}

absl::Status Try(const std::string& text, bool ours) {
  SYNCOPATE_ASSIGN_OR_RETURN(const HostPort address, ParseHostPort(text));
  SYNCOPATE_ASSIGN_OR_RETURN(const Addresses found, Resolve(address));
  return ours ? TryToListen(*found) : absl::OkStatus();
}

}  // namespace

AddressFacts InspectAddress(const std::string& key, const std::string& address, bool ours) {
  return {key, address, Try(address, ours)};
}

}  // namespace syncopate::doctor
