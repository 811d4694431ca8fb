#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace syncopate::bench {

// A folder of its own that goes with it, unless something went wrong: then the logs in it say what.
class WorkDir {
 public:
  // UNAVAILABLE reason CANNOT_START naming the folder.
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
