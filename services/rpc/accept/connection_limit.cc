#include "services/rpc/accept/connection_limit.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file_descriptor.h"
#include "base/status.h"

namespace syncopate::rpc {
namespace {

// The peer's address without its port.
std::string GetPeer(int fd) {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  char host[NI_MAXHOST];
  const bool known = ::getpeername(fd, address, &size) == 0 &&
                     ::getnameinfo(address, size, host, sizeof(host), nullptr, 0, NI_NUMERICHOST) == 0;
  return known ? host : "a peer that is gone";
}

absl::Status TooMany(const std::string& whose, int limit) {
  return Error(absl::StatusCode::kResourceExhausted, "TOO_MANY_CONNECTIONS",
               absl::StrCat(whose, " ", limit, " connections already, which is the limit"));
}

}  // namespace

absl::Status ConnectionLimit::Admit(int fd) {
  // A descriptor number that comes again was closed in between.
  if (auto old = open_.find(fd); old != open_.end()) Forget(old);
  const std::string peer = GetPeer(fd);
  absl::Status status = Check(peer);
  if (!status.ok()) {
    ForgetClosed();
    status = Check(peer);
  }
  const std::optional<ino_t> inode = GetInode(fd);
  if (!status.ok() || !inode.has_value()) return status;
  open_[fd] = {*inode, peer};
  ++peers_[peer];
  return absl::OkStatus();
}

absl::Status ConnectionLimit::Check(const std::string& peer) const {
  auto found = peers_.find(peer);
  if (found != peers_.end() && found->second >= options_.per_peer) {
    return TooMany(absl::StrCat(peer, " has"), options_.per_peer);
  }
  const bool full = open_.size() >= static_cast<size_t>(options_.total);
  return full ? TooMany("there are", options_.total) : absl::OkStatus();
}

void ConnectionLimit::Forget(std::map<int, Connection>::iterator connection) {
  auto peer = peers_.find(connection->second.peer);
  if (--peer->second == 0) peers_.erase(peer);
  open_.erase(connection);
}

void ConnectionLimit::ForgetClosed() {
  for (auto next = open_.begin(); next != open_.end();) {
    auto connection = next++;
    if (GetInode(connection->first) != connection->second.inode) Forget(connection);
  }
}

}  // namespace syncopate::rpc
