#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace syncopate::synchronizer::ipc {

// A new folder that only this user may enter (0700), for one socket. The destructor removes the socket and the folder.
// Move-only.
class SocketFolder {
 public:
  // Creates the folder in `parent`, for example "/tmp". Also removes folders there that killed processes have left
  // behind. UNAVAILABLE reason SYSTEM.
  static absl::StatusOr<SocketFolder> Create(const std::string& parent);
  SocketFolder(SocketFolder&& other) noexcept;
  SocketFolder& operator=(SocketFolder&&) = delete;
  ~SocketFolder();

  std::string socket_path() const;

 private:
  explicit SocketFolder(std::string path) : path_(std::move(path)) {}

  std::string path_;  // "" if moved from
};

}  // namespace syncopate::synchronizer::ipc
