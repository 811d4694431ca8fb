#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace syncopate::bench {

// A temporary folder that is removed with this object, unless Keep() was called: then its logs show what went wrong.
class WorkDir {
 public:
  // UNAVAILABLE reason CANNOT_START that names the folder.
  static absl::StatusOr<WorkDir> Make();
  WorkDir(WorkDir&& other) noexcept;
  ~WorkDir();

  const std::string& path() const { return path_; }
  void Keep() { keep_ = true; }

 private:
  explicit WorkDir(std::string path) : path_(std::move(path)) {}
  std::string path_;
  bool keep_ = false;
};

}  // namespace syncopate::bench
