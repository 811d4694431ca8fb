#pragma once

#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "base/status.h"

namespace syncopate {

// A regular file in memory, read-only: pages come from the disk when they are looked at, and no copy is held. Nobody
// may cut the file short meanwhile: looking at what is gone ends the process. Thread-safe.
class MappedFile {
 public:
  // Follows symbolic links, of which model directories are often made. Errors as base/file_system.h says.
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
