#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/file_descriptor.h"

namespace syncopate::daemon {

// A name that at most one process of this host has at a time; "of this host" means the processes that share a network
// namespace, as all of one pod or container do. It is an abstract Unix socket, so that it leaves no file behind, needs
// no permission and no folder that all processes reach, and ends with its process however that ends. Freed by the
// destructor. Immutable.
class HostLock {
 public:
  // Waits until no other object of any process has `name` (at most 90 characters), for at most `wait`; looks about fifty
  // times a second, in no order among those who wait. DEADLINE_EXCEEDED (reason HOST_LOCK_TAKEN) if another has it all
  // the time; INTERNAL (reason HOST_LOCK) if this host has no such sockets.
  static absl::StatusOr<std::shared_ptr<const HostLock>> Acquire(const std::string& name, absl::Duration wait);

 private:
  explicit HostLock(FileDescriptor socket) : socket_(std::move(socket)) {}

  const FileDescriptor socket_;
};

}  // namespace syncopate::daemon
