#include "base/credential_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace syncopate {
namespace {

constexpr size_t kMaxBytes = 1 << 20;

absl::Status BadFile(const std::string& path, const std::string& what) {
  return BadSecurity(absl::StrCat(path, ": ", what));
}

}  // namespace

absl::StatusOr<std::string> ReadCredentialFile(const std::string& path, Secrecy secrecy) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return BadFile(path, absl::StrCat("cannot be read: ", std::strerror(errno)));
  auto close = absl::MakeCleanup([fd] { ::close(fd); });
  struct stat status {};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) return BadFile(path, "is not a regular file");
  constexpr mode_t kForbidden = S_IRWXO | S_IWGRP;
  if (secrecy == Secrecy::kSecret && (status.st_mode & kForbidden) != 0) {
    return BadFile(path, absl::StrFormat("may be read or changed by others (mode %04o); run chmod 0400 on it",
                                         static_cast<unsigned>(status.st_mode & 07777)));
  }
  std::string contents(kMaxBytes + 1, '\0');
  size_t size = 0;
  for (ssize_t got = 1; got > 0 && size < contents.size(); size += static_cast<size_t>(got)) {
    got = ::read(fd, contents.data() + size, contents.size() - size);
    if (got < 0) return BadFile(path, absl::StrCat("cannot be read: ", std::strerror(errno)));
  }
  if (size > kMaxBytes) return BadFile(path, "is larger than 1 MiB");
  if (size == 0) return BadFile(path, "is empty");
  contents.resize(size);
  return contents;
}

}  // namespace syncopate
