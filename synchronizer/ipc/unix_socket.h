#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/file_descriptor.h"
#include "synchronizer/ipc/wire.h"

// Unix sockets that preserve packet boundaries (SOCK_SEQPACKET). No function blocks. Both ends of a connection must
// belong to one user; other connections are refused.
namespace syncopate::synchronizer::ipc {

// UNAVAILABLE reason SYSTEM (with errno in words), INVALID_ARGUMENT reason BAD_PATH if it does not fit a socket
// address.
absl::StatusOr<FileDescriptor> Listen(const std::string& path);

// Accepts the next waiting connection of `listener`; nullopt if there is none. A connection of another user is closed.
// RESOURCE_EXHAUSTED reason NO_DESCRIPTORS if this process has no descriptor left.
absl::StatusOr<std::optional<FileDescriptor>> Accept(const FileDescriptor& listener);

// UNAVAILABLE reason PEER_LOST if no process listens at `path`; PERMISSION_DENIED reason OTHER_USER.
absl::StatusOr<FileDescriptor> Connect(const std::string& path);

// UNAVAILABLE reason PEER_LOST if the peer is gone, or does not read although its buffer is full.
absl::Status Send(int socket, const Message& message, const std::vector<FileDescriptor>& handles = {});

struct Packet {
  Message message;
  std::vector<FileDescriptor> handles;
};

// The next packet; nullopt if none has arrived. UNAVAILABLE reason PEER_LOST if the peer is gone, INVALID_ARGUMENT
// reason BAD_MESSAGE.
absl::StatusOr<std::optional<Packet>> Receive(int socket);

// A descriptor on which threads wait until some thread calls Wake. Thread-safe.
class WakeUp {
 public:
  WakeUp();
  void Wake() const;
  void Clear() const;  // resets it until the next Wake
  int fd() const { return fd_.get(); }

 private:
  FileDescriptor fd_;
};

}  // namespace syncopate::synchronizer::ipc
