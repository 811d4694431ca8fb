#pragma once

#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "base/status.h"

namespace syncopate {

// A regular file mapped read-only: a page is read from the disk when it is first accessed, and no copy is made. The
// file must not be truncated meanwhile: an access beyond its end kills the process. Thread-safe.
class MappedFile {
 public:
  // Follows symbolic links, which model directories often consist of. Errors as in base/file_system.h, and
  // INVALID_ARGUMENT (reason NO_FILE) if `path` is no regular file.
  static absl::StatusOr<std::unique_ptr<MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  // Page-aligned.
  absl::string_view bytes() const { return bytes_; }

 private:
  MappedFile(std::string path, absl::string_view bytes) : path_(std::move(path)), bytes_(bytes) {}

  const std::string path_;
  const absl::string_view bytes_;
};

}  // namespace syncopate
