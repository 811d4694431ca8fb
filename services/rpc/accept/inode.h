#pragma once

#include <sys/stat.h>

#include <optional>

namespace syncopate::rpc {

// Of an open descriptor's file or socket, which tells whether a number still means the same; none if it is closed.
inline std::optional<ino_t> InodeOf(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 ? std::optional<ino_t>(status.st_ino) : std::nullopt;
}

}  // namespace syncopate::rpc
