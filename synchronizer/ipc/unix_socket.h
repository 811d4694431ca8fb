#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/file_descriptor.h"
#include "synchronizer/ipc/wire.h"

// Unix sockets that keep packets apart (SOCK_SEQPACKET), without ever blocking. Both ends of a connection belong to one
// user: anything else is refused.
namespace syncopate::synchronizer::ipc {

// UNAVAILABLE reason SYSTEM (with errno in words), INVALID_ARGUMENT reason BAD_PATH if it does not fit a socket
// address.
absl::StatusOr<FileDescriptor> Listen(const std::string& path);

// The next connection that waits at `listener`; nothing if there is none. A peer of another user is hung up on.
// RESOURCE_EXHAUSTED reason NO_DESCRIPTORS if this process has no descriptor left.
absl::StatusOr<std::optional<FileDescriptor>> Accept(const FileDescriptor& listener);

// UNAVAILABLE reason PEER_LOST if nobody listens at `path`; PERMISSION_DENIED reason OTHER_USER.
absl::StatusOr<FileDescriptor> Connect(const std::string& path);

// UNAVAILABLE reason PEER_LOST if the peer is gone, or takes nothing although much waits for it.
absl::Status Send(int socket, const Message& message, const std::vector<FileDescriptor>& handles = {});

struct Packet {
  Message message;
  std::vector<FileDescriptor> handles;
};

// The next packet, nothing if none has arrived. UNAVAILABLE reason PEER_LOST if the peer is gone, INVALID_ARGUMENT
// reason BAD_MESSAGE.
absl::StatusOr<std::optional<Packet>> Receive(int socket);

// A descriptor that others wait on until somebody calls Wake. Thread-safe.
class WakeUp {
 public:
  WakeUp();
  void Wake() const;
  void Clear() const;  // until the next Wake
  int fd() const { return fd_.get(); }

 private:
  FileDescriptor fd_;
};

}  // namespace syncopate::synchronizer::ipc
