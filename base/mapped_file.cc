#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file_system.h"

namespace syncopate {

absl::StatusOr<std::unique_ptr<MappedFile>> MappedFile::Open(const std::string& path) {
  // O_NONBLOCK: open() must not block if the path is a pipe.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return FileError("open", path, errno);
  struct stat facts = {};
  if (::fstat(fd, &facts) != 0) {
    const int error = errno;
    ::close(fd);
    return FileError("look at", path, error);
  }
  if (!S_ISREG(facts.st_mode)) {
    ::close(fd);
    return Error(absl::StatusCode::kInvalidArgument, "NO_FILE", absl::StrCat(path, " is no regular file"));
  }
  const size_t size = static_cast<size_t>(facts.st_size);
  void* address = nullptr;
  if (size > 0) address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  const int error = errno;
  ::close(fd);
  if (address == MAP_FAILED) return FileError("map", path, error);
  return std::unique_ptr<MappedFile>(new MappedFile(path, {static_cast<const char*>(address), size}));
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<char*>(bytes_.data()), bytes_.size());
}

}  // namespace syncopate
