#pragma once

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <optional>
#include <utility>

namespace syncopate {

// The inode of an open descriptor's file or socket, which tells whether `fd` still means the same file; nullopt if `fd`
// is closed.
inline std::optional<ino_t> GetInode(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 ? std::optional<ino_t>(status.st_ino) : std::nullopt;
}

// Lets this process open as many files and connections as the system allows it: shells and container runtimes often
// start programs with a soft limit of 1024, which is too low for a daemon with a thousand rollouters. Returns the new
// limit. Call it before any thread opens files.
inline int64_t RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const rlimit raised{limit.rlim_max, limit.rlim_max};
  if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  return static_cast<int64_t>(limit.rlim_cur);
}

// Owns a file descriptor, or none (-1). Move-only.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  // Gives the descriptor up: the caller closes it.
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

}  // namespace syncopate
